"""What a shell offers when Tab is pressed behind a command."""

from __future__ import annotations

import asyncio
from typing import Final

import typer

from muster.cli.scene import NotThere, connected, listed
from muster.cluster.credentials import CredentialsError
from muster.cluster.errors import ApiError, ApiUnreachable

PATIENCE_SECONDS: Final = 2.0
"""Nobody waits longer for what Tab does."""


def jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs in the namespace that the line has named so far, else the kubeconfig's; none without an answer."""
    given = context.params
    try:
        names = asyncio.run(_jobs(given.get("kubeconfig"), given.get("context"), given.get("namespace")))
    except (CredentialsError, ApiError, ApiUnreachable, NotThere, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _jobs(kubeconfig: str | None, context: str | None, namespace: str | None) -> list[str]:
    async with asyncio.timeout(PATIENCE_SECONDS), connected(kubeconfig, context) as api:
        found = await listed(api, "trainingjobs", namespace or api.credentials.namespace)
    return sorted(raw["metadata"]["name"] for raw in found)
