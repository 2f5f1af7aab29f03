"""For how long GPUs have hardly been used. Queues say which share counts as that; launchers answer for every share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MINUTE: Final = 60.0
"""Seconds that are judged together."""


@dataclass(frozen=True)
class Busy:
    """A minute that was busier than all that came after it.

    Attributes:
        percent: of its time the GPUs were at work, rounded down.
        ago: seconds from its end to that of the last minute.
    """

    percent: int
    ago: float


@dataclass(frozen=True)
class Idleness:
    """What was seen of the GPUs while their ranks trained, in whole minutes; all other time is left out.

    Attributes:
        watched: seconds, since the ranks were started.
        minutes: the newest last, so that percents fall.
    """

    watched: float = 0.0
    minutes: tuple[Busy, ...] = ()

    def below(self, percent: int) -> float:
        """Seconds up to now without a minute of `percent` or more."""
        return min([self.watched, *(one.ago for one in self.minutes if one.percent >= percent)])

    def busiest(self, seconds: float) -> int:
        """Percent of the busiest minute within the last `seconds`."""
        return max((one.percent for one in self.minutes if one.ago < seconds), default=0)

    @property
    def plausible(self) -> bool:
        """False for nonsense: whoever may send it isn't trusted."""
        seconds = [self.watched, *(one.ago for one in self.minutes)]
        known = all(type(one) in (int, float) and math.isfinite(one) and one >= 0 for one in seconds)
        return known and all(type(one.percent) is int and 0 <= one.percent <= 100 for one in self.minutes)


def of_gang(workers: Iterable[Idleness]) -> Idleness:
    """Of all workers together: for no share they are idle for longer than the one that was at work last.

    `workers` are one or more.
    """
    every = list(workers)
    minutes: list[Busy] = []
    for one in sorted((one for worker in every for one in worker.minutes), key=lambda one: (one.ago, -one.percent)):
        if not minutes or one.percent > minutes[-1].percent:
            minutes.append(one)
    return Idleness(min(worker.watched for worker in every), tuple(reversed(minutes)))
