"""When each waiting job is expected to start: ten thousand estimates in the time of one.

The first few of the order have a reservation, and that is their expected start. For all others the cluster is taken as
one pool of room for each flavour, and quota as one pool for each queue, or for each tree of queues that may borrow.
Running jobs give back to the pools when they are expected to end, and the waiting jobs draw on them in their order,
each for as long as it is expected to run (list scheduling, Graham 1966, with pools for machines). What nobody knows is
filled in: a job without an estimate runs as long as the typical job of its flavour. One that runs already, and tells
nothing, has that long yet to go, however long it has run: as if lengths had no memory.

So the basis of these is `QUEUE`, a rough estimate: it knows neither topology nor fragments, and leaves out backfill and
the jobs that are yet to be submitted. One thing it does know: who was not started by this plan waits for something to
end, also where its pool has enough. Where no end is known, nothing is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from muster.scheduling.gangs import is_accelerator
from muster.scheduling.plan import Basis
from muster.scheduling.promises import cleared_at
from muster.scheduling.room import Room
from muster.scheduling.snapshot import FOREVER, NONE, Index, Int, Mask, Seconds, Snapshot, Terms
from muster.scheduling.timeline import Timeline
from muster.scheduling.topology import Tree

BASES = tuple(Basis)
"""Of what `Expected.bases` holds the index."""

_QUEUE, _UNKNOWN, _PROMISED = BASES.index(Basis.QUEUE), BASES.index(Basis.UNKNOWN), BASES.index(Basis.PROMISED)

_NEVER = -FOREVER


@dataclass(frozen=True)
class Expected:
    """
    Attributes:
        starts: J, seconds since the epoch; FOREVER for jobs that do not wait, and where nothing is known.
        bases: J, what each rests on, index into `BASES`.
    """

    starts: Seconds
    bases: Index

    def promised(self, jobs: Sequence[int], starts_of: Sequence[float]) -> Expected:
        """The same, but these jobs have a promise and start then."""
        starts, bases = self.starts.copy(), self.bases.copy()
        starts[jobs], bases[jobs] = starts_of, _PROMISED
        return Expected(starts, bases)

    def at_latest(self, others: Mapping[int, float]) -> Expected:
        """The same, but some jobs start by then, in other places than those that they are estimated for."""
        starts, bases = self.starts.copy(), self.bases.copy()
        for job, start in others.items():
            if start < starts[job]:
                starts[job], bases[job] = start, _QUEUE
        return Expected(starts, bases)

    def of(self, job: int) -> tuple[float, Basis]:
        """For `Waiting.expected` and `Waiting.basis`."""
        return float(self.starts[job]), BASES[int(self.bases[job])]


@dataclass(frozen=True)
class Lacking:
    """What the waiting jobs wait for.

    Attributes:
        jobs: W, rows, first in rank first: PENDING jobs that wait and could start one day. Not those that exceed the
            cluster or their quota, or whose queue is closed: of these nothing is known.
        workers: W, the fewest that the job starts with, spares included.
        quota: W, it is quota that the job lacks, not room.
        pools: Q, of each queue the number of the pool of quota that it draws on: the same for the queues that lend to
            each other, one of its own for a queue that may not borrow. `Ledger.circle` is a good number.
        spare: Q x V x R, what a queue may use beside what is used and promised.
        own: Q x V x R, what a queue has left of its own for jobs that cannot give it back.
    """

    jobs: Int
    workers: Int
    quota: Mask
    pools: Int
    spare: Int
    own: Int


@dataclass
class _Pools:
    """Amounts left, and what comes back: by pool."""

    left: list[float]
    backs: list[list[tuple[float, float]]]
    owed: list[float]


def expected_starts(
    snapshot: Snapshot,
    timeline: Timeline,
    tree: Tree,
    room: Room,
    lacking: Lacking,
    reserved: Mapping[int, tuple[float, Basis]],
) -> Expected:
    """Estimate all starts. Some 40 ms for 10,000 waiting jobs over 5,000 running ones.

    Args:
        timeline: the plan's, with `started` called for what it admits.
        room: after the plan's admissions; `room.free` less what is promised.
        reserved: by row, when the first few of the order start, as far as that is known, and what it rests on.
    """
    jobs, waiting = snapshot.jobs, lacking.jobs
    sure = promised_starts(snapshot)
    starts, bases = sure.starts, sure.bases
    units = _units(snapshot)
    typical = _typical(snapshot, timeline)
    likely = _known_or_typical(snapshot, timeline, typical)
    held = _holding(snapshot, timeline)
    flavours = jobs.flavours[waiting].astype(np.int64)
    needs = lacking.workers * jobs.requests[waiting, units[flavours]]
    length = np.minimum(jobs.terms.estimate, jobs.terms.limit)[waiting]
    length = np.where(np.isfinite(length), length, typical[flavours])
    floors = np.maximum(jobs.terms.opens[waiting], snapshot.now)
    short = np.flatnonzero(lacking.quota)
    if short.size:
        pool, pools = _quota_pools(snapshot, lacking.pools, lacking.spare, waiting[short], units, likely, held)
        floors[short] = _draw(pools, pool, needs[short], length[short], floors[short], snapshot.now)
    firm = short[~jobs.terms.preemptible[waiting[short]]]
    if firm.size:
        # They borrow nothing: they wait for the ends of jobs of their own queue that cannot give back either.
        apart = np.arange(len(lacking.pools), dtype=np.int64)
        ends = np.where(jobs.terms.preemptible, FOREVER, likely)
        pool, pools = _quota_pools(snapshot, apart, lacking.own, waiting[firm], units, ends, held)
        floors[firm] = _draw(pools, pool, needs[firm], length[firm], floors[firm], _NEVER)
    order = np.argsort(floors, kind="stable")
    pools = _room_pools(snapshot, tree, room, units, likely, held)
    found = _draw(pools, flavours[order], needs[order], length[order], floors[order], snapshot.now)
    starts[waiting[order]] = found
    bases[waiting[order]] = np.where(np.isfinite(found), _QUEUE, _UNKNOWN)
    for job, (start, basis) in reserved.items():
        if start < FOREVER:
            starts[job] = max(start, float(jobs.terms.opens[job]))
            bases[job] = BASES.index(basis)
    closed = waiting[np.isfinite(starts[waiting]) & (starts[waiting] >= jobs.terms.closes[waiting])]
    starts[closed] = np.maximum(starts[closed], jobs.terms.reopens[closed])  # its window is shut by then
    bases[closed] = _QUEUE  # and nothing is kept for it meanwhile
    return Expected(starts, bases)


def when_open(terms: Terms, job: int, start: float) -> float:
    """When a waiting job starts that could at a moment, for all but its window."""
    start = max(start, float(terms.opens[job]))
    return start if start < terms.closes[job] else max(start, float(terms.reopens[job]))


def _draw(pools: _Pools, pool: Int, needs: Int, length: Seconds, floors: Seconds, waits: float) -> Seconds:
    """When each job gets what it needs of its pool, in order; it gives it back `length` seconds later.

    Whoever would get it at `waits` does not: it starts at the next end, and never where none is known.
    """
    clocks = [0.0] * len(pools.backs)
    left, backs, owed = pools.left, pools.backs, pools.owed
    starts = []
    for at, need, lasts, floor in zip(pool.tolist(), needs.tolist(), length.tolist(), floors.tolist(), strict=True):
        back, have = backs[at], left[at]
        if need > have + owed[at]:
            starts.append(FOREVER)
            continue
        clock = clocks[at]
        while have < need:
            clock, amount = heappop(back)
            have += amount
            owed[at] -= amount
        left[at], clocks[at] = have - need, clock
        start = clock if clock > floor else floor
        if start <= waits and not clock:
            start = back[0][0] if back else FOREVER
        starts.append(start)
        if start + lasts < FOREVER:
            heappush(back, (start + lasts, need))
            owed[at] += need
    return np.array(starts)


def _room_pools(snapshot: Snapshot, tree: Tree, room: Room, units: Int, likely: Seconds, held: Int) -> _Pools:
    """One pool for each flavour: what is free on its nodes, and the jobs on them. The first is of all nodes."""
    flavours = snapshot.nodes.flavours[tree.order]
    left = [
        float(room.free[unit][room.usable & ((flavours == flavour) | (flavour == 0))].sum())
        for flavour, unit in enumerate(units.tolist())
    ]
    holding = np.flatnonzero(np.isfinite(likely))
    pool = snapshot.jobs.flavours[holding].astype(np.int64)
    return _pools(left, pool, likely[holding], held[holding, units[pool]])


def _quota_pools(
    snapshot: Snapshot, pools: Int, spare: Int, rows: Int, units: Int, likely: Seconds, held: Int
) -> tuple[Int, _Pools]:
    """(the pool of each of `rows`, the pools). `pools`: Q, as in `Lacking`."""
    jobs, count = snapshot.jobs, len(snapshot.flavours)
    numbers, dense = np.unique(pools, return_inverse=True)
    known = jobs.queues != NONE
    key = np.where(known, dense[jobs.queues] * count + jobs.flavours, NONE)
    left = np.zeros(len(numbers) * count)
    np.maximum.at(left, key[rows], spare[jobs.queues[rows], jobs.flavours[rows], units[jobs.flavours[rows]]])
    holding = np.flatnonzero(np.isfinite(likely) & known)
    amounts = held[holding, units[jobs.flavours[holding]]]
    return key[rows], _pools(left.tolist(), key[holding], likely[holding], amounts)


def _pools(left: list[float], pool: Int, ends: Seconds, amounts: Int) -> _Pools:
    order = np.lexsort((amounts, ends, pool))  # what is sorted is a heap
    backs = list(zip(ends[order].tolist(), amounts[order].tolist(), strict=True))
    bounds = pool[order].searchsorted(np.arange(len(left) + 1)).tolist()
    owed = np.bincount(pool, weights=amounts, minlength=len(left)).tolist()
    return _Pools(left, [backs[start:end] for start, end in pairwise(bounds)], owed)


def _holding(snapshot: Snapshot, timeline: Timeline) -> Int:
    """J x R, what each job holds, those included that this plan admits."""
    jobs, held = snapshot.jobs, snapshot.jobs.held
    fresh = np.flatnonzero(jobs.pending & np.isfinite(timeline.likely))
    if fresh.size:
        held, holds = held.copy(), timeline.holds
        placed = np.zeros(len(held), dtype=np.int64)  # fewer than it wishes for, or its spares besides
        np.add.at(placed, holds.jobs, holds.workers)
        held[fresh] = jobs.requests[fresh] * placed[fresh, None]
    return held


def _units(snapshot: Snapshot) -> Int:
    """V, the resource that counts for each flavour: the accelerator that its jobs ask most of; cpu without any."""
    jobs = snapshot.jobs
    accelerators = [row for row, name in enumerate(snapshot.resources) if is_accelerator(name)]
    plain = snapshot.resources.index("cpu") if "cpu" in snapshot.resources else 0
    units = np.full(len(snapshot.flavours), plain, dtype=np.int64)
    asked = np.zeros((len(snapshot.flavours), len(accelerators)))  # the sum of many absurd ones is no integer
    np.add.at(asked, jobs.flavours, jobs.requests[:, accelerators] * jobs.workers[:, None])
    for flavour in range(1, len(units)):
        if accelerators and asked[flavour].any():
            units[flavour] = accelerators[int(asked[flavour].argmax())]
    return units


def _typical(snapshot: Snapshot, timeline: Timeline) -> Seconds:
    """V, the median length of the jobs of which it is known; of all flavours where a flavour has none."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    ahead = np.minimum(jobs.terms.estimate, jobs.terms.limit)
    length = np.where(jobs.holding, timeline.likely - runs.started, ahead)  # who is promised room has not started
    told = ~runs.leaving & (runs.started > 0) & (runs.started <= snapshot.now)  # later, where the clock was set back
    known = np.isfinite(length) & (told | ~jobs.holding)
    overall = float(np.median(length[known])) if known.any() else FOREVER
    typical = np.full(len(snapshot.flavours), overall)
    for flavour in np.unique(jobs.flavours[known]).tolist():
        typical[flavour] = np.median(length[known & (jobs.flavours == flavour)])
    return typical


def _known_or_typical(snapshot: Snapshot, timeline: Timeline, typical: Seconds) -> Seconds:
    """J, when each job that holds room is expected to give it back; FOREVER for the others."""
    jobs = snapshot.jobs
    silent = ~jobs.pending & ~np.isfinite(timeline.likely)
    return np.where(silent, snapshot.now + typical[jobs.flavours], timeline.likely)


def promised_starts(snapshot: Snapshot) -> Expected:
    """Of RESERVED jobs alone: they start when the last of those is gone who make room for them."""
    count, reserved = len(snapshot.jobs.uids), snapshot.jobs.reserved
    starts, bases = np.full(count, FOREVER), np.full(count, _UNKNOWN, dtype=np.int32)
    starts[reserved], bases[reserved] = cleared_at(snapshot)[reserved], _PROMISED
    return Expected(starts, bases)
