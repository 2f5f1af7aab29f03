"""The operator's own planner as a policy: the simulated world, frozen into its arrays.

What never changes (requests, queues, shapes) is made once and only gathered here; what nodes have free is kept by the
world as jobs come and go. So a snapshot costs a few dozen array operations, whatever happened since the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from muster.scheduling.plan import Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import DEFAULT, Policy
from muster.scheduling.snapshot import (
    FOREVER,
    NONE,
    PLAIN,
    Index,
    Int,
    Jobs,
    JobState,
    Mask,
    Nodes,
    Runs,
    Seconds,
    Sizes,
    Snapshot,
    Terms,
)
from muster.simulate.cluster import GPU, RESOURCES, Costs, QueueShare
from muster.simulate.shares import Usage, half_lives, planner_queues
from muster.simulate.windows import Bounds
from muster.simulate.workload import Workload
from muster.simulate.world import State, World

_ENOUGH: Final = np.iinfo(np.int32).max
"""Preemptions that a job may have."""
_NOWHERE: Final[Index] = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class _Alike:
    """Columns in which all jobs are alike, as long as the trace: each snapshot has the first part of them."""

    zeros: Seconds
    never: Seconds
    yes: Mask
    restart: Seconds
    grace: Seconds
    enough: Index

    @classmethod
    def of(cls, count: int, costs: Costs) -> _Alike:
        columns = cls(
            zeros=np.zeros(count),
            never=np.full(count, FOREVER),
            yes=np.ones(count, dtype=np.bool_),
            restart=np.full(count, costs.restart),
            grace=np.full(count, costs.grace),
            enough=np.full(count, _ENOUGH, dtype=np.int32),
        )
        for column in vars(columns).values():
            column.flags.writeable = False  # all snapshots share them
        return columns


class Planned:
    """Muster's planner.

    Args:
        shares: the queues, every one that the trace names among them.
        policy: which of its parts are on. Explanations are made for `reasons` alone.
        replaces: gangs that lose a node keep the others.
    """

    def __init__(
        self,
        name: str,
        workload: Workload,
        shares: tuple[QueueShare, ...],
        policy: Policy = DEFAULT,
        *,
        replaces: bool = True,
    ) -> None:
        self.name, self.replaces = name, replaces
        self._policy = replace(policy, explain=False)
        self._workload = workload
        cluster, trace = workload.cluster, workload.trace
        self._queues = planner_queues(cluster, shares)
        row = {share.name: index for index, share in enumerate(shares)}
        self._queue = np.array([row[queue] for queue in trace.queues], dtype=np.int32)[trace.queue]
        self._usage = Usage(cluster, self._queues.parents, half_lives(cluster, shares, len(self._queues.names)))
        self._priority = np.minimum(trace.priority, self._queues.priorities_max[self._queue]).astype(np.int32)
        self._whole = workload.requests * workload.workers[:, None]
        self._alike = _Alike.of(len(trace), cluster.file.costs)
        self._nodes = Nodes(
            names=cluster.names,
            free=cluster.allocatable,
            allocatable=cluster.allocatable,
            usable=np.ones(len(cluster.names), dtype=np.bool_),
            domains=cluster.domains,
            flavours=cluster.flavour,
        )

    def decide(self, world: World, now: float) -> Plan:
        """What Muster would do now."""
        return plan(self.snapshot(world, now), self._policy)

    def reasons(self, world: World, now: float) -> dict[int, str]:
        """The planner's sentences, by job."""
        explained = plan(self.snapshot(world, now), replace(self._policy, explain=True))
        told = {waiting.uid: waiting.message for waiting in explained.waiting}
        return {job: told[uid] for job in world.present if (uid := self._workload.uids[job]) in told}

    def snapshot(self, world: World, now: float) -> Snapshot:
        """The world as the planner sees it."""
        work, trace = self._workload, self._workload.trace
        rows, holding, reserved = _rows(world)
        count, placed = len(rows), holding + reserved
        states = np.full(count, JobState.PENDING, dtype=np.int32)
        states[:holding] = JobState.HOLDING
        states[holding:placed] = JobState.RESERVED
        where = self._where(world, rows, holding, reserved)
        held = np.zeros((count, len(RESOURCES)), dtype=np.int64)
        held[:placed] = self._held(rows[:placed], where)
        workers, flavours = world.workers[rows], work.flavour[rows]
        if work.alternatives is not None:
            flavours[:placed] = work.cluster.flavour[where.nodes[where.first[:placed]]]
        left = trace.limit[rows] - (trace.duration[rows] - world.left[rows])
        if work.sizes is not None:
            left /= workers / work.workers[rows]
        jobs = Jobs(
            uids=tuple(map(work.uids.__getitem__, rows.tolist())),
            states=states,
            queues=self._queue[rows],
            flavours=flavours,
            priorities=self._priority[rows],
            submitted=trace.submit[rows],
            workers=workers,
            requests=work.requests[rows],
            filters=work.flavour[rows],
            modes=work.mode[rows],
            levels=work.level[rows],
            held=held,
            sizes=Sizes.fixed(workers) if work.sizes is None else _sizes(work.sizes, rows),
            terms=self._terms(world, rows, left, holding, now),
            runs=self._runs(world, rows, left, holding, where, now),
        )
        return Snapshot(
            resources=RESOURCES,
            flavours=work.cluster.flavours,
            levels=work.cluster.levels,
            nodes=replace(self._nodes, free=world.free.copy(), usable=world.usable.copy()),
            queues=replace(self._queues, shares_used=self._usage.until(now, self._used(jobs, holding))),
            jobs=jobs,
            eligible=work.filters,
            now=now,
        )

    def _held(self, rows: Int, where: _Where) -> Int:
        """What these jobs hold, or are promised, each R."""
        if self._workload.sizes is None and self._workload.trace.spares is None:
            return self._whole[rows]
        there = np.concatenate([[0], np.cumsum(where.nodes != NONE)])[where.first[: len(rows) + 1]]
        return self._workload.requests[rows] * np.diff(there)[:, None]

    def _where(self, world: World, rows: Int, holding: int, reserved: int) -> _Where:
        """Nodes of those that have some, spares that are lacking included, then of those that are promised some."""
        placed, spares = holding + reserved, self._workload.trace.spares
        nodes = [*world.placed.values(), *(world.promised[job] for job in rows[holding:placed].tolist())]
        if spares is not None:
            lacking = np.maximum(
                0, spares[rows[:holding]] + world.workers[rows[:holding]] - list(map(len, nodes[:holding]))
            )
            for at in np.flatnonzero(lacking).tolist():
                nodes[at] = np.append(nodes[at], np.full(lacking[at], NONE, dtype=np.int32))
        first = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(list(map(len, nodes)), out=first[1 : placed + 1])
        first[placed + 1 :] = first[placed]
        return _Where(first, np.concatenate(nodes) if nodes else _NOWHERE)

    def _used(self, jobs: Jobs, holding: int) -> Int:
        """Q x V, GPUs in use."""
        shape = (len(self._queues.names), len(self._workload.cluster.flavours))
        cells = jobs.queues[:holding].astype(np.int64) * shape[1] + jobs.flavours[:holding]
        used = np.bincount(cells, jobs.held[:holding, GPU], shape[0] * shape[1])
        return used.astype(np.int64).reshape(shape)

    def _terms(self, world: World, rows: Int, left: Seconds, holding: int, now: float) -> Terms:
        """`left`: seconds of work that each may still do. The first `holding` rows have nodes."""
        count, alike, restart = len(rows), self._alike, world.costs.restart
        others, shapes, deadline = self._workload.alternatives, self._workload.shapes, self._workload.trace.deadline
        opens, closes, longest = self._open(world, rows, holding, now)
        ran = world.epoch[rows]
        ran_before = ran > 0
        limit = left + np.where(ran_before, restart, 0.0)
        ran_before[:holding] = ran[:holding] > 1
        return Terms(
            preemptible=self._workload.trace.preemptible[rows],
            saves=alike.yes[:count],
            shapes=(PLAIN,) * count if shapes is None else tuple(map(shapes.__getitem__, rows.tolist())),
            alternatives=((),) * count if others is None else tuple(map(others.__getitem__, rows.tolist())),
            opens=opens,
            limit=np.minimum(limit, longest),
            estimate=limit,
            length=left + np.where(ran_before, restart, 0.0),
            deadlines=alike.never[:count] if deadline is None else deadline[rows],
            reclaims=alike.yes[:count],
            closes=closes,
        )

    def _open(self, world: World, rows: Int, holding: int, now: float) -> tuple[Seconds, Seconds, Seconds]:
        """As `Terms.opens` and `Terms.closes`, and what a run takes at most by its window, in seconds."""
        work, count = self._workload, len(rows)
        never = self._alike.never[:count]
        if work.window is None:
            return self._alike.zeros[:count], never, never
        opens, closes, longest = np.zeros(count), never.copy(), never.copy()
        known: dict[tuple[int, float], Bounds] = {}
        for at in np.flatnonzero(work.window[rows] != NONE).tolist():
            job = int(rows[at])
            which = int(work.window[job])
            if not work.windows[which].stops and (at < holding or world.goes_on(job)):
                continue  # who may finish goes on at any time
            takes = world.costs.restart if at < holding else world.start_takes(job)
            if (which, takes) not in known:
                known[which, takes] = work.windows[which].bounds(now, takes)
            opens[at], closes[at], longest[at] = known[which, takes]
        longest[:holding] = FOREVER  # of those that run, `Runs.bound` says when they have to stop
        return opens, closes, longest

    def _runs(self, world: World, rows: Int, left: Seconds, holding: int, where: _Where, now: float) -> Runs:
        count, running, alike = len(rows), rows[:holding], self._alike
        bound = alike.never[:count].copy()
        bound[:holding] = world.working[running] + left[:holding]
        np.minimum(bound[:holding], world.closes[running] + world.costs.grace, out=bound[:holding])
        started, saved = np.zeros(count), np.zeros(count)
        started[:holding] = world.started[running]
        saved[:holding] = world.safe_until(running, now)
        yields = np.zeros(count, dtype=np.bool_)
        yields[:holding] = world.yields[running]
        moves = self._moves(world, rows, holding)
        return Runs(
            first=where.first,
            placed=where.nodes,
            leaving=world.state[rows] == int(State.LEAVING),
            started=started,
            saved=saved,
            restart=alike.restart[:count],
            grace=alike.grace[:count],
            ends=bound,
            bound=bound,
            budget=alike.enough[:count],
            stops=world.stops[rows],
            yields=yields,
            beneficiary=_beneficiaries(world, rows),
            promised_first=None if moves is None else moves[0],
            promised=None if moves is None else moves[1],
        )

    @staticmethod
    def _moves(world: World, rows: Int, holding: int) -> tuple[Int, Index] | None:
        """Nodes promised to jobs that are on others, as `Runs.promised_first` and `promised`."""
        moving = world.promised.keys() & world.placed.keys()
        if not moving:
            return None
        nodes = [world.promised[job] if job in moving else _NOWHERE for job in rows[:holding].tolist()]
        first = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in nodes], out=first[1 : holding + 1])
        first[holding + 1 :] = first[holding]
        return first, np.concatenate(nodes)


class _Where(NamedTuple):
    """As `Runs.first` and `Runs.placed`."""

    first: Int
    nodes: Index


def _sizes(every: Sizes, rows: Int) -> Sizes:
    """Those of the jobs that are present."""
    return Sizes(every.least[rows], every.most[rows], every.step[rows], every.partial[rows])


def _rows(world: World) -> tuple[Int, int, int]:
    """Jobs that are present: those with nodes, those with promises only, those that wait. How many of the first two."""
    reserved = [job for job in world.promised if job not in world.placed]
    waiting = world.jobs_in(State.PENDING).tolist()
    return np.array([*world.placed, *reserved, *waiting], dtype=np.int64), len(world.placed), len(reserved)


def _beneficiaries(world: World, rows: Int) -> Index:
    """Row of the job for which each is leaving."""
    asked = world.beneficiary[rows]
    beneficiary = np.full(len(rows), NONE, dtype=np.int32)
    leaving = np.flatnonzero(asked != NONE)
    if leaving.size:
        row = dict(zip(rows.tolist(), range(len(rows)), strict=True))
        beneficiary[leaving] = [row.get(job, NONE) for job in asked[leaving].tolist()]
    return beneficiary
