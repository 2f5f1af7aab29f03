"""The windows in which some jobs of a trace may run, on the simulation's clock: seconds from its start.

The rules are the operator's own (`muster.api.windows`): a gang starts only while its window is open and leaves enough
time to start in, and stops when it closes, unless the window lets it finish.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from muster.api.effective_parts import EffectiveWindow
from muster.api.windows import NEVER, latest_start, opening

MOST_WINDOWS: Final = 100
"""Windows through which the earliest end of a job is followed that is stopped at the end of each."""


class Opening(NamedTuple):
    """The window that is open, or opens next; seconds, `closes` infinite for one that is always open."""

    opens: float
    closes: float


class Bounds(NamedTuple):
    """What a window allows a gang that is to start, as the planner's `Terms` say it.

    Attributes:
        opens: from when on it may start; 0 where it may now.
        closes: from when on it may not any more; infinite where it may not now.
        reopens: from when on it may again; 0 where it may not now.
        longest: seconds that a run takes at most.
    """

    opens: float
    closes: float
    reopens: float
    longest: float


class Window:
    """One of the cluster file's windows.

    Attributes:
        stops: a gang that runs when it closes saves and stops.
    """

    def __init__(self, rule: EffectiveWindow, begins: datetime) -> None:
        self.stops = rule.stops
        self._rule, self._begins = rule, begins
        self._asked, self._found = math.inf, Opening(0.0, 0.0)

    def opening(self, now: float) -> Opening:
        """The one that is open now, or the next one."""
        if not self._asked <= now < self._found.closes:
            found = opening(self._rule, self._begins + timedelta(seconds=now))
            self._asked, self._found = now, Opening(self._seconds(found.opens), self._seconds(found.closes))
        return self._found

    def may_start(self, now: float, start: float) -> float:
        """From when on a gang may start that needs `start` seconds for it: `now` or earlier where it may now."""
        found = self.opening(now)
        if found.opens <= now and self.until(now, start) <= now:
            return self.opening(found.closes).opens
        return found.opens

    def until(self, now: float, start: float) -> float:
        """From when on such a gang may not start any more in the window that is open now."""
        there = opening(self._rule, self._begins + timedelta(seconds=now))
        return math.inf if there.closes == NEVER else self._seconds(latest_start(self._rule, there, start))

    def bounds(self, now: float, start: float) -> Bounds:
        """Of such a gang now."""
        opens = self.may_start(now, start)
        found = self.opening(max(opens, now))
        longest = found.closes - found.opens if self.stops else math.inf
        if opens > now:
            return Bounds(opens, math.inf, 0.0, longest)
        reopens = self.opening(found.closes).opens if found.closes < math.inf else 0.0
        return Bounds(0.0, self.until(now, start), reopens, longest)

    def shut(self, begin: float, end: float) -> float:
        """Seconds between two moments in which it was not open."""
        closed = 0.0
        while begin < end:
            found = self.opening(begin)
            closed += max(0.0, min(found.opens, end) - begin)
            begin = found.closes
        return closed

    def earliest_end(self, start: float, seconds: float, restart: float) -> float:
        """When a job can have worked for so many seconds at the earliest, if nobody is in its way; infinite where that
        is not within `MOST_WINDOWS`."""
        begin = 0.0
        for _ in range(MOST_WINDOWS):
            found = self.opening(start)
            start = max(start, found.opens)
            if not self.stops or begin + seconds <= found.closes - start:
                return start + begin + seconds
            seconds -= max(0.0, found.closes - start - begin)
            start, begin = found.closes, restart
        return math.inf

    def passed(self, since: float, now: float, patience: float) -> bool:
        """Whether a window that opened after `since` has closed again, or has been open for so many seconds."""
        found = self.opening(since)
        if found.opens < since:
            found = self.opening(found.closes) if found.closes < math.inf else Opening(since, math.inf)
        return found.closes <= now or now - found.opens > patience

    def _seconds(self, moment: datetime) -> float:
        return math.inf if moment == NEVER else (moment - self._begins).total_seconds()
