"""When ranks count as hung. Pure: the time is given, in monotonic seconds.

A rank is overdue when it was still for longer than its section may take. The gang hangs when *every* rank is overdue:
those that wait for one that evaluates, saves or compiles are overdue long before it. So only index 0 can tell, and each
launcher tells it whether all of its own ranks are. A rank that was stopped by a signal is enough alone: wherever it is,
it doesn't get on, and nobody needs to wait for as long as its section may take.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from muster_runtime.pulse import Beat, Section

AUTO_SECONDS: Final = 1800.0
"""What a start (NCCL's, a compiler's), an evaluation and a checkpoint may take; torch gives its groups as long."""
AUTO_STEP_SECONDS: Final = 30.0
"""A step may take this long, or three times the usual, whichever is more."""
_USUAL_TIMES: Final = 3.0
NOTICE_SECONDS: Final = 4.0
"""What passes between the moment when the last rank is overdue and the gang's restart: taken off a step's time, so that
a hang is found within it."""
_STEPS_KNOWN: Final = 3
"""Steps after which it is known what is usual."""
_OUTLIVED_TIMES: Final = 2.0
"""What a step came through once, a later one may need again, and somewhat more of it."""
_REMEMBERED: Final = 100
_QUANTILE: Final = 0.95
"""Of the last steps' times: every tenth may be slow, for a log or a figure, without being a hang."""


@dataclass(frozen=True)
class Limits:
    """Seconds that a rank may be still in each section. None: `auto`; infinite: for ever."""

    start: float | None = math.inf
    step: float | None = math.inf
    evaluation: float | None = math.inf
    checkpoint: float | None = math.inf

    @property
    def watched(self) -> bool:
        return self != NEVER


NEVER: Final = Limits()


class StepTimes:
    """What steps took lately, over all incarnations of the ranks."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._known = 0

    def add(self, steps: int, seconds: float) -> None:
        """`steps` steps took `seconds` in all."""
        if steps > 0 and 0 <= seconds < math.inf:
            self._known += steps
            self._recent.append(seconds / steps)

    def usual(self) -> float | None:
        """Seconds of a slow step among the last ones; None before enough of them."""
        if self._known < _STEPS_KNOWN:
            return None
        ordered = sorted(self._recent)
        return ordered[min(len(ordered) - 1, int(_QUANTILE * len(ordered)))]


class Watchdog:
    """One launcher's ranks. What this process sleeps through itself is nobody's stillness: `look` every `interval`."""

    def __init__(self, limits: Limits, interval: float, now: float) -> None:
        self._limits, self._interval, self._last = limits, interval, now
        self.times = StepTimes()
        self._outlived = 0.0
        self._hung_at: frozenset[int] = frozenset()  # steps
        self._found_at: frozenset[int] = frozenset()  # of the processes that run now
        self.begin_anew(now)

    def begin_anew(self, now: float) -> None:
        """Other processes run now."""
        self._last = now
        self._hung_at |= self._found_at
        self._beats: dict[int, Beat] = {}
        self._still: dict[int, float] = {}
        self._excused: set[int] = set()
        self._stopped: frozenset[int] = frozenset()

    def look(self, now: float, beats: Mapping[int, Beat | None], stopped: Iterable[int] = ()) -> None:
        """`beats`, by rank, are of those that run; None where it couldn't be read. `stopped` by a signal are those."""
        self._stopped = frozenset(stopped)
        passed, self._last = min(now - self._last, 2 * self._interval), now
        self._note_times(beats)
        for rank in self._still.keys() - beats.keys():
            del self._still[rank]
        for rank, beat in beats.items():
            if beat is not None and beat != self._beats.get(rank):
                if self.beat(rank).section in (Section.STEP, Section.BOUNDARY):
                    self._outlived = max(self._outlived, self.still(rank))
                self._beats[rank], self._still[rank] = beat, 0.0
                self._excused.discard(rank)
            else:
                self._still[rank] = self._still.get(rank, 0.0) + passed

    def _note_times(self, beats: Mapping[int, Beat | None]) -> None:
        """All ranks take the same steps, so one of them speaks for all."""
        rank = min(beats, default=None)
        if rank is None or (beat := beats[rank]) is None:
            return
        before = self._beats.get(rank, Beat())
        self.times.add(beat.steps - before.steps, beat.seconds - before.seconds)

    def excuse(self, ranks: Iterable[int]) -> None:
        """They have been seen to compile, say: until they move, they may take as long as a start."""
        self._excused.update(ranks)

    def found(self) -> None:
        """The gang may start again because its ranks hang where they are.

        With `auto`, the next processes get an evaluation's time at that step: a script that evaluates there without a
        word about it then gets through, and one that hangs again is found later.
        """
        self._found_at = frozenset(beat.step for beat in self._beats.values())

    @property
    def stuck(self) -> bool:
        """Whether every rank that runs is overdue."""
        return bool(self._still) and all(self._still[rank] > self.limit(rank) for rank in self._still)

    @property
    def stopped(self) -> bool:
        """Whether a rank was stopped by a signal for longer than it may be still."""
        return any(self.still(rank) > self.limit(rank) for rank in self._stopped)

    def still(self, rank: int) -> float:
        """For how many seconds the rank hasn't moved."""
        return self._still.get(rank, 0.0)

    def beat(self, rank: int) -> Beat:
        return self._beats.get(rank, Beat())

    def limit(self, rank: int) -> float:
        """Seconds that the rank may be still where it is."""
        step = self._limits.step
        quick = AUTO_STEP_SECONDS - NOTICE_SECONDS if step is None else step
        return min(quick, self._in_section(rank)) if rank in self._stopped else self._in_section(rank)

    def _in_section(self, rank: int) -> float:
        limits, section = self._limits, self.beat(rank).section
        start = AUTO_SECONDS if limits.start is None else limits.start
        if section in (Section.NONE, Section.SETUP):
            return math.inf if limits.start is None else limits.start
        if section is Section.OUTSIDE:
            return math.inf
        evaluation = AUTO_SECONDS if limits.evaluation is None else limits.evaluation
        if section is Section.EVALUATION:
            return evaluation
        if section is Section.CHECKPOINT:
            return AUTO_SECONDS if limits.checkpoint is None else limits.checkpoint
        if section in (Section.START, Section.JOIN) or rank in self._excused:
            return start
        if limits.step is not None:
            return limits.step
        if self.beat(rank).step in self._hung_at:
            return evaluation
        usual = self.times.usual()
        if usual is None:
            return start
        return max(AUTO_STEP_SECONDS, _USUAL_TIMES * usual, _OUTLIVED_TIMES * self._outlived) - NOTICE_SECONDS
