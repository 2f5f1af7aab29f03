"""Bytes of the shared memory as the body of a PUT, and back: without a copy in between."""

from __future__ import annotations

import functools
import http.client
import io
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import IncompleteReadError, ResponseStreamingError

from muster_protocol.checkpoints.pace import Pace

_PIECE: Final = 1 << 20
"""Bytes that one call to the socket takes, whatever the HTTP library asks for: it means to save memory, and 128 KiB at
a time cost the interpreter more than they save. A connection's time-out counts for each."""
_READ_BYTES: Final = 1 << 22
"""Small enough for the processor's caches, the last of them: what has come is summed while it is there."""
_CHUNK: Final = 1 << 16
"""Bytes of a chunk that are taken at once, at most, for which memory is asked each time."""
_TIME: Final = struct.Struct("@ll")  # the kernel's timeval


class Content(io.RawIOBase):
    """A file on top of memory. `read` gives views, not copies."""

    def __init__(self, memory: memoryview) -> None:
        self._memory, self._at = memory, 0

    def __len__(self) -> int:
        return len(self._memory)

    def read(self, size: int = -1) -> memoryview:
        piece = self._memory[self._at : self._at + _PIECE]
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._memory)}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


def send_unsigned(client: Any) -> None:
    """Bodies that are `Content` are left out of the request's signature, which would want a SHA-256 of every byte.

    Their CRC-32 is a header, which is signed, or they stay in; what decides about a checkpoint (manifest, `LATEST`) is
    no `Content`.
    """
    config = client.meta.config
    settings: Any = {**(config.s3 or {}), "payload_signing_enabled": False}
    unsigned = config.merge(Config(s3=settings))

    def choose(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
        if isinstance(params["body"], Content) and "x-amz-checksum-crc32" in params["headers"]:
            context["client_config"] = unsigned

    client.meta.events.register("before-call.s3.PutObject", choose)


def pieces_into(memory: memoryview, body: Any) -> Iterator[memoryview]:
    """Fills `memory` with a GetObject's body, and yields each piece when it has come.

    urllib3's `readinto` reads into memory of its own and copies that; the http.client response below it doesn't.
    """
    answer, pace = body._raw_stream, Pace.of_an_object()
    at = 0
    try:
        with _receiver(answer._fp, pace) as receive:
            while at < len(memory) and (length := receive(memory[at : at + _READ_BYTES])):
                yield memory[at : at + length]
                at += length
    except (OSError, http.client.HTTPException) as error:
        answer.close()
        raise ResponseStreamingError(error=error) from error
    if at < len(memory):
        answer.close()
        raise IncompleteReadError(actual_bytes=at, expected_bytes=len(memory))
    _leave(answer)


@contextmanager
def _receiver(answer: Any, pace: Pace) -> Iterator[Callable[[memoryview], int]]:
    """What fills memory, or as much of it as there is, with the rest of an http.client response.

    A plain socket does so in one call, waiting in the kernel; Python asks it anew for each segment that has come.
    """
    connection = _plain_socket(answer)
    if connection is None:
        yield functools.partial(_as_it_comes, answer, pace)
        return
    ahead = len(answer.fp.peek())  # came with the headers; at least a byte, when there is any to come

    def receive(memory: memoryview) -> int:
        nonlocal ahead
        if ahead:
            length = int(answer.fp.readinto1(memory[:ahead]))
            ahead -= length
        else:
            length = connection.recv_into(memory, 0, socket.MSG_WAITALL)
        pace.count(length)
        return length

    with _waiting_in_the_kernel(connection):
        yield receive


def _as_it_comes(answer: Any, pace: Pace, memory: memoryview) -> int:
    """http.client's `readinto`, which would wait until all of it is there, however slowly that comes."""
    at = 0
    while at < len(memory) and (length := _some_into(answer, memory[at:])):
        at += length
        pace.count(length)
    return at


def _some_into(answer: Any, memory: memoryview) -> int:
    if not answer.chunked:
        return int(answer.fp.readinto1(memory))
    some = answer.read1(min(_CHUNK, len(memory)))
    memory[: len(some)] = some
    return len(some)


@contextmanager
def lent(body: Any) -> Iterator[tuple[bytes, socket.socket]]:
    """Of a GetObject's body, what came with its head, and a connection on which the rest comes, for another process.

    It must have been read to its end when the block ends; OSError there says that it wasn't: ResponseStreamingError
    then.
    """
    answer = body._raw_stream
    connection = _plain_socket(answer._fp)
    try:
        if connection is None:
            with _passed_on(answer) as other:
                yield b"", other
        else:
            ahead = answer._fp.fp.read(len(answer._fp.fp.peek()))
            with _waiting_in_the_kernel(connection):
                yield ahead, connection
    except OSError as error:
        answer.close()
        raise ResponseStreamingError(error=error) from error
    _leave(answer)


@contextmanager
def _passed_on(answer: Any) -> Iterator[socket.socket]:
    """A connection on which the content comes as it is, of an answer in chunks: a proxy may send it so."""
    connection = answer._fp.fp.raw._sock  # which http.client lets go of at the content's end
    ours, theirs = socket.socketpair()

    def pass_on() -> None:
        # what breaks off here ends the connection too early, which whoever reads there tells
        with ours, suppress(OSError, http.client.HTTPException):
            piece, pace = memoryview(bytearray(_PIECE)), Pace.of_an_object()
            while length := _as_it_comes(answer._fp, pace, piece):
                ours.sendall(piece[:length])

    thread = threading.Thread(target=pass_on, daemon=True, name="muster-chunks")
    thread.start()
    try:
        with theirs:
            yield theirs
    finally:
        with suppress(OSError):  # the server has ended it already
            connection.shutdown(socket.SHUT_RDWR)
        thread.join()


def _leave(answer: Any) -> None:
    """The content has come, of whatever length; the connection is for the next request."""
    if answer._fp.chunked:
        answer.close()  # what ends the last chunk may still be to come
        return
    answer._fp.close()  # which an empty body leaves open
    answer.release_conn()


def _plain_socket(answer: Any) -> socket.socket | None:
    """That of an http.client response, when nothing but its content is to come on it as it is: no TLS, no chunks."""
    connection = answer.fp.raw._sock if answer.fp is not None else None
    return connection if type(connection) is socket.socket and not answer.chunked else None


@contextmanager
def _waiting_in_the_kernel(connection: socket.socket) -> Iterator[None]:
    """Meanwhile its time-out is the kernel's, for each call."""
    patience = connection.gettimeout()
    if patience is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(*divmod(int(patience * 1e6), 10**6)))
    connection.settimeout(None)
    try:
        yield
    finally:
        connection.settimeout(patience)
