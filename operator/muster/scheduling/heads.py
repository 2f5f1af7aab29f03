"""Jobs that wait for room and hold a reservation: the heads of the order.

The first few jobs of each flavour that fit nowhere now (`Policy.heads`) get a reserved time and place, one behind the
other; of those whose quota other queues lend only the old (see `muster.scheduling.planner`). On every node that a head
could ever use, room is kept for as many of its workers as that node takes when empty; its quota is charged as if it
ran. A job behind may take

* room that no head could use: then it stays as long as it likes;
* any free room, if `muster.scheduling.backfill` proves for every head that it does not delay it; a preemptible job may
  have to promise that it goes as soon as a head could start (`Admission.yields`).

A head itself may start on room that is kept for those before it, in the same way. Who was let in there behind it yields
to it (`Preempting.clear_in_passing`).

The jobs behind the last head wait without keeping anything from anybody. They become heads as those ahead start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter

import numpy as np

from muster.scheduling.backfill import Guard, costs, delays, fits_beside, guard, taken_ahead, worthwhile
from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.placement import most_placeable
from muster.scheduling.plan import Basis
from muster.scheduling.rounds import Round
from muster.scheduling.slots import Taken
from muster.scheduling.snapshot import FOREVER, NONE, Int, Mask, TopologyMode
from muster.scheduling.timeline import Reservation, Timeline
from muster.scheduling.verdicts import Found


@dataclass(frozen=True)
class Head:
    """
    Attributes:
        flavour: whose quota is kept for it.
        watch: works its guard out, as of when it became a head.
        where: N, places where room is kept for it; `fresh`: where it was kept for nobody before.
        stayed: how many had been let in for good in this plan when it became a head, and how many `promises` it had
            made.
        ahead: the gangs of the heads before it, their workers, and where room is kept for them.
    """

    job: int
    gang: Gang
    flavour: int
    reservation: Reservation
    watch: Callable[[], Guard]
    where: Mask
    fresh: Mask
    stayed: int
    promises: int
    ahead: tuple[tuple[Gang, Worker, Mask], ...]

    @cached_property
    def guard(self) -> Guard:
        """Made when somebody behind asks to be let in: in most plans nobody does."""
        return self.watch()

    @cached_property
    def spent(self) -> Int:
        """D, what the heads before it cost its guard, and those who were let in for good since; kept up by `Heads`."""
        found = np.zeros_like(self.guard.excess)
        for gang, worker, where in self.ahead:
            found += taken_ahead(self.guard, gang, worker, where)
        return found


@dataclass(frozen=True)
class _Stays:
    """A gang that was let in for good, and R x places, what was free there before."""

    worker: Worker
    taken: Taken
    free: Int


class Heads:
    """The reservations of one round, first in rank first."""

    def __init__(self, round_: Round) -> None:
        self._round = round_
        self._timeline: Timeline | None = None
        self._started: list[tuple[int, Taken]] = []
        self._count: dict[int, int] = {}
        self._jobs: set[int] = set()
        self._queues: set[tuple[int, int]] = set()
        self._reserved: Int | None = None
        self._worth: tuple[int, frozenset[int]] = (0, frozenset())
        self._stay: list[_Stays] = []
        self._counted: dict[int, int] = {}  # by head, how many of these are in what was `spent`
        self._proven: dict[tuple[int, int, int, tuple[bool, ...]], tuple[int, bool]] = {}
        self.all: list[Head] = []

    @property
    def timeline(self) -> Timeline:
        """Made when the first job waits for room; knows what was admitted before."""
        if self._timeline is None:
            self._timeline = Timeline(self._round.snapshot, self._round.tree)
            for job, taken in self._started:
                self._timeline.started(job, taken)
        return self._timeline

    def started(self, job: int, taken: Taken, worker: int, *, yields: bool) -> None:
        """To be told of everybody who is admitted, before their room is taken."""
        if self.all and not yields:
            free = self._round.room.free[:, taken.places]
            self._stay.append(_Stays(self._round.kinds.workers[worker], taken, free))
        if self._timeline is None:
            self._started.append((job, taken))
        else:
            self._timeline.started(job, taken)

    def may_reserve(self, flavour: int) -> bool:
        return self._count.get(flavour, 0) < self._round.policy.heads

    @property
    def jobs(self) -> Set[int]:
        """Rows of all."""
        return self._jobs

    @property
    def queues(self) -> Set[tuple[int, int]]:
        """(queue, flavour) of all: whoever borrows there from now on yields, or the heads would be those who borrow."""
        return self._queues

    def reserve(self, job: int, gang: Gang, flavour: int, yielding: Sequence[int] = ()) -> Head | None:
        """Keep time and place for a job that fits nowhere now; None: its window is expected to be shut by then.

        Args:
            yielding: rows of jobs that go as soon as it could start with what they hold, and may have it.
        """
        round_ = self._round
        worker = round_.kinds.workers[gang.worker]
        if self._reserved is None:
            self._reserved = np.zeros_like(round_.room.free)
        left = round_.room.free - self._reserved
        reservation = self.timeline.reserve(round_.room, gang, worker, left, proof=round_.policy.explain)
        wait = 0.0
        if yielding and reservation.start > self.timeline.now:
            otherwise = reservation
            reservation = self._when_others_yield(gang, worker, left, yielding, otherwise)
            wait = float(round_.snapshot.jobs.runs.grace[yielding].max()) if reservation is not otherwise else 0.0
        where = self._where(gang)
        reservation = self._behind(job, gang, where, reservation, wait)
        if reservation.basis is Basis.LIMITS and self._may_lose_its_place(gang, where, reservation, yielding, wait):
            reservation = replace(reservation, basis=Basis.QUEUE)
        if round_.snapshot.jobs.terms.closes[job] <= reservation.start < FOREVER:
            return None
        self._count[flavour] = self._count.get(flavour, 0) + 1
        self._jobs.add(job)
        self._queues.add((round_.queue_of[job], flavour))
        if reservation.taken is not None:
            places = np.flatnonzero(reservation.taken)
            for resource, amount in worker.asks:
                self._reserved[resource, places] += reservation.taken[places] * amount
        timeline, room = self.timeline.frozen(), round_.room.frozen()
        watch = partial(guard, timeline, round_.tree, room, gang, worker, reservation)
        fresh = round_.split_spare().keep(gang.worker, where)
        none = np.zeros(len(round_.tree.order), dtype=np.bool_)
        fresh = none if fresh is None else fresh
        ahead = tuple([(each.gang, round_.kinds.workers[each.gang.worker], each.where) for each in self.all])
        so_far = len(self._stay), len(round_.promises)
        self.all.append(Head(job, gang, flavour, reservation, watch, where, fresh, *so_far, ahead))
        return self.all[-1]

    def foresee(self, gang: Gang) -> Reservation:
        """Time and place that a gang would have behind all heads that there are."""
        room, worker = self._round.room, self._round.kinds.workers[gang.worker]
        return self.timeline.reserve(room, gang, worker, None if self._reserved is None else room.free - self._reserved)

    def most_now(self, gang: Gang) -> int:
        """How many workers of a gang find room now, for whomever that is kept."""
        slots = self._round.room.free_slots(gang.worker)
        return most_placeable(slots.tree, slots.prefix, gang)

    def earliest(self, gang: Gang, ahead: Sequence[Head], open_: Int | None = None) -> float:
        """When a gang that holds no reservation could start behind some that do; FOREVER when nobody knows.

        Args:
            open_: R x N, what of the free room it may take now; None: all.
        """
        room, workers = self._round.room, self._round.kinds.workers
        left = room.free.copy()
        for each in ahead:
            if each.reservation.taken is not None:
                for resource, amount in workers[each.gang.worker].asks:
                    left[resource] -= each.reservation.taken * amount
        left = left if open_ is None else np.minimum(left, open_)
        return self.timeline.reserve(room, gang, workers[gang.worker], left, proof=False).start

    def _when_others_yield(
        self, gang: Gang, worker: Worker, left: Int, yielding: Sequence[int], otherwise: Reservation
    ) -> Reservation:
        """Whoever was let in before a job must not move its reserved start: they go when it could start with what they
        hold, one grace before it does."""
        round_ = self._round
        timeline, given = self.timeline.without(yielding)
        found = timeline.reserve(round_.room, gang, worker, left + given, proof=round_.policy.explain)
        grace = float(round_.snapshot.jobs.runs.grace[yielding].max())
        start, latest = found.start + grace, min(found.latest + grace, otherwise.latest)
        if start >= otherwise.start:
            return otherwise
        return Reservation(start, latest, Basis.LIMITS if start >= latest else Basis.PROGRESS, found.taken)

    def _behind(self, job: int, gang: Gang, where: Mask, reservation: Reservation, wait: float) -> Reservation:
        """One that cannot yield gets room that is kept for those ahead when they have started, though it is free; so
        does one that would have to yield too soon. Who yields to it there goes then, and takes `wait`."""
        passes = self._may_yield(job)
        for ahead in sorted(self.all, key=attrgetter("reservation.start")):
            first = ahead.reservation
            if reservation.start >= first.start or not self._share(gang, where, ahead):
                continue
            if not (passes and self._is_worth(job, first, reservation.start)):
                basis = reservation.basis if first.basis is Basis.LIMITS else first.basis
                reservation = replace(reservation, start=first.start + wait, basis=basis)
        return reservation

    def _may_lose_its_place(
        self, gang: Gang, where: Mask, reservation: Reservation, yielding: Sequence[int], wait: float
    ) -> bool:
        """Whether it might not fit at its reserved start if those ahead start on other nodes than are kept for them."""
        workers = self._round.kinds.workers
        ahead = [(each.gang, workers[each.gang.worker]) for each in self.all if self._share(gang, where, each)]
        if not ahead:
            return False
        timeline, given = self.timeline.without(yielding if wait else ())
        free = self._round.room.free + given
        worker = workers[gang.worker]
        return fits_beside(timeline, self._round.room, free, gang, worker, ahead) + wait > reservation.start

    def _is_worth(self, job: int, first: Reservation, start: float) -> bool:
        """Whether a job that starts at that moment would get enough done before one ahead has its own start."""
        jobs, row = self._round.snapshot.jobs, slice(job, job + 1)
        done = worthwhile(first, start, jobs.terms.estimate[row], jobs.runs.restart[row], jobs.runs.grace[row])
        return bool(done[0])

    def _may_yield(self, job: int) -> bool:
        return self._round.policy.backfill and self._round.kind(job).preemptible

    def may_pass(self, job: int, yielding: Sequence[int]) -> bool:
        """Whether a job may start on room that is kept for those ahead when these rows have yielded to it, for it gives
        that back when they could start, and gets enough done before."""
        if not (self.all and yielding and self._may_yield(job)):
            return False
        gone = self._round.snapshot.now + float(self._round.snapshot.jobs.runs.grace[yielding].max())
        return self._is_worth(job, min((each.reservation for each in self.all), key=attrgetter("start")), gone)

    def lets_in(self, job: int, choice: int, size: int) -> tuple[Found, bool] | None:
        """Where a job may start on room that is kept, and whether it has to yield; None if it may not."""
        round_, kind = self._round, self._round.kinds.of[job]
        if not round_.policy.backfill:
            return None
        preemptible = round_.kind(job).preemptible
        if preemptible and job not in self._worth_letting_in:
            return None
        # A head that has a reserved start is not delayed by who is sure to be gone by then.
        until = FOREVER if preemptible else self.timeline.until(job)
        watched = tuple([each.reservation.start == FOREVER or until > each.reservation.start for each in self.all])
        found = round_.find(kind, choice, size, spare=False)
        assert found is not None, "a gang that fits was not placed"
        harmless = self._harmless(kind, choice, found, watched)
        if preemptible:
            return found, not harmless
        return (found, False) if harmless else None

    def _harmless(self, kind: int, choice: int, found: Found, watched: tuple[bool, ...]) -> bool:
        """Whether no watched head could ever use this room: the same for all that are alike, until room shrinks."""
        key = (kind, choice, found.size, watched)
        version, harmless = self._proven.get(key, (0, False))
        if version != self._round.version:
            room = self._round.room
            worker = self._round.kinds.workers[self._round.kinds.kinds[kind].choices[choice].worker]
            harmless = not any(
                delays(head.guard, room, worker, found.taken, until=FOREVER, preemptible=False, spent=self._spent(head))
                for head, watch in zip(self.all, watched, strict=True)
                if watch
            )
            self._proven[key] = (self._round.version, harmless)
        return harmless

    def _spent(self, head: Head) -> Int:
        """See `Head.spent`."""
        for each in self._stay[self._counted.get(head.job, head.stayed) :]:
            domains, cost = costs(head.guard, each.free[head.guard.resources], each.worker, each.taken)
            head.spent[domains] += cost
        self._counted[head.job] = len(self._stay)
        return head.spent

    def in_the_way(self, gang: Gang) -> int:
        """The first job ahead that keeps room which the gang could use."""
        worker = self._round.kinds.workers[gang.worker]
        resources = {resource for resource, _ in worker.asks}
        slots = self._round.room.slots(gang.worker)
        kept = slots.counts > self._round.spare.slots(gang.worker).counts
        for each in self.all:
            asked = {resource for resource, _ in self._round.kinds.workers[each.gang.worker].asks}
            if resources & asked and (slots.site.cut(each.fresh) & kept).any():
                return each.job
        return self.all[0].job

    def expected(self) -> dict[int, tuple[float, Basis]]:
        """By row, when each starts, FOREVER where nobody knows, and what that rests on.

        Room that is kept for one ahead is there for a job that yields. One that cannot has it when that one starts.
        """
        found: dict[int, tuple[float, Basis]] = {}
        for index, head in enumerate(self.all):
            start, basis = head.reservation.start, head.reservation.basis
            # Who is not let in where room is free now waits for those ahead, too.
            if not self._round.kind(head.job).preemptible or start <= self._round.snapshot.now:
                for ahead in self.all[:index]:
                    if self._share(head.gang, head.where, ahead):
                        start = max(start, found[ahead.job][0])
                        basis = basis if found[ahead.job][1] is Basis.LIMITS else found[ahead.job][1]
            found[head.job] = start, basis
        return found

    def of(self, job: int) -> Head:
        """The head that a job is."""
        return next(each for each in self.all if each.job == job)

    def kinds_of(self, job: int) -> Iterator[tuple[int, int, float]]:
        """(worker, flavour, from when on) of each kind of node that a waiting job takes by now, or later."""
        kinds, opens = self._round.kinds, max(self._round.opens[job], self._round.snapshot.now)
        yield from ((each.worker, each.flavour, opens) for each in kinds.kinds[kinds.of[job]].choices)
        yield from self.later_kinds_of(job)

    def later_kinds_of(self, job: int) -> Iterator[tuple[int, int, float]]:
        """Those of them that it does not take yet."""
        opens, now = self._round.opens[job], self._round.snapshot.now
        for other in self._round.snapshot.jobs.terms.alternatives[job]:
            if other.since > now:
                yield self._round.kinds.worker(job, other.filter), other.flavour, max(other.since, opens)

    def may_take(self, job: int) -> Iterator[tuple[int, int, float]]:
        """Those of them on which it may start with more than is kept for it."""
        all_of_it = job in self._jobs and len(self._round.kind(job).sizes) == 1
        kept = self.of(job).gang.worker if all_of_it else NONE
        return (each for each in self.kinds_of(job) if each[0] != kept)

    def may_lose_room(self, head: Head, workers: Collection[int]) -> bool:
        """Whether workers of one of these kinds could use what is reserved for a head."""
        if head.reservation.taken is None:
            return False
        reserved, asked = np.flatnonzero(head.reservation.taken), self._asked(head.gang.worker)
        empty = self._round.room.slots_when_empty
        return any(asked & self._asked(worker) and bool(empty(worker).counts[reserved].any()) for worker in workers)

    def has_lost_room(self, head: Head) -> bool:
        """Whether what is reserved for a head was promised since to a job that others make room for there."""
        round_ = self._round
        made = [each for each in round_.promises[head.promises :] if not each.yields]
        if head.reservation.taken is None or not made:
            return False
        jobs = round_.snapshot.jobs
        for each in made:
            job = jobs.rows[each.uid]
            asked = {resource for resource, amount in enumerate(jobs.requests[job].tolist()) if amount}
            if (
                jobs.pending[job]
                and asked & self._asked(head.gang.worker)
                and head.reservation.taken[round_.tree.place_of[each.nodes]].any()
            ):
                return True
        return False

    def _share(self, gang: Gang, where: Mask, other: Head) -> bool:
        """Whether there is a place and a resource that both could use."""
        asked, others = self._asked(gang.worker), self._asked(other.gang.worker)
        return bool(asked & others) and bool((where & other.where).any())

    def _asked(self, worker: int) -> set[int]:
        """Resources."""
        return {resource for resource, _ in self._round.kinds.workers[worker].asks}

    def open_to(self) -> Mask:
        """J, jobs that might start on any free room at the end of the round, whoever it is kept for: the first of all
        that wait for room, and those who would give way and get enough done before."""
        jobs = self._round.snapshot.jobs
        if not self.all:
            return np.ones(len(jobs.uids), dtype=np.bool_)
        is_open = np.zeros(len(jobs.uids), dtype=np.bool_)
        if self._round.policy.backfill:
            is_open = jobs.terms.preemptible & self._worthwhile()
        is_open[self.all[0].job] = True
        return is_open

    @property
    def _worth_letting_in(self) -> frozenset[int]:
        """Rows of `_worthwhile`: looked at once for all, until there is one more head."""
        if self._worth[0] != len(self.all):
            self._worth = (len(self.all), frozenset(np.flatnonzero(self._worthwhile()).tolist()))
        return self._worth[1]

    def _worthwhile(self) -> Mask:
        """J, jobs that would get enough done before a head starts."""
        jobs, now = self._round.snapshot.jobs, self._round.snapshot.now
        first = min((each.reservation for each in self.all), key=attrgetter("start"))
        estimate = jobs.terms.estimate
        if first.start == FOREVER:
            return np.ones(len(estimate), dtype=np.bool_)
        return worthwhile(first, now, estimate, jobs.runs.restart, jobs.runs.grace)

    def _where(self, gang: Gang) -> Mask:
        """Places that the gang could ever use: with a required level only in domains that hold it when empty."""
        round_ = self._round
        empty = round_.room.slots_when_empty(gang.worker)
        where: Mask = empty.counts > 0
        if gang.mode == TopologyMode.REQUIRED:
            large_enough = round_.tree.sums(empty.prefix, gang.level) >= gang.total
            where = where & round_.tree.members(gang.level, large_enough)
        return where
