"""Which ranks are slow. Pure: the time is given, in monotonic seconds.

Ranks tell how much of their steps' time they were at work by themselves. In each window the mean of that is compared
with the gang's median. Who is slower by the factor, in several windows running, and holds the others up by a part of
the step that matters, is a straggler; who keeps up in one window is none any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from muster_protocol.launcher_status import Straggler
from muster_protocol.messages import Pace

SHOWN: Final = 8
"""Stragglers that are told, the slowest."""
_MATTERS: Final = 0.1
"""Share of a step's time by which a straggler holds up the others at least."""
_STEPS: Final = 5
"""Steps that a window has at least."""
_MOVED: Final = 0.2
"""Share of it by which a known factor must change to be told anew."""


@dataclass(frozen=True)
class Rule:
    """
    Attributes:
        factor: own time over the median's from which a rank is slow; infinite: none ever is.
        window: seconds that are compared at a time.
        windows: that a rank is slow in, running, before it is a straggler.
    """

    factor: float = 1.5
    window: float = 20.0
    windows: int = 3


USUAL: Final = Rule()


class Stragglers:
    """Index 0's view of all ranks of the gang.

    Attributes:
        found: the stragglers, the slowest first.
    """

    def __init__(self, rule: Rule, now: float) -> None:
        self._rule = rule
        self.begin_anew(now)

    def begin_anew(self, now: float) -> None:
        """Other processes run now."""
        self.found: tuple[Straggler, ...] = ()
        self._newest: dict[int, Pace] = {}
        self._index_of: dict[int, int] = {}
        self._begun: dict[int, Pace] = {}
        self._since = now
        self._running: dict[int, int] = {}  # windows, by rank

    def heard(self, index: int, paces: Iterable[Pace]) -> None:
        """The ranks of that worker have come so far. What they say isn't trusted with more than to be shown."""
        for pace in paces:
            self._newest[pace.rank] = pace
            self._index_of[pace.rank] = index

    def look(self, now: float, ranks: int) -> tuple[Straggler, ...]:
        """Closes the window when it is over, for a gang of `ranks`. Returns the stragglers that are new."""
        if now - self._since < self._rule.window or ranks < 2 or len(self._newest) < ranks:
            return ()
        spans = dict(self._spans())
        if any(span.steps < _STEPS for span in spans.values()):
            return ()
        known = {one.rank: one for one in self.found}
        slow = self._slow(spans)
        self._running = {one.rank: self._running.get(one.rank, 0) + 1 for one in slow}
        lasting = [one for one in slow if self._running[one.rank] >= self._rule.windows]
        ordered = sorted(lasting, key=lambda one: (-one.factor, one.rank))[:SHOWN]
        self.found = tuple(_steady(one, known.get(one.rank)) for one in ordered)
        self._begun, self._since = dict(self._newest), now
        return tuple(one for one in self.found if one.rank not in known)

    def _spans(self) -> Iterator[tuple[int, Pace]]:
        for rank, pace in self._newest.items():
            begun = self._begun.get(rank, Pace(rank, 0, 0.0, 0.0))
            yield rank, Pace(rank, pace.steps - begun.steps, pace.seconds - begun.seconds, pace.own - begun.own)

    def _slow(self, spans: Mapping[int, Pace]) -> list[Straggler]:
        own = {rank: max(0.0, span.own) / span.steps for rank, span in spans.items()}
        usual = median_low(own.values())
        step = median_low([max(0.0, span.seconds) / span.steps for span in spans.values()])
        if usual <= 0:
            return []
        return [
            Straggler(rank, self._index_of[rank], round(mine / usual, 2), mine, usual)
            for rank, mine in own.items()
            if mine >= self._rule.factor * usual and mine - usual >= _MATTERS * step
        ]


def _steady(one: Straggler, known: Straggler | None) -> Straggler:
    """As it was told before, where it has hardly changed."""
    return known if known is not None and abs(one.factor - known.factor) <= _MOVED * known.factor else one


def told(one: Straggler) -> str:
    """In a sentence."""
    return (
        f"rank {one.rank} of worker {one.index} is {one.factor:g} times as slow as the others: its own part of a step "
        f"takes {one.own:.3g} s, theirs {one.usual:.3g} s, and all wait for it"
    )
