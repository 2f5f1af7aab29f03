"""Room that others give back: who is asked in one plan, and what is promised for it.

Jobs that lack room or quota are taken in their order. For each that may ask anybody at all, the cheapest victims are
searched (`muster.scheduling.victims`). Found, the job gets a promise, and its victims are asked to end or to shrink.

What bounds a plan's time: `Policy.searches`, the searches in one plan, and `Policy.candidates`, the running jobs that
they look at in all; one job's search is always made, over all its choices of nodes. Most jobs need none, for they may
ask nobody: nobody yields, nobody of lower priority runs in their queue, and nobody borrows what is theirs. Jobs that
are alike, of one queue and priority, and for which the same are gone in time, are searched for once. Those that the
bound leaves out have their turn in the next plan, in which the ones before them have their promise.

A job may take free room that is kept for nobody, what its victims give back, and what comes back from placements that
are ending for nobody. It takes neither free room that is kept for a job ahead nor what comes back there, but where it
would be let in before its turn if those had not been who rank behind it (`Preempting.clear_in_passing`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from muster.scheduling.claims import MUCH, Standing, in_turns
from muster.scheduling.demand import Coming, coming_back
from muster.scheduling.gangs import Gang
from muster.scheduling.owners import Owners
from muster.scheduling.plan import Eviction, MoveReason, Promise
from muster.scheduling.ranks import by_length
from muster.scheduling.rounds import Round
from muster.scheduling.slots import Taken, count_slots, open_then
from muster.scheduling.snapshot import NONE, UNLIMITED, Mask, Preempts, Snapshot
from muster.scheduling.verdicts import Fate, Verdict
from muster.scheduling.victims import Victims, find_victims

_NOBODY: Final = 2**31
"""Above every priority."""
_NEVER, _ANY = int(Preempts.NEVER), int(Preempts.ANY)
"""Read for every job that waits, and a name's value is faster than an enum's member."""


class Preempting:
    """The searches of one round."""

    def __init__(self, round_: Round, owners: Owners, choices: Sequence[Sequence[int]]) -> None:
        """`choices`: by kind of job, those whose nodes could hold it if they were empty."""
        self._round, self._owners, self._choices = round_, owners, choices
        self._snapshot = round_.after_evictions()
        self._left = round_.policy.searches
        self._looked_at = 0
        self._several = any(len(each) > 1 for each in choices)
        self._leavers = bool(self._snapshot.jobs.runs.leaving.any())
        self._coming: Coming | None = None
        self._kept_at: tuple[tuple[int, int], Mask] | None = None  # by node, as of so many touches
        self._slots: dict[tuple[int, int], int] = {}  # of a kind and choice: see `_slots_then`
        self._failed: dict[tuple[int, int, int, int], tuple[int, float]] = {}  # see `clear`

    @property
    def exhausted(self) -> bool:
        """Whether this plan looks for no more victims, whoever asks."""
        return self._left <= 0 or self._looked_at >= self._round.policy.candidates

    def clear(self, verdict: Verdict, passed: Set[int]) -> bool:
        """Promise room to a job that waits for quota or room, and ask its victims to go. False: it waits on.

        Its choices of nodes are tried in their order, whichever of them came closest.

        Args:
            passed: running jobs that rank before it. Those of them that yield were let in before others, not before it.
        """
        round_, job = self._round, verdict.job
        if self.exhausted:  # first: it is so for most who ask
            return False
        asking = round_.policy.preemption or round_.policy.backfill
        if not asking or (self._chances.nobody and not round_.evictions):
            return False
        chances = self._chances
        alike = (round_.queue_of[job], round_.kinds.of[job], chances.priorities[job], chances.in_time(job))
        asks, left = (len(passed), chances.works[job]), self._left  # the more of either, the fewer it may ask
        vain = self._failed.get(alike)
        if vain is not None and asks[0] >= vain[0] and asks[1] >= vain[1]:
            return False
        if any(self._clear(job, choice, passed) for choice in self._choices_of(verdict)):
            return True
        if self._left < left:
            self._failed[alike] = asks
        return False

    def clear_in_passing(self, verdict: Verdict, passed: Set[int]) -> bool:
        """The same on room that is kept for jobs ahead, for one that would have been let in there before its turn if
        others had not been, who rank behind it: it asks these alone, and yields itself.

        Asked by jobs that have their own reservation: they are few, so this counts against no bound.
        """
        job, choice = verdict.job, verdict.choice
        there = [row for row in self.yielding_to(job, passed) if not self._snapshot.jobs.reserved[row]]
        if not there or not any(self._kept_for_others(row) for row in there):
            return False
        victims = self._search(job, choice, passed, there)
        if victims is None or not victims.rows:
            return False
        self._carry_out(job, choice, victims, yields=True)
        return True

    def _clear(self, job: int, choice: int, passed: Set[int]) -> bool:
        """The same for one choice of nodes."""
        round_ = self._round
        if round_.promised.holds_back(round_.queue_of[job], round_.kind(job).choices[choice].flavour):
            return False  # whatever is freed is another's
        if not self._may_ask(job, choice, passed):
            return False
        self._left -= 1
        self._looked_at += len(self._chances.standing.rows)
        victims = self._search(job, choice, passed)
        if victims is None or not (victims.rows or self._lacks(job, choice)):
            return False
        self._carry_out(job, choice, victims)
        return True

    def _choices_of(self, verdict: Verdict) -> Sequence[int]:
        """The choices of a job, of those that could hold it."""
        return self._choices[self._round.kinds.of[verdict.job]] if self._several else (verdict.choice,)

    def _may_ask(self, job: int, choice: int, passed: Set[int]) -> bool:
        """Whether the job may ask anybody, as far as a short look tells; or whether room comes back without that."""
        if self._chances.any(job, choice, loosely=self._comes_back):
            return True
        others = self._choices[self._round.kinds.of[job]] if self._several and self._comes_back else ()
        if any(self._chances.any(job, other, loosely=True) for other in others if other > choice):
            return True  # nobody goes elsewhere for what waiting brings here
        if self._chances.yielding(job) and (
            self._comes_back or any(self._may_yield(row, passed) for row in self._chances.yielders)
        ):
            return True
        return self._may_be_left_over(job, choice)

    def _may_be_left_over(self, job: int, choice: int) -> bool:
        """Whether what the victims of this plan give back might be enough for a job that may ask nobody. Who is next in
        the order has it, or those behind it who may ask somebody would be promised it before."""
        round_ = self._round
        if self._coming is None or not round_.evictions:
            return False
        kind, least = round_.kinds.of[job], round_.kind(job).sizes[-1]
        flavour = round_.kind(job).choices[choice].flavour
        if round_.promised.shortage(round_.queue_of[job], flavour, round_.kinds.need(kind, choice, least)) is not None:
            return False
        if (kind, choice) not in self._slots:
            self._slots[kind, choice] = self._slots_then(round_.kinds.gang(kind, choice, least))
        return self._slots[kind, choice] >= round_.kinds.gang(kind, choice, least).total

    def _slots_then(self, gang: Gang) -> int:
        """How many workers have room, wherever, when those are gone who leave. Later in the plan they are fewer."""
        round_, coming = self._round, self._coming
        assert coming is not None, "a search looks at what comes back first"
        places = np.flatnonzero(coming.room.any(axis=0))
        worker, mask = round_.kinds.workers[gang.worker], round_.room.candidates(gang.worker)[places]
        back, spare = coming.room[:, places], round_.spare.open[:, places]
        then = count_slots(open_then(round_.room.free[:, places], spare, back), worker, mask)
        now = count_slots(np.maximum(spare, 0), worker, mask)
        return round_.spare.slots(gang.worker).total + int((then - now).sum())

    def yielding_to(self, job: int, passed: Set[int]) -> list[int]:
        """Rows of jobs that go as soon as a waiting one could start with what they hold, or are promised. On room that
        is kept for others they do where it may start in passing (see `in_turns`), and else when these have started.

        Args:
            passed: see `clear`.
        """
        chances = self._chances
        if not (self._round.policy.preemption or self._round.policy.backfill):
            return []
        if not (chances.yielders or chances.to_yield):
            return []
        going, uids = {each.uid for each in self._round.evictions}, self._snapshot.jobs.uids
        priorities = chances.priorities
        return [
            row
            for row in [*chances.yielders, *chances.to_yield]
            if priorities[row] <= priorities[job] and row not in passed
            if uids[row] not in going and not (in_turns(self._snapshot, job, row) and self._kept_for_others(row))
        ]

    def could_ask(self, job: int) -> bool:
        """Whether `clear` might find anybody for a job with one choice of nodes, as things stand. Errs to that side."""
        if not (self._round.policy.preemption or self._round.policy.backfill):
            return False
        return self._chances.any(job, 0, loosely=self._comes_back) or self._chances.yielding(job)

    def lowest(self, tree: int) -> int:
        """The lowest priority of those in a tree of queues whom jobs of other trees may ask, as far as known."""
        return self._chances.lowest(tree)

    @cached_property
    def _chances(self) -> _Chances:
        """Made when the first job lacks room or quota."""
        return _Chances(self._round, self._snapshot)

    @property
    def _comes_back(self) -> bool:
        return self._leavers or bool(self._round.evictions)

    def _may_yield(self, row: int, passed: Set[int]) -> bool:
        """Whether a job that yields was let in before others, and not before those for whom its nodes are kept now."""
        return row not in passed and not self._kept_for_others(row)

    def _lacks(self, job: int, choice: int) -> bool:
        """Whether it waits for what is not there, and not only for what is kept for others."""
        round_ = self._round
        kind, least = round_.kinds.of[job], round_.kind(job).sizes[-1]
        short = round_.shortage(job, choice, round_.kinds.need(kind, choice, least))
        return short is not None or not round_.fits(kind, choice, least, spare=False)

    def _search(self, job: int, choice: int, passed: Set[int], there: Sequence[int] = ()) -> Victims | None:
        """`there`: those alone whom it may ask, who yield, for any room; else all, for room that is kept for nobody."""
        round_ = self._round
        kind, it = round_.kinds.of[job], round_.kind(job)
        gang, flavour = round_.kinds.gang(kind, choice, it.sizes[-1]), it.choices[choice].flavour
        if self._coming is None:
            # The quota of all who leave is off the ledger of promises already.
            self._coming = replace(coming_back(self._snapshot, round_.tree), quota=())
        coming = self._coming.in_time(self._snapshot, round_.tree, job)
        yields = self._snapshot.jobs.runs.yields
        asked = np.ones(len(yields), dtype=np.bool_) if round_.policy.preemption else yields.copy()
        for row in np.flatnonzero(yields).tolist():
            asked[row] &= not self._kept_for_others(row) and (round_.policy.preemption or row not in passed)
        return find_victims(
            self._snapshot,
            round_.tree,
            round_.room if there else round_.open_to_all(coming.room),
            self._owners.ledger_for(round_.queue_of[job], flavour, round_.kinds.need(kind, choice, gang.size)),
            round_.kinds.workers,
            gang,
            job,
            coming,
            np.array(there, dtype=np.int64) if there else np.flatnonzero(asked).astype(np.int64),
            standing=self._chances.standing,
            flavour=flavour,
            elastic=round_.policy.elastic,
            passed=passed,
        )

    def _kept_for_others(self, row: int) -> bool:
        """Whether a running job is on nodes of which room is kept for a job ahead: what it yields is for that one."""
        room, spare = self._round.room, self._round.spare
        if spare is room:
            return False
        seen = (room.touches, spare.touches)
        if self._kept_at is None or self._kept_at[0] != seen:
            self._kept_at = (seen, self._round.kept_nodes())
        nodes = self._round.snapshot.jobs.runs.nodes_of(row)
        return bool(self._kept_at[1][nodes[nodes != NONE]].any())

    def _carry_out(self, job: int, choice: int, victims: Victims, *, yields: bool = False) -> None:
        round_ = self._round
        kind, uids = round_.kinds.of[job], round_.snapshot.jobs.uids
        it = round_.kinds.kinds[kind]
        gang = round_.kinds.gang(kind, choice, it.sizes[-1])
        flavour = it.choices[choice].flavour
        round_.take(gang, Taken.of(victims.places))
        for queue, of_flavour, need in victims.returned:
            round_.give_back_quota(queue, of_flavour, need)
        round_.reserve_quota(job, choice, round_.kinds.need(kind, choice, gang.size))
        assert self._coming is not None, "a search looks at what comes back first"
        self._coming = self._coming.after(victims.rows, victims.freed_places, victims.freed, ())
        for gone in victims.evicted:
            round_.evictions.append(Eviction(uids[gone.row], gone.reason, uids[job], gone.lost))
        for less in victims.shrunk:
            round_.promises.append(Promise(uids[less.row], less.nodes, int(round_.snapshot.jobs.flavours[less.row])))
            round_.evictions.append(Eviction(uids[less.row], MoveReason.SHRUNK, uids[job], less.lost))
        round_.promises.append(Promise(uids[job], victims.nodes, flavour, yields=yields))
        self._failed.clear()
        self._slots.clear()


def cleared(verdict: Verdict) -> Verdict:
    """The same job with its promise."""
    return verdict._replace(fate=Fate.CLEARED)


class _Chances:
    """Whether a job may ask anybody at all, told without looking at every running job.

    Errs to the side of a search: who may ask whom is decided by `muster.scheduling.claims` alone.
    """

    def __init__(self, round_: Round, snapshot: Snapshot) -> None:
        self._round = round_
        jobs = snapshot.jobs
        queues = snapshot.queues
        self.standing = Standing(snapshot)
        there = self.standing.rows
        priorities = self.standing.priorities.astype(np.int64)
        self.priorities: list[int] = priorities.tolist()
        yielding = there[jobs.runs.yields[there]]
        self.yielders: list[int] = yielding.tolist()
        self.to_yield: list[int] = np.flatnonzero(jobs.runs.yields & jobs.reserved).tolist()
        self._yielding = int(priorities[yielding].min(initial=_NOBODY))
        inside = np.full(len(queues.names), _NOBODY, dtype=np.int64)
        np.minimum.at(inside, jobs.queues[there], priorities[there])
        inside[queues.within == int(Preempts.NEVER)] = _NOBODY
        self._inside: list[int] = inside.tolist()
        self._reclaim: list[int] = queues.reclaim.tolist()
        self._borrower: list[int] = queues.borrower.tolist()
        lowest = np.full(len(self.standing.groups), _NOBODY, dtype=np.int64)
        np.minimum.at(lowest, self.standing.group_of, priorities[there])
        self._groups: dict[int, list[tuple[int, int, int]]] = {}
        for (queue, flavour), least in zip(self.standing.groups, lowest.tolist(), strict=True):
            self._groups.setdefault(round_.used.circle(queue), []).append((queue, flavour, least))
        shortest = by_length(snapshot)
        self.works: list[float] = np.where(shortest, self.standing.works, 0.0).tolist()
        longest = np.zeros(len(queues.names))
        if shortest.any():
            np.maximum.at(longest, jobs.queues[there], self.standing.left)
        # Less than any work: where the shortest do not come first, or nobody of the queue may be asked, nobody is long.
        longest[~queues.shortest | (queues.within == int(Preempts.NEVER))] = -1.0
        self._longest: list[float] = longest.tolist()
        self.nobody = not len(there) and not shortest.any()
        self._gone: list[float] = np.sort(snapshot.now + jobs.runs.grace[jobs.holding]).tolist()
        self._closes: list[float] = jobs.terms.closes.tolist()
        self._asks: list[bool] = (jobs.terms.reclaims & round_.policy.preemption).tolist()
        self._borrowers: dict[tuple[int, tuple[int, ...]], tuple[int, _Around]] = {}
        self._lowest: dict[tuple[int, ...], tuple[int, int, list[tuple[int, int]]]] = {}

    def yielding(self, job: int) -> bool:
        """Whether anybody runs who yields to jobs of its priority."""
        return self._yielding <= self.priorities[job]

    def in_time(self, job: int) -> int:
        """How many would be gone before the job may not start any more: equal numbers are the same jobs."""
        return bisect_left(self._gone, self._closes[job])

    def any(self, job: int, choice: int, *, loosely: bool) -> bool:
        """Whether there is anybody of lower priority, or who borrows, whom the job might ask.

        Args:
            loosely: also where it may not borrow, or take back, that much.
        """
        round_, queue, own = self._round, self._round.queue_of[job], self.priorities[job]
        if queue == NONE or not self._asks[job]:
            return False
        if self._inside[queue] < own or self._longest[queue] >= MUCH * self.works[job]:
            return True
        need = round_.kinds.need(round_.kinds.of[job], choice, round_.kind(job).sizes[-1])
        resources = tuple([resource for resource, _ in need])
        circle = round_.used.circle(queue)
        if self._lowest_elsewhere(circle, resources) < own:
            return True
        if circle not in self._groups:
            return False
        flavour = round_.kind(job).choices[choice].flavour
        around, reclaim = self._of_circle(circle, resources), self._reclaim[queue]
        if loosely:
            return around.borrowing < own or (reclaim == _ANY and flavour in around.flavours)
        if not round_.promised.within(queue, flavour, need):
            return self._borrower[queue] != _NEVER and around.borrowing < own
        if reclaim == _NEVER or flavour not in around.flavours:
            return False
        return reclaim == _ANY or around.borrowing < own

    def _lowest_elsewhere(self, circle: int, resources: tuple[int, ...]) -> int:
        """The lowest priority of all that are unlimited, and of those that borrow in other trees of queues."""
        found = self._lowest.get(resources)
        if found is None or found[0] != self._round.touches:
            each = {other: self._of_circle(other, resources) for other in self._groups}
            unlimited = min((one.unlimited for one in each.values()), default=_NOBODY)
            two = sorted((one.borrowing, other) for other, one in each.items())[:2]
            found = self._lowest[resources] = (self._round.touches, unlimited, two)
        return min(found[1], next((lowest for lowest, other in found[2] if other != circle), _NOBODY))

    def lowest(self, circle: int) -> int:
        """In one tree, of those who borrow any of the resources that jobs have asked for so far."""
        if circle not in self._groups:
            return _NOBODY
        return min((self._of_circle(circle, resources).borrowing for resources in self._lowest), default=_NOBODY)

    def _of_circle(self, circle: int, resources: tuple[int, ...]) -> _Around:
        touched = self._round.touched.get(circle, 0)
        found = self._borrowers.get((circle, resources))
        if found is None or found[0] != touched:
            ledger, borrowing, unlimited, flavours = self._round.promised, _NOBODY, _NOBODY, set[int]()
            for queue, flavour, lowest in self._groups[circle]:
                if ledger.borrows(queue, flavour, resources):
                    flavours.add(flavour)
                    borrowing = min(borrowing, lowest)
                elif not any(ledger.most(queue, flavour, resource) < UNLIMITED for resource in resources):
                    unlimited = min(unlimited, lowest)
            found = self._borrowers[circle, resources] = (touched, _Around(borrowing, unlimited, flavours))
        return found[1]


class _Around(NamedTuple):
    """Who runs in one tree of queues: the lowest priority of those whose queue borrows, and of those that no quota
    limits; the flavours that are borrowed."""

    borrowing: int
    unlimited: int
    flavours: set[int]
