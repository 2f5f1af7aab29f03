"""Each rank holds one file, and wants it and the next rank's; the last file is wanted by all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import muster_runtime as muster
from muster_protocol.checkpoints.chain import Found
from muster_protocol.manifest import Manifest, ShardFile
from muster_runtime.checkpoint.kept import Kept, KeptReader
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.tier import Part


@dataclass
class Transfers:
    memory: SharedMemory


@dataclass
class Wanted:
    got: torch.Tensor | None = None

    def take(self, file: torch.Tensor) -> None:
        self.got = file.clone()


session = muster.start()
gang = session._gang
rank, size = gang.rank, gang.world_size
memory = SharedMemory()
memory.reserve(100 + 10 * size).fill_(0)[100 : 100 + 10 + rank].fill_(rank + 1)
files = tuple(ShardFile(f"{number}.bin", 10 + number, "") for number in range(size))
manifest = Manifest(1, 1, 0, "", files, {"tensors": {}}, size, 0.0)
kept = Kept(Found("", "", manifest), tuple(range(size)), 0, Part(1, 1, 0, 100, 50, (), (0,), {}), {})
wanted = {number: Wanted() for number in sorted({rank, (rank + 1) % size, size - 1})}
KeptReader(Transfers(memory), gang, kept)._fetch_with_neighbours({number: [each] for number, each in wanted.items()})  # type: ignore[arg-type]
for number, each in wanted.items():
    assert each.got is not None
    assert each.got.tolist() == [number + 1] * (10 + number)
session.closed = True
