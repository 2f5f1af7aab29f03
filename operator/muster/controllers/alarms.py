"""When which job is to have a turn without any change: a heap, for nobody looks at ten thousand jobs to find the next
one."""

from __future__ import annotations

from datetime import datetime
from heapq import heappop, heappush
from typing import Final

CLOCK_STEP: Final = 2.0
"""Seconds by which the wall clock may get ahead of the monotonic one, or behind it, before all alarms are set anew."""


class Alarms:
    """Moments of the monotonic clock by UID. One that is put off leaves its old entry, which then rings for nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def at(self, uid: str, moment: float) -> None:
        heappush(self._heap, (moment, uid))

    def ring(self, now: float) -> set[str]:
        """Take out those whose time has come."""
        due: set[str] = set()
        while self._heap and self._heap[0][0] <= now:
            due.add(heappop(self._heap)[1])
        return due

    @property
    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None


class Clocks:
    """Notices when the wall clock was set, or the machine slept. Alarms are set on the monotonic clock for moments of
    the wall clock: windows would open, and deadlines pass, by the clock of before."""

    def __init__(self, wall: datetime, monotonic: float) -> None:
        self._apart = wall.timestamp() - monotonic

    def stepped(self, wall: datetime, monotonic: float) -> bool:
        """Whether the clocks are no longer as far apart as when it was last so."""
        apart = wall.timestamp() - monotonic
        if abs(apart - self._apart) <= CLOCK_STEP:
            return False
        self._apart = apart
        return True
