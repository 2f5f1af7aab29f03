"""The operator's own planner as a policy: the simulated world, frozen into its arrays.

What never changes (requests, queues, shapes) is made once and only gathered here; what nodes have free is kept by the
world as jobs come and go. So a snapshot costs a few dozen array operations, whatever happened since the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from muster.scheduling.beyond import beside_their_bases
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
    TopologyMode,
)
from muster.simulate.cluster import GPU, RESOURCES, Costs, QueueShare
from muster.simulate.parts import NOWHERE, Parts
from muster.simulate.shares import Usage, half_lives, planner_queues
from muster.simulate.windows import Bounds
from muster.simulate.workload import Workload
from muster.simulate.world import State, World

_ENOUGH: Final = np.iinfo(np.int32).max
"""Preemptions that a job may have."""


@dataclass(frozen=True)
class _Alike:
    """Columns in which all jobs are alike, for as many rows as there may be: each snapshot has the first part of
    them."""

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
        self._alike = _Alike.of(len(trace) * (2 if workload.beyond is not None else 1), cluster.file.costs)
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
        work, trace, parts = self._workload, self._workload.trace, Parts.of(world)
        rows, holding, placed = parts.jobs, parts.holding, parts.placed
        count = len(rows)
        states = np.full(count, JobState.PENDING, dtype=np.int32)
        states[:holding] = JobState.HOLDING
        states[holding:placed] = JobState.RESERVED
        where = self._where(world, parts)
        held = np.zeros((count, len(RESOURCES)), dtype=np.int64)
        held[:placed] = self._held(rows[:placed], where)
        flavours = self._flavours(parts)
        filters = flavours.copy()
        if work.alternatives is not None:
            some = np.flatnonzero(np.diff(where.first[: placed + 1]))
            flavours[some] = work.cluster.flavour[where.nodes[where.first[some]]]
        left = trace.limit[rows] - (trace.duration[rows] - world.left[rows])
        if work.sizes is not None:
            left /= world.workers[rows] / work.workers[rows]
        modes, levels = work.mode[rows], work.level[rows]
        if parts.behind is not None:  # where one domain must hold the gang, the base tells which
            free = parts.behind & (modes == int(TopologyMode.REQUIRED))
            modes[free], levels[free] = int(TopologyMode.UNCONSTRAINED), NONE
        workers = self._workers(world, parts, where)
        jobs = Jobs(
            uids=self._uids(parts),
            states=states,
            queues=self._queue[rows],
            flavours=flavours,
            priorities=self._priority[rows],
            submitted=trace.submit[rows],
            workers=workers,
            requests=work.requests[rows],
            filters=filters,
            modes=modes,
            levels=levels,
            held=held,
            sizes=Sizes.fixed(workers) if work.sizes is None else _sizes(work, work.sizes, parts),
            terms=self._terms(world, rows, left, holding, now),
            runs=self._runs(world, parts, left, where, now),
            beyond=parts.beyond(work),
        )
        jobs, eligible = beside_their_bases(jobs, work.filters, work.cluster.domains)
        return Snapshot(
            resources=RESOURCES,
            flavours=work.cluster.flavours,
            levels=work.cluster.levels,
            nodes=replace(self._nodes, free=world.free.copy(), usable=world.usable.copy()),
            queues=replace(self._queues, shares_used=self._usage.until(now, self._used(jobs, holding))),
            jobs=jobs,
            eligible=eligible,
            now=now,
        )

    def _uids(self, parts: Parts) -> tuple[str, ...]:
        uids = map(self._workload.uids.__getitem__, parts.jobs.tolist())
        if parts.behind is None:
            return tuple(uids)
        return tuple(
            f"{uid}+beyond" if behind else uid for uid, behind in zip(uids, parts.behind.tolist(), strict=True)
        )

    def _flavours(self, parts: Parts) -> Index:
        """Of each row the nodes that it takes first."""
        work = self._workload
        flavours = work.flavour[parts.jobs]
        if work.beyond is not None and parts.behind is not None:
            flavours[parts.behind] = work.beyond[parts.jobs[parts.behind]]
        return flavours

    def _workers(self, world: World, parts: Parts, where: _Where) -> Index:
        """Of a base its own, and of what is beyond one as many as there are, or are promised."""
        work = self._workload
        workers = world.workers[parts.jobs]
        if work.beyond is not None and work.sizes is not None and parts.behind is not None:
            based = work.beyond[parts.jobs] != NONE
            workers[based] = work.sizes.least[parts.jobs[based]]
            promised = [len(each) for each in parts.promised_nodes(world, 0, parts.placed)]
            there = np.maximum(np.diff(where.first[: parts.placed + 1]), 0)
            for at in np.flatnonzero(parts.behind).tolist():
                workers[at] = there[at] or promised[at]
        return workers

    def _held(self, rows: Int, where: _Where) -> Int:
        """What these jobs hold, or are promised, each R."""
        if self._workload.sizes is None and self._workload.trace.spares is None:
            return self._whole[rows]
        there = np.concatenate([[0], np.cumsum(where.nodes != NONE)])[where.first[: len(rows) + 1]]
        return self._workload.requests[rows] * np.diff(there)[:, None]

    def _where(self, world: World, parts: Parts) -> _Where:
        """Nodes of those that have some, spares that are lacking included, then of those that are promised some."""
        rows, holding, placed, spares = parts.jobs, parts.holding, parts.placed, self._workload.trace.spares
        nodes = [*parts.placed_nodes(world), *parts.promised_nodes(world, holding, placed)]
        if spares is not None:
            lacking = np.maximum(
                0, spares[rows[:holding]] + world.workers[rows[:holding]] - list(map(len, nodes[:holding]))
            )
            if parts.behind is not None:
                lacking[self._workload.beyond[rows[:holding]] != NONE] = 0  # type: ignore[index]  # jobs have a base
            for at in np.flatnonzero(lacking).tolist():
                nodes[at] = np.append(nodes[at], np.full(lacking[at], NONE, dtype=np.int32))
        first = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(list(map(len, nodes)), out=first[1 : placed + 1])
        first[placed + 1 :] = first[placed]
        return _Where(first, np.concatenate(nodes) if nodes else NOWHERE)

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
        opens, closes, reopens, longest = self._open(world, rows, holding, now)
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
            limit=np.minimum(limit + self._longer_with_fewest(rows, left, holding), longest),
            estimate=limit,
            length=left + np.where(ran_before, restart, 0.0),
            deadlines=alike.never[:count] if deadline is None else deadline[rows],
            reclaims=alike.yes[:count],
            closes=closes,
            reopens=reopens,
        )

    def _longer_with_fewest(self, rows: Int, left: Seconds, holding: int) -> Seconds | float:
        """Seconds by which a run takes longer that starts with the fewest workers, and not with as many as it asks for:
        what is enforced is its work. Of those with nodes it is known with how many they run."""
        work = self._workload
        if work.sizes is None:
            return 0.0
        fewest = np.where(work.sizes.partial[rows], work.sizes.least[rows], work.workers[rows])
        longer: Seconds = np.where(np.isfinite(left), left, 0.0) * (work.workers[rows] / fewest - 1)
        longer[:holding] = 0.0
        return longer

    def _open(self, world: World, rows: Int, holding: int, now: float) -> tuple[Seconds, Seconds, Seconds, Seconds]:
        """As `Terms.opens`, `closes` and `reopens`, and what a run takes at most by its window, in seconds."""
        work, count = self._workload, len(rows)
        never = self._alike.never[:count]
        if work.window is None:
            return self._alike.zeros[:count], never, self._alike.zeros[:count], never
        opens, closes, reopens, longest = np.zeros(count), never.copy(), np.zeros(count), never.copy()
        known: dict[tuple[int, float], Bounds] = {}
        for at in np.flatnonzero(work.window[rows] != NONE).tolist():
            job = int(rows[at])
            which = int(work.window[job])
            if not work.windows[which].stops and (at < holding or world.goes_on(job)):
                continue  # who may finish goes on at any time
            takes = world.costs.restart if at < holding else world.start_takes(job)
            if (which, takes) not in known:
                known[which, takes] = work.windows[which].bounds(now, takes)
            opens[at], closes[at], reopens[at], longest[at] = known[which, takes]
        longest[:holding] = FOREVER  # of those that run, `Runs.bound` says when they have to stop
        return opens, closes, reopens, longest

    def _runs(self, world: World, parts: Parts, left: Seconds, where: _Where, now: float) -> Runs:
        rows, holding = parts.jobs, parts.holding
        count, running, alike = len(rows), rows[:holding], self._alike
        bound = alike.never[:count].copy()
        bound[:holding] = world.working[running] + left[:holding]
        np.minimum(bound[:holding], world.closes[running] + world.costs.grace, out=bound[:holding])
        started, saved = np.zeros(count), np.zeros(count)
        started[:holding] = world.started[running]
        saved[:holding] = world.safe_until(running, now)
        yields = np.zeros(count, dtype=np.bool_)
        yields[: parts.placed] = world.yields[rows[: parts.placed]]
        moves = self._moves(world, parts)
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
            beneficiary=parts.beneficiaries(world),
            promised_first=None if moves is None else moves[0],
            promised=None if moves is None else moves[1],
        )

    @staticmethod
    def _moves(world: World, parts: Parts) -> tuple[Int, Index] | None:
        """Nodes promised to jobs that are on others, as `Runs.promised_first` and `promised`."""
        if not world.promised.keys() & world.placed.keys():
            return None
        nodes, holding = parts.promised_nodes(world, 0, parts.holding), parts.holding
        first = np.zeros(len(parts.jobs) + 1, dtype=np.int64)
        np.cumsum([len(one) for one in nodes], out=first[1 : holding + 1])
        first[holding + 1 :] = first[holding]
        return first, np.concatenate(nodes)


class _Where(NamedTuple):
    """As `Runs.first` and `Runs.placed`."""

    first: Int
    nodes: Index


def _sizes(work: Workload, every: Sizes, parts: Parts) -> Sizes:
    """Those of the jobs that are present. A base has one size, and what is beyond it may shrink to nothing."""
    rows = parts.jobs
    sizes = Sizes(every.least[rows], every.most[rows], every.step[rows], every.partial[rows])
    if work.beyond is not None and parts.behind is not None:
        based = work.beyond[rows] != NONE
        sizes.most[parts.behind] -= sizes.least[parts.behind]
        sizes.least[parts.behind] = 0
        base = based & ~parts.behind
        sizes.most[base], sizes.step[base], sizes.partial[based] = sizes.least[base], 1, False
    return sizes
