"""The small operator of `operating.py` with all that gangs may say: slices, balance, spares, kinds of nodes, windows;
nodes that vanish, workers that are lost, and a tree of queues with weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from muster.scheduling.plan import Plan
from muster.scheduling.snapshot import (
    FOREVER,
    PLAIN,
    UNLIMITED,
    Alternative,
    Index,
    Int,
    Jobs,
    JobState,
    Shape,
    Sizes,
    Snapshot,
)

from .cases import Job, Node, Queue, snapshot
from .operating import room_of

ANY, ON_DEMAND, SPOT = range(3)
"""Filters, and the flavours of GPUs: `cases` knows the first two of these."""


@dataclass
class Run:
    """A job that is not finished.

    Attributes:
        job: as submitted; `workers` is its wish.
        spot: it takes spot nodes where there are no others, from this moment on; None: it takes what there is.
        on: nodes by rank while it runs, spares behind; "" for a spare that it lacks.
        promised: nodes that it starts on, in the same way.
        flavour, next: of its nodes, and of the promised ones.
        started, saved: when it was placed, and when it last committed a checkpoint; the same before the first.
        lost: indexes of workers that are made anew while the others wait.
        shrinks: when it goes on without them, if it may.
    """

    job: Job
    least: int
    most: int
    shape: Shape = PLAIN
    spot: float | None = None
    preemptible: bool = True
    opens: float = 0.0
    on: list[str] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    flavour: int = ON_DEMAND
    next: int = ON_DEMAND
    leaving: bool = False
    beneficiary: str = ""
    yields: bool = False
    stops: int = 0
    started: float = 0.0
    saved: float = 0.0
    lost: set[int] = field(default_factory=set)
    shrinks: float = FOREVER

    @property
    def state(self) -> JobState:
        if self.on:
            return JobState.HOLDING
        return JobState.RESERVED if self.promised else JobState.PENDING

    @property
    def plain(self) -> int:
        """The flavour that it names first: 0 for one without GPUs."""
        return ON_DEMAND if self.job.gpus else 0


@dataclass
class Cluster:
    """Nodes and jobs at one moment.

    Attributes:
        spot: names of the nodes that are.
        away: nodes that have vanished.
    """

    nodes: dict[str, Node]
    queues: dict[str, Queue]
    spot: frozenset[str]
    runs: dict[str, Run] = field(default_factory=dict)
    away: dict[str, Node] = field(default_factory=dict)
    now: float = 10_000.0

    def submit(self, run: Run) -> None:
        run.job = replace(run.job, submitted=self.now)
        run.flavour = run.next = run.plain
        self.runs[run.job.uid] = run

    # -- what the planner sees ---------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        runs = [self.runs[uid] for uid in sorted(self.runs)]
        hosts = [self._host(name) for name in sorted(self.nodes)]
        rows = [
            replace(
                run.job,
                on=tuple(run.on or run.promised),
                reserved=run.state is JobState.RESERVED,
                leaving=run.leaving,
                beneficiary=run.beneficiary if run.beneficiary in self.runs else "",
                then=tuple(run.promised) if run.on else (),
            )
            for run in runs
        ]
        world = self._with_kinds(snapshot(hosts, rows, list(self.queues.values())), runs)
        return replace(world, now=self.now, jobs=self._jobs(world, runs))

    def _host(self, name: str) -> Node:
        pods = [run.job for run in self.runs.values() for node in run.on if node == name]
        return replace(
            self.nodes[name], used_gpus=sum(pod.gpus for pod in pods), used_cores=sum(pod.cores for pod in pods)
        )

    def _with_kinds(self, world: Snapshot, runs: list[Run]) -> Snapshot:
        """Filters and flavours by kind of node; no quota names spot."""
        spot = np.array([name in self.spot for name in world.nodes.names], dtype=np.bool_)
        nodes = replace(world.nodes, flavours=np.where(spot, SPOT, ON_DEMAND).astype(np.int32))

        def wider(limits: Int) -> Int:
            return np.concatenate([limits, np.full_like(limits[:, :1], UNLIMITED)], axis=1)

        shares = world.queues
        queues = replace(
            shares,
            nominal=wider(shares.nominal),
            borrowing=wider(shares.borrowing),
            lending=wider(shares.lending),
        )
        eligible = np.stack([np.ones_like(spot), ~spot, spot])
        return replace(world, nodes=nodes, queues=queues, flavours=("", "H100", "H100/spot"), eligible=eligible)

    def _jobs(self, world: Snapshot, runs: list[Run]) -> Jobs:
        jobs = world.jobs
        least = np.array([run.least for run in runs], dtype=np.int32)
        most = np.array([run.most for run in runs], dtype=np.int32)
        there = [len([node for node in run.on or run.promised if node]) for run in runs]
        terms = replace(
            jobs.terms,
            shapes=tuple(run.shape for run in runs),
            alternatives=tuple(
                () if run.spot is None else (Alternative(SPOT, SPOT if run.job.gpus else 0, run.spot),) for run in runs
            ),
            preemptible=np.array([run.preemptible for run in runs], dtype=np.bool_),
            opens=np.array([run.opens for run in runs]),
        )
        lost = {
            row: np.array(sorted(run.lost), dtype=np.int64)
            for row, run in enumerate(runs)
            if run.lost and run.on and not run.leaving
        }
        standing = replace(
            jobs.runs,
            started=np.array([run.started for run in runs]),
            saved=np.array([run.saved for run in runs]),
            restart=np.full(len(runs), 10.0),
            grace=np.full(len(runs), 30.0),
            stops=np.array([run.stops for run in runs], dtype=np.int32),
            yields=np.array([run.yields for run in runs], dtype=np.bool_),
            lost=lost,
            shrinks={row: runs[row].shrinks for row in lost},
        )
        flavours = [run.next if run.state is JobState.RESERVED else run.flavour for run in runs]
        filters = [ANY if run.spot is None and not run.job.gpus else ON_DEMAND for run in runs]
        steps = np.ones(len(runs), dtype=np.int32)
        return replace(
            jobs,
            flavours=np.array(flavours, dtype=np.int32),
            filters=np.array(filters, dtype=np.int32),
            held=jobs.requests * np.array(there, dtype=np.int64)[:, None],
            sizes=Sizes(least, most, steps, least < jobs.workers),
            terms=terms,
            runs=standing,
        )

    # -- what a plan does --------------------------------------------------------------------------------------------

    def carry_out(self, plan: Plan) -> None:
        """As the executor does: promises first, then evictions, then starts."""
        names = sorted(self.nodes)

        def named(nodes: Index) -> list[str]:
            return [names[node] if node >= 0 else "" for node in nodes.tolist()]

        for each in plan.replacements:
            run = self.runs[each.uid]
            places = run.promised if run.promised else run.on
            for index, node in zip(each.indexes.tolist(), named(each.nodes), strict=True):
                places += [""] * (index + 1 - len(places))
                places[index] = node
        for promise in plan.reduced:
            self.runs[promise.uid].promised = named(promise.nodes)
        for uid in plan.broken:
            run = self.runs[uid]
            run.promised, run.beneficiary = [], ""
            if not run.on:
                run.flavour, run.yields = run.plain, False
                run.next = run.plain
        for promise in plan.promises:
            run = self.runs[promise.uid]
            run.promised, run.next = named(promise.nodes), promise.flavour if promise.flavour >= 0 else run.flavour
            run.yields |= promise.yields
        onward = {promise.uid for promise in plan.promises}
        for eviction in plan.evictions:
            victim = self.runs[eviction.uid]
            victim.leaving, victim.lost = True, set()
            victim.beneficiary = eviction.uid if eviction.uid in onward else eviction.beneficiary
        for admission in plan.admissions:
            run = self.runs[admission.uid]
            run.flavour = admission.flavour if admission.flavour >= 0 else run.next
            run.on, run.promised, run.beneficiary = named(admission.nodes), [], ""
            if run.shape.spares:
                run.on += [""] * (run.job.workers + run.shape.spares - len(run.on))
            run.yields, run.started, run.saved = admission.yields, self.now, self.now

    # -- what happens ------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """All who run commit a checkpoint."""
        for run in self.runs.values():
            if run.on and not run.leaving:
                run.saved = self.now

    def gone(self, uid: str) -> None:
        """The last pod of a gang that stops is gone."""
        run = self.runs[uid]
        if run.beneficiary not in ("", uid):
            run.stops += 1
        run.on, run.leaving, run.lost, run.shrinks = [], False, set(), FOREVER
        run.yields &= bool(run.promised)
        run.beneficiary = uid if run.promised else ""
        if not run.promised:
            run.flavour = run.next = run.plain

    def fails(self, uid: str, *, keeps: bool) -> None:
        """A gang ends and starts again: on the nodes that it was on, or in the queue."""
        run = self.runs[uid]
        run.promised, run.next = (list(run.on), run.flavour) if keeps else ([], run.plain)
        self.gone(uid)

    def vanish(self, name: str) -> None:
        """A node is gone with the pods on it."""
        self.away[name] = self.nodes.pop(name)
        for run in self.runs.values():
            if run.on and not run.leaving:
                workers = len(run.on) - run.shape.spares
                run.lost |= {index for index, node in enumerate(run.on[:workers]) if node == name}

    def comes_back(self, name: str) -> None:
        self.nodes[name] = self.away.pop(name)

    def booked(self, name: str) -> Counter[str]:
        """Of a node: GPUs and cores for those who stay on it and those to whom it is promised."""
        asked = Counter[str]()
        for run in self.runs.values():
            count = run.promised.count(name) + (0 if run.leaving else run.on.count(name))
            asked.update(gpus=count * run.job.gpus, cores=count * run.job.cores)
        return asked

    def fits(self, name: str) -> bool:
        gpus, cores = room_of(self.nodes[name])
        booked = self.booked(name)
        return booked["gpus"] <= gpus and booked["cores"] <= cores
