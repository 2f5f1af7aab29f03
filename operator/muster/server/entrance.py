"""What every request of the API meets first: limits, HEAD, and errors as problems."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.datastructures import Headers

from muster.server.problems import Problem
from muster.server.serving import App, Receive, Scope, Send

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Requests of the API under way; further ones are asked to come again."""
REQUEST_SECONDS: Final = 30.0
"""Until an answer is ready."""
METHODS: Final = ("GET", "HEAD")

Lead = Callable[[Scope], Awaitable[App | None]]
"""Another app that is to answer, or None: the API itself. May raise Problem."""


class Entrance:
    """Lets a request through to `app`, or to whom `elsewhere` names."""

    def __init__(self, app: App, elsewhere: Lead) -> None:
        self._app, self._elsewhere = app, elsewhere
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Any) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        out = _headless(watched) if scope["method"] == "HEAD" else watched
        self._under_way += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._answer(scope, receive, out)
        except Problem as problem:
            await problem.response()(scope, receive, out)
        except TimeoutError:
            if begun:
                raise  # the connection is closed
            await Problem(503, f"no answer within {REQUEST_SECONDS:.0f} s").response()(scope, receive, out)
        finally:
            self._under_way -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["method"] not in METHODS:
            raise Problem(405, "this API only reads: use GET", headers={"Allow": ", ".join(METHODS)})
        if not scope["raw_path"].startswith(b"/"):  # "@elsewhere/" would make a name of whom it is passed on to
            raise Problem(400, "the path of a question begins with /")
        if impersonated := next((name for name in headers if name.startswith("impersonate-")), ""):
            raise Problem(
                400, f"this API answers for the token's own user and impersonates nobody: leave out {impersonated}"
            )
        if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
            raise Problem(413, "a question has no body: leave it out", headers={"Connection": "close"})
        if self._under_way > AT_ONCE:
            raise Problem(429, f"{AT_ONCE} questions are under way already", headers={"Retry-After": "1"})
        other = await self._elsewhere(scope)
        await (other or self._app)({**scope, "method": "GET"}, receive, send)


def _headless(send: Send) -> Send:
    """The headers of a GET, without its body."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return sending
