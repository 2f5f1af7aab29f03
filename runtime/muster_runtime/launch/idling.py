"""How busy this pod's GPUs are while its ranks train, minute by minute. Pure: time is given, in nanoseconds."""

from __future__ import annotations

import math
from typing import Final

from muster_protocol.idleness import MINUTE, Busy, Idleness
from muster_runtime.telemetry.goodput import PLAIN_AFTER, SECOND, Part, Told

_LONGEST: Final = 5 * SECOND
"""Between two looks; of a launcher that was away for longer nobody knows what the GPUs did meanwhile."""

_ROUNDING: Final = 1e-6
"""Percent: a mean of exactly 30 may come out a little lower."""


def trains(told: Told | None, ran_for: int) -> bool:
    """Whether a rank that tells this of itself should use its GPUs now. Starting, restoring and saves don't count;
    evaluations do, and so does waiting for data. A script without a session is taken to train after a while."""
    return ran_for >= PLAIN_AFTER if told is None else told.part in (Part.TRAINING, Part.DATA_WAIT)


class Idling:
    """Of one incarnation of the ranks, from its first look on."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._at: int | None = None
        self._watched = 0
        self._passed, self._busy = 0, 0.0  # of the minute that is under way
        self._minutes: list[tuple[int, int]] = []  # percent, and what was watched when it ended

    def look(self, *, counts: bool, busy: float | None, now: int) -> None:
        """`busy`: part of the time that the GPUs are at work, 0 to 1. None where nobody knows: then nothing that was
        seen before holds any more."""
        if busy is None:
            self._forget()
            return
        passed = 0 if self._at is None else now - self._at
        self._at = now
        if not counts or passed <= 0 or passed > _LONGEST:
            return
        self._passed, self._busy = self._passed + passed, self._busy + busy * passed
        if self._passed >= MINUTE * SECOND:
            self._end_minute()

    def _end_minute(self) -> None:
        mean = 100 * self._busy / self._passed
        percent = min(100, max(0, math.floor(mean + _ROUNDING)))
        self._watched += self._passed
        self._passed, self._busy = 0, 0.0
        while self._minutes and self._minutes[-1][0] <= percent:
            self._minutes.pop()
        self._minutes.append((percent, self._watched))

    @property
    def told(self) -> Idleness | None:
        """None where nobody knows."""
        if self._at is None:
            return None
        minutes = tuple(Busy(percent, (self._watched - end) / SECOND) for percent, end in self._minutes)
        return Idleness(self._watched / SECOND, minutes)
