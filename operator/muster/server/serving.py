"""uvicorn in a thread and an event loop of its own.

A plan of a large cluster keeps the operator's loop busy for a while, and a page of jobs is to come back meanwhile; nor
may a crowd of readers hold up a plan. Handlers run here, and get what is the loop's by asking it (`OnLoop`), or as
snapshots that never change. uvicorn takes no signals outside of the main thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

T = TypeVar("T")
Scope = Any
"""As ASGI defines it, like the two below; uvicorn's and Starlette's types for them differ."""
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

CONNECTIONS: Final = 256
"""At once; further ones get 503, but kubelet its answer: it would take a crowd of readers for the operator's end."""
HEALTH, READY = "/healthz", "/readyz"
"""What kubelet asks."""
HEADER_BYTES: Final = 16 * 1024
"""Of headers that have not come to their end; a token has some 1,000."""
HEADER_SECONDS: Final = 10.0
"""From the connection, or the first byte of its next request, to the end of the headers."""
IDLE_SECONDS: Final = 15
"""That a connection is kept between two requests."""
STOP_SECONDS: Final = 5
"""For requests under way when the process ends."""


class OnLoop:
    """Runs short functions on the event loop that made it, for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def ask(self, function: Callable[[], T], timeout: float) -> T:
        """The function's result. Raises TimeoutError, and what the function raises."""
        asked: concurrent.futures.Future[T] = concurrent.futures.Future()

        def answer() -> None:
            if not asked.set_running_or_notify_cancel():
                return
            try:
                asked.set_result(function())
            except Exception as error:  # noqa: BLE001 - told to whoever asked, in the other thread
                asked.set_exception(error)

        self._loop.call_soon_threadsafe(answer)
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(asked)


class Server:
    """Serves until stopped.

    Attributes:
        port: the port that was taken.
    """

    def __init__(self, app: Callable[[], AbstractAsyncContextManager[App]]) -> None:
        """`app` is entered in the server's thread, and left there."""
        self._app = app
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._server: uvicorn.Server | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. Raises OSError when the port is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=128)
        # What it accepts inherits this. asyncio sets it only where a socket names its protocol, and this one does not:
        # a body would then wait for the client's delayed acknowledgement of the headers, 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = sock.getsockname()[1]
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread = threading.Thread(target=self._run, args=(sock, started), name="http", daemon=True)
        self._thread.start()
        await started
        log.info("probes and metrics on %s:%d", host, self.port)

    async def stop(self) -> None:
        """Take no more connections, let requests under way end, and wait for that."""
        self._stopping.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 2 * STOP_SECONDS)

    def _run(self, sock: socket.socket, started: asyncio.Future[None]) -> None:
        try:
            asyncio.run(self._serve(sock, started))
        except Exception as error:
            log.exception("the HTTP server has ended; the process can't be probed any more")
            started.get_loop().call_soon_threadsafe(_fail, started, error)
        finally:
            sock.close()

    async def _serve(self, sock: socket.socket, started: asyncio.Future[None]) -> None:
        async with self._app() as app:
            config = uvicorn.Config(
                self._bounded(app),
                http=PatientProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # or every stranger who speaks no HTTP writes a line
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=STOP_SECONDS,
                h11_max_incomplete_event_size=HEADER_BYTES,
            )
            self._server = uvicorn.Server(config)
            self._server.should_exit = self._stopping.is_set()
            started.get_loop().call_soon_threadsafe(_done, started)
            await self._server.serve(sockets=[sock])

    def _bounded(self, app: App) -> App:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            assert self._server is not None
            if scope["path"] in (HEALTH, READY) or len(self._server.server_state.connections) <= CONNECTIONS:
                await app(scope, receive, send)
                return
            headers = {"Connection": "close", "Retry-After": "1"}
            response = PlainTextResponse(f"{CONNECTIONS} connections are open already", 503, headers)
            await response(scope, receive, send)

        return answer


class PatientProtocol(H11Protocol):
    """uvicorn's own, but it hangs up on a client that does not come to the end of its headers, or of an answer."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._hang_up)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._hang_up)
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a body that is nonsense, of a good question
            self.cycle.disconnected = True  # whoever answers it has nobody to answer to
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # nor on one that does not read what it has asked for
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _hang_up(self) -> None:
        self._deadline = None
        self.transport.close()


def _done(started: asyncio.Future[None]) -> None:
    if not started.done():
        started.set_result(None)


def _fail(started: asyncio.Future[None], error: Exception) -> None:
    if not started.done():
        started.set_exception(error)
