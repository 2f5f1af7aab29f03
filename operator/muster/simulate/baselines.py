"""FIFO and EASY backfill, to compare with: what most clusters run.

Both keep one order, priority and then first submission, for each flavour of nodes apart (a partition in Slurm's terms),
and place best fit: the nodes with the least free that is enough. Both ignore quotas and topology, which favours them:
a job that they start has fewer conditions to meet. A job whose window is closed has no place in the order.

EASY (D. Lifka, "The ANL/IBM SP Scheduling System", JSSPP '95; A. Mu'alem and D. Feitelson, IEEE TPDS 12(6), 2001): the
first job that cannot start gets a reservation at the earliest moment at which enough nodes are free, from the limits of
the running jobs. A job behind it starts if it fits now and either ends by its limit before that moment, or takes only
what the reservation leaves over. A job without a limit is taken never to end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.scheduling.plan import Admission, Plan
from muster.scheduling.snapshot import Int, Mask, Seconds
from muster.simulate.cluster import GPU
from muster.simulate.workload import Workload
from muster.simulate.world import State, World


class Baseline:
    """FIFO, or EASY with `backfill`."""

    replaces = False

    def __init__(self, name: str, workload: Workload, *, backfill: bool) -> None:
        self.name = name
        self._workload = workload
        self._backfill = backfill
        shape = np.stack([workload.each, workload.workers], axis=1)
        self._shapes, kind = np.unique(shape, axis=0, return_inverse=True)
        self._kind: Int = kind.reshape(-1).astype(np.int64)

    def decide(self, world: World, now: float) -> Plan:
        """Which waiting jobs start now, and where."""
        waiting = self._open(world, world.jobs_in(State.PENDING), now)
        waiting = waiting[np.argsort(self._workload.rank[waiting])]
        started: list[Admission] = []
        for flavour in range(1, len(self._workload.cluster.flavours)):
            queue = waiting[self._workload.flavour[waiting] == flavour]
            if queue.size:
                nodes: Int = np.flatnonzero(world.usable & self._workload.filters[flavour])
                started += self._partition(world, queue, nodes, now)
        return Plan(tuple(started), ())

    def reasons(self, world: World, now: float) -> dict[int, str]:
        """It gives none."""
        return {}

    def _partition(self, world: World, queue: Int, nodes: Int, now: float) -> list[Admission]:
        free = world.free[nodes, GPU].copy()
        started: list[Admission] = []
        for job in queue.tolist():
            taken = self._fit(free, job)
            if taken is None:
                if self._backfill:
                    started += self._behind(world, queue, started, nodes, free, now)
                break
            started.append(self._take(free, taken, job, nodes))
        return started

    def _behind(
        self, world: World, queue: Int, begun: Sequence[Admission], nodes: Int, free: Int, now: float
    ) -> list[Admission]:
        """Jobs that may start behind the first that cannot. `begun`: those in front of it, which start now."""
        head, behind = int(queue[len(begun)]), queue[len(begun) + 1 :]
        releases = self._releases(world, nodes, queue[: len(begun)], begun, now)
        start, spare = self._reserve(head, releases, free)
        short = now + self._limits(world, behind, now) <= start
        kinds = self._kind[behind]
        started: list[Admission] = []
        at = 0
        fits_now, fits_spare = self._fitting(free), self._fitting(np.minimum(free, spare))
        while at < len(behind):
            may = (fits_now[kinds[at:]] & short[at:]) | fits_spare[kinds[at:]]
            ahead = int(np.argmax(may))
            if not may[ahead]:
                break
            at += ahead
            job = int(behind[at])
            if short[at]:
                taken = self._fit(free, job)
                assert taken is not None, "a job that fits was not placed"
            else:
                taken = self._fit(np.minimum(free, spare), job)
                assert taken is not None, "a job that fits beside the reservation was not placed"
                spare = spare - taken * self._workload.each[job]
            started.append(self._take(free, taken, job, nodes))
            fits_now, fits_spare = self._fitting(free), self._fitting(np.minimum(free, spare))
            at += 1
        return started

    def _reserve(self, head: int, releases: tuple[Seconds, Int, Int], free: Int) -> tuple[float, Int]:
        """When the head can start by the limits of what runs, and what is free then on each node beside it."""
        ends, where, gpus = releases
        moments = np.unique(ends[np.isfinite(ends)])
        low, high = 0, len(moments)
        while low < high:
            middle = (low + high) // 2
            then = free + np.bincount(where, gpus * (ends <= moments[middle]), len(free)).astype(np.int64)
            low, high = (low, middle) if self._holds(then, head) else (middle + 1, high)
        if low == len(moments):
            return float("inf"), free  # Nothing is known to end: there is no moment to keep free.
        then = free + np.bincount(where, gpus * (ends <= moments[low]), len(free)).astype(np.int64)
        taken = self._fit(then, head)
        assert taken is not None, "a head that fits was not placed"
        return float(moments[low]), then - taken * self._workload.each[head]

    def _releases(
        self, world: World, nodes: Int, starting: Int, begun: Sequence[Admission], now: float
    ) -> tuple[Seconds, Int, Int]:
        """For each worker that is there, or `begun` now: its job's latest end, its node (index into `nodes`) and its
        GPUs."""
        place = np.full(len(world.free), -1, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        running = world.jobs_in(State.RUNNING, State.LEAVING)
        placed = [*map(world.placed.__getitem__, running.tolist()), *(each.nodes for each in begun)]
        if not placed:
            return np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        where = place[np.concatenate(placed)]
        done = self._workload.trace.duration[running] - world.left[running]
        stops = np.minimum(world.closes[running], world.asked[running]) + world.costs.grace
        bound = np.minimum(world.working[running] + self._workload.trace.limit[running] - done, stops)
        counts = np.array([len(one) for one in placed])
        ends = np.repeat(np.concatenate([bound, now + self._limits(world, starting, now)]), counts)
        gpus = np.repeat(self._workload.each[np.concatenate([running, starting])], counts).astype(np.int64)
        here = where >= 0
        return ends[here], where[here], gpus[here]

    def _open(self, world: World, jobs: Int, now: float) -> Int:
        """Those whose window lets them start."""
        if self._workload.window is None:
            return jobs
        windows = map(self._workload.window_of, jobs.tolist())
        may = [
            window is None or window.may_start(now, world.start_takes(job)) <= now
            for job, window in zip(jobs.tolist(), windows, strict=True)
        ]
        return jobs[may]

    def _limits(self, world: World, jobs: Int, now: float) -> Seconds:
        """Seconds that a run which starts now may take at most."""
        done = self._workload.trace.duration[jobs] - world.left[jobs]
        limits: Seconds = (
            self._workload.trace.limit[jobs] - done + np.where(world.epoch[jobs] > 0, world.costs.restart, 0)
        )
        if self._workload.window is not None:
            for at, job in enumerate(jobs.tolist()):
                window = self._workload.window_of(job)
                if window is not None and window.stops:
                    limits[at] = min(limits[at], window.opening(now).closes - now + world.costs.grace)
        return limits

    def _fitting(self, free: Int) -> Mask:
        """For each shape, whether a job of it fits."""
        slots = free[None, :] // self._shapes[:, :1]
        fits: Mask = np.maximum(slots, 0).sum(axis=1) >= self._shapes[:, 1]
        return fits

    def _holds(self, free: Int, job: int) -> bool:
        slots = np.maximum(free // int(self._workload.each[job]), 0)
        return bool(slots.sum() >= self._workload.workers[job])

    def _fit(self, free: Int, job: int) -> Int | None:
        """Workers by node, on the nodes with the least free that is enough."""
        slots = np.maximum(free // int(self._workload.each[job]), 0)
        workers = int(self._workload.workers[job])
        if slots.sum() < workers:
            return None
        taken = np.zeros_like(slots)
        if workers == 1:
            taken[int(np.argmin(np.where(slots > 0, free, np.iinfo(np.int64).max)))] = 1
            return taken
        order = np.argsort(np.where(slots > 0, free, np.iinfo(np.int64).max), kind="stable")
        before = np.cumsum(slots[order]) - slots[order]
        taken[order] = np.clip(workers - before, 0, slots[order])
        return taken

    def _take(self, free: Int, taken: Int, job: int, nodes: Int) -> Admission:
        free -= taken * int(self._workload.each[job])
        return Admission(self._workload.uids[job], np.repeat(nodes, taken).astype(np.int32))
