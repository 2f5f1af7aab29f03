"""What the launcher and the tracking process say to each other: JSON objects, one a packet of a Unix socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import NoneType
from typing import Any, Final

from muster_protocol.launcher_status import Tracking as Told
from muster_runtime.tracking.courier import Courier
from muster_runtime.tracking.tracker import Point, Run, RunStatus

PACKET_LIMIT: Final = 128 * 1024
"""Bytes; the kernel's buffer for a socket holds more."""
VALUE_LIMIT: Final = 6000
"""Characters of a parameter or tag; the rest is left out."""
_POINTS_AT_ONCE: Final = 200
_FACTS_BYTES: Final = 48 * 1024


def pair() -> tuple[socket.socket, socket.socket]:
    """(the launcher's end, the process's). What is sent keeps its bounds, and an end that is gone shows."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def opening(run: Run) -> bytes:
    """The first packet."""
    return json.dumps(asdict(run)).encode()


def points(values: Sequence[Point]) -> Iterator[tuple[bytes, int]]:
    """With how many are in each."""
    for start in range(0, len(values), _POINTS_AT_ONCE):
        part = values[start : start + _POINTS_AT_ONCE]
        yield json.dumps({"points": [(one.name, one.value, one.step, one.at) for one in part]}).encode(), len(part)


def facts(kind: str, values: Mapping[str, str]) -> Iterator[bytes]:
    """`kind`: params or tags."""
    part: dict[str, str] = {}
    size = 0
    for name, value in values.items():
        clipped = value[:VALUE_LIMIT]
        taken = len(json.dumps([name, clipped]))
        if part and size + taken > _FACTS_BYTES:
            yield json.dumps({kind: part}).encode()
            part, size = {}, 0
        part[name] = clipped
        size += taken
    if part:
        yield json.dumps({kind: part}).encode()


def end(status: RunStatus, at: float) -> bytes:
    return json.dumps({"end": status.value, "at": at}).encode()


def told(news: Told) -> bytes:
    """The process's word."""
    return json.dumps({**asdict(news), "text": news.text[:1000]}).encode()


def opened(packet: bytes) -> Run:
    return Run(**json.loads(packet))


def read_told(packet: bytes) -> Told | None:
    """None for what is no such word: a tracker of the user's own shares the process, and so its standard input."""
    try:
        told = Told(**json.loads(packet))
    except (ValueError, TypeError):
        return None
    texts = isinstance(told.url, str) and isinstance(told.text, str)
    return told if texts and isinstance(told.well, (bool, NoneType)) and type(told.dropped) is int else None


def take(packet: bytes, courier: Courier) -> bool:
    """Hands it on; what can't be read is left out. Whether more comes."""
    try:
        said: dict[str, Any] = json.loads(packet)
        points = [Point(*one) for one in said.get("points", ())]
        params, tags = dict(said.get("params") or {}), dict(said.get("tags") or {})
        ended = (RunStatus(said["end"]), float(said["at"])) if "end" in said else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return True
    courier.add(points)
    courier.know(params=params, tags=tags)
    if ended is not None:
        courier.end(*ended)
    return ended is None
