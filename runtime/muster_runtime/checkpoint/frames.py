"""How a rank and its S3 process talk: frames over a socket pair.

A frame is a 12-byte prefix (length of the header, length of the payload), a JSON header and a raw payload. Requests
carry an `id`; answers carry the same one and may come in another order. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

_PREFIX: Final = struct.Struct("!IQ")

_AHEAD: Final = 1 << 20

EXIT_NO_THREADS: Final = 71
"""EX_OSERR: how an S3 process ends that can start no threads."""

Frame = tuple[dict[str, Any], bytearray]


def send_frame(
    connection: socket.socket, header: dict[str, Any], payload: memoryview | bytes = b"", descriptor: int | None = None
) -> None:
    """Sends one frame whole. OSError when the other side is gone.

    `descriptor` goes with it, where a socket pair is the connection; the other side gets a copy.
    """
    text = json.dumps(header).encode()
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    start = _PREFIX.pack(len(text), size) + text
    if descriptor is not None:
        start = start[socket.send_fds(connection, [start], [descriptor]) :]
    connection.sendall(start)
    if size:
        connection.sendall(payload)


def receive_frame(connection: socket.socket, came: Callable[[int], None] | None = None) -> Frame | None:
    """The next frame, or None when the other side has closed. `came` hears of each number of bytes, as they come."""
    prefix = _receive_exactly(connection, _PREFIX.size, came)
    return None if prefix is None else _behind(prefix, connection, came)


def receive_frame_and_descriptor(connection: socket.socket) -> tuple[Frame, int | None] | None:
    """The next frame and the descriptor that came with it, which is the caller's to close."""
    start, descriptors, _, _ = socket.recv_fds(connection, _PREFIX.size, 1, socket.MSG_CMSG_CLOEXEC)
    descriptor = descriptors[0] if descriptors else None
    rest = _receive_exactly(connection, _PREFIX.size - len(start)) if start else None
    frame = None if rest is None else _behind(start + rest, connection)
    if frame is None:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return frame, descriptor


def _behind(
    prefix: bytes | bytearray, connection: socket.socket, came: Callable[[int], None] | None = None
) -> Frame | None:
    header_size, payload_size = _PREFIX.unpack(prefix)
    header = _receive_exactly(connection, header_size, came)
    payload = _receive_exactly(connection, payload_size, came)
    if header is None or payload is None:
        return None
    return json.loads(header), payload


def _receive_exactly(
    connection: socket.socket, size: int, came: Callable[[int], None] | None = None
) -> bytearray | None:
    """Takes no more than twice the memory of what has come: `size` may be wrong."""
    data, done = bytearray(min(size, _AHEAD)), 0
    while done < size:
        if done == len(data):
            data.extend(bytes(min(done, size - done)))
        with memoryview(data) as whole, whole[done:] as left:
            count = connection.recv_into(left)
        if not count:
            return None
        done += count
        if came is not None:
            came(count)
    return data
