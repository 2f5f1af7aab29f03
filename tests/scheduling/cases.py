"""Small clusters and jobs for tests, in the fewest words. Every builder gives a valid `Snapshot`.

A cluster has three levels (block, rack, host) unless said otherwise, and two flavours: "" and "H100".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from muster.scheduling.plan import Admission, Plan, Waiting
from muster.scheduling.snapshot import (
    FOREVER,
    NONE,
    UNLIMITED,
    Index,
    Int,
    Jobs,
    JobState,
    Levels,
    Nodes,
    Queues,
    Runs,
    Sizes,
    Snapshot,
    Terms,
    TopologyMode,
)

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "pods", "hostport/TCP/8080")
CPU, MEMORY, GPU, PODS, PORT = range(len(RESOURCES))
LEVELS = ("block", "rack", "host")
FLAVOURS = ("", "H100")
GIB = 2**30


@dataclass(frozen=True)
class Node:
    """A node of 8 GPUs, 64 cores and 512 GiB, empty, in a rack of a block."""

    name: str
    block: str | None = "block-0"
    rack: str | None = "rack-0"
    gpus: int = 8
    cores: int = 64
    gib: int = 512
    pods: int = 110
    used_gpus: int = 0
    used_cores: int = 0
    used_port: bool = False
    fixed_cores: int = 0
    usable: bool = True

    def allocatable(self) -> list[int]:
        return [self.cores * 1000, self.gib * GIB, self.gpus, self.pods, 1]

    def used(self) -> list[int]:
        return [(self.used_cores + self.fixed_cores) * 1000, 0, self.used_gpus, 0, int(self.used_port)]


@dataclass(frozen=True)
class Queue:
    """Unlimited unless GPUs are given; the limits speak of H100 GPUs."""

    name: str = "research"
    gpus: int | None = None
    borrowing: int | None = None
    lending: int | None = None
    cohort: int = NONE
    open: bool = True
    parent: str | None = None
    weight: float = 1.0
    used: float = 0.0
    shortest: bool = False


@dataclass(frozen=True)
class Job:
    """A pending gang that asks for one core a worker beside its GPUs.

    Attributes:
        holding, on: it runs, on nodes of these names by rank. Take the room off `Node.used_...` yourself.
        reserved: nodes `on` are promised to it instead.
        leaving, beneficiary: it runs and is being ended, for the job of that uid.
        then: it runs, and is being moved to these nodes.
        length: seconds that it is expected to run.
    """

    uid: str
    workers: int = 1
    gpus: int = 8
    cores: int = 1
    gib: int = 0
    port: bool = False
    queue: str | None = "research"
    priority: int = 0
    submitted: float = 0.0
    required: str | None = None
    preferred: str | None = None
    only_on: tuple[str, ...] | None = None
    holding: bool = False
    on: tuple[str, ...] = ()
    reserved: bool = False
    leaving: bool = False
    beneficiary: str = ""
    then: tuple[str, ...] = ()
    length: float = FOREVER

    def request(self) -> list[int]:
        return [self.cores * 1000, self.gib * GIB, self.gpus, 1, int(self.port)]

    def mode(self) -> TopologyMode:
        if self.required:
            return TopologyMode.REQUIRED
        return TopologyMode.PREFERRED if self.preferred else TopologyMode.UNCONSTRAINED

    def level(self) -> int:
        name = self.required or self.preferred
        return LEVELS.index(name) if name in LEVELS else NONE


def rack(index: int, hosts: int, *, block: str = "block-0", first: int = 0, **each: int) -> list[Node]:
    """`hosts` nodes named `rack-I-host-J`."""
    name = f"rack-{index}"
    return [Node(f"{name}-host-{first + host}", block, name, **each) for host in range(hosts)]


def snapshot(nodes: Sequence[Node], jobs: Sequence[Job], queues: Sequence[Queue] = (Queue(),)) -> Snapshot:
    filters = list(dict.fromkeys(job.only_on for job in jobs)) or [None]
    return Snapshot(
        resources=RESOURCES,
        flavours=FLAVOURS,
        levels=_levels(nodes),
        nodes=_nodes(nodes),
        queues=_queues(queues),
        jobs=_jobs(jobs, [queue.name for queue in queues], filters, [node.name for node in nodes]),
        eligible=np.array(
            [[only is None or node.name in only for node in nodes] for only in filters], dtype=np.bool_
        ).reshape(len(filters), len(nodes)),
    )


def _paths(node: Node) -> list[tuple[str, ...] | None]:
    """The node's domain at each level as a path, None where a label is missing."""
    path: tuple[str, ...] = ()
    paths: list[tuple[str, ...] | None] = []
    for label in (node.block, node.rack, node.name):
        broken = label is None or (paths and paths[-1] is None)
        path = (*path, label or "")
        paths.append(None if broken else path)
    return paths


def _levels(nodes: Sequence[Node]) -> Levels:
    names = []
    for level in range(len(LEVELS)):
        known = sorted({path for node in nodes if (path := _paths(node)[level]) is not None})
        names.append(tuple(path[-1] for path in known))
    return Levels(LEVELS, tuple(names))


def _nodes(nodes: Sequence[Node]) -> Nodes:
    domains = np.full((len(nodes), len(LEVELS)), NONE, dtype=np.int32)
    for level in range(len(LEVELS)):
        known = sorted({path for node in nodes if (path := _paths(node)[level]) is not None})
        for index, node in enumerate(nodes):
            path = _paths(node)[level]
            domains[index, level] = NONE if path is None else known.index(path)
    allocatable = np.array([node.allocatable() for node in nodes], dtype=np.int64).reshape(-1, len(RESOURCES))
    used = np.array([node.used() for node in nodes], dtype=np.int64).reshape(-1, len(RESOURCES))
    fixed = np.zeros_like(allocatable)
    fixed[:, CPU] = [node.fixed_cores * 1000 for node in nodes]
    return Nodes(
        names=tuple(node.name for node in nodes),
        free=allocatable - used,
        allocatable=allocatable,
        usable=np.array([node.usable for node in nodes], dtype=np.bool_),
        domains=domains,
        flavours=np.array([1 if node.gpus else NONE for node in nodes], dtype=np.int32),
        fixed=fixed,
    )


def _queues(queues: Sequence[Queue]) -> Queues:
    """The queues in their order, then a root for each cohort."""
    cohorts = sorted({queue.cohort for queue in queues if queue.cohort != NONE and queue.parent is None})
    names = [queue.name for queue in queues]
    shape = (len(queues) + len(cohorts), len(FLAVOURS), len(RESOURCES))
    nominal, borrowing, lending = (np.full(shape, UNLIMITED, dtype=np.int64) for _ in range(3))
    parents = np.full(len(queues) + len(cohorts), NONE, dtype=np.int32)
    for index, queue in enumerate(queues):
        for array, value in ((nominal, queue.gpus), (borrowing, queue.borrowing), (lending, queue.lending)):
            if value is not None:
                array[index, 1, GPU] = value
        if queue.parent is not None:
            parents[index] = names.index(queue.parent)
        elif queue.cohort != NONE:
            parents[index] = len(queues) + cohorts.index(queue.cohort)
    built = Queues.plain((*names, *(f"cohort {name}" for name in cohorts)), parents, nominal, borrowing, lending)
    for values, of in (
        (built.open, [queue.open for queue in queues]),
        (built.weights, [queue.weight for queue in queues]),
        (built.shares_used, [queue.used for queue in queues]),
        (built.shortest, [queue.shortest for queue in queues]),
    ):
        values[: len(queues)] = of
    return built


def _jobs(
    jobs: Sequence[Job], queues: list[str], filters: list[tuple[str, ...] | None], nodes: Sequence[str] = ()
) -> Jobs:
    requests = np.array([job.request() for job in jobs], dtype=np.int64).reshape(-1, len(RESOURCES))
    workers = np.array([job.workers for job in jobs], dtype=np.int32)
    held = np.array([len(job.on) or job.workers * job.holding for job in jobs], dtype=np.int64)
    states = [
        JobState.RESERVED if job.reserved else JobState.HOLDING if job.holding or job.on else JobState.PENDING
        for job in jobs
    ]
    return Jobs(
        uids=tuple(job.uid for job in jobs),
        states=np.array(states, dtype=np.int32),
        queues=np.array([queues.index(job.queue) if job.queue else NONE for job in jobs], dtype=np.int32),
        flavours=np.array([1 if job.gpus else 0 for job in jobs], dtype=np.int32),
        priorities=np.array([job.priority for job in jobs], dtype=np.int32),
        submitted=np.array([job.submitted for job in jobs], dtype=np.float64),
        workers=workers,
        requests=requests,
        filters=np.array([filters.index(job.only_on) for job in jobs], dtype=np.int32),
        modes=np.array([job.mode() for job in jobs], dtype=np.int32),
        levels=np.array([job.level() for job in jobs], dtype=np.int32),
        held=requests * held[:, None],
        sizes=Sizes.fixed(workers),
        terms=replace(Terms.plain(len(jobs)), length=np.array([job.length for job in jobs], dtype=np.float64)),
        runs=_runs(jobs, nodes),
    )


def _runs(jobs: Sequence[Job], nodes: Sequence[str]) -> Runs:
    def rows(lists: list[tuple[str, ...]]) -> tuple[Int, Index]:
        first = np.concatenate([[0], np.cumsum([len(names) for names in lists])]).astype(np.int64)
        index = [nodes.index(name) if name in nodes else NONE for names in lists for name in names]
        return first, np.array(index, dtype=np.int32)

    uids = [job.uid for job in jobs]
    first, placed = rows([job.on for job in jobs])
    promised_first, promised = rows([job.then for job in jobs])
    return replace(
        Runs.none(len(jobs)),
        first=first,
        placed=placed,
        leaving=np.array([job.leaving for job in jobs], dtype=np.bool_),
        beneficiary=np.array(
            [uids.index(job.beneficiary) if job.beneficiary in uids else NONE for job in jobs], dtype=np.int32
        ),
        promised_first=promised_first,
        promised=promised,
    )


def apply(before: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot after the plan's admissions: room taken, quota held, who yields; nothing else changed."""
    free, held = before.nodes.free.copy(), before.jobs.held.copy()
    states, yields = before.jobs.states.copy(), before.jobs.runs.yields.copy()
    for admission in plan.admissions:
        job = before.jobs.uids.index(admission.uid)
        np.subtract.at(free, admission.nodes, before.jobs.requests[job])
        held[job] = before.jobs.requests[job] * int(before.jobs.workers[job])
        states[job], yields[job] = JobState.HOLDING, admission.yields
    runs = replace(before.jobs.runs, yields=yields)
    jobs = replace(before.jobs, states=states, held=held, runs=runs)
    return replace(before, nodes=replace(before.nodes, free=free), jobs=jobs)


@dataclass(frozen=True)
class Outcome:
    """A plan with the names that a reader of a test thinks in."""

    snapshot: Snapshot
    plan: Plan
    admitted: dict[str, Admission] = field(init=False)
    waiting: dict[str, Waiting] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "admitted", {admission.uid: admission for admission in self.plan.admissions})
        object.__setattr__(self, "waiting", {waiting.uid: waiting for waiting in self.plan.waiting})

    def nodes(self, uid: str) -> list[str]:
        """Names of the nodes of a gang by rank."""
        return [self.snapshot.nodes.names[node] for node in self.admitted[uid].nodes]
