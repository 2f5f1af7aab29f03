"""The memory tier: what a rank stages outlives its process, so that a crash is mended without the store.

The launcher owns the memory (files without a name) and hands it to each incarnation of its ranks. A rank has two slots:
one keeps the last step that the whole gang has, the other takes the next. A slot counts by its record, which is written
when the storage process has summed what lies there, and which goes before the slot is used again. After a restart the
ranks agree on the newest step that all of them have whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster_protocol import env
from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.commit import Claim
from muster_protocol.manifest import Latest, ShardFile
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.s3_store import Landed
from muster_runtime.checkpoint.spread import spread

_HEAD: Final = struct.Struct("<8sQI")  # what it is, length of the JSON behind it, its CRC-32
_MAGIC: Final = b"MUSTER-1"
_ROUND: Final = 1 << 20
_SLACK: Final = 64 << 10
"""States change their length by a few bytes from save to save; a slot must not move for that."""
_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Part:
    """One rank's part of one step, from `base` in its memory. `files` lie at `starts` from there.

    `heading` is what rank 0 alone keeps: what a manifest would say beside the files.
    """

    step: int
    epoch: int
    attempt: int
    base: int
    length: int
    files: tuple[Landed, ...]
    starts: tuple[int, ...]
    heading: dict[str, Any]

    @property
    def order(self) -> tuple[int, int, int]:
        return self.epoch, self.step, self.attempt


class Tier:
    """One rank's slots. `identity` is whose they are: a part of anything else isn't looked at."""

    def __init__(
        self,
        memory: SharedMemory,
        records: tuple[int, int],
        claim: int,
        identity: str,
        *,
        sharers: int | None,
        warn: Callable[[str], None],
    ) -> None:
        """`records` and `claim` are descriptors. `sharers`: ranks that share the container's memory, which must suffice
        for all; None: that is not asked. `warn` hears of what isn't used, and why."""
        self.memory, self.warn = memory, warn
        self._records, self._claim, self._identity, self._sharers = records, claim, identity, sharers
        self._regions: list[tuple[int, int]] = [(0, 0), (0, 0)]  # first byte and capacity
        self._kept: int | None = None
        self._open = 0
        self.enabled = True

    @classmethod
    def inherited(cls, environment: Mapping[str, str], identity: str, warn: Callable[[str], None]) -> Tier | None:
        """What the launcher has for this rank."""
        given = environment.get(env.MEMORY_TIER)
        if not given:
            return None
        memory, first, second, claim = map(int, given.split(","))
        for descriptor in (memory, first, second, claim):
            os.set_inheritable(descriptor, False)
        always = environment.get(env.CHECKPOINT_MEMORY) == "local"
        sharers = None if always else int(environment.get("LOCAL_WORLD_SIZE") or 1)
        return cls(SharedMemory(memory), (first, second), claim, identity, sharers=sharers, warn=warn)

    # ------------------------------------------------------------------ saving

    def fits(self, length: int) -> bool:
        """Whether memory suffices for two slots of `length` bytes for each of the ranks that share it."""
        if self._sharers is None:
            return True
        growth = 2 * _capacity(length) - os.fstat(self.memory.descriptor).st_size
        return growth * self._sharers <= free_memory()

    def stop(self) -> None:
        """From now on there is one slot, and no record."""
        self.clear()
        self.enabled = False

    def open(self, length: int) -> int:
        """The first byte of a slot for `length` bytes that isn't the kept one. What was in it counts no more."""
        self._open = 0 if self._kept is None else 1 - self._kept
        os.ftruncate(self._records[self._open], 0)
        capacity = _capacity(length)
        base, kept = 0, (0, 0) if self._kept is None else self._regions[self._kept]
        if kept[0] < capacity:
            base = kept[0] + kept[1]
        self._regions[self._open] = (base, capacity)
        self.memory.reserve(max(base, capacity) + capacity)  # of both slots: to grow means to map, and pin, all anew
        return base

    def seal(self, part: Part) -> None:
        """The open slot is whole."""
        body = {**dataclasses.asdict(part), "identity": self._identity}
        _write(self._records[self._open], body)

    def keep(self) -> None:
        """All ranks have sealed their open slots: this step takes the place of the kept one."""
        self._kept = self._open

    def clear(self) -> None:
        """The memory is used for something else."""
        self._kept = None
        for record in self._records:
            os.ftruncate(record, 0)

    # ------------------------------------------------------------------ after a restart

    def parts(self) -> tuple[dict[tuple[int, int, int], tuple[int, Part]], list[str]]:
        """The slots with a record, by the parts' order; and what is wrong with the records that are damaged."""
        found: dict[tuple[int, int, int], tuple[int, Part]] = {}
        damaged = []
        for slot, record in enumerate(self._records):
            try:
                raw = _read(record)
                if raw is None or raw.pop("identity") != self._identity:
                    continue
                part = _part(raw)
            except (ValueError, KeyError, TypeError) as error:
                damaged.append(str(error))
                continue
            found[part.order] = slot, part
        return found, damaged

    def wrong_with(self, part: Part) -> str:
        """What is wrong with the bytes of `part`, or ""."""
        if part.base + part.length > os.fstat(self.memory.descriptor).st_size:
            return "it is cut off"
        memory = raw_bytes(self.memory.reserve(part.base + part.length))

        def wrong(found: tuple[Landed, int]) -> str:
            file, at = found[0].file, part.base + found[1]
            whole = named(zlib.crc32(memory[at : at + file.size])) == file.crc32
            return "" if whole else f"{file.key} is not what was staged (CRC-32 differs)"

        return next(filter(None, spread(wrong, zip(part.files, part.starts, strict=True))), "")

    def take_up(self, slot: int, part: Part) -> None:
        """`part` was restored from: its slot is the kept one."""
        self._kept = slot
        self._regions[slot] = (part.base, _capacity(part.length))

    # ------------------------------------------------------------------ the gang's claim, on rank 0

    def hold(self, claim: Claim, resumed: int) -> None:
        """`resumed`: how often the gang went on under this claim's epoch without claiming another."""
        _write(self._claim, {"latest": dataclasses.asdict(claim.latest), "etag": claim.etag, "resumed": resumed})

    def claim(self) -> tuple[Claim, int] | None:
        try:
            raw = _read(self._claim)
            return None if raw is None else (Claim(Latest(**raw["latest"]), raw["etag"]), int(raw["resumed"]))
        except (ValueError, KeyError, TypeError):
            return None


def _capacity(length: int) -> int:
    return -(-(length + _SLACK) // _ROUND) * _ROUND


def _part(raw: dict[str, Any]) -> Part:
    files = tuple(
        Landed(ShardFile(**landed["file"]), {int(at): crc32 for at, crc32 in landed["sums"].items()})
        for landed in raw.pop("files")
    )
    return Part(files=files, starts=tuple(raw.pop("starts")), **raw)


def _write(descriptor: int, body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    os.ftruncate(descriptor, 0)
    whole = memoryview(_HEAD.pack(_MAGIC, len(text), zlib.crc32(text)) + text)
    at = 0
    while at < len(whole):
        at += os.pwrite(descriptor, whole[at:], at)


def _read(descriptor: int) -> dict[str, Any] | None:
    """None when nothing was written; ValueError when it isn't whole."""
    size = os.fstat(descriptor).st_size
    if not size:
        return None
    head = os.pread(descriptor, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        raise ValueError("half a header")
    magic, length, crc32 = _HEAD.unpack(head)
    text = b""
    while len(text) < min(length, size) and (more := os.pread(descriptor, length - len(text), _HEAD.size + len(text))):
        text += more
    if magic != _MAGIC or len(text) != length or zlib.crc32(text) != crc32:
        raise ValueError("its record is not whole")
    raw = json.loads(text)
    if not isinstance(raw, dict):
        raise ValueError("its record is no object")
    return raw


def free_memory(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that this container, and this machine, may still take."""
    machine = next(int(line.split()[1]) << 10 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit) - used + int(stat.get("inactive_file", 0)))
