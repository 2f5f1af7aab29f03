"""Frames: what their prefix says is not believed before it has come."""

from __future__ import annotations

import os
import socket
import struct
import threading
import tracemalloc

import pytest

from muster_runtime.checkpoint.frames import receive_frame, send_frame

pytestmark = pytest.mark.runtime


def test_a_prefix_alone_takes_no_memory() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(struct.pack("!IQ", 2, 256 << 20) + b"{}" + b"some of it")
        tracemalloc.start()
        try:
            assert receive_frame(ours) is None
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000])
def test_a_payload_of_any_size_comes_whole(size: int) -> None:
    ours, theirs = socket.socketpair()
    payload = os.urandom(size)
    with ours, theirs:
        sending = threading.Thread(target=send_frame, args=(theirs, {"id": 1}, payload))
        sending.start()
        assert receive_frame(ours) == ({"id": 1}, payload)
        sending.join()
