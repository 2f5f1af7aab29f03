"""What a shell offers when Tab is pressed behind a command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import typer

from muster.cli.scene import NotThere, connected, listed
from muster.cluster.client import Api
from muster.cluster.credentials import CredentialsError
from muster.cluster.errors import ApiError, ApiUnreachable

PATIENCE_SECONDS: Final = 2.0
"""Nobody waits longer for what Tab does."""


def jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs in the namespace that the line has named so far, else the kubeconfig's; none without an answer."""

    async def ask(api: Api) -> list[dict[str, Any]]:
        return await listed(api, "trainingjobs", context.params.get("namespace") or api.credentials.namespace)

    return _names(context, incomplete, ask)


def queues(context: typer.Context, incomplete: str) -> list[str]:
    """Names of queues; none without an answer."""

    async def ask(api: Api) -> list[dict[str, Any]]:
        return await listed(api, "trainingqueues")

    return _names(context, incomplete, ask)


def _names(context: typer.Context, incomplete: str, ask: Callable[[Api], Awaitable[list[dict[str, Any]]]]) -> list[str]:
    given = context.params

    async def answered() -> list[dict[str, Any]]:
        async with asyncio.timeout(PATIENCE_SECONDS), connected(given.get("kubeconfig"), given.get("context")) as api:
            return await ask(api)

    try:
        names = sorted(raw["metadata"]["name"] for raw in asyncio.run(answered()))
    except (CredentialsError, ApiError, ApiUnreachable, NotThere, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete)]
