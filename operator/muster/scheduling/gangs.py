"""What the planner places: a `Worker` is what one pod asks for and where it may run, a `Gang` so many of them and how
close they must be."""

from __future__ import annotations

from dataclasses import dataclass

from muster.scheduling.snapshot import ONE_A_NODE, PLAIN, Shape, TopologyMode


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
    """Extended resources (`nvidia.com/gpu`, `rdma/hca`) have a domain before a slash; host ports and the like are
    ours."""
    return "/" in resource and not resource.startswith(ONE_A_NODE)
