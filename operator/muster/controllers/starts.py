"""What a start costs in this cluster, for gangs that have not started yet."""

from __future__ import annotations

from collections import OrderedDict
from statistics import median_high
from typing import Final

from muster.api.trainingjob import TrainingJob
from muster.controllers.terms import START_SECONDS

COUNTED: Final = 64
"""Jobs whose last start counts: the newest of them."""

ENOUGH: Final = 5
"""Starts that tell more of the next one than a guess does."""

_STEPS: Final = (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1200, 1800)


class Starts:
    """The measured starts of other jobs, from placement to training.

    Attributes:
        typical: seconds that a start is taken to cost which nobody has measured: the median, rounded up. It stays while
            it fits, for with it moves when each waiting job is expected to start.
    """

    def __init__(self) -> None:
        self._measured: OrderedDict[str, int] = OrderedDict()
        self.typical = START_SECONDS

    def see(self, job: TrainingJob) -> None:
        """Take over what its last start took."""
        uid, seconds = job.metadata.uid, job.status.start_seconds
        if seconds is None or self._measured.get(uid) == seconds:
            return
        self._measured[uid] = seconds
        self._measured.move_to_end(uid)
        if len(self._measured) > COUNTED:
            self._measured.popitem(last=False)
        if len(self._measured) >= ENOUGH:
            found = median_high(self._measured.values())
            if not self.typical / 2 <= found <= self.typical:
                self.typical = float(next((step for step in _STEPS if step >= found), _STEPS[-1]))
