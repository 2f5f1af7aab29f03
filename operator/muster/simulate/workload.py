"""A trace on a cluster: what each job asks for, in the planner's terms. It never changes while a simulation runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.scheduling.snapshot import NONE, Index, Int, Mask, TopologyMode
from muster.simulate.cluster import LEVELS, RESOURCES, Cluster
from muster.simulate.errors import SimulationError
from muster.simulate.trace import Trace

_MODES: Final = {"required": TopologyMode.REQUIRED, "preferred": TopologyMode.PREFERRED}


@dataclass(frozen=True)
class Workload:
    """
    Attributes:
        uids: J.
        flavour: J, of the cluster's.
        workers: J, and each worker's GPUs in `each`; no worker is larger than the largest node of the flavour.
        requests: J x R, of one worker.
        mode, level: J, the planner's.
        rank: J, place in the order (priority, submission) that FIFO and EASY keep; lower first.
        filters: V x N, nodes of each flavour.
    """

    cluster: Cluster
    trace: Trace
    uids: tuple[str, ...]
    flavour: Index
    workers: Index
    each: Index
    requests: Int
    mode: Index
    level: Index
    rank: Int
    filters: Mask


def assemble(cluster: Cluster, trace: Trace) -> Workload:
    """Put a trace on a cluster.

    Raises:
        SimulationError: a job asks for a GPU type or level that the cluster lacks.
    """
    flavours, modes, levels = zip(*(_kind(cluster, kind) for kind in trace.kinds), strict=True)
    flavour = np.array(flavours, dtype=np.int32)[trace.kind]
    filters = np.arange(len(cluster.flavours))[:, None] == cluster.flavour[None, :]
    largest = np.array([int(cluster.gpus[mask].max(initial=1)) for mask in filters])[flavour]
    workers = -(-trace.gpus // largest)
    each = -(-trace.gpus // workers)
    requests = each[:, None].astype(np.int64) * cluster.per_gpu
    requests[:, RESOURCES.index("pods")] = 1
    count = len(trace)
    rank = np.empty(count, dtype=np.int64)
    rank[np.lexsort((np.arange(count), -trace.priority.astype(np.int64)))] = np.arange(count)
    return Workload(
        cluster=cluster,
        trace=trace,
        uids=tuple(f"job-{job:08}" for job in range(count)),
        flavour=flavour,
        workers=workers.astype(np.int32),
        each=each.astype(np.int32),
        requests=requests,
        mode=np.array(modes, dtype=np.int32)[trace.kind],
        level=np.array(levels, dtype=np.int32)[trace.kind],
        rank=rank,
        filters=filters,
    )


def _kind(cluster: Cluster, kind: tuple[str, str, str]) -> tuple[int, int, int]:
    gpu_type, capacity, topology = kind
    first_type, _, first_capacity = cluster.flavours[1].partition("/")
    flavour = f"{gpu_type or first_type}/{capacity or (first_capacity if not gpu_type else 'on-demand')}"
    if flavour not in cluster.flavours[1:]:
        there_are = ", ".join(cluster.flavours[1:])
        raise SimulationError(f"the trace asks for {flavour}, which no node of the cluster has; there are {there_are}")
    mode, _, level = topology.partition(":")
    if not mode:
        return cluster.flavours.index(flavour), int(TopologyMode.UNCONSTRAINED), NONE
    if level not in LEVELS:
        raise SimulationError(f"the trace names the topology level {level!r}; there are {', '.join(LEVELS)}")
    return cluster.flavours.index(flavour), int(_MODES[mode]), LEVELS.index(level)
