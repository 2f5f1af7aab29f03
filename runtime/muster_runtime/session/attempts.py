"""What a checkpoint says of the run itself, and one try at restoring a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from muster_protocol.checkpoints.chain import Found
from muster_protocol.counts import counted
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.data.foreign import fixed_size, is_foreign
from muster_runtime.errors import StateError
from muster_runtime.parallel.gang import Gang
from muster_runtime.session.places import Order, in_place
from muster_runtime.session.restoration import Restoration
from muster_runtime.session.tracking import Tracked


@dataclass(frozen=True)
class RunState:
    """The run itself. `ended_early`: the script ended its loop before the total that it asked for.

    `over` counts the script's loops, from its first, up to the last that it ended so. 0 in checkpoints that were made
    before it was counted.
    """

    step: int
    seed: int
    world_size: int
    threads: int
    strategy: str = ""
    total: int | None = None
    ended_early: bool = False
    over: int = 0
    numerics: dict[str, Any] | None = None
    """What the watch over losses and gradients remembers (`numerics.Watch.state`)."""
    asked: dict[str, dict[str, str]] | None = None
    """What the script made optimizers and schedulers with when the run began (`asked.asked`)."""
    parameters: dict[str, Order] | None = None
    """The names of each optimizer's parameters, in their order; None in checkpoints from before they were stored."""


@dataclass(frozen=True)
class Restored:
    """`random` is this rank's saved random state, or None when it has to be derived anew.

    `job` is the name of the job that saved it, or "". `source` is where it came from when that isn't the store;
    `losses`, by step, are in no record of the store yet. `older`: what was committed last is not whole, and this is an
    older checkpoint. `untracked`: names of what it has and the script doesn't track. `gathered`: paths of sharded
    tensors that each rank was given whole.
    """

    run: RunState
    finished: bool
    random: torch.Tensor | None
    job: str = ""
    source: str = ""
    losses: tuple[tuple[int, float], ...] = ()
    older: bool = False
    untracked: tuple[str, ...] = ()
    gathered: tuple[str, ...] = ()


class Attempt:
    """Collects what the last tried checkpoint brings; it counts when its reading succeeded."""

    def __init__(self, objects: list[Tracked], gang: Gang, world_size: int, *, some: bool = False) -> None:
        """`some`: what the checkpoint lacks is left as it is, as long as it has any of `objects`."""
        self._objects, self._gang, self._world_size, self._some = objects, gang, world_size, some
        self.lacking: list[str] = []
        self._restoration: Restoration | None = None
        self._random: torch.Tensor | None = None

    def prepare(self, found: Found, reader: Reader) -> TensorTable:
        trees, ranks = found.manifest.planner.get("trees", {}), found.manifest.world_size
        names = found.manifest.planner.get("run", {}).get("parameters") or {}
        objects = self._objects
        if self._some and any(tracked.name in trees for tracked in objects):
            objects = [tracked for tracked in objects if tracked.name in trees]
            self.lacking = [tracked.name for tracked in self._objects if tracked.name not in trees]
        for tracked in objects:
            if is_foreign(tracked.thing) and ranks != self._world_size:
                told = fixed_size(tracked.name, tracked.thing, tracked.where)
                raise StateError(
                    f"{told}. The checkpoint is of {counted(ranks, 'rank')}, this gang has {self._world_size}"
                )
        self._restoration = Restoration(objects, in_place(objects, trees, names), reader, self._gang.rank)
        table = dict(self._restoration.table)
        name = rng_name(self._gang.rank)
        entry = reader.saved(name)
        self._random = None
        if entry is not None and found.manifest.world_size == self._world_size:
            self._random = torch.empty(entry.shape, dtype=torch.uint8, device="cpu")
            table[name] = self._random
        return table

    def finish(self, found: Found, finished: bool) -> Restored:
        assert self._restoration is not None
        self._restoration.apply()
        try:
            run = RunState(**found.manifest.planner["run"])
        except (KeyError, TypeError) as error:
            raise StateError(f"{found.key} was written by another version of Muster: {error}") from error
        names = {tracked.name for tracked in self._objects}
        untracked = () if self._some else tuple(found.manifest.planner.get("trees", {}).keys() - names)
        gathered = tuple(self._restoration.gathered)
        return Restored(run, finished, self._random, found.manifest.job, untracked=untracked, gathered=gathered)


def rng_name(rank: int) -> str:
    return f"muster.rng.{rank:05d}"  # by rank, or the planner would keep one of them
