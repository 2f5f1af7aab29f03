"""/metrics, /healthz and /readyz over HTTP.

Ready means that the caches are full, or that this process stands by; healthy is `muster.telemetry.health`'s word.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from aiohttp import web

from muster.telemetry.health import stale
from muster.telemetry.metrics import CONTENT_TYPE, Metrics

log = logging.getLogger(__name__)

Ages = Callable[[], Mapping[str, float]]
"""Seconds since the last sign of life, by what is alive."""


class Probes:
    """Serves until stopped.

    Attributes:
        port: the port that was taken.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        ages: Ages,
        not_ready: Callable[[], str],
        refresh: Callable[[], None],
        limit: float,
    ) -> None:
        """`not_ready` says why this process isn't ready, or ""; `refresh` is called before metrics are rendered."""
        self._metrics, self._ages, self._not_ready = metrics, ages, not_ready
        self._refresh, self._limit = refresh, limit
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError when the port is taken."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._serve_metrics),
                web.get("/healthz", self._serve_health),
                web.get("/readyz", self._serve_ready),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.port = self._runner.addresses[0][1]
        log.info("probes and metrics on %s:%d", host, self.port)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        self._refresh()
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _serve_health(self, _: web.Request) -> web.Response:
        problems = stale(self._ages(), self._limit)
        return web.Response(text="\n".join(problems) or "ok", status=503 if problems else 200)

    async def _serve_ready(self, _: web.Request) -> web.Response:
        problem = self._not_ready()
        return web.Response(text=problem or "ok", status=503 if problem else 200)
