"""The memory tier: what a rank stages outlives its process, so that a crash is mended without the store.

The launcher owns the memory (files without a name) and hands it to each incarnation of its ranks. A rank has two slots:
one keeps the last step that the whole gang has, the other takes the next. A slot counts by its record, which is written
when the storage process has summed what lies there, and which goes before the slot is used again. After a restart the
ranks agree on the newest step that all of them have whole. Where there is a peer, what the gang has agreed on is
marked: the launcher sends a copy of that to another pod.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from muster_protocol import env
from muster_protocol.checkpoints.commit import Claim
from muster_protocol.launcher_status import Kept, MemoryTier
from muster_protocol.manifest import Latest, ShardFile
from muster_runtime.checkpoint import records
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.records import Order, capacity, free_memory
from muster_runtime.checkpoint.s3_store import Landed
from muster_runtime.checkpoint.spread import spread


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
    def order(self) -> Order:
        return self.epoch, self.step, self.attempt


class Tier:
    """One rank's slots. `identity` is whose they are: a part of anything else isn't looked at.

    Attributes:
        incarnation: of the processes of this gang; it rises with every start in the same memory.
        kept: what there is memory for: `OFF`, a second copy of the state (`LOCAL`), or a third as well (`PEER`).
    """

    def __init__(
        self,
        memory: SharedMemory,
        slots: tuple[int, int],
        claim: int,
        identity: str,
        *,
        incarnation: int = 1,
        sharers: int | None,
        requested: int | None = None,
        peer: int | str = "",
        warn: Callable[[str], None],
        settled: Callable[[MemoryTier], None] = lambda _: None,
    ) -> None:
        """`slots` (of records) and `claim` are descriptors. `sharers`: ranks that share the container's memory, which
        must suffice for all; None: that is not asked. `requested`: as `free_memory` has it. `peer`: bytes that this
        rank's share of another pod's copy takes already; or why there is no such copy. `warn` hears of what isn't used,
        and why; `settled` what is kept."""
        self.memory, self.incarnation, self.warn, self._settled = memory, incarnation, warn, settled
        self._records, self._claim, self._identity, self._sharers = slots, claim, identity, sharers
        self._requested, self._peer = requested, peer
        self._regions: list[tuple[int, int]] = [(0, 0), (0, 0)]  # first byte and capacity
        self._kept: int | None = None
        self._open = 0
        self.kept = Kept.LOCAL

    @classmethod
    def inherited(
        cls,
        environment: Mapping[str, str],
        identity: str,
        warn: Callable[[str], None],
        settled: Callable[[MemoryTier], None],
    ) -> Tier | None:
        """What the launcher has for this rank."""
        given = environment.get(env.MEMORY_TIER)
        if not given:
            return None
        memory, first, second, claim = map(int, given.split(","))
        for descriptor in (memory, first, second, claim):
            os.set_inheritable(descriptor, False)
        always = environment.get(env.CHECKPOINT_MEMORY) in (Kept.LOCAL.value, Kept.PEER.value)
        peer, requested = environment.get(env.MEMORY_PEER, ""), environment.get(env.MEMORY_REQUEST, "")
        return cls(
            SharedMemory(memory),
            (first, second),
            claim,
            identity,
            incarnation=int(environment.get(env.INCARNATION) or 1),
            sharers=None if always else int(environment.get("LOCAL_WORLD_SIZE") or 1),
            requested=int(requested) if requested else None,
            peer=int(peer) if peer.isdigit() else peer,
            warn=warn,
            settled=settled,
        )

    # ------------------------------------------------------------------ saving

    @property
    def enabled(self) -> bool:
        return self.kept is not Kept.OFF

    def room(self, length: int) -> tuple[bool, bool]:
        """Whether there is memory for two slots of `length` bytes for each of the ranks that share it; and for a copy
        of another pod's beside them, where there is to be one."""
        theirs = self._peer if isinstance(self._peer, int) else None
        if self._sharers is None:
            return True, theirs is not None
        free = free_memory(self._requested) // self._sharers
        growth = 2 * capacity(length) - os.fstat(self.memory.descriptor).st_size
        return growth <= free, theirs is not None and growth + max(0, length - theirs) <= free

    def settle(self, length: int, *, local: bool, peer: bool) -> None:
        """What the gang keeps in memory from now on: whether all ranks have `room` for two slots, and for copies."""
        self.kept = (Kept.PEER if peer else Kept.LOCAL) if local else Kept.OFF
        if self.kept is Kept.PEER and isinstance(self._peer, int):
            self._peer = max(self._peer, length)  # it takes that from now on, and is not to be asked for once more
        if not local:
            self.clear()
            copy = f"a second copy of the state ({length / 1e6:,.1f} MB a rank)"
            if self._requested == 0:  # nor has it a limit: Kubernetes would take that for the request
                why = (
                    f"the workers request no memory, so there is none to count on for {copy}; a crash restores from "
                    "the store, unless spec.workers.resources requests some"
                )
            else:
                why = (
                    f"memory doesn't suffice for {copy}, so none is kept there and a crash restores from the store: "
                    "raise the workers' memory request and limit by that"
                )
                self.warn(why)
        elif not peer and isinstance(self._peer, int):
            why = (
                f"memory doesn't suffice for a third copy of the state ({length / 1e6:,.1f} MB a rank), so a lost "
                "worker restores from the store: raise the workers' memory request and limit by that"
            )
        else:
            why = "" if peer else str(self._peer)
        self._settled(MemoryTier(self.kept, why))

    def open(self, length: int) -> int:
        """The first byte of a slot for `length` bytes that isn't the kept one. What was in it counts no more."""
        self._open = 0 if self._kept is None else 1 - self._kept
        os.ftruncate(self._records[self._open], 0)
        room = capacity(length)
        start, taken = (0, 0) if self._kept is None else self._regions[self._kept]
        base = start + taken if start < room else 0
        self._regions[self._open] = (base, room)
        self.memory.reserve(max(base, room) + room)  # of both slots: to grow means to map, and pin, all anew
        return base

    def seal(self, part: Part) -> None:
        """The open slot is whole."""
        files = [{"file": vars(landed.file), "sums": landed.sums} for landed in part.files]
        records.write(self._records[self._open], {**vars(part), "files": files, "identity": self._identity})

    def keep(self) -> None:
        """All ranks have sealed their open slots: this step takes the place of the kept one."""
        self._kept = self._open
        self._mark()

    def _mark(self) -> None:
        if self.kept is Kept.PEER and self._kept is not None:
            records.mark(self._records[self._kept], self.incarnation)

    def clear(self) -> None:
        """The memory is used for something else."""
        self._kept = None
        for record in self._records:
            os.ftruncate(record, 0)

    # ------------------------------------------------------------------ after a restart

    def parts(self) -> tuple[dict[Order, tuple[int, Part]], list[str]]:
        """The slots with a record, by the parts' order; and what is wrong with the records that are damaged."""
        found: dict[Order, tuple[int, Part]] = {}
        damaged = []
        for slot, record in enumerate(self._records):
            try:
                raw = records.read(record)
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
            file, start = found[0].file, found[1]
            return records.wrong_with(memory[part.base :], ((start, file.size, file.crc32),))

        return next(filter(None, spread(wrong, zip(part.files, part.starts, strict=True))), "")

    def take_up(self, slot: int, part: Part) -> None:
        """`part` was restored from: its slot is the kept one."""
        self._kept = slot
        self._regions[slot] = (part.base, capacity(part.length))
        self._mark()

    # ------------------------------------------------------------------ the gang's claim, on rank 0

    def hold(self, claim: Claim) -> None:
        body = {"latest": dataclasses.asdict(claim.latest), "etag": claim.etag, "tried": claim.tried}
        records.write(self._claim, body)

    def claim(self) -> Claim | None:
        try:
            raw = records.read(self._claim)
            # of a pod that was started before it was told what was tried, there is nothing of that
            return None if raw is None else Claim(Latest(**raw["latest"]), raw["etag"], tuple(raw.get("tried", ())))
        except (ValueError, KeyError, TypeError):
            return None


def _part(raw: dict[str, Any]) -> Part:
    files = tuple(
        Landed(ShardFile(**landed["file"]), {int(at): crc32 for at, crc32 in landed["sums"].items()})
        for landed in raw.pop("files")
    )
    return Part(files=files, starts=tuple(raw.pop("starts")), **raw)
