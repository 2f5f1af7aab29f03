"""The ranks of this run as one: small exchanges on a gloo group of our own, beside the training's own traffic."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from muster_runtime.errors import MusterError

_WAITS_WITH_THE_LOCK: Final = TorchVersion(torch.__version__) < "2.7"
_NAPS: Final = 10
_NAP_SECONDS: Final = 0.005

T = TypeVar("T")
U = TypeVar("U")


def end_group(group: Any = None) -> None:
    """Ends a group of gloo's, or all groups, and waits for their threads. Nothing may be under way there.

    Up to torch 2.6 the wait itself keeps Python's lock, and lasts for ever where a thread still asks for it, as right
    after an exchange. Nothing tells when none does any more. So each is let have it before: in several naps, since a
    container that has used up its share of the processors wakes all of its threads at once.
    """
    if dist.is_initialized():  # a script may have destroyed all groups by itself
        for _ in range(_NAPS if _WAITS_WITH_THE_LOCK else 0):
            time.sleep(_NAP_SECONDS)
        dist.destroy_process_group(group)


@dataclass
class Gang:
    """`group` is a gloo group over all ranks, or None when this process is alone."""

    rank: int = 0
    world_size: int = 1
    group: Any = None

    @property
    def leads(self) -> bool:
        """Rank 0 decides and commits."""
        return self.rank == 0

    def leave(self) -> None:
        """Ends the group, and waits for its threads: they need Python's lock to free what a collective has left.

        A thread that asks for the lock when Python takes itself apart is ended in the middle of a destructor, which
        aborts the process (pytorch/pytorch#190489). Nothing may be under way.
        """
        group, self.group = self.group, None
        if group is not None:
            end_group(group)

    def sum(self, values: list[float]) -> list[float]:
        """Adds up `values` over the ranks, in double precision. Collective."""
        if self.group is None:
            return values
        vector = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(vector, group=self.group)
        return vector.tolist()

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank. Collective."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def share_out(self, value: T, work: Callable[[list[T]], list[U]]) -> U:
        """Gives every rank its part of what `work` makes on rank 0 of all ranks' values. Collective.

        What `work` raises is raised on every rank.
        """
        if self.group is None:
            return work([value])[0]
        values: list[Any] | None = [None] * self.world_size if self.leads else None
        dist.gather_object(value, values, dst=0, group=self.group)
        parts: list[Any] = []
        error: Exception | None = None
        if values is not None:
            try:
                parts = work(values)
            except Exception as raised:  # noqa: BLE001 - raised again below, on every rank
                error = raised
        shared: list[Any] = [None]
        wrapped = [(error, part) for part in parts or [None] * self.world_size] if self.leads else None
        dist.scatter_object_list(shared, wrapped, src=0, group=self.group)
        failure, part = shared[0]
        if failure is not None:
            raise failure
        return part  # type: ignore[no-any-return]

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

    def each(self, work: Callable[[], T]) -> T:
        """What `work` returns on this rank. Collective.

        What it raises is raised on every rank: of several errors one of ours, else that of the lowest rank.
        """
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 - raised again below, on every rank
            error = raised
        if self.sum([float(error is not None)])[0]:
            everyones = self.gather(error)
            everyones[self.rank] = error  # with its traceback
            errors = [each for each in everyones if each is not None]
            raise next((each for each in errors if isinstance(each, MusterError)), errors[0])
        return result
