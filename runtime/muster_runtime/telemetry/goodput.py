"""Where the time of a run goes. Pure: the time is given, in whole nanoseconds, so that the parts add up exactly.

A rank keeps an `Account` of its session, and a launcher the `Ledger` of its own life, in which accounts of one
incarnation after the other are entered. Both read CLOCK_MONOTONIC, which is one for all processes of a machine and
knows no jumps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from muster_protocol.goodput import PLAIN_AFTER_SECONDS, Spent

SECOND: Final = 1_000_000_000
PLAIN_AFTER: Final = PLAIN_AFTER_SECONDS * SECOND


class Part(IntEnum):
    TRAINING = 0
    """Also evaluations, and what the script does after its loop."""
    DATA_WAIT = 1
    CHECKPOINT = 2
    """Training stands still for a save."""
    STARTING = 3
    """Until the first step begins; also what passes between two incarnations, and until the pod ends."""
    RESTORING = 4
    RECOMPUTING = 5
    """Steps that the run had done before, and those that were broken off, which will be done again."""
    HUNG = 6


Times = tuple[int, ...]
"""Nanoseconds by part."""
NOTHING: Final[Times] = (0,) * len(Part)
_TRAINS: Final = (Part.TRAINING, Part.DATA_WAIT)


def add(times: Times, part: Part, more: int) -> Times:
    return (*times[:part], times[part] + more, *times[part + 1 :])


@dataclass(frozen=True)
class Told:
    """A rank's account at the moment `at`, since when it is at `part`.

    `settled` are the times up to `settled_at`, the end of its last step; before its first one, the last moment at which
    it went on to something else. What came later may turn out to be lost: with a crash, or in a hang.
    """

    part: Part
    at: int
    times: Times
    settled_at: int
    settled: Times

    @property
    def plausible(self) -> bool:
        """False for nonsense: whoever may write it isn't trusted."""
        rises = all(0 <= before <= after for before, after in zip(self.settled, self.times, strict=True))
        return rises and sum(self.times) - sum(self.settled) == self.at - self.settled_at >= 0

    @property
    def begun(self) -> int:
        return self.at - sum(self.times)


class Account:
    """One process's time, from `now` on. Kept a few times a step, so it is only added up here."""

    def __init__(self, now: int) -> None:
        self.part, self.at, self.settled_at = Part.STARTING, now, now
        self.times, self.settled = list(NOTHING), NOTHING

    def enter(self, part: Part, now: int, *, again: bool = False, settles: bool = False) -> None:
        """The process is at `part` from now on. `again`: what it did until now had been done before."""
        was = Part.RECOMPUTING if again and self.part in _TRAINS else self.part
        if now > self.at:
            self.times[was] += now - self.at
            self.at = now
        self.part = part
        if settles:
            self.settled_at, self.settled = self.at, tuple(self.times)


class End(Enum):
    """How an incarnation of the ranks ended."""

    WELL = "well"
    """By itself or at a boundary: all that it did is kept."""
    BROKEN = "broken"
    """In the midst of a step, or of what comes after one."""
    HUNG = "hung"
    """It did not get on any more."""


class Ledger:
    """A launcher's life from `now` on: every moment of it belongs to one part, and never to another one later."""

    def __init__(self, now: int) -> None:
        self._until, self._times = now, NOTHING
        self._spawned = False
        self._known: Told | None = None  # of the ranks that run now
        self._sessions = False  # the script is known to start one
        self._plain = False  # the ranks that run now are known to train without one

    def spawned(self, now: int) -> None:
        """Ranks start now."""
        self._pass(Part.STARTING, now)
        self._spawned, self._known, self._plain = True, None, False

    def look(self, told: Told | None, now: int) -> None:
        """What rank 0 tells of itself now; None for nothing."""
        if not self._spawned:
            return
        if told is not None and self._fits(told, now):
            self._known, self._sessions = told, True
        elif self._known is None and not self._sessions and (self._plain or now - self._until >= PLAIN_AFTER):
            self._pass(Part.TRAINING, now)
            self._plain = True

    def _fits(self, told: Told, now: int) -> bool:
        if not told.plausible or told.at > now or told.begun < self._until:
            return False
        known = self._known
        if known is None:
            return True
        rises = all(old <= new for old, new in zip(known.settled, told.settled, strict=True))
        return rises and told.begun == known.begun and told.at >= known.at

    def ended(self, told: Told | None, now: int, how: End) -> None:
        """All ranks of the pod have ended; `told` is what rank 0 wrote last."""
        self.look(told, now)
        if not self._spawned:
            return
        if self._known is None:
            fell = how is End.BROKEN and not self._plain  # before anything was known of it
            never = Part.STARTING if self._sessions or fell else Part.TRAINING
            self._pass(Part.HUNG if how is End.HUNG else never, now)
        else:
            self._enter(_whole(self._known, max(now, self._known.at), how), now)
        self._spawned, self._known = False, None

    def _enter(self, session: Times, now: int) -> None:
        known = self._known
        assert known is not None
        self._pass(Part.STARTING, known.begun)
        self._times = tuple(old + new for old, new in zip(self._times, session, strict=True))
        self._until = max(now, known.at)

    def _pass(self, part: Part, now: int) -> None:
        passed = max(0, now - self._until)
        self._times, self._until = add(self._times, part, passed), self._until + passed

    def at(self, now: int) -> tuple[Times, int]:
        """Times by part up to now, and those of which it isn't known yet. Together they are the launcher's age."""
        if not self._spawned:
            return add(self._times, Part.STARTING, max(0, now - self._until)), 0
        if (known := self._known) is None:
            return self._times, max(0, now - self._until)
        started = add(self._times, Part.STARTING, known.begun - self._until)
        times = tuple(old + new for old, new in zip(started, known.settled, strict=True))
        return times, max(0, now - known.settled_at)


def _whole(told: Told, now: int, how: End) -> Times:
    """A session's times up to its end."""
    if how is End.HUNG:
        return add(told.settled, Part.HUNG, now - told.settled_at)
    if how is End.WELL and told.part is Part.STARTING:  # a session without a loop, which trains in its own way
        return add(told.times, Part.TRAINING, now - told.at)
    times = add(told.times, told.part, now - told.at)
    if how is End.WELL:
        return times
    for part in _TRAINS:
        lost = times[part] - told.settled[part]
        times = add(add(times, part, -lost), Part.RECOMPUTING, lost)
    return times


def spent(times: Times, pending: int) -> Spent:
    """In seconds."""
    return Spent(*(round(time / SECOND, 3) for time in (*times, pending)))
