"""Records of the memory tier: what lies in a rank's slot, written so that half of one is known for that.

A record is a file of its own in memory: a header, then JSON. Ranks write them; launchers, which have no torch, read
them to send a copy to another pod.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster_protocol import pieces
from muster_protocol.checkpoints.checks import named
from muster_runtime.checkpoint.crc import crc32

_HEAD: Final = struct.Struct("<8sQII")  # what it is, length of the JSON behind it, its CRC-32, the mark
_MARK: Final = struct.Struct("<I")
_MAGIC: Final = b"MUSTER-1"
_ROUND: Final = 1 << 20
_SLACK: Final = 64 << 10
"""States change their length by a few bytes from save to save; a slot must not move for that."""
_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMORY_FILES: Final = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)
"""Limit, use and what is in it, with cgroups of version 2 and of version 1."""
_UNLIMITED: Final = 1 << 62
"""From here on a limit of version 1 is none: it is the largest number, in whole pages."""

Order = tuple[int, int, int]
"""Epoch, step and attempt: which of two parts is newer."""


@dataclass(frozen=True)
class Extent:
    """Where one rank's part of a step lies in its memory, and its files: start from `base`, length, CRC-32."""

    order: Order
    base: int
    length: int
    files: tuple[tuple[int, int, str], ...]

    @property
    def end(self) -> int:
        return self.base + self.length


def extent(body: dict[str, Any]) -> Extent:
    """What a record says of its part. KeyError, TypeError or ValueError when it is no such record."""
    files = [landed["file"] for landed in body["files"]]
    spans = tuple(
        (int(start), int(file["size"]), str(file["crc32"])) for start, file in zip(body["starts"], files, strict=True)
    )
    found = Extent(
        (int(body["epoch"]), int(body["step"]), int(body["attempt"])), int(body["base"]), int(body["length"]), spans
    )
    if found.base < 0 or any(start < 0 or start + size > found.length for start, size, _ in spans):
        raise ValueError("its files lie outside of it")
    return found


def wrong_with(content: memoryview, files: tuple[tuple[int, int, str], ...]) -> str:
    """What is wrong with the bytes of a part, or "". `content` begins at its base; `files` are an extent's."""
    for start, size, expected in files:
        if named(crc32(content[start : start + size])) != expected:
            return f"the {size} bytes at {start} are not what was staged (CRC-32 differs)"
    return ""


def write(descriptor: int, body: dict[str, Any]) -> None:
    text = pieces.dumps(body, depth=4)  # each of a heading's tensors at once
    put(descriptor, _HEAD.pack(_MAGIC, len(text), zlib.crc32(text), 0) + text)


def put(descriptor: int, record: bytes) -> None:
    """A whole record, as `take` gave it."""
    os.ftruncate(descriptor, 0)
    whole, at = memoryview(record), 0
    while at < len(whole):
        at += os.pwrite(descriptor, whole[at:], at)


def take(descriptor: int) -> bytes:
    """The record with its header, as it stands; b"" when nothing was written."""
    size = os.fstat(descriptor).st_size
    record = b""
    while len(record) < size and (more := os.pread(descriptor, size - len(record), len(record))):
        record += more
    return record


def read(descriptor: int) -> dict[str, Any] | None:
    """None when nothing was written; ValueError when it isn't whole."""
    record = take(descriptor)
    return parse(record) if record else None


def parse(record: bytes | bytearray) -> dict[str, Any]:
    """What a record says. ValueError when it isn't whole."""
    if len(record) < _HEAD.size:
        raise ValueError("half a header")
    magic, length, crc32, _ = _HEAD.unpack_from(record)
    text = record[_HEAD.size :]
    if magic != _MAGIC or len(text) != length or zlib.crc32(text) != crc32:
        raise ValueError("its record is not whole")
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("its record is no object")
    return raw


def mark(descriptor: int, incarnation: int) -> None:
    """The gang, as this incarnation, has this step in memory whole, and wants a copy of it on a peer."""
    os.pwrite(descriptor, _MARK.pack(incarnation), _HEAD.size - _MARK.size)


def head(descriptor: int) -> bytes:
    """By this a record is known again; b"" when nothing was written."""
    return os.pread(descriptor, _HEAD.size, 0)


def marked(head_or_record: bytes) -> int:
    """The incarnation that has marked it, or 0."""
    return int(_HEAD.unpack_from(head_or_record)[3]) if len(head_or_record) >= _HEAD.size else 0


def capacity(length: int) -> int:
    """Bytes that a slot takes for a part of `length`."""
    return -(-(length + _SLACK) // _ROUND) * _ROUND


def free_memory(requested: int | None = None, cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that this container, and this machine, may still take.

    `requested` is what a container without a limit goes by, as the rest of the machine is for others to request; None
    where nobody requests anything, as on a laptop.
    """
    machine = next(int(line.split()[1]) << 10 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)
    for files in _MEMORY_FILES:
        try:
            limit, used, stat = ((cgroup / name).read_text().strip() for name in files)
        except OSError:
            continue
        found = dict(line.split() for line in stat.splitlines())
        # The first is of version 1 alone, where the second leaves out what lies in cgroups below.
        cached = int(found.get("total_inactive_file", found.get("inactive_file", 0)))
        bound = requested if limit == "max" or int(limit) >= _UNLIMITED else int(limit)
        return machine if bound is None else max(0, min(machine, bound - int(used) + cached))
    return machine if requested is None else min(machine, requested)
