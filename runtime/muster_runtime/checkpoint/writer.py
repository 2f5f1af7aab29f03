"""Writes a checkpoint: torch's planner decides who writes what, this sends it to the store and commits.

Order: every rank's shard file, then the manifest, then `LATEST`. Only the last makes the checkpoint committed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.store import Store
from muster_protocol.manifest import MANIFEST_NAME, Manifest, ShardFile
from muster_runtime.checkpoint.layout import Place, raw_bytes, tensors_to_json
from muster_runtime.errors import StateError


@dataclass(frozen=True)
class Heading:
    """What rank 0 knows about the checkpoint beside its tensors."""

    step: int
    epoch: int
    attempt: int
    world_size: int
    job: str = ""
    parent: str = ""
    parent_sha256: str = ""
    milestone: str = ""
    milestone_sha256: str = ""
    trees: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def prefix(self) -> str:
        return manifests.step_prefix(self.step, self.epoch, self.attempt)


@dataclass(frozen=True)
class Written:
    """A manifest that lies in the store: its key, the digest of its bytes, and the bytes of all shards."""

    key: str
    sha256: str
    shard_bytes: int


class Writer(StorageWriter):
    """One save. `commit` is called on rank 0 when everything is there; what it raises fails the save everywhere."""

    def __init__(self, store: Store, heading: Heading, rank: int, commit: Callable[[Written], None]) -> None:
        super().__init__()
        self._store, self._heading, self._rank, self._commit = store, heading, rank, commit
        self.bytes_written = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do: an instance serves one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the store is open."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write(plan, planner) if plan.items else [])
        return done

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        key = f"{self._heading.prefix}rank-{self._rank:05d}.bin"
        stream = self._store.writer(key)
        places = []
        at = 0
        try:
            for item in plan.items:
                value = planner.resolve_data(item)
                if not isinstance(value, torch.Tensor):
                    raise StateError(f"{item.index.fqn} is not a tensor")
                tensor = value.detach().to("cpu").contiguous()  # one at a time: no second copy of the whole state
                view = raw_bytes(tensor)
                stream.write(view)
                places.append((item.index, Place(key, at, view.nbytes, hashlib.sha256(view).hexdigest())))
                at += view.nbytes
        except BaseException:
            stream.abort()
            raise
        file = stream.close()
        self.bytes_written = file.size
        return [WriteResult(index, place.length, (place, file)) for index, place in places]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0: the manifest, then the commit."""
        files: dict[str, ShardFile] = {}
        places = {}
        for result in (result for of_rank in results for result in of_rank):
            place, file = result.storage_data
            files[file.key] = file
            places[result.index] = place
        heading = self._heading
        tensors = tensors_to_json(metadata, places, list(files))
        record = Manifest(
            step=heading.step,
            epoch=heading.epoch,
            attempt=heading.attempt,
            parent=heading.parent,
            parent_sha256=heading.parent_sha256,
            milestone=heading.milestone,
            milestone_sha256=heading.milestone_sha256,
            files=tuple(files.values()),
            planner={"tensors": tensors, "trees": heading.trees, "run": heading.run},
            world_size=heading.world_size,
            created_at=time.time(),
            job=heading.job,
            metrics=heading.metrics,
        )
        content = manifests.encode(record)
        key = heading.prefix + MANIFEST_NAME
        self._store.put(key, content)
        self._commit(Written(key, hashlib.sha256(content).hexdigest(), sum(file.size for file in files.values())))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # made with a store, never from an id
