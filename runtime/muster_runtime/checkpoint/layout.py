"""The planner's metadata as JSON: which tensors a checkpoint has, in which chunks, and where each chunk lies.

In a manifest's `planner`:

    {"tensors": {NAME: {"dtype": "float32", "shape": [4, 2],
                        "chunks": [{"offsets": [0, 0], "sizes": [2, 2], "file": 0, "at": 0, "crc32": "…"}],
                        "spread": true}},
     "trees":   {OBJECT: TREE},
     "run":     {...}}

`file` is an index into the manifest's `files`, `at` the chunk's first byte there; its length follows from sizes and
dtype, and all of it lies in that file. Chunks are raw bytes in C order, little-endian. `spread` is there where each
rank held a part, as of a DTensor: of one chunk may be either.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from muster_protocol.checkpoints.checks import named
from muster_runtime.checkpoint.s3_store import Landed
from muster_runtime.errors import CorruptCheckpointError


@dataclass(frozen=True)
class Place:
    """Where one chunk lies: the file's number, and its first byte there."""

    file: int
    at: int


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """CorruptCheckpointError for a name that this torch doesn't have."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptCheckpointError(
            f"the checkpoint has tensors of type {name!r}, which torch {torch.__version__} lacks"
        )
    return dtype


def tensors_to_json(
    metadata: Metadata, places: dict[MetadataIndex, Place], spread: Collection[str] = ()
) -> dict[str, Any]:
    """The `tensors` of a manifest; `WithSums` completes them. `spread`: their names."""
    tensors: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), name  # the session puts nothing else into the state
        chunks = []
        for chunk in entry.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                {"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), "file": place.file, "at": place.at}
            )
        tensors[name] = {
            "dtype": dtype_name(entry.properties.dtype),
            "shape": list(entry.size),
            "chunks": chunks,
        }
        if name in spread:
            tensors[name]["spread"] = True
    return tensors


class WithSums(Mapping[str, Any]):
    """The tensors with each chunk's CRC-32, of the manifest's `files`. A chunk without bytes has a sum, too.

    Each is made when it is asked for: all at once are as many objects as many ranks have chunks, and whenever there are
    so many new ones Python looks through all that the training has, too.
    """

    def __init__(self, tensors: Mapping[str, Any], files: Sequence[Landed]) -> None:
        self._tensors, self._files = tensors, files

    def __getitem__(self, name: str) -> dict[str, Any]:
        tensor = self._tensors[name]
        return {**tensor, "chunks": [{**chunk, "crc32": self._sum(chunk)} for chunk in tensor["chunks"]]}

    def _sum(self, chunk: dict[str, Any]) -> str:
        return self._files[chunk["file"]].sums[chunk["at"]] if math.prod(chunk["sizes"]) else named(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, which lives as long as they do; without a copy and without NumPy."""
    length = tensor.numel() * tensor.element_size()
    if not length:
        return memoryview(b"")
    found = (ctypes.c_char * length).from_address(tensor.data_ptr())
    found.owner = tensor  # type: ignore[attr-defined]
    return memoryview(found).cast("B")
