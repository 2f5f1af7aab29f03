"""What a checkpoint holds beside the tracked objects, and how a session saves and restores it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.holds import held
from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.store import Store
from muster_protocol.losses import LossRecord, encode, metrics_key
from muster_protocol.storage_errors import PASSING, Kind
from muster_protocol.uris import parse_uri_at_step
from muster_runtime.checkpoint.keeper import Keeper, Saved
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.store import open_store
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.errors import StateError, StorageError
from muster_runtime.parallel.gang import Gang
from muster_runtime.session import rng
from muster_runtime.session.settings import Settings
from muster_runtime.session.tracking import Restoration, Tracked, capture

_TRIES_AT_THE_END: Final = 4
_PAUSE_SECONDS: Final = 2.0
_MISSED_AT_MOST: Final = 5
"""Saves in a row that may be missed: a rank that can't reach its store for so long had better start elsewhere."""


@dataclass(frozen=True)
class RunState:
    """The run itself. `ended_early`: the script ended its loop before the total that it asked for."""

    step: int
    seed: int
    world_size: int
    threads: int
    strategy: str = ""
    total: int | None = None
    ended_early: bool = False


@dataclass(frozen=True)
class Restored:
    """`random` is this rank's saved random state, or None when it has to be derived anew."""

    run: RunState
    finished: bool
    random: torch.Tensor | None


class Persistence:
    """One run's checkpoints as its session sees them. Everything here is collective."""

    def __init__(self, settings: Settings, gang: Gang, device: torch.device, warn: Callable[[str], None]) -> None:
        self._settings, self._gang, self._device, self._warn = settings, gang, device, warn
        self._store: Store = open_store(settings.checkpoint)
        self._keeper = Keeper(
            self._store,
            gang,
            owner=settings.job_uid or "no job",
            job=settings.job,
            retention=settings.retention,
            warn=warn,
        )
        self.uri = self._store.uri
        self._restored_step = 0
        self._missed = 0
        self.trouble = ""
        """Why the last save was missed, and what mends it."""

    @property
    def epoch(self) -> int:
        """The epoch that this gang claimed."""
        return self._keeper.latest.epoch

    def restore(self, objects: list[Tracked]) -> Restored | None:
        """Claims the run and restores its newest whole checkpoint. None when it has none yet."""
        latest = self._keeper.claim()
        attempt = _Attempt(objects, self._gang, self._settings.world_size)
        found = self._keeper.restore(attempt.prepare)
        if found is None:
            return None
        restored = attempt.finish(found, latest.finished)
        self._restored_step = restored.run.step
        return restored

    def start_from(self, objects: list[Tracked]) -> Restored | None:
        """Warm start from another run; None when only its models are wanted."""
        uri, step = parse_uri_at_step(self._settings.start_from)
        models_only = self._settings.start_load == "model"
        wanted = [tracked for tracked in objects if not models_only or isinstance(tracked.thing, nn.Module)]
        store = open_store(str(uri))
        try:
            found = self._gang.on_leader(lambda: find_start(store, step))
            attempt = _Attempt(wanted, self._gang, self._settings.world_size)
            with ExitStack() as stack:
                if self._gang.leads:
                    who = f"the start of {self._settings.job or 'a run'}"
                    stack.enter_context(held(store, found.key, who, self._warn))
                self._keeper.load(store, found, attempt.prepare)
        finally:
            store.close()
        restored = attempt.finish(found, finished=False)
        return None if models_only else restored

    def save(
        self,
        objects: list[Tracked],
        run: RunState,
        record: LossRecord,
        metrics: dict[str, float],
        *,
        finished: bool,
        must: bool,
    ) -> Saved | None:
        """Saves and commits. None when the store did not answer and the save needn't be now (`must` is False).

        StorageError when it must be now, or too many saves in a row were missed.
        """
        must = must or self._missed >= _MISSED_AT_MOST
        table, trees = capture(objects, self._gang)
        table[_rng_name(self._gang.rank)] = rng.capture(self._device)
        content = encode(record)

        def keep_losses() -> None:
            if record.losses:
                self._store.put(metrics_key(record.epoch, run.step), content)

        for attempt in range(_TRIES_AT_THE_END):
            try:
                saved = self._keeper.save(
                    table,
                    step=run.step,
                    trees=trees,
                    run=dataclasses.asdict(run),
                    metrics=metrics,
                    finished=finished,
                    before_commit=keep_losses,
                )
                self._missed = 0
                return saved
            except StorageError as error:
                if Kind(error.kind) not in PASSING or (must and attempt + 1 == _TRIES_AT_THE_END):
                    raise
                self.trouble = f"the checkpoint of step {run.step} was not saved: {error}"
                self._warn(self.trouble)
                if not must:
                    self._missed += 1
                    return None
            time.sleep(_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("unreachable")

    def loss_record(self, losses: LossRecord) -> LossRecord:
        return dataclasses.replace(losses, epoch=self.epoch, restored=self._restored_step)

    def close(self) -> None:
        self._keeper.close()


class _Attempt:
    """Collects what the last tried checkpoint brings; it counts when its reading succeeded."""

    def __init__(self, objects: list[Tracked], gang: Gang, world_size: int) -> None:
        self._objects, self._gang, self._world_size = objects, gang, world_size
        self._restoration: Restoration | None = None
        self._random: torch.Tensor | None = None

    def prepare(self, found: Found, reader: Reader) -> TensorTable:
        trees = found.manifest.planner.get("trees", {})
        self._restoration = Restoration(self._objects, trees, reader)
        table = dict(self._restoration.table)
        name = _rng_name(self._gang.rank)
        entry = reader.metadata.state_dict_metadata.get(name)
        self._random = None
        if entry is not None and found.manifest.world_size == self._world_size:
            self._random = torch.empty(entry.size, dtype=torch.uint8)  # type: ignore[union-attr]
            table[name] = self._random
        return table

    def finish(self, found: Found, finished: bool) -> Restored:
        assert self._restoration is not None
        self._restoration.apply()
        try:
            run = RunState(**found.manifest.planner["run"])
        except (KeyError, TypeError) as error:
            raise StateError(f"{found.key} was written by another version of Muster: {error}") from error
        return Restored(run, finished, self._random)


def _rng_name(rank: int) -> str:
    return f"muster.rng.{rank:05d}"  # by rank, or the planner would keep one of them
