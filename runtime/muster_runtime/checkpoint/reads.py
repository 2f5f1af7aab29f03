"""Which bytes of a checkpoint a rank's part of a tensor consists of: what it has in common with each saved chunk.

torch's planner of loads makes several objects of each chunk that anybody saved, for every rank; with many ranks and
tensors that takes seconds before the first byte comes. Here only chunks that have something in common are looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from muster_protocol.checkpoints.cuts import Box
from muster_protocol.manifest import Manifest
from muster_runtime.checkpoint.layout import dtype_named
from muster_runtime.errors import CorruptCheckpointError, StateError

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Saved:
    """A tensor of a checkpoint: its whole shape, its chunks as the manifest has them, and whether each rank held a part
    of it. In checkpoints from before that was stored nothing is spread."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    chunks: Sequence[dict[str, Any]]
    spread: bool = False


@dataclass(frozen=True)
class Read:
    """What a rank's part has in common with one chunk: a box of `lengths`, `within` the chunk and `into` the part.

    `file`, `at`: the chunk's file in the manifest, and its first byte there; `sizes`: the chunk's.
    """

    file: int
    at: int
    sizes: Sizes
    within: Sizes
    into: Sizes
    lengths: Sizes


def saved_tensor(manifest: Manifest, name: str) -> Saved | None:
    """None: the checkpoint has no such tensor. CorruptCheckpointError when the manifest makes no sense."""
    try:
        raw = manifest.planner["tensors"].get(name)
        if not raw:
            return None
        dtype, shape = dtype_named(raw["dtype"]), torch.Size(raw["shape"])
        return Saved(name, dtype, shape, raw["chunks"], bool(raw.get("spread")))
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(manifest, error) from error


def reads(manifest: Manifest, tensor: Saved, shape: Sequence[int], part: Box) -> list[Read]:
    """What fills `part` of a tensor of `shape`. StateError when it was saved with another shape; CorruptCheckpointError
    when the manifest makes no sense, or not all of the part was saved."""
    if tuple(shape) != tuple(tensor.shape):
        raise StateError(f"{tensor.name} is {tuple(tensor.shape)} in the checkpoint and {tuple(shape)} here")
    try:
        found = list(_common(tensor, part))
        for read in found:
            _look_for(read, tensor, manifest)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise _damaged(manifest, error) from error
    if sum(math.prod(read.lengths) for read in found) < math.prod(part[1]):
        raise CorruptCheckpointError(f"the manifest of step {manifest.step} lacks chunks of {tensor.name}")
    return found


def _common(tensor: Saved, part: Box) -> Iterator[Read]:
    starts, sizes = part
    if 0 in sizes:
        return
    ends = tuple(map(operator.add, starts, sizes))
    for chunk in _near(tensor.chunks, starts, ends):
        others, others_sizes = chunk["offsets"], tuple(chunk["sizes"])
        low = tuple(map(max, starts, others))
        high = map(min, ends, map(operator.add, others, others_sizes))
        lengths = tuple(map(operator.sub, high, low))
        if min(lengths, default=1) > 0:
            within, into = tuple(map(operator.sub, low, others)), tuple(map(operator.sub, low, starts))
            yield Read(chunk["file"], chunk["at"], others_sizes, within, into, lengths)


def _near(chunks: Sequence[dict[str, Any]], starts: Sizes, ends: Sizes) -> Sequence[dict[str, Any]]:
    """Those that have the part's rows, at least: with many ranks most have none of them."""
    if not starts:
        return chunks
    first, end = starts[0], ends[0]
    return [each for each in chunks if each["offsets"][0] < end and first < each["offsets"][0] + each["sizes"][0]]


def _look_for(read: Read, tensor: Saved, manifest: Manifest) -> None:
    if read.file < 0:
        raise IndexError(read.file)
    file = manifest.files[read.file]
    if not 0 <= read.at <= file.size - math.prod(read.sizes) * tensor.dtype.itemsize:
        raise CorruptCheckpointError(f"a chunk of {tensor.name} lies beyond the end of {file.key}")


def _damaged(manifest: Manifest, error: Exception) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"the manifest of step {manifest.step} is damaged: {error!r}")
