"""Jobs that are alike to the planner, told apart once, so that ten thousand jobs of few shapes cost as much as a few.

A `Worker` is what one pod asks for and where it may run. A `Gang` is so many of them and how close they must be.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.scheduling.snapshot import NONE, PLAIN, Int, Shape, Snapshot, TopologyMode


@dataclass(frozen=True)
class Worker:
    """
    Attributes:
        asks: (resource, amount) of everything that one worker asks for, amounts above zero.
        filter: index into `Snapshot.eligible`.
        accelerated: whether it asks for an accelerator.
    """

    asks: tuple[tuple[int, int], ...]
    filter: int
    accelerated: bool


@dataclass(frozen=True)
class Gang:
    """
    Attributes:
        worker: index into the list of workers.
        size: number of workers, all or none; spares are not among them.
        mode: PREFERRED without a level is the same as UNCONSTRAINED, and is made so here.
        level: NONE with UNCONSTRAINED, and with a REQUIRED level that the cluster does not know.
        shape: slices, balance and spares.
    """

    worker: int
    size: int
    mode: TopologyMode
    level: int
    shape: Shape = PLAIN

    @property
    def total(self) -> int:
        """Workers to be placed, spares included."""
        return self.size + self.shape.spares


def is_accelerator(resource: str) -> bool:
    """Extended resources (`nvidia.com/gpu`, `rdma/hca`) have a domain before a slash; host ports are ours."""
    return "/" in resource and not resource.startswith("hostport/")


def tell_apart(snapshot: Snapshot, ranked: Int) -> tuple[list[Worker], list[Gang], list[int]]:
    """The different workers, the different gangs, and the gang of each ranked job."""
    jobs = snapshot.jobs
    accelerators = {index for index, name in enumerate(snapshot.resources) if is_accelerator(name)}
    workers: dict[tuple[bytes, int], int] = {}
    gangs: dict[Gang, int] = {}
    distinct: list[Worker] = []
    gang_of: list[int] = []
    requests = jobs.requests[ranked]
    columns = (jobs.filters, jobs.workers, jobs.modes, jobs.levels)
    shapes = [jobs.terms.shapes[job] for job in ranked.tolist()]
    for row, shape, (filter_, size, mode, level) in zip(
        requests, shapes, zip(*(column[ranked].tolist() for column in columns), strict=True), strict=True
    ):
        key = (row.tobytes(), filter_)
        worker = workers.get(key)
        if worker is None:
            asks = tuple((resource, amount) for resource, amount in enumerate(row.tolist()) if amount > 0)
            worker = workers[key] = len(distinct)
            distinct.append(Worker(asks, filter_, any(resource in accelerators for resource, _ in asks)))
        gang = Gang(worker, size, *_closeness(mode, level), shape)
        gang_of.append(gangs.setdefault(gang, len(gangs)))
    return distinct, list(gangs), gang_of


def _closeness(mode: int, level: int) -> tuple[TopologyMode, int]:
    if mode == TopologyMode.UNCONSTRAINED or (mode == TopologyMode.PREFERRED and level == NONE):
        return TopologyMode.UNCONSTRAINED, NONE
    return TopologyMode(mode), level
