"""Which bytes of an object are fetched: the runs of its blocks in which there is something that is wanted.

A manifest has a sum of each block of a file beside that of the whole, so a part that consists of whole blocks is
checked as the whole would be. So are the parts of a large file where memory shall hold few of its bytes at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise

from muster_protocol.checkpoints.checks import named
from muster_protocol.manifest import BLOCK_BYTES, ShardFile
from muster_runtime.checkpoint.sums import combined

Run = tuple[int, int]
"""First byte, and the byte after the last."""


@dataclass(frozen=True)
class Extent:
    """Bytes of an object that are fetched at once, with their CRC-32. `start`: the first of them; None: it is the whole
    object, and has no other bytes."""

    key: str
    size: int
    crc32: str
    start: int | None = None

    @property
    def run(self) -> Run:
        first = self.start or 0
        return first, first + self.size


def whole(file: ShardFile) -> Extent:
    return Extent(file.key, file.size, file.crc32)


def extents(file: ShardFile, wanted: Iterable[Run], most: int | None = None) -> list[Extent]:
    """In order, the least that holds all `wanted` and can be checked; none of more than the blocks of `most` bytes."""
    if not file.blocks:  # an older Muster, or a tool, has written it
        return [whole(file)]
    found = []
    runs = _joined((low // BLOCK_BYTES, -(-high // BLOCK_BYTES)) for low, high in wanted if high > low)
    for first, last in chain.from_iterable(_parts(*run, most) for run in runs):
        start, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, file.size)
        if end - start == file.size:
            return [whole(file)]
        found.append(Extent(file.key, end - start, named(_sum(file, first, last)), start))
    return found


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Those that overlap or meet as one."""
    begin, end = 0, 0
    for low, high in sorted(runs):
        if low > end:
            if end > begin:
                yield begin, end
            begin = low
        end = max(end, high)
    if end > begin:
        yield begin, end


def _parts(first: int, last: int, most: int | None) -> Iterator[Run]:
    """The run in even parts. In blocks, but for `most`."""
    length = last - first
    count = -(-length // -(-most // BLOCK_BYTES)) if most is not None else 1
    ends = [first + length * number // count for number in range(count + 1)]
    return pairwise(ends)


def _sum(file: ShardFile, first: int, last: int) -> int:
    """The CRC-32 of the blocks from `first` up to `last`, which isn't among them."""
    found = 0
    for number in range(first, last):
        length = min(BLOCK_BYTES, file.size - number * BLOCK_BYTES)
        found = combined(found, int(file.blocks[8 * number : 8 * number + 8], 16), length)
    return found
