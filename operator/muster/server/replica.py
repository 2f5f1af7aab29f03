"""Puts one replica's HTTP together: probes and metrics always, the API where it is wanted.

FastAPI is imported only then: with its thread and app it costs 16 MiB. So is what reads a history: 24 MiB.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.middleware.gzip import GZipMiddleware

from muster.cluster.client import Api
from muster.server.board import Board
from muster.server.probes import Probes, with_probes
from muster.server.serving import App, OnLoop, Scope
from muster.sizing.prices import Catalogue

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from muster.telemetry.history.database import Renew

GZIP_FROM: Final = 1024
"""Bytes of an answer; shorter ones are not worth it."""
GZIP_LEVEL: Final = 1
"""The fastest: a page of jobs shrinks to a tenth with it already."""


@dataclass(frozen=True)
class History:
    """Its database, as `engine_of` takes it, and the prices for reports of cost."""

    url: URL
    renew: Renew | None
    prices: Catalogue


@dataclass(frozen=True)
class Replica:
    """What the API needs of the operator.

    Attributes:
        connect: a client of the API server for the server's own event loop.
        leading: whether this replica leads. Called from the server's thread.
        leader: `host:port` of the replica that leads, or "". Called from the server's thread.
        kept_seconds: how long the API server's word about tokens and rights is kept.
        history: None where none is kept.
    """

    board: Board
    identity: str
    connect: Callable[[], Awaitable[Api]]
    leading: Callable[[], bool]
    leader: Callable[[], str]
    kept_seconds: float
    history: History | None = None


def reached_at(host: str, port: int) -> str:
    """`host:port` for the other replicas; `host` is what is listened on, or what the settings say."""
    if host in ("", "0.0.0.0", "::"):
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def app_of(probes: Probes, replica: Replica | None) -> Callable[[], AbstractAsyncContextManager[App]]:
    """For `Server`. To be called on the operator's loop."""
    loop = OnLoop()

    @asynccontextmanager
    async def entered() -> AsyncIterator[App]:
        if replica is None:
            yield _zipped(with_probes(probes, loop, None))
            return
        async with _api(replica) as api:
            yield _zipped(with_probes(probes, loop, api))

    return entered


def _zipped(app: App) -> App:
    return GZipMiddleware(app, minimum_size=GZIP_FROM, compresslevel=GZIP_LEVEL)


@asynccontextmanager
async def _api(replica: Replica) -> AsyncIterator[App]:
    from muster.server.app import OPENAPI, Context, build
    from muster.server.entrance import Entrance
    from muster.server.forwarding import Forwarder, session
    from muster.server.identity import Reviewer
    from muster.server.problems import unavailable

    api = await replica.connect()
    past = None
    if replica.history is not None:
        from muster.server.past import Past
        from muster.telemetry.history.reading import Reader

        history = replica.history
        past = Past(Reader(history.url, history.renew), history.prices)
    try:
        async with session() as client:
            forwarder = Forwarder(replica.leader, replica.identity, client)

            async def elsewhere(scope: Scope) -> App | None:
                if replica.board.shown is not None or scope["path"] == OPENAPI:
                    return None
                if replica.leading():
                    raise unavailable("this replica has begun to lead, and still fills its caches")
                return await forwarder.ask(scope)

            reviewer = Reviewer(api, seconds=replica.kept_seconds)
            yield Entrance(build(Context(replica.board, api, reviewer, past)), elsewhere)
    finally:
        if past is not None:
            past.close()
        await api.close()
