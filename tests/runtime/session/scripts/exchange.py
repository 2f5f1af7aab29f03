"""Each rank holds one file, and wants it and the next rank's; the last file is wanted by all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import muster_runtime as muster
from muster_protocol.checkpoints.chain import Found
from muster_protocol.manifest import Manifest, ShardFile
from muster_runtime.checkpoint.kept import Kept, KeptReader
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.reader import Wanted
from muster_runtime.checkpoint.tier import Part


@dataclass
class Transfers:
    memory: SharedMemory


def wanted_of(number: int) -> Wanted:
    """All bytes of file `number`."""
    return Wanted(torch.zeros(10 + number, dtype=torch.uint8), 0, lambda: finished.add(number))


session = muster.start()
gang = session._gang
rank, size = gang.rank, gang.world_size
memory = SharedMemory()
memory.reserve(100 + 10 * size).fill_(0)[100 : 100 + 10 + rank].fill_(rank + 1)
files = tuple(ShardFile(f"{number}.bin", 10 + number, "") for number in range(size))
manifest = Manifest(1, 1, 0, "", files, {"tensors": {}}, size, 0.0)
kept = Kept(Found("", "", manifest), tuple(range(size)), 0, Part(1, 1, 0, 100, 50, (), (0,), {}), {})
finished: set[int] = set()
wanted = {number: wanted_of(number) for number in sorted({rank, (rank + 1) % size, size - 1})}
KeptReader(Transfers(memory), gang, kept)._fetch_with_neighbours({number: [each] for number, each in wanted.items()})  # type: ignore[arg-type]
for number, each in wanted.items():
    assert each.target.tolist() == [number + 1] * (10 + number)
assert finished == set(wanted)
session.closed = True
