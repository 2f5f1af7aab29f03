"""One job after the other in the order: it starts, is promised room, becomes a head, or waits.

Before a job that borrows, the owners have their turn (`muster.scheduling.owners`). An owner that finds no room then
keeps none: it becomes a head at its own place. So where another owner behind it would start on room that it waits for,
the borrower is put off until all others have had their turn, and that one is judged as it is behind any head. Or others
would pass an owner for as long as a borrower waits ahead of it.

A gang of several sizes that would borrow for the larger ones alone does not: where an owner would start before it, it
starts with what its queue has by itself, at its own place.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from muster.scheduling.heads import Heads
from muster.scheduling.order import Ordering
from muster.scheduling.plan import Admission
from muster.scheduling.preempting import Preempting, cleared
from muster.scheduling.ranks import FirstSubmitted
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import FOREVER
from muster.scheduling.starting import Starting
from muster.scheduling.verdicts import Fate, Verdict

_ROOM, _QUOTA = Fate.ROOM, Fate.QUOTA
"""Read for every job that waits: a name's value is faster than an enum's member."""


class _Early(NamedTuple):
    """What an owner got before its place in the order: it counts there."""

    workers: int
    flavour: int
    verdict: Verdict | None


@dataclass(frozen=True)
class Deciding:
    """
    Attributes:
        early: by row, the owners that were served before a borrower and whose place in the order is still to come, or
            had passed.
        full: (tree of queues, flavour) in which such an owner found no room.
        put_off: by row, the borrowers whose turn comes after all others, and who had passed them.
    """

    round_: Round
    heads: Heads
    starting: Starting
    preempting: Preempting
    order: Ordering | FirstSubmitted
    early: dict[int, _Early] = field(default_factory=dict)
    full: set[tuple[int, int]] = field(default_factory=set)
    put_off: dict[int, Set[int]] = field(default_factory=dict)

    def decide(self, job: int) -> Verdict | None:
        """Admit a job that has no obstacle, or promise room to it, or say why it waits; None for one that starts."""
        round_, order, starting = self.round_, self.order, self.starting
        decided: Admission | Verdict | None
        while (decided := starting.lacks_quota(job)) is None:
            owner = starting.owner_before(job)
            if owner is None:
                decided = starting.start(job)
                break
            if starting.has_own(job) and starting.may_start(owner):
                decided = starting.start(job, own=True)
                break
            if job not in self.put_off and starting.home(owner) in self.full and starting.may_start(owner):
                self.put_off[job] = frozenset(order.passed)
                return Verdict(job, _ROOM, common=False)  # until its turn comes
            self._serve_early(owner)
        if isinstance(decided, Admission):
            round_.admissions.append(decided)
            order.charged(job, len(decided.nodes), decided.flavour)
            return None
        if self.preempting.clear(decided, self._passed(job)):
            return self._cleared(decided)
        if decided.fate is _ROOM:
            return self._reserve(decided)
        if decided.fate is _QUOTA and order.oldest(job):
            _hold_back(round_, decided)
        elif decided.fate is _QUOTA and (
            round_.waits_for_its_own(job, decided.choice) or round_.quota_comes_back(job, decided.choice)
        ):
            return self._reserve(decided)
        return decided

    def count(self, job: int) -> Verdict | None:
        """It is the place in the order of a job that was served early."""
        workers, flavour, verdict = self.early.pop(job)
        self.order.charged(job, workers, flavour)
        return verdict

    def with_those_put_off(self, verdicts: list[Verdict]) -> list[Verdict]:
        """The verdicts when those had their turn as well whom owners came before: in the order that they are in."""
        if self.put_off:
            turns = (self.decide(each.job) if each.job in self.put_off else each for each in verdicts)
            verdicts = [each for each in turns if each is not None]
        return self._as_served(verdicts)

    def _as_served(self, verdicts: list[Verdict]) -> list[Verdict]:
        """The verdicts without those on owners whose place in the order had passed when they were served: quota that
        comes back with victims gave them one more turn. They count in no share."""
        if not self.early:
            return verdicts
        served = (self.early[each.job].verdict if each.job in self.early else each for each in verdicts)
        return [each for each in served if each is not None]

    def _passed(self, job: int) -> Set[int]:
        """Running jobs that yield, but rank before it."""
        return self.put_off.get(job, self.order.passed)

    def _serve_early(self, owner: int) -> None:
        round_ = self.round_
        decided = self.starting.lacks_quota(owner) or self.starting.start(owner)
        if isinstance(decided, Admission):
            round_.admissions.append(decided)
            self.early[owner] = _Early(len(decided.nodes), decided.flavour, None)
        elif self.preempting.clear(decided, self._everybody):
            self.starting.quota_came_back()
            promise = round_.promises[-1]
            self.early[owner] = _Early(len(promise.nodes), promise.flavour, cleared(decided))
        else:
            if decided.fate is _ROOM:
                self.full.add(self.starting.home(owner))
            self.starting.turned_down(decided)

    @cached_property
    def _everybody(self) -> frozenset[int]:
        """Who of those that yield ranks before an owner is not known yet, so that it asks none of them."""
        return frozenset(range(len(self.round_.queue_of)))

    def _cleared(self, verdict: Verdict) -> Verdict:
        """It has a promise now, and its victims' quota is somebody's again."""
        promise = self.round_.promises[-1]
        self.starting.quota_came_back()
        self.order.charged(verdict.job, len(promise.nodes), promise.flavour)
        return cleared(verdict)

    def _reserve(self, verdict: Verdict) -> Verdict:
        """Make a head of it, if it may be one. One that was to be let in before its turn need not wait for those who
        were let in behind it."""
        round_ = self.round_
        if not self._may_reserve(verdict.job, verdict.choice):
            return verdict
        kind = round_.kinds.of[verdict.job]
        it = round_.kinds.kinds[kind]
        if verdict.fate is _ROOM and len(it.choices) > 1:
            verdict = verdict._replace(choice=self._soonest(verdict))
        flavour = it.choices[verdict.choice].flavour
        passed = self._passed(verdict.job)
        yielding = self.preempting.yielding_to(verdict.job, passed)
        if self.heads.may_pass(verdict.job, yielding) and self.preempting.clear_in_passing(verdict, passed):
            return self._cleared(verdict)
        gang = round_.kinds.gang(kind, verdict.choice, it.sizes[-1])
        if self.heads.reserve(verdict.job, gang, flavour, yielding) is None:
            return verdict
        round_.reserve_quota(verdict.job, verdict.choice, round_.kinds.need(kind, verdict.choice, gang.size))
        self.starting.owners.became_head(verdict.job)
        self.order.charged(verdict.job, gang.total, flavour)
        return verdict

    def _may_reserve(self, job: int, choice: int) -> bool:
        """Whether a job may be a head on the nodes of a choice."""
        round_ = self.round_
        if not self.heads.may_reserve(round_.kind(job).choices[choice].flavour):
            return False
        # Quota that waits for a gang is nodes that stand idle. Others' does not wait until it is old.
        young = round_.policy.fairness and not self.order.oldest(job)
        return not (young and round_.would_be_lent(job, choice))

    def _soonest(self, verdict: Verdict) -> int:
        """On which of its choices of nodes a job is to have its reservation: the first that it has quota for, unless
        another is sure to have room before that is expected to. Where nobody knows when it will, the one of which that
        is known, else the one with most room now. Or jobs behind it would pass it there for ever, one small one after
        the other."""
        round_, job, best = self.round_, verdict.job, verdict.choice
        kind = round_.kinds.of[job]
        least = round_.kinds.kinds[kind].sizes[-1]
        first = round_.kinds.gang(kind, best, least)
        known, most = self.heads.foresee(first), self.heads.most_now(first)
        for choice in self.starting.choices[kind]:
            need = round_.kinds.need(kind, choice, least)
            if choice == verdict.choice or round_.shortage(job, choice, need) is not None:
                continue
            gang = round_.kinds.gang(kind, choice, least)
            other, there = self.heads.foresee(gang), self.heads.most_now(gang)
            sooner = other.latest < known.start or other.start < known.start == FOREVER
            if (sooner or (other.start == known.start == FOREVER and there > most)) and self._may_reserve(job, choice):
                best, known, most = choice, other, there
        return best


def _hold_back(round_: Round, verdict: Verdict) -> None:
    """Let no later job of its queue pass an old one that the queue's own quota could hold, unless it yields to it.

    One that would have to borrow holds nobody back: what it waits for is others', and may never come.
    """
    kind = round_.kinds.of[verdict.job]
    it = round_.kinds.kinds[kind]
    need = round_.kinds.need(kind, verdict.choice, it.sizes[-1])
    flavour = it.choices[verdict.choice].flavour
    if round_.used.never(round_.queue_of[verdict.job], flavour, need, borrowing=False) is None:
        round_.hold_back_quota(verdict.job, verdict.choice, need)
