"""When a node's containerd counts as started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hack.cluster.node import answers

pytestmark = pytest.mark.unit


def test_a_socket_answers_while_somebody_listens(tmp_path: Path) -> None:
    address = str(tmp_path / "s")
    assert not answers(address)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        assert answers(address)


def test_what_a_killed_process_left_behind_does_not(tmp_path: Path) -> None:
    left = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(left))
        server.listen()
    assert left.is_socket()
    assert not answers(str(left))
