"""The ranks of this run as one: small exchanges on a gloo group of our own, beside the training's own traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class Gang:
    """`group` is a gloo group over all ranks, or None when this process is alone."""

    rank: int = 0
    world_size: int = 1
    group: Any = None

    @property
    def leads(self) -> bool:
        """Rank 0 decides and commits."""
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Adds up `values` over the ranks, in double precision. Collective."""
        if self.group is None:
            return values
        vector = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(vector, group=self.group)
        return vector.tolist()

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank. Collective."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def on_leader(self, work: Callable[[], T]) -> T:
        """What `work` returns on rank 0, on every rank; what it raises is raised on every rank. Collective."""
        if self.group is None:
            return work()
        answer: list[Any] = [None, None]
        if self.leads:
            try:
                answer[0] = work()
            except Exception as error:  # noqa: BLE001 - raised again below, on every rank
                answer[1] = error
        dist.broadcast_object_list(answer, src=0, group=self.group)
        if answer[1] is not None:
            raise answer[1]
        result: T = answer[0]
        return result
