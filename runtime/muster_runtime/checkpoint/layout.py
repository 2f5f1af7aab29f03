"""The planner's metadata as JSON: which tensors a checkpoint has, in which chunks, and where each chunk lies.

In a manifest's `planner`:

    {"tensors": {NAME: {"dtype": "float32", "shape": [4, 2],
                        "chunks": [{"offsets": [0, 0], "sizes": [2, 2], "file": 0, "at": 0, "sha256": "..."}]}},
     "trees":   {OBJECT: TREE},
     "run":     {...}}

`file` is an index into the manifest's `files`, `at` the chunk's first byte there; its length follows from sizes and
dtype. Chunks are raw bytes in C order, little-endian.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from muster_protocol.manifest import Manifest
from muster_runtime.errors import CorruptCheckpointError


@dataclass(frozen=True)
class Place:
    """Where one chunk lies: key of its file, first byte, length in bytes, hex SHA-256 of those bytes."""

    key: str
    at: int
    length: int
    sha256: str


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


def tensors_to_json(metadata: Metadata, places: dict[MetadataIndex, Place], files: list[str]) -> dict[str, Any]:
    """The `tensors` of a manifest. `files` are the keys in the manifest's order."""
    order = {key: i for i, key in enumerate(files)}
    tensors: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata), name  # the session puts nothing else into the state
        chunks = []
        for chunk in entry.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": order[place.key],
                    "at": place.at,
                    "sha256": place.sha256,
                }
            )
        tensors[name] = {
            "dtype": dtype_name(entry.properties.dtype),
            "shape": list(entry.size),
            "chunks": chunks,
        }
    return tensors


def metadata_from_json(manifest: Manifest) -> tuple[Metadata, dict[MetadataIndex, Place]]:
    """The planner's metadata and the place of each chunk. CorruptCheckpointError when the manifest makes no sense."""
    entries: dict[str, Any] = {}
    places: dict[MetadataIndex, Place] = {}
    try:
        for name, raw in manifest.planner["tensors"].items():
            dtype = dtype_named(raw["dtype"])
            chunks = []
            for item in raw["chunks"]:
                offsets, sizes = torch.Size(item["offsets"]), torch.Size(item["sizes"])
                chunks.append(ChunkStorageMetadata(offsets, sizes))
                length = math.prod(sizes) * dtype.itemsize
                file = manifest.files[item["file"]]
                if item["at"] + length > file.size:
                    raise CorruptCheckpointError(f"{name}: its chunk lies beyond the end of {file.key}")
                places[MetadataIndex(name, offsets)] = Place(file.key, item["at"], length, item["sha256"])
            entries[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(raw["shape"]), chunks)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"the manifest of step {manifest.step} is damaged: {error!r}") from error
    return Metadata(entries), places


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy and without NumPy. Valid while the tensor lives."""
    length = tensor.numel() * tensor.element_size()
    if not length:
        return memoryview(b"")
    return memoryview((ctypes.c_char * length).from_address(tensor.data_ptr())).cast("B")
