"""Reads a checkpoint back into tensors of any sharding. Every chunk that is used is checked against its SHA-256."""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future as Task
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from muster_protocol.checkpoints.store import Store
from muster_protocol.manifest import Manifest
from muster_protocol.storage_errors import PASSING, Kind
from muster_runtime.checkpoint.layout import Place, metadata_from_json
from muster_runtime.errors import CorruptCheckpointError, StorageError

_READS_AHEAD: Final = 4
"""Chunks being fetched at once; bounds the memory beside the tensors themselves."""
_TRIES: Final = 4
_PAUSE_SECONDS: Final = 1.0
"""Before a chunk is asked for again; doubled each time."""


class Reader(StorageReader):
    """One restore of one manifest."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        super().__init__()
        self._store, self._manifest = store, manifest
        self.metadata, self._places = metadata_from_json(manifest)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do: an instance serves one restore."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the store is open."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[MetadataIndex, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            wanted[item.storage_index].append(item)
        for index, content in self._fetch(list(wanted)):
            if not content:
                continue  # a rank's empty shard
            saved = self._saved_tensor(index, content)
            for item in wanted[index]:
                part = narrow_tensor_by_index(saved, item.storage_offsets, item.lengths)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _fetch(self, indices: list[MetadataIndex]) -> Iterator[tuple[MetadataIndex, bytearray]]:
        """Chunks in the order of `indices`, a few fetched ahead."""
        with ThreadPoolExecutor(_READS_AHEAD, thread_name_prefix="muster-read") as pool:
            ahead: list[tuple[MetadataIndex, Task[bytearray]]] = []
            for index in indices:
                ahead.append((index, pool.submit(read_chunk, self._store, self._places[index])))
                if len(ahead) == _READS_AHEAD:
                    first, task = ahead.pop(0)
                    yield first, task.result()
            for index, task in ahead:
                yield index, task.result()

    def _saved_tensor(self, index: MetadataIndex, content: bytearray) -> torch.Tensor:
        entry = self.metadata.state_dict_metadata[index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        sizes = next(chunk.sizes for chunk in entry.chunks if chunk.offsets == index.offset)
        return torch.frombuffer(content, dtype=entry.properties.dtype).view(sizes)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # made with a store, never from an id


def read_chunk(store: Store, place: Place) -> bytearray:
    """The chunk's bytes. CorruptCheckpointError when they are missing or aren't the ones that were written."""
    content = _read_patiently(store, place)
    if hashlib.sha256(content).hexdigest() != place.sha256:
        raise CorruptCheckpointError(
            f"{store.uri}/{place.key}: bytes {place.at} to {place.at + place.length} are not those that were saved "
            "(SHA-256 differs)"
        )
    return content


def _read_patiently(store: Store, place: Place) -> bytearray:
    """The library repeats requests, but not a body that breaks off half-way; a large restore must outlive that."""
    for attempt in range(_TRIES):
        try:
            return store.read(place.key, place.at, place.length)
        except StorageError as error:
            if error.kind == Kind.NOT_FOUND.value:
                raise CorruptCheckpointError(str(error)) from error
            if Kind(error.kind) not in PASSING or attempt + 1 == _TRIES:
                raise
        time.sleep(_PAUSE_SECONDS * 2**attempt)
    raise AssertionError("unreachable")
