"""A whole planner, slow and plain: one job after the other, by the words of docs/scheduling.md and docs/queues.md.

It shares the data types with the planner, and constants of its policy, and nothing else: no classes of jobs, no caches,
no arrays, no heaps. It covers one plan in which nobody moves: the order, quota, owners before borrowers, what is held
back for old jobs, sizes to start with, spares, rooms and places, windows, heads, backfill, who was let in and yields,
who takes turns, who gives room back and who shrinks for whom, reasons, positions, expected starts, and growth. Moves
have brute force of their own.

Where the documents leave a choice among equals (which of a job's replicas leave, and which of two racks is cleared at
the same price), it takes what the planner took, if that is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from muster.scheduling.fairness import counted
from muster.scheduling.plan import Basis, MoveReason, WaitReason
from muster.scheduling.policy import DEFAULT
from muster.scheduling.ranks import AGE_STEPS, SLACK_COUNTS
from muster.scheduling.snapshot import FOREVER, NONE, JobState, Preempts, Snapshot, TopologyMode

from . import oracle
from .naive_places import Counts, Free, anywhere, asks, fits, place, reach, slots, suits
from .naive_victims import Choice, Claimant, Use, Victims, Way, age, by_length, gives, goes_on, lost, work

_WHOLE = 2.0**40
_ABLE = ("quota", "room", "window")


@dataclass(frozen=True)
class Told:
    """What the reference decides over one waiting job."""

    reason: WaitReason
    position: int
    expected: float
    basis: Basis


@dataclass(frozen=True)
class Asked:
    """What a waiting job is promised, and who gives it.

    Attributes:
        places: workers by node.
        evicted: (uid, why, accelerator-seconds that it loses).
        shrunk: (uid, workers by node that stay, accelerator-seconds that it loses).
        yields: it starts on room that is kept for others.
    """

    uid: str
    places: Counts
    evicted: list[tuple[str, MoveReason, float]]
    shrunk: list[tuple[str, Counts, float]]
    yields: bool = False


@dataclass(frozen=True)
class Decided:
    """
    Attributes:
        started: in order: (uid, workers by node, whether it yields).
        asked: in order.
        waiting: by uid, first in rank first.
        grown: in order: (uid, workers by node then) of running jobs that get more.
    """

    started: list[tuple[str, Counts, bool]]
    asked: list[Asked]
    waiting: dict[str, Told]
    grown: list[tuple[str, Counts]]


@dataclass(frozen=True)
class _Head:
    job: int
    start: float
    basis: Basis
    nodes: list[int]
    smallest: list[int]
    """By domain that it may start in: the least that the end of one job gives back there, in its workers."""
    free: Free
    """What was free when it became a head."""
    spent: list[int]
    """By domain, what the heads before it may take, and those who were let in since, and stay."""
    asked: int
    """How many had been promised room when it became a head."""


class Reference:
    """One plan of a world.

    Attributes:
        refused: rows of those who looked for somebody to ask, and for whom nobody's going would have been enough.
    """

    def __init__(self, world: Snapshot, made: Decided | None = None) -> None:
        """`made`: what the planner decides, to be followed among equals alone."""
        self.world, self.jobs, self.now = world, world.jobs, world.now
        self.rows = range(len(world.jobs.uids))
        self.size = [self._sizes(job)[-1] if self._waits(job) else len(self._nodes(job)) for job in self.rows]
        self.free: Free = world.nodes.free.tolist()
        self.kept: Free = [[0] * len(world.resources) for _ in self.free]
        self.kept_for: list[tuple[tuple[int, ...], int, int]] = []
        self.ahead: Free | None = None
        self.empty: Free = oracle.empty_room(world).tolist()
        self.used: Use = oracle.usage(world)
        self.promised: Use = dict(self.used)
        self.firm: Use = {}
        for job in self.rows:
            if self.jobs.states[job] != JobState.PENDING and not self.jobs.terms.preemptible[job]:
                self._count(self.firm, job, self.jobs.held[job].tolist())
        self.held_back: set[tuple[int, int]] = set()
        self.firm_held_back: set[tuple[int, int]] = set()
        self.reserved_in: dict[tuple[int, int], int] = {}
        self.served: set[int] = set()
        self.early: set[int] = set()
        self.turned_down: dict[int, str] = {}
        self.full: set[tuple[int, int]] = set()
        self.put_off: dict[int, frozenset[int]] = {}
        self.heads: list[_Head] = []
        self.order = _Order(world, self.size)
        self.obstacles = {job: self._obstacle(job) for job in self._pending()}
        self.runs: dict[int, Counts] = {job: self._placed(job) for job in self.rows if self._holds(job)}
        self.started: list[tuple[str, Counts, bool]] = []
        self.asked: list[Asked] = []
        self.followed = {each.uid: each for each in made.asked} if made else {}
        self.going: set[int] = set()
        self.told: list[int] = []
        self.in_vain: dict[int, tuple[int, frozenset[int]]] = {}
        self.refused: set[int] = set()
        self.left: list[dict[int, Way]] = []
        """By set of victims, those who were asked."""

    def plan(self) -> Decided:
        waits: list[tuple[int, str]] = []
        for job, charge in self.order.jobs():
            verdict = self._decide(job, charge)
            if verdict:
                waits.append((job, verdict))
        turns = [(job, self._decide(job, lambda: None) if job in self.put_off else verdict) for job, verdict in waits]
        waits = [(job, verdict) for job, verdict in turns if verdict]
        # Quota that comes back gives owners one more turn, whose place in the order may have passed.
        waits = [(job, "promised" if self._is_promised(job) else verdict) for job, verdict in waits]
        waits = [(job, verdict) for job, verdict in waits if verdict == "promised" or job not in self.early]
        self._ask_again(waits)
        starts = _Starts(self, waits).all()
        self.told = [job for job, _ in waits]
        waiting, seen = {}, dict[int, int]()
        for job, verdict in waits:
            queue, counts = int(self.jobs.queues[job]), verdict not in ("never", "no nodes", "too large")
            seen[queue] = seen.get(queue, 0) + counts
            place_ = seen[queue] if counts else 0
            waiting[self.jobs.uids[job]] = Told(self._reason(job, verdict), place_, *starts[job])
        return Decided(self.started, self.asked, waiting, _Growth(self, waits).all())

    def _decide(self, job: int, charge: Callable[[], None]) -> str:
        """Start the job, or say why it waits."""
        if job in self.early:
            charge()
            return "promised" if self._is_promised(job) else ""
        if self.obstacles[job]:
            return self.obstacles[job]
        most = 2**31
        while (owner := self._owner_before(job)) != NONE:
            own = len(self._sizes(job)) > 1 and self._with_sizes(job, lambda: self._has_own_quota(job))
            if own and self._may_start(owner):
                most = self.size[job]
                break
            self.size[job] = self._sizes(job)[-1]
            if job not in self.put_off and self._pool(owner) in self.full and self._may_start(owner):
                self.put_off[job] = frozenset(self.order.passed)
                return "room"
            self._serve_early(owner)
        yields = False
        if not self._with_sizes(job, lambda: self._has_quota(job), most):
            if not self._has_quota_in_passing(job):
                return self._without_quota(job, charge)
            yields = True
        found = self._where_to_start(job)
        if found is not None:
            self._start(job, found[0], yields or found[1] or self._borrows_behind_a_head(job))
            charge()
            return ""
        if yields:
            return self._without_quota(job, charge)
        if self._ask(job, self._passed(job)):
            charge()
            return "promised"
        return "promised" if self._reserve_if_it_may(job, charge) else "room"

    def _without_quota(self, job: int, charge: Callable[[], None]) -> str:
        if self._ask(job, self._passed(job)):
            charge()
            return "promised"
        if age(self.world, job) >= AGE_STEPS:
            self._hold_back(job)
        elif (self._waits_for_its_own(job) or self._quota_comes_back(job)) and self._reserve_if_it_may(job, charge):
            return "promised"
        return "quota"

    def _reserve_if_it_may(self, job: int, charge: Callable[[], None]) -> bool:
        """Make a head of it, if it may be one. True: it is promised room that is kept for others instead, for those
        leave it who were let in there behind it."""
        flavour = int(self.jobs.flavours[job])
        full = sum(self.jobs.flavours[head.job] == flavour for head in self.heads) == DEFAULT.heads
        if full or (age(self.world, job) < AGE_STEPS and self.would_be_lent(job)):
            return False
        yielding = self._yielding_to(job)
        if self._may_pass(job, yielding) and any(map(self._is_kept_for_others, yielding)) and self._ask_these(job):
            charge()
            return True
        if self._reserve(job, yielding):
            charge()
        return False

    # Who was let in before its turn

    def _passed(self, job: int) -> frozenset[int]:
        """Those that yield, but rank before it."""
        return self.put_off.get(job, frozenset(self.order.passed))

    def _yielding_to(self, job: int) -> list[int]:
        """Those that go as soon as a job could start with what they hold; where two take turns on room that is kept for
        a third, not before it is the job's."""
        jobs, passed = self.jobs, self._passed(job)
        rows = [row for row in self.runs if jobs.runs.yields[row] and row not in passed | self.going]
        rows = [row for row in rows if jobs.priorities[row] <= jobs.priorities[job]]
        return [row for row in rows if not (self._in_turns(job, row) and self._is_kept_for_others(row))]

    def _in_turns(self, job: int, row: int) -> bool:
        """Whether one that runs is of another queue than one that was stopped before, equal to it in priority and age,
        has run for less than 20 times as long as a stop and a start take, and has less than twice as much to go."""
        runs, length = self.jobs.runs, float(self.jobs.terms.length[row])
        alike = self.order.rank(job)[0] == self.order.rank(row)[0] and self.jobs.queues[row] != self.jobs.queues[job]
        ran = self.now - float(runs.started[row])
        to_go = work(self.world, row) * max(0.0, 1 - ran / length) if length < FOREVER else 0.0
        young = ran < 20 * float(runs.restart[row] + runs.grace[row])
        return bool(runs.stops[job]) and alike and young and to_go < 2 * work(self.world, job)

    def _is_kept_for_others(self, row: int) -> bool:
        """Whether some of the room of its nodes is kept for a head."""
        spare = self._spare()
        return any(spare[node] != self.free[node] for node in self._nodes(row))

    def _may_pass(self, job: int, yielding: list[int]) -> bool:
        """Whether it gets enough done on room that is kept for the heads there are, when those have yielded to it."""
        if not (self.heads and yielding and self.jobs.terms.preemptible[job]):
            return False
        gone = self.now + max(float(self.jobs.runs.grace[row]) for row in yielding)
        return self._gets_enough_done(job, gone, min(head.start for head in self.heads))

    def _let_in_behind(self, job: int) -> list[int]:
        """Those of its queue and flavour that yield, and that rank behind it, whatever shares are."""
        rows = [row for row in self.runs if self._holds(row) and self.jobs.runs.yields[row] and row not in self.going]
        mine = [row for row in rows if self._home(row) == self._home(job)]
        return [row for row in mine if self.order.ranked(row) > self.order.ranked(job)]

    def _without_let_in(self, job: int) -> Use | None:
        """What is promised, less what gives way to it in its queue; None if nothing does."""
        use, rows = dict(self.promised), self._let_in_behind(job)
        for row in rows:
            self._count(use, row, [-amount for amount in self.jobs.held[row].tolist()])
        return use if rows else None

    def _is_within(self, job: int) -> bool:
        """Whether its queue stays within its own with it, in place of what gives way to it."""
        less = self._without_let_in(job)
        return self._within(self.promised, job) or (less is not None and self._within(less, job))

    def _waits_for_its_own(self, job: int) -> bool:
        """Whether others keep it from borrowing, it lacks room as well, and it would not borrow in place of what gives
        way to it."""
        self.size[job] = self._sizes(job)[-1]
        less = self._without_let_in(job)
        if less is None or self._lacks_quota(job) or not self._within(less, job):
            return False
        return not self._fits(job, slots(self.world, job, self.free))

    # Owners before borrowers

    def _owner_before(self, job: int) -> int:
        """The first of those who would take back what the job borrows, or makes others of its queue borrow; NONE if
        nobody does, or it lacks quota."""
        has_quota = self._with_sizes(job, lambda: self._has_quota(job)) or self._has_quota_in_passing(job)
        within = self._is_within(job)
        self.size[job] = self._sizes(job)[-1]
        if within or not has_quota:
            return NONE
        firsts = [self._first_in_line(home) for home in self._homes_around(job)]
        return min((first for first in firsts if first != NONE), key=self.order.ranked, default=NONE)

    def _homes_around(self, job: int) -> list[tuple[int, int]]:
        """(queue, flavour) of the other queues of its tree that take back from any priority."""
        queues, (mine, flavour) = self.world.queues, self._home(job)
        around = [queue for queue in range(len(queues.names)) if queue != mine]
        tree = [queue for queue in around if oracle.way_up(self.world, queue)[-1] == self._tree(job)]
        return [(queue, flavour) for queue in tree if queues.reclaim[queue] == Preempts.ANY]

    def _first_in_line(self, home: tuple[int, int]) -> int:
        """Of a queue's jobs of the flavour the first, if it is an owner. Who lacks quota is passed, unless old."""
        line = [job for job in self._pending() if self._home(job) == home and not self.obstacles[job]]
        for job in sorted(line, key=self.order.ranked):
            if job in self.served:
                continue
            lacks_quota = self.turned_down.get(job, "" if self._allows(self.used, job) else "quota") == "quota"
            if job not in self.turned_down and self._needs(job) and self._within(self.promised, job):
                return job
            if not lacks_quota or age(self.world, job) >= AGE_STEPS:
                return NONE
        return NONE

    def _has_own_quota(self, job: int) -> bool:
        """Quota of its queue's own."""
        return self._is_within(job) and self._has_quota(job)

    def _may_start(self, owner: int) -> bool:
        """Whether it has quota and room, for whomever that is kept."""
        has_quota = self._with_sizes(owner, lambda: self._has_quota(owner)) or self._has_quota_in_passing(owner)
        free = slots(self.world, owner, self.free)
        fits = self._with_sizes(owner, lambda: self._fits(owner, free), self.size[owner])
        self.size[owner] = self._sizes(owner)[-1]
        return has_quota and fits

    def _serve_early(self, owner: int) -> None:
        """As at its own place in the order, but that it keeps nothing from others if it cannot start."""
        yields = not self._with_sizes(owner, lambda: self._has_quota(owner))
        lacks_quota = yields and not self._has_quota_in_passing(owner)
        found = None if lacks_quota else self._where_to_start(owner)
        if found is None:
            if self._ask(owner, frozenset(self.rows)):  # who ranks before it is not known yet
                self.early.add(owner)
            else:
                self.turned_down[owner] = "quota" if yields else "room"
                if not yields:
                    self.full.add(self._pool(owner))
            return
        self._start(owner, found[0], yields or found[1] or self._borrows_behind_a_head(owner))
        self.early.add(owner)

    # Whether it could ever start

    def _obstacle(self, job: int) -> str:
        queue = int(self.jobs.queues[job])
        if queue == NONE or not self.world.queues.open[queue]:
            return "closed"
        if not any(suits(self.world, job, node) for node in range(len(self.free))):
            return "no nodes"
        now = self._fits(job, slots(self.world, job, self.empty))
        if not now and not self._fits(job, slots(self.world, job, self.empty, away=True)):
            return "too large"
        if not self._could_ever(job, borrowing=bool(self.jobs.terms.preemptible[job])):
            return "never"
        if not now:
            return "nodes away"
        return "window" if self.jobs.terms.opens[job] > self.now else ""

    def _could_ever(self, job: int, *, borrowing: bool) -> bool:
        nobody: Use = {}
        if not self._allows(nobody, job):
            return False
        return borrowing or all(self._own(job, resource) >= need for resource, need in self._needs(job))

    # Quota

    def _needs(self, job: int) -> list[tuple[int, int]]:
        """(resource, amount) of the whole gang that some quota limits."""
        queue, flavour = self._home(job)
        whole = [(resource, amount * self.size[job]) for resource, amount in asks(self.world, job).items()]
        return [(resource, need) for resource, need in whole if oracle.limited(self.world, queue, flavour, resource)]

    def _home(self, job: int) -> tuple[int, int]:
        return int(self.jobs.queues[job]), int(self.jobs.flavours[job])

    def _allows(self, use: Use, job: int) -> bool:
        home = self._home(job)
        return all(oracle.may_add(self.world, use, *home, resource, need) for resource, need in self._needs(job))

    def _own(self, job: int, resource: int) -> int:
        nominal = int(self.world.queues.nominal[(*self._home(job), resource)])
        return nominal if nominal < 2**62 else 0

    def _firm_allows(self, job: int) -> bool:
        """Jobs that cannot give back stay together within their queue's own nominal."""
        queue, flavour = self._home(job)
        left = {r: self._own(job, r) - self.firm.get((queue, flavour, r), 0) for r, _ in self._needs(job)}
        return all(left[resource] >= need for resource, need in self._needs(job))

    def _has_quota(self, job: int, *, passing: bool = False) -> bool:
        if self._home(job) in self.held_back and not passing and self._needs(job):
            return False
        if not self._allows(self.used, job) or not self._allows(self.promised, job):
            return False
        if not self.jobs.terms.preemptible[job]:
            return not (self._needs(job) and self._home(job) in self.firm_held_back) and self._firm_allows(job)
        return self._within(self.promised, job) or self._allows(self._with_claims_of_owners(job), job)

    def _has_quota_in_passing(self, job: int) -> bool:
        """The same with what is held back for an old one of its queue, as it gives that back on demand."""
        in_passing = bool(self.jobs.terms.preemptible[job]) and self._home(job) in self.held_back
        return in_passing and self._with_sizes(job, lambda: self._has_quota(job, passing=True))

    def _within(self, use: Use, job: int) -> bool:
        """Whether it stays within its queue's own nominal."""
        home = self._home(job)
        return all(
            use.get((*home, resource), 0) + need <= self._own(job, resource) for resource, need in self._needs(job)
        )

    def would_be_lent(self, job: int) -> bool:
        """Whether it takes its queue beyond what that and the queues above it name, even in place of what gives way."""
        less = self._without_let_in(job)
        return self._lent(self.promised, job) and (less is None or self._lent(less, job))

    def _lent(self, use: Use, job: int) -> bool:
        queue, flavour = self._home(job)
        for resource, need in self._needs(job):
            named = [int(self.world.queues.nominal[row, flavour, resource]) for row in oracle.way_up(self.world, queue)]
            if use.get((queue, flavour, resource), 0) + need > sum(each for each in named if each < 2**62):
                return True
        return False

    def _borrows_behind_a_head(self, job: int) -> bool:
        """Whether it uses what others lend while one ahead of it in its queue holds a reservation."""
        behind = any(self._home(head.job) == self._home(job) for head in self.heads)
        return behind and bool(self.jobs.terms.preemptible[job]) and not self._within(self.promised, job)

    def _with_claims_of_owners(self, borrower: int) -> Use:
        """What is promised, and what the waiting jobs of other queues of its tree want within their own nominal."""
        use, tree = dict(self.promised), oracle.way_up(self.world, int(self.jobs.queues[borrower]))[-1]
        for queue in range(len(self.world.queues.names)):
            if queue == self.jobs.queues[borrower] or self.world.queues.reclaim[queue] == Preempts.NEVER:
                continue
            if oracle.way_up(self.world, queue)[-1] != tree:
                continue
            mine = [job for job in self._pending() if self.jobs.queues[job] == queue and not self.obstacles[job]]
            for job in sorted(mine, key=self.order.ranked):
                if job not in self.served and self._within(use, job):
                    self._count(use, job, self._whole(job))
        return use

    def _hold_back(self, job: int) -> None:
        """Later jobs of its queue do not pass an old one that the queue's own quota could hold; of one that cannot give
        back, and lacks only what its like hold, none of its like."""
        if self._could_ever(job, borrowing=False):
            lacks = self._home(job) in self.held_back or not self._allows(self.promised, job)
            firm = not self.jobs.terms.preemptible[job] and not lacks and self._allows(self.used, job)
            (self.firm_held_back if firm else self.held_back).add(self._home(job))
            self.reserved_in.setdefault(self._pool(job), job)

    def _pool(self, job: int) -> tuple[int, int]:
        return self._tree(job), int(self.jobs.flavours[job])

    def _tree(self, job: int) -> int:
        return oracle.way_up(self.world, int(self.jobs.queues[job]))[-1]

    # Room

    def _spare(self) -> Free:
        """What is free, less what is kept for jobs ahead."""
        return [
            [max(some - kept, -most) if kept else some for some, kept, most in zip(*each, strict=True)]
            for each in zip(self.free, self.kept, self.empty, strict=True)
        ]

    def _where_to_start(self, job: int) -> tuple[Counts, bool] | None:
        """(workers by node, whether it has to yield) if it may start now, with at most as many as it has now."""
        free, empty = slots(self.world, job, self.free), slots(self.world, job, self.empty)
        if not self._with_sizes(job, lambda: self._fits(job, free), self.size[job]):
            return None
        spare, largest = slots(self.world, job, self._spare()), self.size[job]
        if self._fits(job, spare):
            return place(self.world, job, spare, empty, largest), False
        before_its_turn = self._before_its_turn(job, free, empty)
        if before_its_turn is None and self._with_sizes(job, lambda: self._fits(job, spare), largest):
            return place(self.world, job, spare, empty, self.size[job]), False
        return before_its_turn

    def _before_its_turn(self, job: int, free: Counts, empty: Counts) -> tuple[Counts, bool] | None:
        """The same on room that is kept for others."""
        preemptible = bool(self.jobs.terms.preemptible[job])
        if preemptible and not self._worthwhile(job):
            return None
        until = FOREVER if preemptible else self._until(job)
        places = place(self.world, job, free, empty, self.size[job])
        harmless = not any(
            self._delays(head, job, places) for head in self.heads if until > head.start or head.start == FOREVER
        )
        return (places, not harmless) if preemptible or harmless else None

    def _worthwhile(self, job: int) -> bool:
        """Before the first reserved start."""
        return self._gets_enough_done(job, self.now, min(head.start for head in self.heads))

    def _gets_enough_done(self, job: int, start: float, end: float) -> bool:
        """As much as starting and stopping take, or all of it."""
        runs = self.jobs.runs
        if end == FOREVER:
            return True
        gap = end - start - float(runs.restart[job])
        return bool(gap >= self.jobs.terms.estimate[job] or gap >= runs.restart[job] + runs.grace[job])

    def _delays(self, head: _Head, job: int, places: Counts) -> bool:
        """Whether the head could ever lack what the job takes: more than is sure to be in excess in some domain."""
        free, first = slots(self.world, head.job, self.free), slots(self.world, head.job, head.free)
        domains = zip(self._able(head), self._lost(head, job, places), head.smallest, head.spent, strict=True)
        for site, takes, smallest, spent in domains:
            sure = sum(first[node] for node in site) - spent, sum(free[node] for node in site)
            if takes and takes > min(sure) + smallest - self.size[head.job]:
                return True
        return False

    def _able(self, head: _Head) -> list[list[int]]:
        """Domains of which one must hold a head."""
        empty = slots(self.world, head.job, self.empty)
        return [site for site in reach(self.world, head.job) if sum(empty[n] for n in site) >= self.size[head.job]]

    def _lost(self, head: _Head, job: int, places: Counts) -> list[int]:
        """By domain, at most how many slots of the head the job takes."""
        empty, mine, found = slots(self.world, head.job, self.empty), asks(self.world, job), []
        for site in self._able(head):
            lost = 0
            for node in site:
                lacks = 0
                for resource, amount in asks(self.world, head.job).items():
                    takes = places[node] * mine.get(resource, 0)
                    if self.free[node][resource] - takes < empty[node] * amount:
                        lacks = max(lacks, -(-takes // amount))
                lost += min(lacks, empty[node])
            found.append(lost)
        return found

    def _start(self, job: int, places: Counts, yields: bool) -> None:
        for head in self.heads if not yields else ():
            head.spent[:] = [a + b for a, b in zip(head.spent, self._lost(head, job, places), strict=True)]
        self._take(self.free, job, places)
        if self.ahead is not None:
            self._take(self.ahead, job, places)
        for use in (self.used, self.promised):
            self._count(use, job, self._whole(job))
        self._count_firm(job)
        self.runs[job] = places
        self.started.append((self.jobs.uids[job], places, yields))

    # Others give room back

    def _ask(self, job: int, passed: frozenset[int]) -> bool:
        """Promise to it what others give back, if that and what comes back already is enough; they are asked to go."""
        if self._home(job) in self.held_back or self.in_vain.get(job) == (len(self.asked), passed):
            return False  # nobody is looked for again before others were asked to go
        before, self.size[job] = self.size[job], self._sizes(job)[-1]
        spare = zip(self.free, self._spare(), self._comes_back(job), strict=True)
        open_ = [[f + c if f + c < 0 else max(0, s + c) for f, s, c in zip(*each, strict=True)] for each in spare]
        kept = frozenset(row for row in self.runs if self.jobs.runs.yields[row] and self._is_kept_for_others(row))
        claimant = Claimant(job, self.size[job], open_, self._seen_by(job), frozenset(self.going), passed, kept)
        victims = Victims(self.world, claimant)
        equals = victims.cheapest()
        if not equals or not (equals[0].asked or self._lacks(job)):
            self.size[job], self.in_vain[job] = before, (len(self.asked), passed)
            self.refused.update({job} if victims.rights else ())
            return False
        self._promise(job, victims, equals, yields=False)
        return True

    def _ask_these(self, job: int) -> bool:
        """The same of those alone who yield to it, for any room, which it yields in turn."""
        before, self.size[job] = self.size[job], self._sizes(job)[-1]
        free = zip(self.free, self._comes_back(job), strict=True)
        open_ = [[f + c for f, c in zip(*each, strict=True)] for each in free]
        gone, passed, only = frozenset(self.going), self._passed(job), frozenset(self._yielding_to(job))
        victims = Victims(self.world, Claimant(job, self.size[job], open_, self._seen_by(job), gone, passed, only=only))
        equals = victims.cheapest()
        if not equals or not equals[0].asked:
            self.size[job] = before
            return False
        self._promise(job, victims, equals, yields=True)
        return True

    def _seen_by(self, job: int) -> Use:
        """What is promised, and what owners want if it has to borrow."""
        return self.promised if self._within(self.promised, job) else self._with_claims_of_owners(job)

    def _promise(self, job: int, victims: Victims, equals: list[Choice], *, yields: bool) -> None:
        made = [self._told(job, victims, choice, site, yields) for choice in equals for site in choice.sites]
        chosen = made.index(self.followed[self.jobs.uids[job]]) if self.followed.get(self.jobs.uids[job]) in made else 0
        choice = [each for each in equals for _ in each.sites][chosen]
        self._give_back(choice)
        self._take(self.free, job, made[chosen].places)
        if self.ahead is not None:
            self._take(self.ahead, job, made[chosen].places)
        self._count(self.promised, job, self._whole(job))
        self._count_firm(job)
        self.reserved_in.setdefault(self._pool(job), job)
        self.turned_down.clear()
        self.asked.append(made[chosen])

    def _told(self, job: int, victims: Victims, choice: Choice, site: list[int], yields: bool) -> Asked:
        """What is asked for it, when it goes to one of these nodes."""
        freed, uids = victims.freed(choice.asked), self.jobs.uids
        there = [count if node in site else 0 for node, count in enumerate(slots(self.world, job, freed))]
        places = place(self.world, job, there, slots(self.world, job, self.empty), self.size[job])
        go = [row for row, way in sorted(choice.asked.items()) if way.whole]
        shrink = [(row, way.leave) for row, way in sorted(choice.asked.items()) if not way.whole]
        return Asked(
            uids[job],
            places,
            [(uids[row], victims.reason(row), lost(self.world, row)) for row in go],
            [
                (uids[row], [a - b for a, b in zip(self._placed(row), leave, strict=True)], lost(self.world, row))
                for row, leave in shrink
            ],
            yields,
        )

    def _comes_back(self, job: int) -> Free:
        """What those leave who were asked already, but for the sets of them of which one may not be gone before the
        job's window closes."""
        found: Free = [[0] * len(self.world.resources) for _ in self.free]
        for asked in self.left:
            if all(self.now + self.jobs.runs.grace[row] < self.jobs.terms.closes[job] for row in asked):
                for row, way in asked.items():
                    self._take(found, row, [-count for count in way.leave])
        return found

    def _give_back(self, choice: Choice) -> None:
        self.left.append(choice.asked)
        for row, way in choice.asked.items():
            self.going.add(row)
            for resource, amount in gives(self.world, row, way).items():
                self.promised[(*self._home(row), resource)] -= amount

    def _ask_again(self, waits: list[tuple[int, str]]) -> None:
        """What victims leave over may be what one waits for that ranks before their beneficiary."""
        heads, found = {head.job for head in self.heads}, bool(self.going)
        while found:
            found = False
            for at, (job, verdict) in enumerate(waits):
                if verdict in ("room", "quota") and job not in heads and self._ask(job, frozenset(self.rows)):
                    waits[at], found = (job, "promised"), True

    def _lacks(self, job: int) -> bool:
        """Whether it lacks quota or room, and not only what is kept for others."""
        return self._lacks_quota(job) or not self._fits(job, slots(self.world, job, self.free))

    def _lacks_quota(self, job: int) -> bool:
        return not self._allows(self.used, job) or self._lacks_promised_quota(job)

    def _lacks_promised_quota(self, job: int) -> bool:
        preemptible = self.jobs.terms.preemptible[job]
        if self._home(job) in self.held_back or not self._allows(self.promised, job):
            return True
        return not preemptible and (self._home(job) in self.firm_held_back or not self._firm_allows(job))

    def _quota_comes_back(self, job: int) -> bool:
        """Whether the least that it wants is there when those are gone who leave."""
        self.size[job] = self._sizes(job)[-1]
        leave = any(self._tree(row) == self._tree(job) for row in self.going)
        firm = bool(self.jobs.terms.preemptible[job]) or self._firm_allows(job)
        held_back = self._home(job) in self.held_back and bool(self._needs(job))
        in_use = not self._allows(self.used, job)  # else it is what owners' own jobs wait for
        return leave and in_use and not held_back and self._allows(self.promised, job) and firm

    def _is_promised(self, job: int) -> bool:
        return any(each.uid == self.jobs.uids[job] for each in self.asked)

    # Heads

    def _reserve(self, job: int, yielding: list[int]) -> bool:
        """Quota is charged as if it ran, and room is kept on every node that it could ever use. False: its window is
        shut by then. Those who yield to it go one grace before it starts, if it starts sooner then."""
        self.ahead = self.ahead or [list(each) for each in self.free]
        start, counts = self._earliest(job, self.ahead, self.likely_end)
        latest, _ = self._earliest(job, self.ahead, self.sure_end)
        waits = max((float(self.jobs.runs.grace[row]) for row in yielding), default=0.0)
        sooner, then = self._earliest(job, self.ahead, self.likely_end, yielding)
        if self.now < start and sooner + waits < start:
            sure, _ = self._earliest(job, self.ahead, self.sure_end, yielding)
            start, counts, latest = sooner + waits, then, min(sure + waits, latest)
        else:
            waits = 0.0
        empty = slots(self.world, job, self.empty)
        basis, places = Basis.UNKNOWN, list[int]()
        if start < FOREVER:
            places = place(self.world, job, counts, empty, self.size[job])
            basis = Basis.LIMITS if start >= latest else Basis.PROGRESS
        for head in sorted(self.heads, key=lambda head: head.start):
            passes = bool(self.jobs.terms.preemptible[job]) and self._gets_enough_done(job, start, head.start)
            if start < head.start and not passes and self.both_could_use(job, head.job):
                start, basis = head.start + waits, basis if head.basis is Basis.LIMITS else head.basis
        if basis is Basis.LIMITS and self._may_lose_its_place(job, start, yielding if waits else [], waits):
            basis = Basis.QUEUE
        if self.jobs.terms.closes[job] <= start < FOREVER:
            return False
        self._count(self.promised, job, self._whole(job))
        self._count_firm(job)
        self.reserved_in.setdefault(self._pool(job), job)
        if places:
            self._take(self.ahead, job, places)
        able = [site for site in reach(self.world, job) if sum(empty[node] for node in site) >= self.size[job]]
        nodes = [node for node, count in enumerate(places) if count]
        smallest, free = [self._smallest_end(job, site) for site in able], [list(each) for each in self.free]
        spent = [sum(self._taken_ahead(head, job, site) for head in self.heads) for site in able]
        self.heads.append(_Head(job, start, basis, nodes, smallest, free, spent, len(self.asked)))
        worker = (*self.jobs.requests[job].tolist(), int(self.jobs.filters[job]))
        for node in {node for site in able for node in site}:
            if empty[node] and not any(kept[0] == worker and kept[1] == node for kept in self.kept_for):
                self.kept_for.append((worker, node, empty[node]))
                for resource, amount in asks(self.world, job).items():
                    self.kept[node][resource] += amount * empty[node]
        return True

    def _may_lose_its_place(self, job: int, start: float, gone: list[int], waits: float) -> bool:
        """Whether it might not fit by then if those ahead started elsewhere than where they have reservations: it has
        to fit with as many workers more as they could take the room of."""
        ahead = [head for head in self.heads if self.both_could_use(job, head.job)]
        if not ahead:
            return False
        asked, size = asks(self.world, job).items(), self.size[job]
        for head in ahead:
            theirs = asks(self.world, head.job)
            each = max((-(-theirs.get(resource, 0) // amount) for resource, amount in asked), default=0)
            self.size[job] += each * self.size[head.job]
        latest, _ = self._earliest(job, self.free, self.sure_end, gone)
        self.size[job] = size
        return latest + waits > start

    def _earliest(
        self, job: int, free: Free, ends_at: Callable[[int], float], gone: list[int] | None = None
    ) -> tuple[float, Counts]:
        """The first moment at which the gang fits when all others end as told, some of them at once, and the slots
        then."""

        def end(other: int) -> float:
            return -FOREVER if gone and other in gone else ends_at(other)

        ends = sorted({end(other) for other in self.runs if -FOREVER < end(other) < FOREVER})
        for moment in (-FOREVER, *ends):
            back = [list(each) for each in free]
            for other, places in self.runs.items():
                if end(other) <= moment:
                    self._take(back, other, [-count for count in places])
            counts = slots(self.world, job, back)
            if self._fits(job, counts):
                return max(moment, self.now), counts
        return FOREVER, []

    def _taken_ahead(self, head: _Head, job: int, site: list[int]) -> int:
        """At most how many slots of a job in a domain the head before it takes."""
        theirs, empty = asks(self.world, head.job), slots(self.world, job, self.empty)
        each = max(
            (-(-theirs.get(resource, 0) // amount) for resource, amount in asks(self.world, job).items()), default=0
        )
        where = {node for other in self._able(head) for node in other if slots(self.world, head.job, self.empty)[node]}
        return min(each * self.size[head.job], sum(empty[node] for node in site if node in where))

    def _smallest_end(self, job: int, site: list[int]) -> int:
        """The least that the end of one of the jobs there gives back of what the head asks for."""
        before, gains = slots(self.world, job, self.free, away=True), []
        for other, places in self.runs.items():
            shares = any(resource in asks(self.world, other) for resource in asks(self.world, job))
            there = [node for node in site if places[node] and slots(self.world, job, self.empty)[node]]
            if there and shares:
                back = [list(each) for each in self.free]
                self._take(back, other, [-count for count in places])
                after = slots(self.world, job, back, away=True)
                gains.append(sum(after[node] - before[node] for node in there))
        return min(gains, default=2**40)

    def both_could_use(self, job: int, other: int) -> bool:
        """Whether two heads could use the same node, and ask for the same resource."""
        kept = []
        for each in (job, other):
            empty = slots(self.world, each, self.empty)
            able = [site for site in reach(self.world, each) if sum(empty[node] for node in site) >= self.size[each]]
            kept.append({node for site in able for node in site if empty[node]})
        return bool(kept[0] & kept[1]) and bool(asks(self.world, job).keys() & asks(self.world, other).keys())

    # When running jobs end

    def sure_end(self, job: int) -> float:
        if self.jobs.states[job] == JobState.PENDING:
            return self._until(job)
        return max(float(self.jobs.runs.bound[job]), self.now) + float(self.jobs.runs.grace[job])

    def likely_end(self, job: int) -> float:
        if self.jobs.states[job] == JobState.PENDING:
            return min(self.now + float(self.jobs.terms.estimate[job]), self._until(job))
        end, grace = float(self.jobs.runs.ends[job]), float(self.jobs.runs.grace[job])
        return min(max(end, self.now) if end + grace >= self.now else FOREVER, self.sure_end(job))

    def _until(self, job: int) -> float:
        return self.now + float(self.jobs.terms.limit[job]) + float(self.jobs.runs.grace[job])

    # Why a job waits

    def _reason(self, job: int, verdict: str) -> WaitReason:
        plain = {
            "closed": WaitReason.QUEUE_CLOSED,
            "window": WaitReason.WINDOW_CLOSED,
            "never": WaitReason.EXCEEDS_QUOTA,
            "no nodes": WaitReason.NO_ELIGIBLE_NODES,
            "too large": WaitReason.EXCEEDS_CLUSTER,
            "nodes away": WaitReason.INSUFFICIENT_CAPACITY,
            "promised": WaitReason.PREEMPTING,
        }
        if verdict in plain:
            return plain[verdict]
        if verdict == "quota":
            return self._reason_of_quota(job)
        counts = slots(self.world, job, self.free)
        if self._fits(job, counts):
            return WaitReason.BEHIND_OTHERS
        scattered = self.jobs.modes[job] == TopologyMode.REQUIRED and sum(counts) >= self.size[job]
        return WaitReason.TOPOLOGY_UNSATISFIED if scattered else WaitReason.INSUFFICIENT_CAPACITY

    def _reason_of_quota(self, job: int) -> WaitReason:
        firm = self.jobs.terms.preemptible[job] or self._firm_allows(job)
        if not self._allows(self.used, job) or not firm:
            return WaitReason.QUOTA_EXCEEDED
        backs = self.held_back if self.jobs.terms.preemptible[job] else self.held_back | self.firm_held_back
        held_back = self._home(job) in backs and bool(self._needs(job))
        if any(head.job == job for head in self.heads):
            return WaitReason.QUOTA_EXCEEDED  # what those who leave still use
        if self._allows(self.promised, job) and not held_back:
            return WaitReason.QUOTA_EXCEEDED  # its owners' own jobs wait for it
        first = self.reserved_in.get(self._pool(job), job)
        kept = first != job and self.told.index(first) < self.told.index(job)  # else its owner has it
        return WaitReason.BEHIND_OTHERS if kept else WaitReason.QUOTA_EXCEEDED

    # Small things

    def _pending(self) -> list[int]:
        return [job for job in self.rows if self._waits(job)]

    def _holds(self, job: int) -> bool:
        return bool(self.jobs.states[job] == JobState.HOLDING)

    def _waits(self, job: int) -> bool:
        return bool(self.jobs.states[job] == JobState.PENDING)

    def _fits(self, job: int, counts: Counts) -> bool:
        return fits(self.world, job, counts, self.size[job])

    def _sizes(self, job: int) -> list[int]:
        """What it may start with, its spares counted: its wish, or else the largest of the steps from its least on."""
        jobs, spares = self.jobs, self.jobs.terms.shapes[job].spares
        wish, least, step = int(jobs.workers[job]), int(jobs.sizes.least[job]), int(jobs.sizes.step[job])
        less = list(range(least, wish, step)) if jobs.sizes.partial[job] else []
        return [size + spares for size in (wish, *reversed(less))]

    def _with_sizes(self, job: int, allowed: Callable[[], bool], most: int = 2**31) -> bool:
        """Give it the largest of its sizes with which something is so; the least, if it is with none."""
        for size in self._sizes(job):
            self.size[job] = size
            if size <= most and allowed():
                return True
        return False

    def _nodes(self, job: int) -> list[int]:
        nodes: list[int] = self.jobs.runs.nodes_of(job).tolist()
        return nodes

    def _placed(self, job: int) -> Counts:
        nodes = self._nodes(job)
        return [nodes.count(node) for node in range(len(self.free))]

    def _whole(self, job: int) -> list[int]:
        return [amount * self.size[job] for amount in self.jobs.requests[job].tolist()]

    def _count(self, use: Use, job: int, amounts: list[int]) -> None:
        for resource, amount in enumerate(amounts):
            key = (*self._home(job), resource)
            use[key] = use.get(key, 0) + amount

    def _count_firm(self, job: int) -> None:
        self.served.add(job)
        if not self.jobs.terms.preemptible[job]:
            self._count(self.firm, job, self._whole(job))

    def _take(self, free: Free, job: int, places: Counts) -> None:
        for node, count in enumerate(places):
            for resource, amount in asks(self.world, job).items():
                free[node][resource] -= amount * count


class _Order:
    """Priority, age, fair share from the root down, slack, first submit, uid; in queues that say so, the least expected
    work before the first submit. Running jobs have their place, too."""

    def __init__(self, world: Snapshot, size: list[int]) -> None:
        self.world, self.jobs_, self.size = world, world.jobs, size
        self.left = list(range(len(world.jobs.uids)))
        self.held: dict[int, dict[tuple[int, int], int]] = {}
        self.passed: set[int] = set()
        """Of those that were given out, the ones that run and yield."""

    def jobs(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """(pending job, to be called when it starts or has room reserved)."""
        while any(self._waits(job) for job in self.left):
            tops = [queue for queue in range(len(self.world.queues.names)) if self.world.queues.parents[queue] == NONE]
            job = self._first(tops) if any(self._queued(job) for job in self.left) else min(self.left, key=self.rank)
            self.left.remove(job)
            if self._waits(job):
                yield job, lambda job=job: self._charge(job)  # type: ignore[misc]
            else:
                self.passed.update({job} if self.jobs_.runs.yields[job] else ())
                self._charge(job)

    def _waits(self, job: int) -> bool:
        return bool(self.jobs_.states[job] == JobState.PENDING)

    def _queued(self, job: int) -> bool:
        return self._waits(job) and bool(self.jobs_.queues[job] != NONE)

    def rank(self, job: int) -> tuple[int, float, float, str]:
        """Without shares."""
        terms = self.jobs_.terms
        takes = float(terms.estimate[job]) if terms.estimate[job] < FOREVER else 0.0
        slack = float(terms.deadlines[job]) - self.world.now - takes
        hurries = terms.deadlines[job] > self.world.now and slack < SLACK_COUNTS
        slack = SLACK_COUNTS if slack < 0 else slack
        class_ = -(int(self.jobs_.priorities[job]) * (AGE_STEPS + 1) + age(self.world, job))
        return class_, slack if hurries else FOREVER, float(self.jobs_.submitted[job]), self.jobs_.uids[job]

    def ranked(self, job: int) -> tuple[float, float, float, tuple[int, float, float, str]]:
        """Without shares, as within a queue."""
        rank = self.rank(job)
        if not by_length(self.world, job):
            return rank[0], 0.0, 0.0, rank
        return rank[0], rank[1], work(self.world, job), rank

    def _first(self, branches: list[int]) -> int:
        """The job whose turn it is below the branches. ~queue stands for the jobs of a queue that has others below."""
        firsts = []
        for branch in branches:
            job = self._first_of(branch)
            if job != NONE:
                rank = self.rank(job)
                firsts.append((rank[0], self._share(branch), rank[1:], job))
        return min(firsts)[3] if firsts else NONE

    def _first_of(self, branch: int) -> int:
        children = [
            q for q in range(len(self.world.queues.names)) if branch >= 0 and self.world.queues.parents[q] == branch
        ]
        if children:
            return self._first([*children, ~branch])
        queue = branch if branch >= 0 else ~branch
        mine = (job for job in self.left if self.jobs_.queues[job] == queue)
        return min(mine, key=self.ranked, default=NONE)

    def _share(self, branch: int) -> float:
        held = max(self.held.get(branch, {}).values(), default=0)
        if branch < 0:
            return float(held)
        queues = self.world.queues
        return (float(queues.shares_used[branch]) * _WHOLE + held) / float(queues.weights[branch])

    def _charge(self, job: int) -> None:
        """Its part of the cluster counts for its queue and all above, as whole numbers of 2^-40."""
        queue = int(self.jobs_.queues[job])
        if queue == NONE:
            return
        for branch in (~queue, *oracle.way_up(self.world, queue)):
            held = self.held.setdefault(branch, {})
            for resource, counts in enumerate(counted(self.world.resources)):
                flavour = int(self.jobs_.flavours[job])
                total = self._total(flavour, resource)
                if counts and total:
                    amount = int(self.jobs_.requests[job, resource]) * self.size[job]
                    part = round(amount * ((1.0 / total) * _WHOLE))
                    held[flavour, resource] = held.get((flavour, resource), 0) + part

    def _total(self, flavour: int, resource: int) -> int:
        nodes = self.world.nodes
        rows = [node for node in range(len(nodes.names)) if not flavour or nodes.flavours[node] == flavour]
        return sum(int(nodes.allocatable[node, resource]) for node in rows)


@dataclass
class _Pool:
    """What is left, and (moment, amount) of what comes back."""

    left: int
    back: list[tuple[float, int]]
    clock: float = 0.0

    def draw(self, need: int, lasts: float, floor: float, waits: float) -> float:
        """When it gets what it needs, and gives it back `lasts` later; see `muster.scheduling.expected`."""
        if need > self.left + sum(amount for _, amount in self.back):
            return FOREVER
        self.back.sort()
        while self.left < need:
            self.clock, amount = self.back.pop(0)
            self.left += amount
        self.left -= need
        start = max(self.clock, floor)
        if start <= waits and not self.clock:
            start = self.back[0][0] if self.back else FOREVER
        if start + lasts < FOREVER:
            self.back.append((start + lasts, need))
        return start


class _Starts:
    """Expected starts: reservations, and for the others each flavour as one pool, and each tree's quota as another."""

    def __init__(self, made: Reference, waits: list[tuple[int, str]]) -> None:
        self.made, self.world, self.jobs, self.now = made, made.world, made.jobs, made.now
        self.waits = waits
        self.units = [self._unit(flavour) for flavour in range(len(self.world.flavours))]

    def all(self) -> dict[int, tuple[float, Basis]]:
        found = {job: (FOREVER, Basis.UNKNOWN) for job, _ in self.waits}
        able = [(job, verdict) for job, verdict in self.waits if verdict in _ABLE]
        floors = {job: max(float(self.jobs.terms.opens[job]), self.now) for job, _ in able}
        borrowers, own = dict[tuple[int, int], _Pool](), dict[tuple[int, int], _Pool]()
        short = [job for job, verdict in able if verdict == "quota"]
        for job in short:
            tree = self.made._tree(job), int(self.jobs.flavours[job])
            borrowers.setdefault(tree, self._quota_pool(tree, short))
            floors[job] = borrowers[tree].draw(self._need(job), self._length(job), floors[job], self.now)
        for job in short:
            if not self.jobs.terms.preemptible[job]:
                home = self.made._home(job)
                own.setdefault(home, self._own_pool(job))
                floors[job] = own[home].draw(self._need(job), self._length(job), floors[job], -FOREVER)
        rooms = {flavour: self._room_pool(flavour) for flavour in range(len(self.world.flavours))}
        for job, _ in sorted(able, key=lambda one: floors[one[0]]):
            flavour = int(self.jobs.flavours[job])
            start = rooms[flavour].draw(self._need(job), self._length(job), floors[job], self.now)
            found[job] = (start, Basis.QUEUE if start < FOREVER else Basis.UNKNOWN)
        lacks_quota = {job for job, verdict in self.waits if verdict == "quota"}
        for job, (start, basis) in self._of_heads().items():
            if start < FOREVER:
                gone = self._all_gone() if job in lacks_quota else self.now
                if basis is Basis.LIMITS and self._may_be_passed(job, max(start, gone)):
                    basis = Basis.QUEUE
                found[job] = (max(start, gone, float(self.jobs.terms.opens[job])), basis)
        for job, _ in able:
            start, closes = found[job][0], float(self.jobs.terms.closes[job])
            if closes <= start < FOREVER:  # nothing is kept for it in the meantime
                found[job] = (max(start, float(self.jobs.terms.reopens[job])), Basis.QUEUE)
        for job, verdict in self.waits:
            if verdict == "promised":
                found[job] = (self._all_gone(), Basis.PROMISED)
        return found

    def _may_be_passed(self, job: int, start: float) -> bool:
        """Whether one ahead of a head may take its quota or its room: it is none, or starts with more workers than it
        must, when its window is open by then; or it ran, and will wait again. Or an owner may, wherever it is."""
        made, heads = self.made, {head.job: head for head in self.made.heads}
        ahead = [other for other, _ in self.waits[: [each for each, _ in self.waits].index(job)]]
        for other in ahead:
            if (other in heads and len(made._sizes(other)) == 1) or self.jobs.terms.opens[other] >= start:
                continue
            if not any((other, verdict) in self.waits for verdict in _ABLE):
                continue
            empty = slots(self.world, other, made.empty)
            shares = asks(self.world, job).keys() & asks(self.world, other).keys()
            if self._may_take_quota(other, job) or (shares and any(empty[node] for node in heads[job].nodes)):
                return True
        if any(self._has_taken(asked, heads[job]) for asked in made.asked[heads[job].asked :]):
            return True
        if any(self._may_come_before(row, heads[job]) for row in self._to_wait_again(start)):
            return True
        return any(self._takes_back(other, heads[job]) for other, verdict in self.waits if verdict in _ABLE)

    def _has_taken(self, asked: Asked, head: _Head) -> bool:
        """Whether room was promised to a job on nodes that were reserved for a head before."""
        shares = asks(self.world, head.job).keys() & asks(self.world, self.jobs.uids.index(asked.uid)).keys()
        return bool(shares) and not asked.yields and any(asked.places[node] for node in head.nodes)

    def _to_wait_again(self, start: float) -> list[int]:
        """Those who are asked to end for others: they wait when they are gone. And those who have a window before a
        moment, after the one that ends them."""
        uids, runs = self.jobs.uids, self.jobs.runs
        asked = {uid for each in self.made.asked for uid, *_ in each.evicted}
        ended = [row for row in self.made.rows if uids[row] in asked or runs.beneficiary[row] not in (NONE, row)]
        return ended + [row for row in self.made.runs if self._next_window(row) < start]

    def _next_window(self, row: int) -> float:
        """When a running job that its window stops goes on; FOREVER for those that it does not stop."""
        terms, queue = self.jobs.terms, int(self.jobs.queues[row])
        opens, closes, reopens = float(terms.opens[row]), float(terms.closes[row]), float(terms.reopens[row])
        if queue == NONE or not self.world.queues.open[queue]:
            return FOREVER
        if opens > self.now:
            return opens
        stops = closes < FOREVER and reopens and self.jobs.runs.bound[row] >= closes
        return reopens if stops else FOREVER

    def _takes_back(self, other: int, head: _Head) -> bool:
        """Whether an owner might start before a head that borrows, on nodes that are reserved for that."""
        made, queue = self.made, int(self.jobs.queues[other])
        alike = queue == self.jobs.queues[head.job] or made._tree(other) != made._tree(head.job)
        if alike or self.world.queues.reclaim[queue] != Preempts.ANY or made._within(made.used, head.job):
            return False
        empty = slots(self.world, other, made.empty)
        shares = asks(self.world, head.job).keys() & asks(self.world, other).keys()
        owns = made._could_ever(other, borrowing=False)
        return owns and bool(shares) and any(empty[node] for node in head.nodes)

    def _may_come_before(self, row: int, head: _Head) -> bool:
        made, job, rank = self.made, head.job, self.made.order.ranked
        alike = self.jobs.queues[row] == self.jobs.queues[job] and rank(row)[0] == rank(job)[0]
        if rank(row)[0] > rank(job)[0] or (alike and rank(row) > rank(job)):
            return False
        empty = slots(self.world, row, made.empty)
        shares = asks(self.world, job).keys() & asks(self.world, row).keys()
        return self._may_take_quota(row, job) or (bool(shares) and any(empty[node] for node in head.nodes))

    def _may_take_quota(self, other: int, job: int) -> bool:
        home, resources = self.made._home(other), range(len(self.world.resources))
        limited = any(oracle.limited(self.world, *home, resource) for resource in resources)
        return limited and self.made._pool(job) == self.made._pool(other)

    def _all_gone(self) -> float:
        """When the last of those has left who are asked to go."""
        return self.now + max((float(self.jobs.runs.grace[row]) for row in self.made.going), default=0.0)

    def _of_heads(self) -> dict[int, tuple[float, Basis]]:
        """One that can't yield starts no sooner than those ahead for whom room is kept that it could use; nor does one
        that is not let in where room is free now."""
        found: dict[int, tuple[float, Basis]] = {}
        for head in self.made.heads:
            aheads = [found[other] for other in found if self.made.both_could_use(head.job, other)]
            if self.jobs.terms.preemptible[head.job] and head.start > self.made.now:
                aheads = []
            start = max([head.start, *(start for start, _ in aheads)])
            weaker: list[Basis] = [basis for _, basis in aheads if basis is not Basis.LIMITS]
            found[head.job] = start, (weaker or [head.basis])[-1]
        return found

    def _unit(self, flavour: int) -> int:
        gpu = self.world.resources.index("nvidia.com/gpu")
        asked = any(
            self.jobs.flavours[job] == flavour and self.jobs.requests[job, gpu] for job in range(len(self.jobs.uids))
        )
        return gpu if flavour and asked else self.world.resources.index("cpu")

    def _need(self, job: int) -> int:
        return self.made.size[job] * int(self.jobs.requests[job, self.units[self.jobs.flavours[job]]])

    def _length(self, job: int) -> float:
        known = min(float(self.jobs.terms.estimate[job]), float(self.jobs.terms.limit[job]))
        return known if known < FOREVER else self._typical(int(self.jobs.flavours[job]))

    def _typical(self, flavour: int) -> float:
        """The median length of the jobs of which it is known; of all flavours where this one has none."""
        known = []
        for job in range(len(self.jobs.uids)):
            if self.jobs.states[job] != JobState.HOLDING:
                length = min(float(self.jobs.terms.estimate[job]), float(self.jobs.terms.limit[job]))
            else:
                length = self.made.likely_end(job) - float(self.jobs.runs.started[job])
            if length < FOREVER:
                known.append((int(self.jobs.flavours[job]), length))
        mine = [length for of, length in known if of == flavour] or [length for _, length in known]
        return median(mine) if mine else FOREVER

    def _end(self, job: int) -> float:
        end = self.made.likely_end(job)
        if end == FOREVER and self.jobs.states[job] != JobState.PENDING:
            return self.now + self._typical(int(self.jobs.flavours[job]))
        return end

    def _back(self, of: Callable[[int], bool]) -> list[tuple[float, int]]:
        return [(self._end(job), self._need(job)) for job in self.made.runs if of(job) and self._end(job) < FOREVER]

    def _room_pool(self, flavour: int) -> _Pool:
        nodes = self.world.nodes
        there = [
            n for n in range(len(nodes.names)) if nodes.usable[n] and (not flavour or nodes.flavours[n] == flavour)
        ]
        left = sum(self.made.free[node][self.units[flavour]] for node in there)
        return _Pool(left, self._back(lambda job: self.jobs.flavours[job] == flavour))

    def _quota_pool(self, tree: tuple[int, int], short: list[int]) -> _Pool:
        """As much as the queue that has most left, of those whose jobs wait."""
        mine = [job for job in short if (self.made._tree(job), int(self.jobs.flavours[job])) == tree]
        left = max(self._may_use(job) for job in mine)
        return _Pool(left, self._back(lambda job: self._in_tree(job, tree)))

    def _in_tree(self, job: int, tree: tuple[int, int]) -> bool:
        return bool(self.jobs.queues[job] != NONE) and (self.made._tree(job), int(self.jobs.flavours[job])) == tree

    def _may_use(self, job: int) -> int:
        """The most that its queue may still use, found by trying."""
        queue, flavour = self.made._home(job)
        unit = self.units[flavour]
        if not oracle.limited(self.world, queue, flavour, unit):
            return 2**62
        if (queue, flavour) in self.made.held_back:
            return 0
        amount = 0
        while oracle.may_add(self.world, self.made.promised, queue, flavour, unit, amount + 1):
            amount += 1
        return amount

    def _own_pool(self, job: int) -> _Pool:
        queue, flavour = self.made._home(job)
        unit = self.units[flavour]
        left = 2**62
        if oracle.limited(self.world, queue, flavour, unit):
            left = max(0, self.made._own(job, unit) - self.made.firm.get((queue, flavour, unit), 0))
        firm = self.jobs.terms.preemptible
        return _Pool(left, self._back(lambda other: self.made._home(other) == (queue, flavour) and not firm[other]))


class _Growth:
    """Elastic jobs that run take what is kept for nobody, after everybody who waits: docs/victims.md, moves."""

    def __init__(self, made: Reference, waits: list[tuple[int, str]]) -> None:
        self.made, self.world, self.jobs = made, made.world, made.jobs
        self.open = made._spare()
        heads = [head.job for head in made.heads]
        self.borrows_for_heads = {made._home(job) for job in heads}
        self.contested = {
            made._tree(job)
            for job, verdict in waits
            if verdict == "quota" or (verdict == "room" and job not in heads and made.would_be_lent(job))
        }
        runs, asked = made.jobs.runs, {uid for each in made.asked for uid, *_ in each.evicted}
        for job in made.rows:  # who gives way wants it back
            ends = made.jobs.holding[job] and runs.leaving[job] and int(runs.beneficiary[job]) not in (NONE, job)
            if ends or made.jobs.uids[job] in asked:
                self.contested.add(made._tree(job))

    def all(self) -> list[tuple[str, Counts]]:
        grown = []
        running = [job for job in self.made.rows if self.made._holds(job) and job not in self.made.going]
        for job in sorted(running, key=self._rank):
            more = self._more(job) if self._may_grow(job) else 0
            if more:
                counts = slots(self.world, job, self.open)
                new = anywhere(self.world, counts, more)
                self.made._take(self.open, job, new)
                self._charge(self.made.promised, job, more)
                before = self.made._placed(job)
                grown.append((self.jobs.uids[job], [a + b for a, b in zip(before, new, strict=True)]))
        return grown

    def _rank(self, job: int) -> tuple[int, float, str]:
        return -int(self.jobs.priorities[job]), float(self.jobs.submitted[job]), self.jobs.uids[job]

    def _may_grow(self, job: int) -> bool:
        runs, queue = self.jobs.runs, int(self.jobs.queues[job])
        well = all(self.world.nodes.usable[n] and suits(self.world, job, n) for n in self.made._nodes(job))
        settled = self.made.now - float(runs.started[job]) >= DEFAULT.settle
        safe = bool(self.jobs.terms.preemptible[job] or runs.saved[job] > runs.started[job])
        calm = self.made._tree(job) not in self.contested
        may_start = bool(self.world.queues.open[queue] and goes_on(self.world, job))
        return well and settled and safe and calm and may_start

    def _more(self, job: int) -> int:
        """The most workers for which there is room and quota, in whole steps; 0 where so few do not pay."""
        step, size = int(self.jobs.sizes.step[job]), self.made.size[job]
        room = sum(slots(self.world, job, self.open))
        able = [
            more
            for more in range(step, int(self.jobs.sizes.most[job]) - size + 1, step)
            if more <= room and self._has_quota(job, more)
        ]
        return max((more for more in able if self._pays(job, more)), default=0)

    def _has_quota(self, job: int, more: int) -> bool:
        promised, home = self.made.promised, self.made._home(job)
        needs = [(resource, amount * more) for resource, amount in asks(self.world, job).items()]
        if not all(oracle.may_add(self.world, promised, *home, resource, need) for resource, need in needs):
            return False
        if self.jobs.terms.preemptible[job] and home not in self.borrows_for_heads:
            return True
        limited = [ask for ask in needs if oracle.limited(self.world, *home, ask[0])]
        return all(
            promised.get((*home, resource), 0) + need <= self.made._own(job, resource) for resource, need in limited
        )

    def _pays(self, job: int, more: int) -> bool:
        """What is won until its end, or in an hour, is twice what its restart loses."""
        runs, now = self.jobs.runs, self.made.now
        gpus = max(1, asks(self.world, job).get(self.world.resources.index("nvidia.com/gpu"), 0))
        end = min(float(runs.ends[job]), float(runs.bound[job]))
        left = 3_600.0 if end == FOREVER else min(3_600.0, max(0.0, end - now))
        lost = now - max(float(runs.saved[job]), float(runs.started[job])) + float(runs.restart[job])
        return more * gpus * left >= 2 * lost * gpus * self.made.size[job]

    def _charge(self, use: Use, job: int, more: int) -> None:
        for resource, amount in asks(self.world, job).items():
            key = (*self.made._home(job), resource)
            use[key] = use.get(key, 0) + amount * more
