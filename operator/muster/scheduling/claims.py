"""Who may be asked to give room back, for whom. The one place that knows these rules.

A *victim* is a placement that stands, is not ending already, and is preemptible; a job that is not preemptible is never
one, and so is a job without a queue. The *claimant* is a job that waits; `Terms.reclaims` says that it may ask at all.
Its priority counts as at most its queue's highest. Whether it is within nominal is told with everything it needs.

| victim | condition | right |
| --- | --- | --- |
| was let in before the claimant (`Runs.yields`) | the claimant's priority is not lower | YIELDS |
| in the claimant's queue | lower priority, the queue's `within` allows it, budget left | PRIORITY |
| in the claimant's queue, shortest first | the same priority, much longer (`outlasting`), likewise | PRIORITY |
| in the tree, claimant within nominal, victim is borrowed use | `reclaim`: lower priority, or any | RECLAIM |
| in the tree, claimant borrows, victim's queue borrows | lower priority and `borrower` allows it | SURPLUS |
| in another tree, its queue borrows | lower priority | SURPLUS |
| elsewhere, no quota of its tree names the resources | lower priority, budget left | PRIORITY |
| all others | | NONE |

A queue keeps what is within its own nominal, whatever the priorities. Disruption budgets protect a victim, but not what
its queue has borrowed, nor one that was let in on the condition that it yields. RECLAIM and SURPLUS hold for a set of
victims only as far as their queue borrows:

* RECLAIM asks those alone that are what their queue, or a team above it, has borrowed (`muster.scheduling.borrowing`).
  It takes them in ascending order of what they hold, each while its queue still borrows. The last one may leave its
  queue below its nominal, for jobs are not divided.
* SURPLUS takes only what lies wholly above nominal. Else the victim would be within its nominal when it queues again,
  and take back from a borrower what was taken from it.

Nobody is asked who may take so long to go that the claimant's window could be about to close by then: see `in_time`.

Why nothing goes to and fro: with PRIORITY and SURPLUS the victim has lower priority, or `MUCH` times as much left to do
as the claimant in all, so it may not ask the claimant in turn. With RECLAIM the claimant stays within its nominal, so
nobody may take it. One that yielded does not come back before the one it made room for, but where its queue has had
less by then: see `in_turns`.
"""

from __future__ import annotations

from collections.abc import Set
from enum import IntEnum
from typing import Final

import numpy as np

from muster.scheduling.borrowing import placed, reach
from muster.scheduling.hierarchy import path
from muster.scheduling.quota import Ledger, Need
from muster.scheduling.ranks import AGE_STEPS, ages, classes, once, works
from muster.scheduling.snapshot import NONE, UNLIMITED, Index, Int, Mask, Preempts, Seconds, Snapshot

_NO_RIGHT: Final = np.int32(0)

MUCH: Final = 2.0
"""A running job is much longer than one that waits if it has this many times as much left to do."""
LOST_AT_MOST: Final = 0.05
"""Share of its time on accelerators that a job may lose to stops for the sake of shorter ones, or of other queues'."""


class Right(IntEnum):
    """By what right a job may be asked to give its room back.

    NumPy takes two microseconds to compare what is its own with a member of an enum, so where it does that often it is
    given the `int`.
    """

    NONE = 0
    YIELDS = 1
    PRIORITY = 2
    RECLAIM = 3
    SURPLUS = 4


class Standing:
    """Placements of one snapshot that may be ended, with what decides who may ask them: made once for many claimants.

    Attributes:
        rows: S, of `movable`.
        priorities, works: J, see `effective_priorities` and `ranks.works`.
        left: S, see `outlasting`.
        groups, group_of: (queue, flavour) of those who are in one queue and flavour; S, the group of each.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        jobs, runs = snapshot.jobs, snapshot.jobs.runs
        self._snapshot = snapshot
        self.rows: Int = np.flatnonzero(movable(snapshot)).astype(np.int64)
        self.priorities, self.works = effective_priorities(snapshot), works(snapshot)
        self.left = outlasting(snapshot)[self.rows]
        self._of_rows, self._queues = self.priorities[self.rows], jobs.queues[self.rows]
        self._kept: Mask = runs.budget[self.rows] > 0
        self._yielding: list[int] = np.flatnonzero(runs.yields[self.rows]).tolist()
        keys = self._queues.astype(np.int64) * len(snapshot.flavours) + jobs.flavours[self.rows]
        there = np.bincount(keys) > 0  # which is faster than sorting them
        groups = np.flatnonzero(there)
        self.group_of: Int = (np.cumsum(there) - 1)[keys]
        self.groups = [divmod(group, len(snapshot.flavours)) for group in groups.tolist()]
        self._unlimited: dict[tuple[int, ...], list[bool]] = {}
        self._parents: list[int] = snapshot.queues.parents.tolist()

    def rights(self, ledger: Ledger, job: int, flavour: int, need: Need, passed: Set[int] = frozenset()) -> Index:
        """J, of `Right`: by what right `job` may ask each other job for room.

        Args:
            ledger: with the promises that stand; it is only read.
            flavour: whose quota the job would draw on.
            need: what its whole gang asks for.
            passed: rows of those that yield, but not to this job: it asks them as it asks all others.
        """
        jobs, queues = self._snapshot.jobs, self._snapshot.queues
        rights = np.zeros(len(jobs.uids), dtype=np.int32)
        queue, own = int(jobs.queues[job]), int(self.priorities[job])
        if queue == NONE:
            return rights
        found = np.zeros(len(self.rows), dtype=np.int32)
        if jobs.terms.reclaims[job]:
            lower, inside = self._of_rows < own, self._queues == queue
            found = np.where(inside, _NO_RIGHT, self._elsewhere(ledger, queue, flavour, need, lower))
            if queues.within[queue] != int(Preempts.NEVER):
                asked = lower
                if queues.shortest[queue]:
                    longer = (self.left > 0) & (self.left >= MUCH * self.works[job])
                    asked = lower | (longer & (self._of_rows == own))
                found[inside & asked & self._kept] = Right.PRIORITY
        for at in self._yielding:
            if self._of_rows[at] <= own and self.rows[at] not in passed:
                found[at] = Right.YIELDS
        found[~in_time(self._snapshot, job)[self.rows]] = Right.NONE
        rights[self.rows] = found
        rights[job] = Right.NONE
        return rights

    def _elsewhere(self, ledger: Ledger, queue: int, flavour: int, need: Need, lower: Mask) -> Index:
        """S, the rights over jobs of other queues; one look a queue and flavour."""
        policies = self._snapshot.queues
        reclaim, borrower = int(policies.reclaim[queue]), int(policies.borrower[queue])
        within, circle = ledger.within(queue, flavour, need), ledger.circle(queue)
        resources = tuple([resource for resource, _ in need])
        unlimited = self._unlimited.get(resources)
        if unlimited is None:
            unlimited = self._unlimited[resources] = [
                not any(ledger.most(other, kind, resource) < UNLIMITED for resource in resources)
                for other, kind in self.groups
            ]
        for_lower = np.zeros(len(self.groups), dtype=np.int32)
        for_any = np.zeros(len(self.groups), dtype=np.int32)
        apart = np.zeros(len(self.groups), dtype=np.int32)
        for index, (other, kind) in enumerate(self.groups):
            if other == queue:
                continue
            if unlimited[index]:
                for_lower[index] = Right.PRIORITY
            elif not ledger.borrows(other, kind, resources):
                continue
            elif ledger.circle(other) != circle:
                for_lower[index] = Right.SURPLUS
            elif within and reclaim != Preempts.NEVER:
                if kind == flavour and ledger.may_reclaim(queue, other, flavour, need):
                    for_lower[index] = Right.RECLAIM
                    for_any[index] = Right.RECLAIM if reclaim == Preempts.ANY else Right.NONE
                    apart[index] = _apart(self._parents, queue, other)
            elif borrower != Preempts.NEVER and not within:
                for_lower[index] = Right.SURPLUS
        found: Index = np.where(lower, for_lower[self.group_of], for_any[self.group_of])
        found[(found == int(Right.PRIORITY)) & ~self._kept] = Right.NONE
        asked = np.flatnonzero(found == int(Right.RECLAIM))
        if asked.size:
            borrowed = reach(self._snapshot)[self.rows[asked]][:, resources] <= apart[self.group_of[asked], None]
            found[asked[~borrowed.any(axis=1)]] = Right.NONE
        return found


def _apart(parents: list[int], queue: int, other: int) -> int:
    """The depth of the top of `other`'s branch, which parts from the queue's below the nearest queue above both."""
    return len(set(path(parents, queue)) & set(path(parents, other)))


@once
def movable(snapshot: Snapshot) -> Mask:
    """J, jobs with a placement that may be ended for others, or for another: it stands, and they are preemptible."""
    may: Mask = placed(snapshot) & snapshot.jobs.terms.preemptible
    return may


def in_time(snapshot: Snapshot, job: int) -> Mask:
    """J, who would be gone before a job may not start any more in the window that is open now."""
    gone: Mask = snapshot.now + snapshot.jobs.runs.grace < snapshot.jobs.terms.closes[job]
    return gone


@once
def goes_on(snapshot: Snapshot) -> Mask:
    """J, jobs that may start again when they have stopped: their windows are open, and will be then."""
    jobs = snapshot.jobs
    may: Mask = (jobs.terms.opens <= snapshot.now) & (snapshot.now + jobs.runs.grace < jobs.terms.closes)
    return may


@once
def outlasting(snapshot: Snapshot) -> Seconds:
    """J, accelerator-seconds that a running job has left to do, as far as shorter ones may ask it for room; else 0.

    It is not asked when nobody knows its length, when it is as old as counts, or before it has run for so long that
    stopping and starting it again is a small part of that (`LOST_AT_MOST`).
    """
    return np.where((ages(snapshot) < AGE_STEPS) & has_run(snapshot), _left(snapshot), 0.0)


@once
def _left(snapshot: Snapshot) -> Seconds:
    """J, accelerator-seconds that each placement has left to do; 0 when nobody knows its length."""
    length = snapshot.jobs.terms.length
    known = np.isfinite(length) & (length > 0)
    left = np.zeros(len(length))
    left[known] = works(snapshot)[known] * np.maximum(0.0, 1 - _ran(snapshot)[known] / length[known])
    return left


@once
def has_run(snapshot: Snapshot) -> Mask:
    """J, who has run for so long that a stop and a start are a small part of that (`LOST_AT_MOST`)."""
    long: Mask = LOST_AT_MOST * _ran(snapshot) >= snapshot.jobs.runs.restart + snapshot.jobs.runs.grace
    return long


def _ran(snapshot: Snapshot) -> Seconds:
    """J, seconds since each job was placed; 0 where it is not."""
    started = snapshot.jobs.runs.started
    return np.where(started > 0, snapshot.now - started, 0.0)


def in_turns(snapshot: Snapshot, job: int, runs: int) -> bool:
    """Whether one that runs is of another queue than a waiting job that was stopped before, equal to it in priority and
    age, not much longer, and has not run for long.

    What their queues have had tells which of the two comes first, and that is the other one as soon as this one runs.
    So they take turns on room that is kept for a third, and a turn lasts until `has_run`. To wait for that would cost
    short jobs the most. So nobody does for one that has `MUCH` times as much left, which waits for its turn in return;
    nor who was never stopped for anybody, for that ends as each has had its first turn.
    """
    order, jobs = classes(snapshot), snapshot.jobs
    if not jobs.runs.stops[job] or order[runs] != order[job] or jobs.queues[runs] == jobs.queues[job]:
        return False
    return bool(not has_run(snapshot)[runs] and _left(snapshot)[runs] < MUCH * works(snapshot)[job])


@once
def effective_priorities(snapshot: Snapshot) -> Index:
    """J, priorities as far as the jobs' queues allow."""
    jobs = snapshot.jobs
    capped: Index = jobs.priorities.copy()
    known = jobs.queues != NONE
    capped[known] = np.minimum(capped[known], snapshot.queues.priorities_max[jobs.queues[known]])
    return capped


def still_right(ledger: Ledger, right: int, claim: tuple[int, int, Need], victim: tuple[int, int], gives: Need) -> bool:
    """Whether a victim may be taken as well, when the ledger no longer counts those taken before it.

    Args:
        claim: queue, flavour and need of the claimant.
        victim: queue and flavour of the victim.
        gives: quota that comes back with it.
    """
    if right == Right.RECLAIM:
        return ledger.may_reclaim(claim[0], victim[0], victim[1], claim[2])
    if right == Right.SURPLUS:
        asked = {resource for resource, _ in claim[2]}
        return any(resource in asked and 0 < amount <= ledger.borrowed(*victim, resource) for resource, amount in gives)
    return True


def held_by(snapshot: Snapshot, rows: Int) -> list[list[tuple[int, int]]]:
    """Quota that each job holds, as (resource, amount) pairs above zero."""
    return [
        [(resource, amount) for resource, amount in enumerate(held) if amount > 0]
        for held in snapshot.jobs.held[rows].tolist()
    ]
