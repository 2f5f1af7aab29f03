"""How a rank and its S3 process talk: frames over a socket pair.

A frame is a 12-byte prefix (length of the header, length of the payload), a JSON header and a raw payload. Requests
carry an `id`; answers carry the same one and may come in another order. Standard library only.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final

_PREFIX: Final = struct.Struct("!IQ")


def send_frame(connection: socket.socket, header: dict[str, Any], payload: memoryview | bytes = b"") -> None:
    """Sends one frame whole. OSError when the other side is gone."""
    text = json.dumps(header).encode()
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    connection.sendall(_PREFIX.pack(len(text), size) + text)
    if size:
        connection.sendall(payload)


def receive_frame(connection: socket.socket) -> tuple[dict[str, Any], bytearray] | None:
    """The next frame, or None when the other side has closed."""
    prefix = _receive_exactly(connection, _PREFIX.size)
    if prefix is None:
        return None
    header_size, payload_size = _PREFIX.unpack(prefix)
    header = _receive_exactly(connection, header_size)
    payload = _receive_exactly(connection, payload_size)
    if header is None or payload is None:
        return None
    return json.loads(header), payload


def _receive_exactly(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            return None
        done += count
    return data
