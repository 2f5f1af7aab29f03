"""Quota: what each queue uses, what it may still use, who lends, and who may take back.

Queues form trees. For one flavour and resource a queue *has* its own nominal, and what the queues below it have and
lend. Of that it keeps `own` = max(0, has - lending limit) to itself; the rest lies in its parent's pot. Its jobs, and
what the queues below it draw on its pot, use up `own` first; what goes beyond is drawn on the parent's pot in turn:

    has(q)   = nominal(q) + sum over children c of min(has(c), lending(c))
    used(q)  = used by jobs of q + sum over children c of max(0, used(c) - own(c))
    used(q) <= has(q) + borrowing(q)     for every queue that has a parent
    used(q) <= has(q)                    for every root, which lends to nobody and has nobody to borrow from

So no queue goes beyond nominal + borrowing limit, nobody gets more of a lender's quota than its lending limit, and the
part that it does not lend is always there for it. A queue without parent and children has its nominal, and no more.

A queue whose quota does not name a resource adds nothing to the pot and sets no limit of its own; where no queue above
it names the resource either, its jobs are not limited at all, and draw on no pot.

Only what grows is checked. Where quota was lowered under use, a job that asks for none of it may still start.
Tables of what queues have are flat lists of Python integers: none can overflow, and single sums are faster than on
arrays. What they use stands in a dictionary, for of a thousand queues few use anything of most resources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from muster.scheduling.hierarchy import path
from muster.scheduling.limits import Allowed, Limits, allowed
from muster.scheduling.snapshot import NONE, UNLIMITED, Int, Jobs, Queues

Need = Sequence[tuple[int, int]]
"""(resource, amount) of a whole gang, amounts above zero."""

_FREE = int(UNLIMITED)


class Shortage(NamedTuple):
    """What falls short. A tuple: thousands are made in one plan.

    Attributes:
        needed: what the gang asks for of this resource.
        available: what its queue may still use of it, below `needed`.
    """

    resource: int
    needed: int
    available: int


class Ledger:
    """Use of quota by queue, flavour and resource. A plan keeps two: with and without promises.

    Counted at first is what HOLDING jobs hold; promised quota is charged by who keeps the promises.

    Attributes:
        circles: Q, what `circle` says of each.
        lowered: something was discharged. Of a copy in which that never happened at least as much is used.
    """

    def __init__(self, queues: Queues, jobs: Jobs) -> None:
        flavours, resources = queues.nominal.shape[1:]
        self._flavours, self._resources = int(flavours), int(resources)
        self._allowed = its = allowed(queues)
        self._parents, self._limited = its.parents, its.limited
        self.circles: Int = its.roots
        self._roots: list[int] = its.roots.tolist()
        self._nominal, self._has, self._own, self._cap = its.nominal, its.has, its.own, its.cap
        self._most, self._free = its.most, its.free
        self._by_jobs: dict[int, int] = {}
        self._used: dict[int, int] = {}
        if jobs.holding.any():
            by_jobs = _by_jobs(queues, jobs, its.limits)
            self._by_jobs, self._used = _some(by_jobs), _some(_use(queues, by_jobs, its))
        self._held_back: set[tuple[int, int]] = set()
        self.lowered = False

    def copy(self) -> Ledger:
        """An independent ledger with the same use."""
        twin = Ledger.__new__(Ledger)
        twin.__dict__.update(self.__dict__)
        twin._used, twin._by_jobs = self._used.copy(), self._by_jobs.copy()
        twin._held_back = self._held_back.copy()
        return twin

    def shortage(self, queue: int, flavour: int, need: Need, *, borrowing: bool = True) -> Shortage | None:
        """The resource that falls shortest in proportion, or None if the queue may use that much more.

        Without `borrowing` the queue's jobs must stay within its own nominal: for those that cannot give room back.
        """
        left = self.available if borrowing else self.available_own
        return self._worst(queue, flavour, need, left)

    def shortage_in_passing(self, queue: int, flavour: int, need: Need) -> Shortage | None:
        """Like `shortage`, for a job that may take what is held back, because it gives it back on demand."""
        held_back, self._held_back = self._held_back, set()
        short = self.shortage(queue, flavour, need)
        self._held_back = held_back
        return short

    def never(self, queue: int, flavour: int, need: Need, *, borrowing: bool = True) -> Shortage | None:
        """Like `shortage`, in a cluster where nobody uses anything."""
        left = self.most if borrowing else self.most_own
        return self._worst(queue, flavour, need, left)

    def limited(self, queue: int, flavour: int) -> frozenset[int]:
        """The resources that any quota limits: all others are no matter of whether the queue may use a need."""
        return self._limited[queue * self._flavours + flavour]

    def available(self, queue: int, flavour: int, resource: int) -> int:
        """How much more jobs of the queue may use now."""
        # Asked a hundred thousand times a plan, so `_at` is written out, and `min` and `max` are comparisons.
        size = self._flavours * self._resources
        inner = flavour * self._resources + resource
        at = queue * size + inner
        if self._free[at]:
            return _FREE
        if self._held_back and (queue, flavour) in self._held_back:
            return 0
        # left(q) = what is left of q's own + min(what its limit leaves beyond its own, left(parent)), written out:
        # the least, over the ways up that stop at some queue, of all own parts so far and that queue's limit.
        least, kept = _FREE, 0
        uses, owns, caps, parents = self._used, self._own, self._cap, self._parents
        while True:
            used, own = uses.get(at, 0), owns[at]
            if used < own:
                kept += own - used
                used = own
            room = caps[at] - used
            left = kept + room if room > 0 else kept
            if left < least:
                least = left
            queue = parents[queue]
            if queue == NONE:
                return least
            at = queue * size + inner

    def left(self, queue: int, flavour: int, *, passing: bool = False) -> list[int]:
        """R, `available` of each resource; `passing`: for a job that may take what is held back."""
        held_back = self._held_back
        if passing:
            self._held_back = set()
        limited, left = self.limited(queue, flavour), [_FREE] * self._resources
        for resource in limited:
            left[resource] = self.available(queue, flavour, resource)
        self._held_back = held_back
        return left

    def left_by_queue(self) -> Int:
        """Q x V x R: `available` of every queue at once."""
        limits = self._allowed.limits
        used = np.zeros(limits.own.shape, dtype=np.int64)
        if self._used:
            used.flat[list(self._used)] = list(self._used.values())
        left: Int = np.maximum(0, limits.cap - np.maximum(limits.own, used))
        own = np.maximum(0, limits.own - used)
        for depth, (rows, above) in enumerate(self._allowed.ranks):
            left[rows] = own[rows] + (np.minimum(left[rows], left[above]) if depth else left[rows])
        for queue, flavour in self._held_back:
            left[queue, flavour] = 0
        left[limits.free] = UNLIMITED
        return left

    def most_by_queue(self) -> Int:
        """Q x V x R: `most` of every queue at once."""
        return self._allowed.limits.most

    def most_own_by_queue(self) -> Int:
        """Q x V x R: `most_own` of every queue at once."""
        limits = self._allowed.limits
        most: Int = np.where(limits.free, UNLIMITED, np.minimum(limits.most, limits.named))
        return most

    def available_own(self, queue: int, flavour: int, resource: int) -> int:
        """How much more jobs of the queue may use now without borrowing, from the queues below it neither."""
        at = self._at(queue, flavour, resource)
        if self._free[at]:
            return _FREE
        return max(0, min(self.available(queue, flavour, resource), self._named(at) - self._by_jobs.get(at, 0)))

    def most(self, queue: int, flavour: int, resource: int) -> int:
        """How much the queue could use if nobody used anything."""
        return self._most[self._at(queue, flavour, resource)]

    def most_own(self, queue: int, flavour: int, resource: int) -> int:
        """How much the queue could use without borrowing if nobody used anything."""
        at = self._at(queue, flavour, resource)
        return _FREE if self._free[at] else min(self._most[at], self._named(at))

    def charge(self, queue: int, flavour: int, need: Need) -> None:
        """The queue uses that much more; what goes beyond its own part is drawn on the queues above it."""
        self.add(queue, flavour, need, 1)

    def discharge(self, queue: int, flavour: int, need: Need) -> None:
        """The queue uses that much less. The opposite of `charge`, in any order of both."""
        self.add(queue, flavour, need, -1)

    def hold_back(self, queue: int, flavour: int) -> None:
        """From now on no job of the queue itself gets more of its limited resources, so that one of them that waits is
        passed by no other. What the queues around it may use stays the same."""
        self._held_back.add((queue, flavour))

    def holds_back(self, queue: int, flavour: int) -> bool:
        """Whether the queue's quota is held back for one of its jobs."""
        return (queue, flavour) in self._held_back

    def used(self, queue: int, flavour: int, resource: int) -> int:
        """What counts against the queue's quota: by its own jobs, and drawn by the queues below it."""
        return self._used.get(self._at(queue, flavour, resource), 0)

    def has(self, queue: int, flavour: int, resource: int) -> int:
        """The queue's own nominal quota, and what the queues below it have and lend."""
        return self._has[self._at(queue, flavour, resource)]

    def nominal(self, queue: int, flavour: int, resource: int) -> int:
        """The queue's own nominal quota; UNLIMITED where it names none."""
        return self._nominal[self._at(queue, flavour, resource)]

    def borrowed(self, queue: int, flavour: int, resource: int) -> int:
        """What the queue's jobs use beyond its own nominal, whatever the queues below it have borrowed."""
        at = self._at(queue, flavour, resource)
        if self._free[at]:
            return 0
        return max(0, self._by_jobs.get(at, 0) - self._named(at))

    def borrows(self, queue: int, flavour: int, resources: Sequence[int]) -> bool:
        """Whether the queue's jobs have borrowed any of these resources: see `borrowed`."""
        # Asked for every queue whenever use changes.
        first = (queue * self._flavours + flavour) * self._resources
        for resource in resources:
            at = first + resource
            if at in self._by_jobs and not self._free[at] and self._by_jobs[at] > self._named(at):
                return True
        return False

    def within(self, queue: int, flavour: int, need: Need) -> bool:
        """Whether the queue's jobs stay within its own nominal with `need` more, whether or not that is free now."""
        first = (queue * self._flavours + flavour) * self._resources
        for resource, amount in need:
            at = first + resource
            if not self._free[at] and self._by_jobs.get(at, 0) + amount > self._named(at):
                return False
        return True

    def would_be_lent(self, queue: int, flavour: int, need: Need) -> bool:
        """Whether the queue's jobs would hold, with `need` more, what others lend: more than the queue and those above
        it name as their own together."""
        for resource, amount in need:
            at = self._at(queue, flavour, resource)
            if self._free[at]:
                continue
            own = sum(self._named(self._at(row, flavour, resource)) for row in path(self._parents, queue))
            if self._by_jobs.get(at, 0) + amount > own:
                return True
        return False

    def left_within(self, queue: int, flavour: int) -> list[int]:
        """R, what the queue's jobs have left of its own nominal, whether or not that is free now."""
        first, free, by_jobs = self._at(queue, flavour, 0), self._free, self._by_jobs
        places = range(first, first + self._resources)
        return [_FREE if free[at] else self._named(at) - by_jobs.get(at, 0) for at in places]

    def left_within_by_queue(self) -> Int:
        """Q x V x R: `left_within` of every queue at once."""
        limits = self._allowed.limits
        left: Int = limits.named.copy()
        if self._by_jobs:
            left.flat[list(self._by_jobs)] -= np.array(list(self._by_jobs.values()), dtype=np.int64)
        left[limits.free] = UNLIMITED
        return left

    def excess(self, queue: int, flavour: int, resource: int) -> int:
        """What the queue uses beyond nominal + borrowing limit, since a limit was lowered under use. A cohort, or
        another queue that names no quota of its own, uses what those below it draw on it, and has what they lend."""
        at = self._at(queue, flavour, resource)
        return max(0, self._used.get(at, 0) - self._cap[at])

    def exceeded(self) -> list[tuple[int, int, int]]:
        """(queue, flavour, resource) of which more is used than nominal + borrowing limit: see `excess`."""
        cap, resources = self._cap, self._resources
        places = [at for at, used in self._used.items() if used > cap[at]]
        return [(*divmod(at // resources, self._flavours), at % resources) for at in places]

    def limiting(self, queue: int, flavour: int, resource: int) -> int:
        """The nearest queue on the way up, itself included, whose limit allows no more than `available`."""
        left = self.available(queue, flavour, resource)
        kept = 0
        for row in path(self._parents, queue):
            own, beyond = self.margins(row, flavour, resource)
            kept += own
            if kept + beyond <= left:
                return row
        return self._roots[queue]

    def margins(self, queue: int, flavour: int, resource: int) -> tuple[int, int]:
        """What is left of the queue's own part, and what its limit still lets it draw on the queue above it."""
        at = self._at(queue, flavour, resource)
        used, own = self._used.get(at, 0), self._own[at]
        return max(0, own - used), max(0, self._cap[at] - max(own, used))

    def way_up(self, queue: int) -> list[int]:
        """The queue and all above it, its root last."""
        return path(self._parents, queue)

    def circle(self, queue: int) -> int:
        """The root of the queue's tree: the same number for all queues that lend to each other."""
        return self._roots[queue]

    def may_reclaim(self, queue: int, victim: int, flavour: int, need: Need) -> bool:
        """Whether `victim` uses what the queue has a right to, so that the queue may take it back for `need`.

        Compared are the two branches of the tree that part below the nearest queue above both. The claimant's branch
        must stay within what it has when `need` is added. Of one of the resources, each queue from the victim up to the
        top of its branch must use more than it has: what a queue uses within its own nominal is safe, however much its
        team borrows. The jobs of a queue with others below it are a branch beside those, with the queue's own nominal.
        """
        claimants, victims = self._branches(queue, victim)
        if not claimants or not victims:
            return False
        borrows = False
        for resource, amount in need:
            if self._free[self._at(queue, flavour, resource)]:
                continue
            if not self._within(claimants, flavour, resource, amount):
                return False
            borrows = borrows or all(self._exceeds(row, flavour, resource) for row in victims)
        return borrows

    def _worst(
        self, queue: int, flavour: int, need: Need, available: Callable[[int, int, int], int]
    ) -> Shortage | None:
        first, free, worst = (queue * self._flavours + flavour) * self._resources, self._free, None
        for resource, amount in need:
            if free[first + resource]:
                continue
            left = available(queue, flavour, resource)
            # left / amount < worst.available / worst.needed, without division.
            if left < amount and (worst is None or left * worst.needed < worst.available * amount):
                worst = Shortage(resource, amount, left)
        return worst

    def _branches(self, queue: int, other: int) -> tuple[list[int], list[int]]:
        """The ways up from the jobs of both, as far as they are apart; empty when it is one queue, or trees differ.

        The jobs of queue q stand as ~q, below q itself.
        """
        if queue == other or self._roots[queue] != self._roots[other]:
            return [], []
        ours, theirs = [~queue, *path(self._parents, queue)], [~other, *path(self._parents, other)]
        while ours[-1] == theirs[-1]:
            ours.pop()
            theirs.pop()
        return ours, theirs

    def _within(self, branch: list[int], flavour: int, resource: int, amount: int) -> bool:
        """Whether the top of a branch stays within what it has when the jobs at its bottom use `amount` more."""
        for row in branch[:-1]:
            if row >= 0:
                at = self._at(row, flavour, resource)
                beyond = self._used.get(at, 0) - self._own[at]
                amount = max(0, beyond + amount) - max(0, beyond)
        used, has = self._used_and_has(branch[-1], flavour, resource)
        return used + amount <= has

    def _exceeds(self, row: int, flavour: int, resource: int) -> bool:
        used, has = self._used_and_has(row, flavour, resource)
        return used > has

    def _used_and_has(self, row: int, flavour: int, resource: int) -> tuple[int, int]:
        """Of a queue with those below it, or of the jobs of queue ~row alone."""
        at = self._at(row if row >= 0 else ~row, flavour, resource)
        if row >= 0:
            return self._used.get(at, 0), self._has[at]
        return self._by_jobs.get(at, 0), self._named(at)

    def _named(self, at: int) -> int:
        """The queue's own nominal; 0 where it names none."""
        return self._nominal[at] if self._nominal[at] < _FREE else 0

    def add(self, queue: int, flavour: int, need: Need, sign: int) -> None:
        """`charge` with a sign of 1, `discharge` with -1."""
        self.lowered = self.lowered or sign < 0
        resources, size = self._resources, self._flavours * self._resources
        uses, by_jobs, owns, parents = self._used, self._by_jobs, self._own, self._parents
        for resource, amount in need:
            inner = flavour * resources + resource
            row, at = queue, queue * size + inner
            if self._free[at]:
                continue
            change = sign * amount
            by_jobs[at] = by_jobs.get(at, 0) + change
            while change:
                own, before = owns[at], uses.get(at, 0)
                after = before + change
                if after:
                    uses[at] = after
                else:
                    del uses[at]
                change = (after - own if after > own else 0) - (before - own if before > own else 0)
                row = parents[row]
                if row == NONE:
                    break
                at = row * size + inner

    def _at(self, queue: int, flavour: int, resource: int) -> int:
        return (queue * self._flavours + flavour) * self._resources + resource


def _by_jobs(queues: Queues, jobs: Jobs, limits: Limits) -> Int:
    """Q x V x R, what jobs of each queue hold, where that is limited."""
    held = np.zeros_like(queues.nominal)
    rows = np.flatnonzero(jobs.holding & (jobs.queues != NONE))
    np.add.at(held, (jobs.queues[rows], jobs.flavours[rows]), jobs.held[rows])
    held[limits.free] = 0
    return held


def _use(queues: Queues, by_jobs: Int, its: Allowed) -> Int:
    """Q x V x R, what counts against each queue: by its jobs, and drawn by the queues below it."""
    used = by_jobs.copy()
    for rows, above in reversed(its.ranks[1:]):
        np.add.at(used, above, np.maximum(0, used[rows] - its.limits.own[rows]))
    return used


def _some(table: Int) -> dict[int, int]:
    """What is not zero of a table, by its place in the flat one."""
    flat = table.ravel()
    at = np.flatnonzero(flat)
    return dict(zip(at.tolist(), flat[at].tolist(), strict=True))
