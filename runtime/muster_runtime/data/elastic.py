"""A loader whose global batch is the same for any number of ranks: each gets its share in microbatches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from muster_runtime.data.loader import Loader, to_device
from muster_runtime.data.order import BatchPlan, Microbatch, microbatches
from muster_runtime.errors import UsageError, caller


class Listener(Protocol):
    """Who has to know which microbatch is at hand."""

    def microbatch(self, one: Microbatch, *, trained: bool) -> AbstractContextManager[None]:
        """Entered while the script has `one`. `trained`: it is one of the loop's, not of an evaluation."""


class ElasticLoader(Loader):
    """The ranks' view of a dataset, shared unequally where it must be. Made by `session.loader(...)`.

    Iterating gives, for each global batch, this rank's `Microbatches`.
    """

    def __init__(
        self,
        source: DataLoader[Any],
        *,
        microbatch: int | None,
        listener: Listener,
        rank: int,
        parts: int,
        seed: int,
        device: torch.device,
        where: str,
    ) -> None:
        self._most, self._listener = microbatch, listener
        super().__init__(source, rank=rank, parts=parts, seed=seed, device=device, where=where)

    def _refuse(self, plan: BatchPlan) -> None:
        """Any batch can be shared."""

    def _microbatches(self, size: int) -> Iterator[Microbatch]:
        return microbatches(size, self._parts, self._rank, self._most)

    @property
    def global_batch(self) -> int:
        """Samples in a step."""
        assert self._plan is not None
        return self._plan.batch

    @property
    def last_batch(self) -> int:
        """Samples in the last, smaller batch of an epoch; 0 when there is none."""
        assert self._plan is not None
        return self._plan.rest

    @property
    def is_equal(self) -> bool:
        """Whether each rank has one microbatch in each step, all of the same size: gradients need no weights then."""
        assert self._plan is not None
        return self._plan.is_equal(self._parts, self._most)

    def batches(self, epoch: int, start: int, *, beside: bool = False) -> Iterator[Microbatches]:
        """This rank's part of each global batch of `epoch` from number `start` on."""
        pieces = self._pieces(epoch, start, beside=beside)
        for first in pieces:
            step = Microbatches(first, pieces, self._listener, self._device, trained=self.stepper is not None)
            yield step
            step.skip_rest()


class Microbatches:
    """One rank's part of a global batch, to be gone through once. `len` is the number of microbatches."""

    def __init__(
        self,
        first: tuple[Microbatch, Any],
        pieces: Iterator[tuple[Microbatch, Any]],
        listener: Listener,
        device: torch.device,
        *,
        trained: bool,
    ) -> None:
        self._next: tuple[Microbatch, Any] | None = first
        self._pieces, self._listener, self._device, self._trained = pieces, listener, device, trained
        self._count = first[0].of

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        if self._next is None:
            raise UsageError(
                f"{caller()}: the microbatches of this batch were gone through already, so this loop would do nothing; "
                "do all that is to be done with a microbatch in one loop over them"
            )
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        while self._next is not None:
            one, batch = self._next
            self._move_on(one)
            with self._listener.microbatch(one, trained=self._trained):
                yield to_device(batch, self._device)

    def skip_rest(self) -> None:
        """Of a loop that was left by `break`: the next step's come after them."""
        while self._next is not None:
            self._move_on(self._next[0])

    def _move_on(self, one: Microbatch) -> None:
        self._next = None if one.is_last else next(self._pieces)
