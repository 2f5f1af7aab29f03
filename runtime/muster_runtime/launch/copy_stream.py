"""One pod's memory on its way to another launcher: over the connection of an HTTP request that was upgraded.

For each rank a frame with its record, then its part's bytes, from the kernel's memory into the kernel's memory: nothing
passes through Python. All of it blocks, so it runs in threads of their own, at a lower priority than the training.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muster_protocol import launcher_api as api
from muster_protocol.checkpoints.pace import Pace
from muster_protocol.messages import Copy
from muster_protocol.wire import encode
from muster_runtime.checkpoint import records
from muster_runtime.checkpoint.frames import receive_frame, send_frame
from muster_runtime.checkpoint.records import Extent

STALL_SECONDS: Final = 20.0
"""A connection on which nothing moves for so long is given up."""
_CONNECT_SECONDS: Final = 5.0
_PIECE: Final = 4 << 20
_HEAD_LIMIT: Final = 4096


class CopyError(Exception):
    """The copy isn't whole. One sentence."""


@dataclass(frozen=True)
class Piece:
    """One rank's part: its record as it stands, and where its bytes lie in `memory`, a descriptor."""

    record: bytes
    part: Extent
    memory: int
    base: int


def connect(host: str, port: int) -> socket.socket:
    """To another launcher. OSError when it isn't there."""
    return socket.create_connection((host, port), timeout=_CONNECT_SECONDS)


def ask(connection: socket.socket, token: str, path: str, copy: Copy) -> int:
    """The answer's status; where that is 101, the connection is the stream's now. OSError when there is no answer."""
    host, port = connection.getpeername()[:2]
    connection.settimeout(STALL_SECONDS)
    body = encode(copy)
    lines = {
        "Host": f"{host}:{port}",
        api.TOKEN_HEADER: token,
        "Connection": "Upgrade",
        "Upgrade": "muster-copy",
        "Content-Length": str(len(body)),
    }
    head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    connection.sendall(head.encode("latin-1") + b"\r\n" + body)
    answer = b""
    until = time.monotonic() + STALL_SECONDS
    while not answer.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the stream's
        more = connection.recv(1)
        if not more or len(answer) > _HEAD_LIMIT or time.monotonic() > until:
            raise ConnectionError("the answer is not whole")
        answer += more
    status = answer.split(b" ", 2)[1:2]
    if not status or not status[0].isdigit():
        raise ConnectionError(f"the answer is not HTTP: {answer[:80]!r}")
    return int(status[0])


def send(connection: socket.socket, pieces: Sequence[Piece]) -> None:
    """Raises CopyError when the memory has changed meanwhile; OSError when the other side is gone."""
    for piece in pieces:
        send_frame(connection, {"length": piece.part.length}, piece.record)
        with open(piece.memory, "rb", closefd=False) as content:
            sent = connection.sendfile(content, piece.base, piece.part.length) if piece.part.length else 0
        if sent != piece.part.length:
            raise CopyError("its memory was cut off on the way")


def last_word(connection: socket.socket) -> str:
    """Why the other side hung up before it had everything, in its own words; "" where it said nothing."""
    try:
        answer = receive_frame(connection)
    except (OSError, ValueError):
        return ""
    return "" if answer is None else str(answer[0].get("wrong", ""))


def receive(connection: socket.socket, count: int, memory: Mapping[int, int] | int, pace: Pace) -> list[Piece]:
    """The parts of `count` ranks, one after the other in one `memory`; or each where it lay, in the memory of its rank.

    Not summed yet: see `check`. Raises CopyError; OSError when the other side is gone, or it comes more slowly than
    `pace` allows.
    """
    pieces: list[Piece] = []
    at = 0
    for number in range(count):
        frame = receive_frame(connection, pace.count)
        if frame is None:
            raise CopyError("the other side has hung up")
        record = bytes(frame[1])
        try:
            part = records.extent(records.parse(record))
        except (ValueError, KeyError, TypeError) as error:
            raise CopyError(f"a record of it is damaged ({error})") from error
        target, base = (memory, at) if isinstance(memory, int) else (memory[number], part.base)
        _receive_into(connection, target, base, part.length, pace)
        pieces.append(Piece(record, part, target, base))
        at = base + records.capacity(part.length)
    return pieces


def _receive_into(connection: socket.socket, memory: int, base: int, length: int, pace: Pace) -> None:
    """`base` is at a page's begin."""
    if os.fstat(memory).st_size < base + records.capacity(length):
        os.ftruncate(memory, base + records.capacity(length))
    if not length:
        return
    with mmap.mmap(memory, length, mmap.MAP_SHARED, offset=base) as mapped, memoryview(mapped) as view:
        at = 0
        while at < length:
            got = connection.recv_into(view[at : at + _PIECE])
            if not got:
                raise CopyError(f"it was cut off after {base + at} bytes")
            at += got
            pace.count(got)


def check(pieces: Sequence[Piece], order: tuple[int, ...]) -> None:
    """CopyError when a byte isn't what was staged, or a part isn't of the step that `order` names."""
    if any(piece.part.order != order for piece in pieces):
        raise CopyError("it is of another step than was announced")
    for number, piece in enumerate(pieces):
        if not piece.part.length:
            continue
        length, base = piece.part.length, piece.base
        with mmap.mmap(piece.memory, length, mmap.MAP_SHARED, offset=base) as mapped, memoryview(mapped) as view:
            wrong = records.wrong_with(view, piece.part.files)
        if wrong:
            raise CopyError(f"part {number}: {wrong}")
