"""The tracked optimizers' updates: which this step has seen, and whether a step's end lies between two of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from torch.optim import Optimizer

from muster_runtime.session.leftover import LeftOver
from muster_runtime.session.tracking import Tracked

SEEN_STEPS: Final = 100
"""Steps in a row in which each optimizer's update was seen, after one without, until a save relies on the next one: a
`GradScaler` leaves some out at first, and then seldom."""


class Updates:
    """Told of each update before it comes, and of each step's end."""

    def __init__(self, tracked: Sequence[Tracked]) -> None:
        """`tracked`: what the session tracks; it may grow."""
        self._tracked = tracked
        self._made: set[int] = set()
        """The ids of the tracked optimizers that have stepped in this step, or since the last."""
        self._replayed: set[int] = set()
        """Ids of those with an update in a CUDA graph: from then on it may come in any step, unseen."""
        self._left_over = LeftOver()
        self._steps_seen: float = math.inf  # since one in which not every tracked optimizer's update was seen

    @property
    def made(self) -> bool:
        """Whether this step has seen any."""
        return bool(self._made)

    @property
    def reliable(self) -> bool:
        """Whether a save may count on seeing every optimizer's update in each step that follows."""
        return self._steps_seen >= SEEN_STEPS and not self._replayed

    def names(self) -> dict[int, str]:
        """Of the tracked optimizers, by id."""
        return {id(one.thing): one.name for one in self._tracked if isinstance(one.thing, Optimizer)}

    def step_opens(self) -> None:
        self._made = set()

    def comes(self, optimizer: Optimizer, *, captured: bool) -> None:
        """A tracked optimizer is about to step. `captured`: its update comes with each replay of a graph, not now."""
        if captured:
            self._replayed.add(id(optimizer))
        else:
            self._made.add(id(optimizer))
            self._left_over.uses(optimizer)

    def step_ends(self) -> bool:
        """Whether each optimizer's update in this step was seen, on which a save may count that copies beside it."""
        seen = self._made >= self.names().keys()
        self._left_over.wanted |= not self._made
        self._steps_seen = self._steps_seen + 1 if seen else 0
        return seen

    def are_whole(self) -> bool:
        """False in the middle of gradient accumulation: gradients are in no checkpoint, so a save waits."""
        optimizers = [one.thing for one in self._tracked if isinstance(one.thing, Optimizer)]
        optimizers = [optimizer for optimizer in optimizers if id(optimizer) not in self._replayed]
        if self._made or not optimizers:
            return True
        return all(self._left_over.is_all(optimizer) for optimizer in optimizers)
