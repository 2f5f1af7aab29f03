"""When which job is to have a turn without any change: a heap, for nobody looks at ten thousand jobs to find the next
one."""

from __future__ import annotations

from datetime import datetime
from heapq import heappop, heappush
from typing import Final

CLOCK_STEP: Final = 2.0
"""Seconds by which the wall clock may get ahead of the monotonic one, or behind it, before all alarms are set anew."""


class Alarms:
    """Moments of the monotonic clock by UID, of each the first that was asked for since it last rang: each turn asks
    anew for the end of a run that may be weeks away. So whoever has been rung for asks again for what comes later."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._first: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, uid: str, moment: float) -> None:
        """Ring at `moment` at the latest."""
        if moment < self._first.get(uid, float("inf")):
            self._first[uid] = moment
            heappush(self._heap, (moment, uid))

    def ring(self, now: float) -> set[str]:
        """Take out those whose time has come."""
        due: set[str] = set()
        while self._heap and self._heap[0][0] <= now:
            moment, uid = heappop(self._heap)
            if self._first.get(uid) == moment:
                del self._first[uid]
                due.add(uid)
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
