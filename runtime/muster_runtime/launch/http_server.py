"""A small HTTP/1.1 server on asyncio streams: one request a connection, bounded in size, time and number.

Not a general server: bodies need a Content-Length, and every answer closes its connection. That is all that launchers,
the operator and Prometheus need, and it leaves nothing that a slow or broken client could hold open for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

HEAD_LIMIT: Final = 16 * 1024
"""Bytes of request line and headers."""
BODY_LIMIT: Final = 8 * 1024 * 1024
"""Bytes; a membership of 12,500 workers is about 2 MiB."""
READ_TIMEOUT: Final = 15.0
"""Seconds that a client has to send its whole request, and to take the whole answer."""


@dataclass(frozen=True)
class Request:
    """`headers` have lower-case names. `gone` is set when the client hangs up before it has its answer."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    gone: asyncio.Event


@dataclass(frozen=True)
class Response:
    """`takes_over`, of a 101: called with the connection, which is blocking and its own then, in a new thread; where
    none can be started the answer is 503."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    takes_over: Callable[[socket.socket], None] | None = None


class BadRequest(Exception):
    """The request can't be read; `status` says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


Handler = Callable[[Request], Awaitable[Response]]


class Server:
    def __init__(self, handler: Handler, max_connections: int) -> None:
        self._handler = handler
        self._max_connections = max_connections
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Listens on `host` (None: every address) and returns the port. OSError when it is taken."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=HEAD_LIMIT, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self, patience: float) -> None:
        """Stops listening, lets answers that are under way go out for `patience` seconds, then drops the rest."""
        if self._server is not None:
            self._server.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=patience)
        for task in self._connections:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > self._max_connections:
                await _answer(writer, Response(503, b"too many connections\n", "text/plain"))
            else:
                await self._serve(reader, writer)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass  # the client went away or was too slow; there is nobody to tell
        except asyncio.CancelledError:
            pass  # by `close`; a handler that ends as cancelled is an error to asyncio before Python 3.12
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone = asyncio.Event()
        try:
            request = await asyncio.wait_for(_read(reader, gone), READ_TIMEOUT)
        except BadRequest as error:
            await _answer(writer, Response(error.status, f"{error}\n".encode(), "text/plain"))
            return
        watcher = asyncio.ensure_future(_watch(reader, gone))
        try:
            response = await self._handler(request)
        except Exception:  # noqa: BLE001 - one request's bug must not end the launcher; it is shown and answered
            traceback.print_exc(file=sys.stderr)
            response = Response(500, b"internal error, see the launcher's log\n", "text/plain")
        finally:
            watcher.cancel()
        if response.takes_over is None:
            await _answer(writer, response)
        else:
            await _hand_over(writer, response.takes_over)


async def _read(reader: asyncio.StreamReader, gone: asyncio.Event) -> Request:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise BadRequest(431, f"the request's head is over {HEAD_LIMIT} bytes") from error
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(400, "not an HTTP/1.1 request")
    headers = {}
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon:
            raise BadRequest(400, "a header without a colon")
        headers[name.strip().lower()] = value.strip()
    if "transfer-encoding" in headers:
        raise BadRequest(411, "a body needs a Content-Length")
    length = headers.get("content-length", "0")
    if not length.isdigit():
        raise BadRequest(400, "Content-Length is not a number")
    if int(length) > BODY_LIMIT:
        raise BadRequest(413, f"the body is over {BODY_LIMIT} bytes")
    body = await reader.readexactly(int(length))
    return Request(parts[0], parts[1].partition("?")[0], headers, body, gone)


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1024):
            pass
    gone.set()


async def _hand_over(writer: asyncio.StreamWriter, takes_over: Callable[[socket.socket], None]) -> None:
    """Switches protocols. The client says nothing more before it has the answer."""
    given: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()

    def take_over() -> None:
        if (connection := given.get()) is not None:
            takes_over(connection)

    try:
        threading.Thread(target=take_over, daemon=True, name="muster-copy").start()
    except RuntimeError as error:  # the container may have no more of them
        await _answer(writer, Response(503, f"{error}\n".encode(), "text/plain"))
        return
    connection = None
    try:
        connection = await _switched(writer)
    finally:
        given.put(connection)


async def _switched(writer: asyncio.StreamWriter) -> socket.socket:
    """The connection itself, on which the client has been told to go on."""
    transport = writer.transport
    transport.pause_reading()  # type: ignore[attr-defined]
    transport.set_write_buffer_limits(0)
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: muster-copy\r\n\r\n")
    await asyncio.wait_for(writer.drain(), READ_TIMEOUT)
    connection = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
    connection.setblocking(True)
    return connection


async def _answer(writer: asyncio.StreamWriter, response: Response) -> None:
    reason = HTTPStatus(response.status).phrase
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        **response.headers,
    }
    head = f"HTTP/1.1 {response.status} {reason}\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    writer.write(head.encode("latin-1") + b"\r\n" + response.body)
    await asyncio.wait_for(writer.drain(), READ_TIMEOUT)
