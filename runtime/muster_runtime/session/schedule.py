"""When a checkpoint is due. Pure: time is given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

FIRST_SECONDS: Final = 60.0
"""`auto` before anything is measured: so that the first save comes soon and tells what one costs."""
LONGEST_SECONDS: Final = 3600.0
"""`auto` never lets more work than this be at risk, however rare failures are."""
_NEWEST: Final = 0.5
"""Weight of the newest measurement: storage changes its speed, and the first save is slower than the others."""


@dataclass
class AutoInterval:
    """The interval at which saves and lost work cost the least together (J. Young, 1974; J. Daly, 2006):

    the root of 2 x (seconds that training stands still for a save) x (seconds between failures of the whole gang). Not
    shorter than a save takes to be durable, not longer than `LONGEST_SECONDS`.
    """

    node_hours: float
    """That one node runs between two failures; the failure of any worker's node ends the gang."""
    workers: int = 1
    stall: float | None = None
    durable: float = 0.0

    def measured(self, stall: float, durable: float) -> None:
        """A save stood in training's way for `stall` seconds, and was committed `durable` seconds after it began."""
        if self.stall is None:
            self.stall, self.durable = stall, durable
        else:
            self.stall += _NEWEST * (stall - self.stall)
            self.durable += _NEWEST * (durable - self.durable)

    @property
    def between_failures(self) -> float:
        """Seconds between two failures of the whole gang."""
        return self.node_hours * 3600 / self.workers

    @property
    def seconds(self) -> float:
        if self.stall is None:
            return FIRST_SECONDS
        best = math.sqrt(2 * self.stall * self.between_failures)
        return max(min(best, LONGEST_SECONDS), self.durable)


@dataclass
class Schedule:
    """Due every `every_steps` steps, or so long after the last save, whichever comes first.

    The time is `interval_seconds`, or what `auto` says.
    """

    every_steps: int | None
    interval_seconds: float | None
    last_save: float
    """Clock reading, in seconds."""
    due: bool = False
    again_at: float = math.inf
    """Clock reading at which one is due, whatever the interval."""
    auto: AutoInterval | None = None

    def is_due(self, step: int, now: float) -> bool:
        """After `step` steps are done. Stays due until `saved`, since a save may have to wait for a better boundary."""
        if self.every_steps and step % self.every_steps == 0:
            self.due = True
        interval = self.auto.seconds if self.auto else self.interval_seconds
        if (interval and now - self.last_save >= interval) or now >= self.again_at:
            self.due = True
        if self.due:
            self.again_at = math.inf
        return self.due

    def wanted(self) -> None:
        """Due at the next boundary, whatever the interval."""
        self.due = True

    def saved(self, now: float) -> None:
        self.due, self.last_save = False, now

    def again(self, at: float) -> None:
        """The last save came to nothing: another is due at that reading of the clock, if none was due before."""
        self.again_at = at
