"""Who writes what, and where it lies: torch's planner, asked once for each structure of the state.

The planner splits replicas (of DDP and HSDP) over the ranks that hold them, so that no byte is written twice. What is
large is cut before, by rows or within them, so that ranks' parts are even and no object is large; each piece is a
chunk of its own, whole in one file. A plan holds as long as names, shapes, types and shardings stay the same; it
belongs to one `Planner`, never to the class.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor

from muster_protocol.checkpoints.cuts import cut
from muster_runtime.checkpoint.layout import Place, tensors_to_json
from muster_runtime.checkpoint.sums import Span
from muster_runtime.checkpoint.transfers import piece_bytes
from muster_runtime.checkpoint.tree import TensorTable, is_spread, local_part
from muster_runtime.parallel.gang import Gang

_ALIGNMENT: Final = 64
"""Bytes; every type can be viewed there, and copies run at full speed."""


@dataclass(frozen=True)
class File:
    """One object: its first byte in the rank's memory, its length, and its chunks that have bytes."""

    start: int
    length: int
    chunks: tuple[Span, ...]


@dataclass(frozen=True)
class Share:
    """One rank's part: its items, each with its first byte in the rank's memory, and the files that these make."""

    items: tuple[tuple[WriteItem, int], ...]
    files: tuple[File, ...]

    @property
    def length(self) -> int:
        return self.files[-1].start + self.files[-1].length if self.files else 0


class Planner:
    """One run's plan. `tensors` is the manifest's but for the checksums, on rank 0."""

    def __init__(self, gang: Gang) -> None:
        self._gang = gang
        self._structure: Hashable = None
        self._starts: dict[MetadataIndex, tuple[int, ...]] = {}  # of each item of the share, in this rank's part
        self._parts: TensorTable = {}
        self.share = Share((), ())
        self.tensors: dict[str, Any] = {}

    def plan(self, table: TensorTable) -> bool:
        """Makes the plan for `table` when the last one doesn't fit it any more; whether it did. Collective."""
        self._parts = {name: local_part(tensor).detach() for name, tensor in table.items()}
        structure = tuple(_kind(name, tensor, self._parts[name]) for name, tensor in table.items())
        ranks = self._gang.world_size
        own = sum(part.nbytes / _replicas(table[name], ranks) for name, part in self._parts.items())
        changed, total = self._gang.sum([float(structure != self._structure), own])
        if not changed:
            return False
        # The same on every rank: replicas must be cut alike, to be known as replicas.
        piece = piece_bytes(int(total) // ranks)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)  # one keeps its tensors
        planner.set_up_planner(dict(table), None, self._gang.leads)
        local = planner.create_local_plan()
        cuts = [cut for item in local.items for cut in cut_up(item, piece)]
        self._starts = {cut.index: start for cut, start in cuts}
        local = dataclasses.replace(local, items=[cut for cut, _ in cuts])
        spread = {name for name, tensor in table.items() if is_spread(tensor)}
        share, self.tensors = self._gang.share_out(local, lambda plans: _share_out(planner, plans, piece, spread))
        self.share = _laid_out(share, piece)
        self._structure = structure
        return True

    def resolve(self, item: WriteItem) -> torch.Tensor:
        """What an item of the share names, in the table of the last `plan`."""
        part = self._parts[item.index.fqn]
        sizes = _chunk(item).sizes
        if part.shape != sizes:
            for dimension, (start, size) in enumerate(zip(self._starts[item.index], sizes, strict=True)):
                part = part.narrow(dimension, start, size)
        return part

    def forget(self) -> None:
        """Lets go of the tensors of the last `plan`: a state may be made anew, and the old one is memory."""
        self._parts = {}


def _replicas(tensor: torch.Tensor, ranks: int) -> int:
    """Ranks that hold the same bytes and share the writing of them: all, where nothing says that they are spread."""
    if not isinstance(tensor, DTensor):
        return 1 if is_spread(tensor) else ranks
    sizes = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return math.prod(size for size, placement in sizes if placement.is_replicate())


def _share_out(
    planner: DefaultSavePlanner, plans: list[SavePlan], piece: int, spread: Collection[str]
) -> list[tuple[SavePlan, dict[str, Any]]]:
    """On rank 0: what each rank writes, and for itself the manifest's tensors."""
    shares, metadata = planner.create_global_plan(plans)
    places: dict[MetadataIndex, Place] = {}
    first = 0  # index of the rank's first file in the manifest
    for plan in shares:
        share = _laid_out(plan, piece)
        number = 0
        for item, at in share.items:
            while number + 1 < len(share.files) and at >= share.files[number + 1].start:
                number += 1
            start = share.files[number].start
            places[item.index] = Place(first + number, at - start)
        first += len(share.files)
    tensors = tensors_to_json(metadata, places, spread)
    return [(plan, tensors if rank == 0 else {}) for rank, plan in enumerate(shares)]


def _kind(name: str, tensor: torch.Tensor, part: torch.Tensor) -> Hashable:
    return name, tensor.shape, tensor.dtype, tuple(getattr(tensor, "placements", ())), part.shape


def cut_up(item: WriteItem, piece: int) -> Iterator[tuple[WriteItem, tuple[int, ...]]]:
    """The item in chunks of at most `piece` bytes, each with where it begins in it."""
    data, chunk = item.tensor_data, _chunk(item)
    assert data is not None
    for start, sizes in cut(tuple(chunk.sizes), max(1, piece // data.properties.dtype.itemsize)):
        if sizes == tuple(chunk.sizes):
            yield item, start
            return
        offsets = torch.Size(map(operator.add, chunk.offsets, start))
        part = TensorWriteData(ChunkStorageMetadata(offsets, torch.Size(sizes)), data.properties, data.size)
        yield WriteItem(MetadataIndex(item.index.fqn, offsets), WriteItemType.SHARD, tensor_data=part), start


def _laid_out(plan: SavePlan, piece: int) -> Share:
    """The items one after the other; a file ends where the next item would make it larger than `piece`."""
    items, files = [], []
    start = at = 0
    chunks: list[Span] = []
    for item in plan.items:
        length = _length(item)
        if chunks and at + length - start > piece:
            files.append(File(start, at - start, tuple(chunks)))
            start, chunks = at, []
        items.append((item, at))
        if length:
            chunks.append((at - start, length))
        at += math.ceil(length / _ALIGNMENT) * _ALIGNMENT
    if items:
        files.append(File(start, at - start, tuple(chunks)))
    return Share(tuple(items), tuple(files))


def _chunk(item: WriteItem) -> ChunkStorageMetadata:
    assert item.tensor_data is not None, item.index
    return item.tensor_data.chunk


def _length(item: WriteItem) -> int:
    assert item.tensor_data is not None, item.index
    return math.prod(_chunk(item).sizes) * item.tensor_data.properties.dtype.itemsize
