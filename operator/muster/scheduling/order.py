"""Who comes first.

Jobs are ordered by, in this order:

1. priority, as the queue's limit leaves it;
2. age, in steps of `AGE_STEP` since the first submit, at most `AGE_STEPS` of them: so nobody waits longer than a day
   only because others have smaller shares, or (see `muster.scheduling.planner`) because smaller jobs of its queue
   always find a little quota. Where the shortest come first, a job's steps are a quarter of its expected length, if
   that is more, but at most `STEP_AT_MOST`: so nobody waits for longer than it runs only because others are shorter;
3. fair share: at each branch of the tree of queues, from the root down, the queue with the smallest share for its
   weight (see `muster.scheduling.fairness`);
4. slack: how long the job can still wait and meet its deadline, if that is less than `SLACK_COUNTS`;
5. in queues that say so, the accelerator-seconds that the job is expected to need, least first, unknown last;
6. the time of the first submit, then the uid, so that no two jobs are ever equal.

The share of a queue when it is a job's turn is made of what ranks before that job: the past of the queue, and the jobs
that come earlier in this same order, those that run as well as those that start or have room reserved now. So running
jobs have a place in the order, too. When jobs of a plan have started, they count at the same place as they did in that
plan, and the others keep their order: a plan that was carried out gives no other order to those that still wait.

`Ordering` merges the queues' own orders, which the shares do not change, with a heap at each branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final

import numpy as np

from muster.scheduling.fairness import parts
from muster.scheduling.ranks import AGE_STEPS, ages, classes_of, in_order, lengths, slacks
from muster.scheduling.snapshot import NONE, Index, Int, Jobs, Mask, Seconds, Snapshot

_WHOLE: Final = 2.0**40
"""Shares are added up as whole numbers of this, so that a sum is the same in whatever order it was made."""
_MOST: Final = 2.0**62
"""Of one gang's part."""

_Key = tuple[int, float, int, int]
"""(class of priority and age, share by weight, rank among equals, branch), all smallest first."""


class Ordering:
    """Iterates over the rows of the pending jobs, first in rank first. Tell it by `charged` what each of them gets.

    Jobs without a queue come after all others.

    Attributes:
        passed: rows of the running jobs that yield and rank before the job that was given last.

    The cost follows the number of jobs, running ones included; where queues share no parent, or all have the same one,
    only their waiting jobs count.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._jobs = snapshot.jobs
        steps = ages(snapshot)
        self._oldest: list[bool] = (steps >= AGE_STEPS).tolist()
        self._line: int | None = None  # of the job that was given last, which is at `_at`; its run goes up to `_end`
        self._at = self._end = 0
        self.passed: set[int] = set()
        pending = np.flatnonzero(snapshot.jobs.pending)
        self._alone: list[int] | None = None
        if len(pending) <= 1 and not snapshot.jobs.runs.yields.any():
            self._alone = pending.tolist()  # nobody to be compared with
            return
        self._parts = parts(snapshot) * _WHOLE
        self._lines = _Lines(snapshot, self._parts, steps, _counted(snapshot))
        self._tree = _Branches(snapshot, self._lines)

    def __iter__(self) -> Iterator[int]:
        if self._alone is not None:
            yield from self._alone
            return
        lines, tree, left = self._lines, self._tree, self._lines.waiting
        jobs, pending, at, first, renew = lines.jobs, lines.pending, lines.at, tree.first, tree.renew
        yields: list[bool] = self._jobs.runs.yields.tolist()
        while left:
            line = first()
            index = at[line]
            if pending[index]:
                # Those of one queue that follow each other as long as none of them is charged, else up to that one.
                self._line, self._end = line, tree.run_end(line)
                while index < self._end:
                    self._at = index
                    yield jobs[index]
                    index += 1
                left -= index - at[line]
                at[line] = index
            else:
                at[line] = index + 1
                if yields[jobs[index]]:
                    self.passed.add(jobs[index])
                tree.charge(line, lines.flavours[index], lines.amounts[index])
            if left:
                renew(line)
        self._line = None
        yield from lines.without_queue

    def oldest(self, job: int) -> bool:
        """Whether it has waited as long as counts."""
        return self._oldest[job]

    def charged(self, job: int, workers: int | None = None, flavour: int | None = None) -> None:
        """The job that was given last starts, or has room reserved: its queue's share grows.

        Args:
            workers: how many it gets; None: `Jobs.workers`.
            flavour: of which it gets them; None: `Jobs.flavours`.
        """
        if self._line is None:
            return
        line, at = self._line, self._at
        self._end = at + 1
        kind = self._lines.flavours[at] if flavour is None else flavour
        amounts = self._lines.amounts[at]
        asks = int(self._jobs.workers[job])
        count = asks if workers is None else workers
        if count != asks or kind != self._lines.flavours[at]:
            whole = np.rint(self._jobs.requests[job] * count * self._parts[kind]).astype(np.int64)
            amounts = whole[self._lines.columns].tolist()
        self._tree.charge(line, kind, amounts)


class _Lines:
    """The jobs of each queue in their own order, behind one another in flat lists.

    Where only the queues' own shares are compared, running jobs are not in them: their parts are `carried`.

    Attributes:
        jobs, classes, ranks, pending, flavours, amounts: of each job: its row, class of priority and age (the
            smallest is first), rank among equals of all queues, whether it is given out, its flavour, and the part of
            the cluster that it holds, or asks for, of each resource.
        carried: by index, (flavour, amounts) of the running jobs of its queue between the job before it and this one.
        columns: the resources that count, in the order of `amounts`.
        at, end: by queue, the next job and the one after the last. Queues without jobs are not in them.
        waiting: how many jobs are to be given out.
        without_queue: rows of pending jobs whose queue does not exist, first in rank first.
    """

    def __init__(self, snapshot: Snapshot, share_of: Seconds, steps: Int, counted: Int) -> None:
        jobs = snapshot.jobs
        ranks = np.empty(len(jobs.uids), dtype=np.int64)
        ranks[in_order((jobs.submitted, slacks(snapshot)), jobs.uids, counted)] = np.arange(len(counted))
        classes = classes_of(snapshot, steps)
        keys: tuple[Index | Int | Seconds, ...] = (ranks, *lengths(snapshot), classes, jobs.queues)
        rows = counted[np.lexsort([key[counted] for key in keys])]
        first = int(np.searchsorted(jobs.queues[rows], 0))
        stray, rows = rows[:first], rows[first:]
        self.without_queue: list[int] = stray[jobs.pending[stray]].tolist()
        pending, of_rows = jobs.pending[rows], classes[rows]
        # Those that rank behind every pending job change nothing.
        counts = of_rows <= of_rows[pending].max() if pending.any() else pending
        rows, pending = rows[counts], pending[counts]
        self.columns: Int = np.flatnonzero(share_of.any(axis=0))
        asked = jobs.requests[rows] * jobs.workers[rows, None].astype(np.int64)
        parts = np.where(pending[:, None], asked, jobs.held[rows]) * share_of[jobs.flavours[rows]]
        # What asks for many times the cluster never starts; as an integer its part could even be negative.
        amounts: Int = np.rint(np.minimum(parts[:, self.columns], _MOST)).astype(np.int64)
        # Where the shortest come first, the ranks of a queue's jobs do not ascend. One that started and has no share
        # keeps its place, or the next would be compared with other queues' jobs of the same share in its stead.
        stops: Mask = pending | jobs.runs.yields[rows] | ~amounts.any(axis=1)
        self.carried: dict[int, list[tuple[int, list[int]]]] = {}
        if _only_siblings(snapshot.queues.parents) and not stops.all():
            self._carry(jobs, rows, stops, amounts)
            rows, pending, amounts = rows[stops], pending[stops], amounts[stops]
        self.jobs: list[int] = rows.tolist()
        self.classes: list[int] = classes[rows].tolist()
        self.ranks: list[int] = ranks[rows].tolist()
        self.pending: list[bool] = pending.tolist()
        self.flavours: list[int] = jobs.flavours[rows].tolist()
        self.amounts: list[list[int]] = amounts.tolist()
        queues = jobs.queues[rows]
        begin = np.flatnonzero(np.append(True, queues[1:] != queues[:-1])) if len(rows) else rows
        bounds = [*begin.tolist(), len(rows)]
        self.at: dict[int, int] = dict(zip(queues[begin].tolist(), bounds, strict=False))
        self.end: dict[int, int] = dict(zip(queues[begin].tolist(), bounds[1:], strict=True))
        self.waiting = int(pending.sum())

    def _carry(self, jobs: Jobs, rows: Int, stops: Mask, amounts: Int) -> None:
        """Add the parts of those who only run to the next job of their queue that is given out or yields."""
        where = np.flatnonzero(stops)
        between = np.flatnonzero(~stops)
        target = np.searchsorted(where, between)
        known = target < len(where)
        target, between = target[known], between[known]
        same = jobs.queues[rows[where[target]]] == jobs.queues[rows[between]]
        target, between = target[same], between[same]
        flavours = jobs.flavours[rows[between]].astype(np.int64)
        count = int(flavours.max(initial=0)) + 1
        keys = target * count + flavours
        sums = np.zeros((len(where) * count, amounts.shape[1]), dtype=np.int64)
        np.add.at(sums, keys, amounts[between])
        some = np.flatnonzero(np.bincount(keys))
        for key, sum_ in zip(some.tolist(), sums[some].tolist(), strict=True):
            self.carried.setdefault(key // count, []).append((key % count, sum_))


def _counted(snapshot: Snapshot) -> Int:
    """Rows that have a say in the order: where queues are compared with their siblings alone, those of a queue in which
    nobody waits or yields have none."""
    jobs, queues = snapshot.jobs, snapshot.queues
    if not _only_siblings(queues.parents):
        return np.arange(len(jobs.uids))
    lively = np.zeros(len(queues.names) + 1, dtype=np.bool_)  # the last is of those without a queue
    lively[jobs.queues[jobs.pending | jobs.runs.yields]] = True
    return lively[jobs.queues].nonzero()[0]


def _only_siblings(parents: Index) -> bool:
    """Whether no two queues that have jobs of their own, or others below them, are compared beside their own parents:
    all are roots, or below one root that has no other beside it."""
    roots = parents == NONE
    if roots.all():
        return True
    return int(roots.sum()) == 1 and bool((parents[~roots] == int(np.flatnonzero(roots)[0])).all())


class _Branch:
    """
    Attributes:
        row: see `_Branches`.
        held: by flavour and resource, the part of the cluster that its jobs hold so far.
        share: the largest of those; `used` what it has had, and `weighed` both by its weight.
    """

    __slots__ = ("held", "row", "share", "used", "weighed", "weight")

    def __init__(self, row: int, used: float, weight: float, width: int) -> None:
        self.row, self.used, self.weight = row, used, weight
        self.held, self.share, self.weighed = [0] * width, 0, used / weight


class _Branches:
    """The tree above the lines: at each branch a heap of what is below it, by the first job and the share of each.

    A branch is a queue's row. Jobs of a queue that has others below it make one more branch of weight 1 (`_own`).
    """

    def __init__(self, snapshot: Snapshot, lines: _Lines) -> None:
        queues = snapshot.queues
        self._lines = lines
        self._width = len(lines.columns)
        count = len(queues.names)
        parents: list[int] = queues.parents.tolist()
        inner = set(parents)
        self._ways = {line: _way(parents, line, count if line in inner else 0) for line in lines.at}
        self._line_of = {way[0]: line for line, way in self._ways.items()}
        branches = {branch for way in self._ways.values() for branch in way}
        width = len(snapshot.flavours) * self._width
        used, weights = (queues.shares_used * _WHOLE).tolist(), queues.weights.tolist()
        self._heaps: dict[int, list[_Key]] = {branch: [] for branch in (*branches, NONE)}
        self._top = self._heaps[NONE]
        known = {
            branch: _Branch(branch, used[branch], weights[branch], width)
            if branch < count
            else _Branch(branch, 0.0, 1.0, width)
            for branch in branches
        }
        self._steps = {
            line: [(known[branch], self._heaps[above]) for branch, above in zip(way, (*way[1:], NONE), strict=True)]
            for line, way in self._ways.items()
        }
        self._fill()

    def first(self) -> int:
        """The queue whose turn it is."""
        heaps, heap = self._heaps, self._top
        while heap:
            branch = heap[0][3]
            heap = heaps[branch]
        return self._line_of[branch]

    def run_end(self, line: int) -> int:
        """Up to where the pending jobs of the queue that is first follow each other, if none of them is charged.

        Shares stay, so it goes on through a class; where another branch has the same share, as far as it ranks first.
        """
        lines = self._lines
        at, end = lines.at[line], lines.end[line]
        classes, ranks, pending, carried = lines.classes, lines.ranks, lines.pending, lines.carried
        class_, stop = classes[at], at + 1
        if stop == end or classes[stop] != class_ or not pending[stop]:
            return stop
        behind = self._behind(line, class_)
        while stop < end and classes[stop] == class_ and pending[stop] and stop not in carried:
            if behind is not None and ranks[stop] > behind:
                break
            stop += 1
        return stop

    def _behind(self, line: int, class_: int) -> int | None:
        """The first rank of the branches that are next to those of the first queue, with the same class and share."""
        behind = None
        for _, heap in self._steps[line]:
            if len(heap) > 1:
                second = heap[1] if len(heap) == 2 or heap[1] < heap[2] else heap[2]
                if second[0] == class_ and second[1] == heap[0][1] and (behind is None or second[2] < behind):
                    behind = second[2]
        return behind

    def renew(self, line: int) -> None:
        """Put the queue that was first where it belongs now, and all branches above it."""
        lines = self._lines
        at = lines.at[line]
        some = at < lines.end[line]
        if some and at in lines.carried:
            self._charge_carried(line, at)
        class_, rank = (lines.classes[at], lines.ranks[at]) if some else (0, 0)
        for branch, heap in self._steps[line]:
            if some:
                heapreplace(heap, (class_, branch.weighed, rank, branch.row))
                class_, _, rank, _ = heap[0]
            else:
                heappop(heap)
                if heap:
                    some = True
                    class_, _, rank, _ = heap[0]

    def charge(self, line: int, flavour: int, amounts: Sequence[int]) -> None:
        """Add parts of the cluster to the shares of the queue and all branches above it."""
        begin = flavour * self._width
        for branch, _ in self._steps[line]:
            held = branch.held
            share = before = branch.share
            index = begin
            for amount in amounts:
                total = held[index] = held[index] + amount
                if total > share:
                    share = total
                index += 1
            if share > before:
                branch.share, branch.weighed = share, (branch.used + share) / branch.weight

    def _charge_carried(self, line: int, at: int) -> None:
        for flavour, amounts in self._lines.carried.pop(at):
            self.charge(line, flavour, amounts)

    def _fill(self) -> None:
        """Every heap, from the lines up."""
        for line, at in self._lines.at.items():
            if at in self._lines.carried:
                self._charge_carried(line, at)
        above = {branch.row: (branch, heap) for steps in self._steps.values() for branch, heap in steps}
        depth = {branch: at for way in self._ways.values() for at, branch in enumerate(reversed(way))}
        for branch in sorted(above, key=lambda branch: (-depth[branch], branch)):
            of_jobs = self._line_of.get(branch)
            if of_jobs is not None:
                at = self._lines.at[of_jobs]
                found = (self._lines.classes[at], self._lines.ranks[at])
            else:
                heap = self._heaps[branch]
                heapify(heap)
                found = (heap[0][0], heap[0][2])
            known, heap = above[branch]
            heap.append((found[0], known.weighed, found[1], branch))
        heapify(self._top)


def _way(parents: list[int], queue: int, own: int) -> tuple[int, ...]:
    """Branches from a queue's jobs to the root of its tree, with one of their own if `own` is not 0."""
    way = [queue + own] if own else []
    while queue != NONE:
        way.append(queue)
        queue = parents[queue]
    return tuple(way)
