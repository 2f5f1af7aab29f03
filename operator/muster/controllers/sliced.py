"""Slices of GPUs that queues hold, by the GPU that they are of. Pure.

A slice's quota stands in the flavour without a GPU type, so what a queue holds does not tell of which GPU its slices
are; the nodes do on which they are held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from muster.scheduling.snapshot import NONE, Int, Snapshot
from muster.sizing import slices

Kind = tuple[str, str]
"""(slice type, kind of capacity), the latter "" where no node tells it."""


def by_queue(snapshot: Snapshot, holding: Int) -> Mapping[int, Mapping[Kind, int]]:
    """Slices by row of the queue, those of the queues below it included.

    Args:
        holding: rows of the jobs that hold room in a queue.
    """
    columns = [at for at, resource in enumerate(snapshot.resources) if resource.startswith(slices.RESOURCE)]
    jobs, parents = snapshot.jobs, snapshot.queues.parents
    found: dict[int, Counter[Kind]] = {}
    if not columns:
        return found
    for job in holding[jobs.held[holding][:, columns].any(axis=1)].tolist():
        mine = _of_job(snapshot, job, columns)
        queue = int(jobs.queues[job])
        while queue != NONE:
            found.setdefault(queue, Counter()).update(mine)
            queue = int(parents[queue])
    return found


def _of_job(snapshot: Snapshot, job: int, columns: list[int]) -> Counter[Kind]:
    """What is held where the gang has no nodes any more, its pods not being gone yet, is of a GPU that nobody knows.
    What a worker holds that has ended, or whose node is gone, is as the others'."""
    jobs = snapshot.jobs
    nodes = jobs.runs.nodes_of(job)
    kinds, workers = np.unique(snapshot.nodes.flavours[nodes[nodes != NONE]], return_counts=True)
    found: Counter[Kind] = Counter()
    for column in columns:
        last = "", ""
        left, each = int(jobs.held[job, column]), int(jobs.requests[job, column])
        for kind, count in zip(kinds.tolist(), workers.tolist(), strict=True):
            of, _, capacity = (snapshot.flavours[kind] if kind != NONE else "").partition("/")
            here = min(left, each * count)
            left -= here
            last = of, capacity
            _add(found, slices.sliced(snapshot.resources[column], of), capacity, here)
        _add(found, slices.sliced(snapshot.resources[column], last[0]), last[1], left)
    return found


def _add(found: Counter[Kind], slice_type: str, capacity: str, count: int) -> None:
    if slice_type and count:
        found[slice_type, capacity] += count
