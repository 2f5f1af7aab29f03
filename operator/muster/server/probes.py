"""/metrics, /healthz and /readyz, without a token; everything else goes on to the API.

Ready means that the caches are full, or that this process stands by; healthy is `muster.telemetry.health`'s word. All
three are asked of the operator's loop: a loop that does not answer is not healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import PlainTextResponse, Response

from muster.server.problems import Problem
from muster.server.serving import HEALTH, READY, App, OnLoop, Receive, Scope, Send
from muster.telemetry.health import stale
from muster.telemetry.metrics import CONTENT_TYPE

ANSWER_SECONDS: Final = 4.0
"""That the loop may take for a probe; kubelet waits for 5 s."""
METRICS_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Probes:
    """What is asked of the operator; all of it is called on its loop.

    Attributes:
        metrics: Prometheus' text.
        ages: seconds since the last sign of life, by what is alive.
        not_ready: why this process isn't ready, or "".
        limit: seconds without a sign of life after which something counts as dead.
    """

    metrics: Callable[[], bytes]
    ages: Callable[[], Mapping[str, float]]
    not_ready: Callable[[], str]
    limit: float

    def health(self) -> str:
        return "\n".join(stale(self.ages(), self.limit))


def with_probes(probes: Probes, loop: OnLoop, api: App | None) -> App:
    """`api` gets the other paths; None: there is none."""

    async def answer(path: str) -> Response | None:
        if path == "/metrics":
            return Response(await loop.ask(probes.metrics, METRICS_SECONDS), headers={"Content-Type": CONTENT_TYPE})
        asked = {HEALTH: probes.health, READY: probes.not_ready}.get(path)
        if asked is None:
            return None
        problem = await loop.ask(asked, ANSWER_SECONDS)
        return PlainTextResponse(problem or "ok", status_code=503 if problem else 200)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path: Any = scope["path"]
        try:
            response = await answer(path)
        except TimeoutError:
            response = PlainTextResponse("the operator's loop does not answer", status_code=503)
        if response is None and api is not None:
            await api(scope, receive, send)
            return
        if response is None:
            response = Problem(404, f"there is no {path} here; try /metrics, /healthz and /readyz").response()
        await response(scope, receive, send)

    return app
