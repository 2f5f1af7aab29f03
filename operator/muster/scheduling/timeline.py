"""When room comes back, and from when on a gang that waits could start.

Two curves tell how room grows with time. The *sure* one has only ends that are enforced (`Runs.bound`, and one grace
for the pods to go): what it gives has come back by then, whatever happens. The *likely* one has each job's own progress
(`Runs.ends`) where that is sooner and has not passed by more than one grace. A job of which neither is known never ends
on either.

Room only grows along a curve, so the earliest moment at which a gang fits is found by halving the list of ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.placement import fits, place
from muster.scheduling.plan import Basis
from muster.scheduling.promises import cleared_at
from muster.scheduling.room import Room
from muster.scheduling.slots import Taken, count_slots
from muster.scheduling.snapshot import FOREVER, NONE, Int, Mask, Seconds, Snapshot
from muster.scheduling.topology import Tree, prefix_sums


@dataclass(frozen=True)
class Reservation:
    """Time and place kept for a gang that waits for room.

    Attributes:
        start: moment from which it is expected to fit, by the likely curve; FOREVER when no known end is enough.
        latest: moment by which it fits whatever happens, by the sure curve; FOREVER when that is not known. Both hold
            while nodes stay and nobody that ranks before the gang takes the room.
        basis: LIMITS when `start` is proven as well (it equals `latest`), PROGRESS when it is an estimate, UNKNOWN when
            `start` is FOREVER.
        taken: N, its workers by place of the tree order, as at `start`; None when `start` is FOREVER.
    """

    start: float
    latest: float
    basis: Basis
    taken: Int | None


@dataclass(frozen=True)
class _Holds:
    """Who holds what, one row for each job and place of the tree order.

    Attributes:
        jobs: H, rows of the snapshot's jobs; rows of one job stand together.
        places, workers: H.
    """

    jobs: Int
    places: Int
    workers: Int


@dataclass(frozen=True)
class _Curve:
    """The holds whose end is known, soonest first.

    Attributes:
        moments: M, different ends, ascending.
        until: M, how many of the holds have come back by then.
        holds: those with a known end, in order of it.
    """

    moments: Seconds
    until: Int
    holds: _Holds


class Timeline:
    """The ends of one snapshot's jobs. What a plan admits is added by `started`.

    Attributes:
        now: the snapshot's moment.
        sure: J, when each job's room is back at the latest; FOREVER where nothing bounds it, and for PENDING jobs.
        likely: J, when it is expected back; never after `sure`.
    """

    def __init__(self, snapshot: Snapshot, tree: Tree) -> None:
        jobs, runs = snapshot.jobs, snapshot.jobs.runs
        self.now, self._tree, self.requests = snapshot.now, tree, jobs.requests
        self._limit, self._estimate, self._grace = jobs.terms.limit, jobs.terms.estimate, runs.grace
        self.sure, self.likely = _ends(snapshot)
        self._blocks = [self._holds_now(snapshot)]
        self._holds: _Holds | None = None
        self._curves: dict[str, _Curve] = {}

    def started(self, job: int, taken: Taken) -> None:
        """A job that this plan admits, or that is reckoned with as if it ran."""
        jobs = np.full(len(taken.places), job, dtype=np.int64)
        self._blocks.append(_Holds(jobs, taken.places, taken.workers))
        self.sure[job] = self.until(job)
        self.likely[job] = min(self.now + float(self._estimate[job]), self.sure[job])
        self._holds, self._curves = None, {}

    def until(self, job: int) -> float:
        """When the room of a job that starts now is back at the latest: its enforced limit and one grace."""
        return self.now + float(self._limit[job]) + float(self._grace[job])

    @property
    def holds(self) -> _Holds:
        """All that hold room, the snapshot's jobs and those added since."""
        if self._holds is None:
            self._holds = _Holds(
                np.concatenate([block.jobs for block in self._blocks]),
                np.concatenate([block.places for block in self._blocks]),
                np.concatenate([block.workers for block in self._blocks]),
            )
        return self._holds

    def frozen(self) -> Timeline:
        """A view whose `holds` stay as they are now."""
        assert self.holds is not None
        return copy(self)

    def without(self, rows: Sequence[int]) -> tuple[Timeline, Int]:
        """A view as if some jobs had left, and the room that they hold: R x N, in tree order."""
        holds, view = self.holds, copy(self)
        gone = np.isin(holds.jobs, rows)
        room = np.zeros((self.requests.shape[1], len(self._tree.order)), dtype=np.int64)
        np.add.at(room.T, holds.places[gone], holds.workers[gone, None] * self.requests[holds.jobs[gone]])
        view._holds, view._curves = _Holds(holds.jobs[~gone], holds.places[~gone], holds.workers[~gone]), {}
        return view, room

    def reserve(
        self, room: Room, gang: Gang, worker: Worker, free: Int | None = None, *, proof: bool = True
    ) -> Reservation:
        """The earliest time and place at which a gang could start, jobs ahead of it aside.

        Args:
            room: tells candidates, empty nodes and nodes to be spared.
            worker: the gang's worker, `workers[gang.worker]`.
            free: R x N in tree order: what is free now, less all that is promised and all that is reserved for jobs
                ahead; may be negative where it comes back later. `room.free` when None.
            proof: whether to look for `latest`, too; else it is FOREVER, and the basis never LIMITS.

        Costs a few milliseconds for 12,500 nodes and 5,000 jobs, whatever the number of ends.
        """
        free = room.free if free is None else free
        start, slots = self._earliest("likely", room, gang, worker, free)
        latest = self._earliest("sure", room, gang, worker, free)[0] if proof else FOREVER
        if slots is None:
            return Reservation(FOREVER, latest, Basis.UNKNOWN, None)
        taken = place(
            self._tree,
            slots,
            prefix_sums(slots),
            gang,
            whole=slots >= room.slots_when_empty(gang.worker).counts,
            spared=None if worker.accelerated else room.spared,
        )
        assert taken is not None, "a gang that fits was not placed"
        return Reservation(start, latest, Basis.LIMITS if start >= latest else Basis.PROGRESS, taken)

    def _earliest(self, which: str, room: Room, gang: Gang, worker: Worker, free: Int) -> tuple[float, Int | None]:
        """The first moment of a curve at which the gang fits, and the slots then; (FOREVER, None) if there is none."""
        curve, mask = self._curve(which), room.candidates(gang.worker)
        slots = count_slots(free, worker, mask)
        if fits(self._tree, prefix_sums(slots), gang):
            return self.now, slots
        resources = [resource for resource, _ in worker.asks]
        asks = Worker(tuple((row, amount) for row, (_, amount) in enumerate(worker.asks)), 0, worker.accelerated)
        given = curve.holds.workers * self.requests[curve.holds.jobs].T[resources]
        # Invariant: the gang does not fit in `base`, the room after `low` moments; it fits after `high` moments.
        base, low, high = free[resources], 0, len(curve.moments)
        if not high:
            return FOREVER, None
        best = count_slots(self._grown(curve, base, given, low, high), asks, mask)
        if not fits(self._tree, prefix_sums(best), gang):
            return FOREVER, None
        probe, stride = max(1, self._soonest(curve, base, given, mask, asks, gang.total)), 1
        while low < probe < high:
            grown = self._grown(curve, base, given, low, probe)
            slots = count_slots(grown, asks, mask)
            if fits(self._tree, prefix_sums(slots), gang):
                high, best, stride = probe, slots, 0
            else:
                base, low = grown, probe
            if stride and low + stride < high:
                probe, stride = low + stride, stride * 2
            else:
                probe, stride = (low + high) // 2, 0
        return float(curve.moments[high - 1]), best

    @staticmethod
    def _soonest(curve: _Curve, base: Int, given: Int, mask: Mask, asks: Worker, workers: int) -> int:
        """How many moments it takes at least, if nothing were lost to fragments: often as many as it takes."""
        soonest = 0
        suits = mask[curve.holds.places]
        for row, amount in asks.asks:
            lacking = workers * amount - int(np.maximum(base[row], 0)[mask].sum())
            if lacking > 0:
                entries = int(np.searchsorted(np.cumsum(given[row] * suits), lacking)) + 1
                soonest = max(soonest, int(np.searchsorted(curve.until, entries)) + 1)
        return soonest

    @staticmethod
    def _grown(curve: _Curve, base: Int, given: Int, low: int, high: int) -> Int:
        """Room with what comes back from moment `low` up to and without moment `high`."""
        first = int(curve.until[low - 1]) if low else 0
        part = slice(first, int(curve.until[high - 1]))
        grown, places = base.copy(), curve.holds.places[part]
        for row, amounts in zip(grown, given, strict=True):
            np.add.at(row, places, amounts[part])
        return grown

    def _curve(self, which: str) -> _Curve:
        if which not in self._curves:
            self._curves[which] = _curve(self.holds, self.sure if which == "sure" else self.likely)
        return self._curves[which]

    def _holds_now(self, snapshot: Snapshot) -> _Holds:
        jobs, runs = snapshot.jobs, snapshot.jobs.runs
        owner = np.repeat(np.arange(len(jobs.uids)), np.diff(runs.first))
        nodes = runs.placed.astype(np.int64)
        known = nodes != NONE
        owner, places = owner[known], self._tree.place_of[nodes[known]]
        if not len(owner):
            return _Holds(owner, places, np.ones(0, dtype=np.int64))
        if not ((np.diff(owner) != 0) | (np.diff(places) >= 0)).all():
            # Ranks lie in the order of places until one is replaced: on a node that has another of them, perhaps.
            order = np.lexsort((places, owner))
            owner, places = owner[order], places[order]
        edges = np.flatnonzero(np.append(True, (np.diff(owner) != 0) | (np.diff(places) != 0)))
        return _Holds(owner[edges], places[edges], np.diff(np.append(edges, len(owner))))


def _ends(snapshot: Snapshot) -> tuple[Seconds, Seconds]:
    """When each job's room is back: (at the latest, as expected)."""
    jobs, runs, now = snapshot.jobs, snapshot.jobs.runs, snapshot.now
    # Whoever is told to end, by its limit or by the planner, is gone one grace later.
    sure = np.where(runs.leaving, now, np.maximum(runs.bound, now)) + runs.grace
    # One that goes on for longer than it has to save since its expected end tells nothing of when it ends.
    ends = np.where(runs.ends + runs.grace < now, FOREVER, np.maximum(runs.ends, now))
    likely = np.minimum(np.where(runs.leaving, sure, ends), sure)
    reserved = np.flatnonzero(jobs.reserved)
    if reserved.size:
        # They start when those are gone who make room for them, one grace from now, and run from then on.
        start = (cleared_at(snapshot) + runs.restart)[reserved]
        sure[reserved] = start + jobs.terms.limit[reserved] + runs.grace[reserved]
        likely[reserved] = np.minimum(start + jobs.terms.estimate[reserved], sure[reserved])
    pending = jobs.pending
    return np.where(pending, FOREVER, sure), np.where(pending, FOREVER, likely)


def _curve(holds: _Holds, ends: Seconds) -> _Curve:
    """Order the holds by the end of their job; jobs are few beside holds, so they are sorted and holds gathered."""
    firsts = np.flatnonzero(np.append(True, np.diff(holds.jobs) != 0)) if len(holds.jobs) else holds.jobs
    lengths = np.diff(np.append(firsts, len(holds.jobs)))
    when = ends[holds.jobs[firsts]]
    order = np.argsort(when, kind="stable")
    order = order[: int(np.isfinite(when).sum())]
    lengths, when = lengths[order], when[order]
    running = np.cumsum(lengths)
    total = int(running[-1]) if running.size else 0
    rows = np.repeat(firsts[order] - (running - lengths), lengths) + np.arange(total)
    last = np.flatnonzero(np.append(np.diff(when) != 0, True)) if when.size else order
    return _Curve(when[last], running[last], _Holds(holds.jobs[rows], holds.places[rows], holds.workers[rows]))
