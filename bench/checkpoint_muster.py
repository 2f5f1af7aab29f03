"""Muster's own checkpoints as a contender of `bench/checkpoint.py`."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.optim import Optimizer

from muster_protocol.losses import LossRecord
from muster_runtime.parallel.gang import Gang
from muster_runtime.session.persistence import Persistence, RunState
from muster_runtime.session.settings import Settings
from muster_runtime.session.tracking import Tracked
from s3server import BUCKET


class Muster:
    """What a session does at its boundaries."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, gang: Gang, prefix: str) -> None:
        self._gang = gang
        self._objects = [Tracked("model", model, "bench"), Tracked("optimizer", optimizer, "bench")]
        self._settings = Settings(
            rank=gang.rank, world_size=gang.world_size, checkpoint=f"s3://{BUCKET}/{prefix}", job_uid="bench"
        )
        self._saving, self._committed = 0, set[int]()
        self._persistence = self._open()
        self._persistence.restore(self._objects)

    def _open(self) -> Persistence:
        return Persistence(
            self._settings,
            self._gang,
            torch.device("cpu"),
            warn=warnings.warn,
            landed=lambda saved: self._committed.add(saved.step),
            troubled=warnings.warn,
        )

    def save(self, step: int) -> None:
        run = RunState(step=step, seed=0, world_size=self._gang.world_size, threads=1)
        self._saving = step
        self._persistence.save(self._objects, run, LossRecord(1, 0, ()), {})

    def durable(self) -> bool:
        writing, failed = self._gang.sum([float(word) for word in self._persistence.word()])
        self._persistence.heard(writing=writing > 0, failed=failed > 0)
        return self._saving in self._committed

    def restore(self) -> None:
        self._persistence.restore(self._objects)

    def close(self) -> None:
        self._persistence.close()
