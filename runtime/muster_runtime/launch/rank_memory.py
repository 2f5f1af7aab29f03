"""The memory of this pod's ranks, which the launcher owns: what it has whole, for a copy to be sent of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from muster_runtime.checkpoint import records
from muster_runtime.checkpoint.records import Order
from muster_runtime.launch.copy_stream import Piece


@dataclass(frozen=True)
class RankMemory:
    """Descriptors of one rank's memory tier, which outlives the rank."""

    data: int
    slots: tuple[int, int]
    claim: int

    @classmethod
    def make(cls) -> RankMemory:
        """Files without a name, which are gone with this process."""
        data, first, second, claim = (
            os.memfd_create(f"muster-{name}", os.MFD_CLOEXEC) for name in ("data", "record", "record", "claim")
        )
        return cls(data, (first, second), claim)

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.data, *self.slots, self.claim

    @property
    def empty(self) -> bool:
        return not any(os.fstat(slot).st_size for slot in self.slots)


def agreed(memories: Sequence[RankMemory], incarnation: int) -> list[Piece]:
    """The newest step that all ranks of this pod have marked."""
    found: list[dict[Order, Piece]] = []
    for memory in memories:
        pieces = {}
        for slot in memory.slots:
            with suppress(ValueError, KeyError, TypeError):  # it is being written anew
                record = records.take(slot)
                if records.marked(record) == incarnation:
                    part = records.extent(records.parse(record))
                    pieces[part.order] = Piece(record, part, memory.data, part.base)
        found.append(pieces)
    common = set.intersection(*(set(pieces) for pieces in found))
    return [pieces[max(common)] for pieces in found] if common else []


def stand(memories: Sequence[RankMemory], pieces: Sequence[Piece]) -> bool:
    """Whether all `pieces` lie where they lay: a record goes before its slot is used again."""
    return all(piece.record in map(records.take, memory.slots) for memory, piece in zip(memories, pieces, strict=True))
