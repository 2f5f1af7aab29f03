"""Now and then the gradient's norm, for people to see: to look at each step's would cost a pass over all gradients.

Rank 0 asks for it at a boundary, all look in the next step, and their shares ride on the next vote that reads losses,
so that nothing more waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from torch.optim import Optimizer

from muster_runtime.parallel.norms import own_square
from muster_runtime.session.boundary import Square

EVERY_SECONDS: Final = 10.0
"""Between two looks: more often than Prometheus usually asks."""


class Norms:
    """Rank 0's `asks` decides. `clock` gives monotonic seconds."""

    def __init__(self, rank: int, world_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._leads, self._world_size, self._clock = rank == 0, world_size, clock
        self._asked_at = float("-inf")
        self._wanted = False
        self._looked_at = -1
        self._square: Any = None

    def asks(self) -> bool:
        """Whether rank 0 wants the next step's norm."""
        return self._leads and not self._wanted and self._clock() - self._asked_at >= EVERY_SECONDS

    def heard(self, *, asked: bool) -> None:
        """The gang's word on it."""
        if asked:
            self._wanted, self._asked_at = True, self._clock()

    def sees_update(self, step: int, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is about to make its update in `step`. Local, and nothing waits for the device.

        With a GradScaler or a closure the gradients aren't those of the update yet.
        """
        if not self._wanted or closure or getattr(optimizer, "found_inf", None) is not None:
            return
        if self._looked_at not in (-1, step):
            return
        square = own_square((p for group in optimizer.param_groups for p in group["params"]), self._world_size)
        if square is not None:
            self._square = square if self._square is None else self._square + square
            self._looked_at = step

    def take(self, read: bool) -> Square | None:
        """This rank's share of the squared norm, where there is one and losses are read."""
        if not read or self._square is None:
            return None
        square, self._square, self._wanted, self._looked_at = float(self._square), None, False, -1
        return square, 1.0
