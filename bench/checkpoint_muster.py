"""Muster's own checkpoints as a contender of `bench/checkpoint.py`."""

from __future__ import annotations

import sys

import torch
from hack.s3server import BUCKET
from torch import nn
from torch.optim import Optimizer

from muster_protocol.losses import LossRecord
from muster_runtime.parallel.gang import Gang
from muster_runtime.session.attempts import RunState
from muster_runtime.session.persistence import Persistence
from muster_runtime.session.progress import Metrics
from muster_runtime.session.settings import Settings
from muster_runtime.session.tracking import Tracked


class Muster:
    """What a session does at its boundaries."""

    def __init__(self, gang: Gang, prefix: str, device: torch.device) -> None:
        self._gang = gang
        self._saving, self._committed = 0, set[int]()
        self._persistence = Persistence(
            Settings(rank=gang.rank, world_size=gang.world_size, checkpoint=f"s3://{BUCKET}/{prefix}", job_uid="bench"),
            gang,
            device,
            warn=_tell,
            landed=lambda saved: self._committed.add(saved.step),
            troubled=_tell,
            settled=lambda _: None,
            counted=lambda _: None,
        )

    def attach(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._objects = [Tracked("model", model, "bench"), Tracked("optimizer", optimizer, "bench")]

    def begin(self) -> None:
        assert self._persistence.restore(self._objects) is None, "somebody else's checkpoints are there"

    def save(self, step: int) -> None:
        self._saving = step
        self._persistence.save(self._objects, self._run(step), LossRecord(1, 0, ()), Metrics(), updates_seen=True)

    def save_now(self, step: int) -> None:
        self._persistence.save_now(self._objects, self._run(step), LossRecord(1, 0, ()), Metrics(), finished=False)

    def _run(self, step: int) -> RunState:
        return RunState(step=step, seed=0, world_size=self._gang.world_size, threads=1)

    def staged(self) -> None:
        self._persistence.saver.before_update()

    def durable(self) -> bool:
        self._persistence.saver.step_over(seen=True)
        writing, failed, unsealed = self._gang.sum([float(word) for word in self._persistence.word()])
        self._persistence.heard(writing=writing > 0, failed=failed > 0, unsealed=unsealed > 0)
        return self._saving in self._committed

    def restore(self) -> None:
        self._persistence.restore(self._objects)

    def close(self) -> None:
        self._persistence.close()


class MusterMemory(Muster):
    """With the memory tier that `bench/checkpoint.py` gives, as a launcher does: the restore after a crash."""

    def restore(self) -> None:
        restored = self._persistence.restore(self._objects)
        assert restored is not None
        assert restored.source, "it came from the store"


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
