"""What a shell offers when Tab is pressed behind a command."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import typer

from muster.cli.scene import NotThere, connected, listed
from muster.cluster.credentials import CredentialsError
from muster.cluster.errors import ApiError, ApiUnreachable

PATIENCE_SECONDS: Final = 2.0
"""Nobody waits longer for what Tab does."""


def jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs in the namespace that the line has named so far, else the kubeconfig's; none without an answer."""
    return _names(context.params, incomplete, "trainingjobs", namespaced=True)


def queues(context: typer.Context, incomplete: str) -> list[str]:
    """Names of queues; none without an answer."""
    return _names(context.params, incomplete, "trainingqueues", namespaced=False)


def _names(given: Mapping[str, Any], incomplete: str, plural: str, *, namespaced: bool) -> list[str]:
    try:
        names = asyncio.run(_listed(given, plural, namespaced=namespaced))
    except (CredentialsError, ApiError, ApiUnreachable, NotThere, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _listed(given: Mapping[str, Any], plural: str, *, namespaced: bool) -> list[str]:
    async with asyncio.timeout(PATIENCE_SECONDS), connected(given.get("kubeconfig"), given.get("context")) as api:
        namespace = (given.get("namespace") or api.credentials.namespace) if namespaced else None
        found = await listed(api, plural, namespace)
    return sorted(raw["metadata"]["name"] for raw in found)
