"""The planner's queues from the cluster file's, and what each has used of late."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from muster.api.trainingqueue import JobOrder
from muster.scheduling.snapshot import NONE, UNLIMITED, Index, Int, Queues, Seconds
from muster.simulate.cluster import GPU, RESOURCES, Cluster, QueueShare

HALF_LIFE: Final = 86_400.0
"""Seconds after which use counts half."""


def planner_queues(cluster: Cluster, shares: tuple[QueueShare, ...]) -> Queues:
    """Rows for the queues in the order of the file, then one for each cohort."""
    cohorts = tuple(dict.fromkeys(share.cohort for share in shares if share.cohort))
    row = {cohort: len(shares) + index for index, cohort in enumerate(cohorts)}
    count = len(shares) + len(cohorts)
    shape = (count, len(cluster.flavours), len(RESOURCES))
    nominal = np.full(shape, UNLIMITED, dtype=np.int64)
    borrowing, lending = nominal.copy(), nominal.copy()
    for queue, share in enumerate(shares):
        for flavour, name in enumerate(cluster.flavours[1:], start=1):
            nominal[queue, flavour, GPU] = _gpus(share, cluster, name)
            if share.borrowing_limit is not None:
                borrowing[queue, flavour, GPU] = share.borrowing_limit
            if share.lending_limit is not None:
                lending[queue, flavour, GPU] = share.lending_limit
    # A cohort brings no quota of its own.
    nominal[len(shares) :, 1:, GPU] = 0
    parents = np.full(count, NONE, dtype=np.int32)
    for queue, share in enumerate(shares):
        if share.cohort:
            parents[queue] = row[share.cohort]
    queues = Queues.plain((*(share.name for share in shares), *cohorts), parents, nominal, borrowing, lending)
    queues.shortest[: len(shares)] = [
        (share.order or cluster.file.order) is JobOrder.SHORTEST_EXPECTED for share in shares
    ]
    return replace(queues, weights=np.array([*(share.weight for share in shares), *(1.0 for _ in cohorts)]))


def _gpus(share: QueueShare, cluster: Cluster, flavour: str) -> int:
    if isinstance(share.gpus, dict):
        return share.gpus.get(flavour, 0)
    return share.gpus if flavour == cluster.flavours[1] else 0


class Usage:
    """Decayed mean of the share of the cluster's GPUs that each queue had: x -> x 2^(-t/h) + u (1 - 2^(-t/h)).

    Of several flavours the largest share counts (dominant share).
    """

    def __init__(self, cluster: Cluster, parents: Index) -> None:
        self._there = np.maximum(cluster.gpus_of_flavours, 1).astype(np.float64)
        self._parents = parents
        self._decayed = np.zeros((len(parents), len(self._there)))
        self._using = np.zeros_like(self._decayed)
        self._seen = 0.0

    def until(self, now: float, using: Int) -> Seconds:
        """Q, dominant shares at `now`, given Q x V GPUs that each queue itself uses from now on."""
        kept = 0.5 ** ((now - self._seen) / HALF_LIFE)
        self._decayed = self._decayed * kept + self._using * (1 - kept)
        with_children = using.astype(np.float64)
        # Cohorts are the last rows and have no parents: one pass is enough.
        below = np.flatnonzero(self._parents != NONE)
        np.add.at(with_children, self._parents[below], using[below])
        self._using = with_children / self._there
        self._seen = now
        shares: Seconds = self._decayed.max(axis=1)
        return shares
