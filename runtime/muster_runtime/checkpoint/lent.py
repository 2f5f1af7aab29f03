"""A rank receives an object by itself, straight into its tensors, over a connection that its storage process lends it.

The storage process alone speaks S3: it asks for an object and reads the answer's head. Then it passes the connection's
descriptor on, and the rank takes the content from the kernel into the memory where it shall stay. For each request the
rank makes a socket pair, the *lane*, and hands one end over:

    storage process -> rank    what came with the head, and the connection's descriptor
    rank -> storage process    crc32 of all that came; or broken: why it ended early, after which more may be lent

The request is over when the storage process ends the lane.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.pace import Pace
from muster_runtime.checkpoint.crc import crc32
from muster_runtime.checkpoint.frames import receive_frame_and_descriptor, send_frame

_PIECE: Final = 4 << 20
"""Small enough for the processor's caches, the last of them: what has come is summed while it is there."""


def receive(lane: socket.socket, targets: Sequence[memoryview]) -> None:
    """Fills `targets`, one after the other, with each object that is lent, until the storage process ends the lane."""
    while (lent := receive_frame_and_descriptor(lane)) is not None:
        (_, ahead), descriptor = lent
        with socket.socket(fileno=descriptor) as connection:
            connection.settimeout(None)  # whatever the script's default is: the storage process has set the kernel's
            try:
                answer = {"crc32": named(_filled(connection, ahead, targets))}
            except OSError as error:
                answer = {"broken": str(error) or repr(error)}
        send_frame(lane, answer)


def _filled(connection: socket.socket, ahead: bytearray, targets: Sequence[memoryview]) -> int:
    """The CRC-32 of what has filled `targets`: first `ahead`, then what comes. OSError where that ends, or crawls."""
    summed, early, pace = 0, memoryview(ahead), Pace.of_an_object()
    for target in targets:
        for start in range(0, len(target), _PIECE):
            left = target[start : start + _PIECE]
            while left:
                length = min(len(early), len(left))
                if length:
                    left[:length], early = early[:length], early[length:]
                else:
                    length = connection.recv_into(left, 0, socket.MSG_WAITALL)
                    if not length:
                        raise ConnectionError("the connection ended before the object did")
                    pace.count(length)
                summed = crc32(left[:length], summed)
                left = left[length:]
    return summed
