"""A small operator in plain Python: jobs and nodes by name, plans carried out as the executor does.

It holds what the planner's arrays are made of, so that tests can let time pass: victims go when a test says so, jobs
finish, nodes fail, quotas change.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from muster.scheduling.plan import Plan
from muster.scheduling.snapshot import JobState, Preempts, Sizes, Snapshot

from .cases import CPU, GPU, RESOURCES, Job, Node, Queue, snapshot


@dataclass
class Live:
    """A job that is not finished.

    Attributes:
        job: as submitted; `workers` is its wish.
        on: nodes by rank while it runs.
        partial: it may start with fewer workers than its wish.
        promised: nodes that it starts on, as soon as its victims, or its own old pods, are gone.
        beneficiary: for whom it is being ended; its own uid when it moves, or starts again.
        stops: how often it was stopped for others.
    """

    job: Job
    least: int = 0
    most: int = 0
    step: int = 1
    partial: bool = True
    preemptible: bool = True
    on: tuple[str, ...] = ()
    promised: tuple[str, ...] = ()
    leaving: bool = False
    beneficiary: str = ""
    yields: bool = False
    stops: int = 0
    started: float = 0.0
    saved: float = 0.0

    @property
    def uid(self) -> str:
        return self.job.uid

    @property
    def state(self) -> JobState:
        if self.on:
            return JobState.HOLDING
        return JobState.RESERVED if self.promised else JobState.PENDING


@dataclass
class Operating:
    """The cluster and its jobs at one moment."""

    nodes: dict[str, Node]
    queues: dict[str, Queue]
    jobs: dict[str, Live] = field(default_factory=dict)
    now: float = 10_000.0

    def submit(self, live: Live) -> None:
        self.jobs[live.uid] = replace(
            live, job=replace(live.job, submitted=self.now), least=live.least or live.job.workers
        )

    def used(self, node: str) -> tuple[int, int]:
        """(GPUs, cores) that pods hold on a node, those of leaving jobs included."""
        pods = [live.job for live in self.jobs.values() for name in live.on if name == node]
        return sum(pod.gpus for pod in pods), sum(pod.cores for pod in pods)

    def snapshot(self) -> Snapshot:
        lives = [self.jobs[uid] for uid in sorted(self.jobs)]
        hosts = []
        for name in sorted(self.nodes):
            gpus, cores = self.used(name)
            hosts.append(replace(self.nodes[name], used_gpus=gpus, used_cores=cores))
        rows = [
            replace(
                live.job,
                on=live.on or live.promised,
                reserved=live.state is JobState.RESERVED,
                leaving=live.leaving,
                beneficiary=live.beneficiary if live.beneficiary in self.jobs else "",
                then=live.promised if live.on else (),
            )
            for live in lives
        ]
        world = snapshot(hosts, rows, list(self.queues.values()))
        jobs = world.jobs
        most = np.array([max(live.most, live.job.workers) for live in lives], dtype=np.int32)
        sizes = Sizes(
            least=np.array([live.least for live in lives], dtype=np.int32),
            most=most,
            step=np.array([live.step for live in lives], dtype=np.int32),
            partial=np.array([live.partial for live in lives], dtype=np.bool_),
        )
        runs = replace(
            jobs.runs,
            started=np.array([live.started for live in lives]),
            saved=np.array([max(live.started, live.saved) for live in lives]),
            restart=np.full(len(lives), 10.0),
            grace=np.full(len(lives), 30.0),
            stops=np.array([live.stops for live in lives], dtype=np.int32),
            yields=np.array([live.yields for live in lives], dtype=np.bool_),
        )
        terms = replace(jobs.terms, preemptible=np.array([live.preemptible for live in lives], dtype=np.bool_))
        # Only preemptible jobs borrow, so this lets a queue take back all that it lent.
        queues = replace(world.queues, reclaim=np.full(len(world.queues.names), Preempts.ANY, dtype=np.int32))
        return replace(world, now=self.now, queues=queues, jobs=replace(jobs, sizes=sizes, runs=runs, terms=terms))

    def carry_out(self, plan: Plan) -> None:
        """Promises first, then evictions, then starts, as the executor does."""
        names = sorted(self.nodes)
        for replacement in plan.replacements:
            self.jobs[replacement.uid].promised = self.promised_by(plan, replacement.uid)
        for promise in plan.reduced:
            self.jobs[promise.uid].promised = self.promised_by(plan, promise.uid)
        for uid in plan.broken:
            live = self.jobs[uid]
            live.promised, live.beneficiary, live.yields = (), "", live.yields and bool(live.on)
        for promise in plan.promises:
            live = self.jobs[promise.uid]
            live.promised, live.yields = tuple(names[node] for node in promise.nodes), live.yields or promise.yields
        onward = {promise.uid for promise in plan.promises}
        for eviction in plan.evictions:
            victim = self.jobs[eviction.uid]
            victim.leaving = True
            victim.beneficiary = eviction.uid if eviction.uid in onward else eviction.beneficiary
        for admission in plan.admissions:
            live = self.jobs[admission.uid]
            live.on, live.promised, live.beneficiary = tuple(names[node] for node in admission.nodes), (), ""
            live.yields, live.started = admission.yields, self.now

    def promised_by(self, plan: Plan, uid: str) -> tuple[str, ...]:
        """Nodes that a job was promised, with those that the plan gives it, or some of its workers, instead."""
        names, nodes = sorted(self.nodes), list(self.jobs[uid].promised)
        for promise in plan.reduced:
            if promise.uid == uid:
                nodes = [names[node] for node in promise.nodes.tolist()]
        for replacement in plan.replacements:
            if replacement.uid == uid:
                for index, node in zip(replacement.indexes.tolist(), replacement.nodes.tolist(), strict=True):
                    nodes[index] = names[node]
        return tuple(nodes)

    def gone(self, uid: str) -> None:
        """The last pod of a job that was told to leave is gone. It waits again, or for its promised nodes."""
        live = self.jobs[uid]
        assert live.leaving
        if live.beneficiary not in ("", uid):
            live.stops += 1
        live.on, live.leaving, live.yields = (), False, live.yields and bool(live.promised)
        live.beneficiary = uid if live.promised else ""

    def finish(self, uid: str) -> None:
        del self.jobs[uid]

    def booked(self, node: str) -> tuple[int, int]:
        """(GPUs, cores) of a node for those who stay on it and those to whom it is promised."""
        staying = [live.job for live in self.jobs.values() if not live.leaving for name in live.on if name == node]
        coming = [live.job for live in self.jobs.values() for name in live.promised if name == node]
        return sum(pod.gpus for pod in staying + coming), sum(pod.cores for pod in staying + coming)


def room_of(node: Node) -> tuple[int, int]:
    """(GPUs, cores) that jobs can have of a node."""
    have = node.allocatable()
    assert RESOURCES[GPU] == "nvidia.com/gpu"
    return have[GPU], have[CPU] // 1000 - node.fixed_cores
