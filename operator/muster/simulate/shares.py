"""The planner's queues from the cluster file's, and what each has used of late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from muster.api.trainingqueue import JobOrder, OwnVictims, Reclaim
from muster.scheduling.hierarchy import by_depth
from muster.scheduling.snapshot import NONE, UNLIMITED, Index, Int, Preempts, Queues, Seconds
from muster.simulate.cluster import GPU, RESOURCES, Cluster, QueueShare

_PREEMPTS: Final = {
    OwnVictims.NEVER: Preempts.NEVER,
    OwnVictims.LOWER_PRIORITY: Preempts.LOWER_PRIORITY,
    Reclaim.NEVER: Preempts.NEVER,
    Reclaim.LOWER_PRIORITY: Preempts.LOWER_PRIORITY,
    Reclaim.ANY: Preempts.ANY,
}


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
    above = {share.name: queue for queue, share in enumerate(shares)}
    for queue, share in enumerate(shares):
        if share.parent:
            parents[queue] = above[share.parent]
        elif share.cohort:
            parents[queue] = row[share.cohort]
    queues = Queues.plain((*(share.name for share in shares), *cohorts), parents, nominal, borrowing, lending)
    for queue, share in enumerate(shares):
        queues.shortest[queue] = (share.order or cluster.file.order) is JobOrder.SHORTEST_EXPECTED
        queues.within[queue] = _PREEMPTS[share.preemption.within_queue]
        queues.reclaim[queue] = _PREEMPTS[share.preemption.reclaim]
        queues.borrower[queue] = _PREEMPTS[share.preemption.when_borrowing]
        if share.max_priority is not None:
            queues.priorities_max[queue] = share.max_priority
    for rows in by_depth(parents)[1:]:
        queues.priorities_max[rows] = np.minimum(queues.priorities_max[rows], queues.priorities_max[parents[rows]])
    return replace(queues, weights=np.array([*(share.weight for share in shares), *(1.0 for _ in cohorts)]))


def half_lives(cluster: Cluster, shares: tuple[QueueShare, ...], count: int) -> tuple[float, ...]:
    """Seconds, of each of so many of the planner's queues."""
    said = [share.half_life or cluster.file.half_life for share in shares]
    return (*said, *[cluster.file.half_life] * (count - len(said)))


def _gpus(share: QueueShare, cluster: Cluster, flavour: str) -> int:
    if isinstance(share.gpus, dict):
        return share.gpus.get(flavour, 0)
    return share.gpus if flavour == cluster.flavours[1] else 0


class Usage:
    """Decayed mean of the share of the cluster's GPUs that each queue had: x -> x 2^(-t/h) + u (1 - 2^(-t/h)),
    where h is the queue's half-life.

    Of several flavours the largest share counts (dominant share).
    """

    def __init__(self, cluster: Cluster, parents: Index, half_lives: Sequence[float]) -> None:
        self._there = np.maximum(cluster.gpus_of_flavours, 1).astype(np.float64)
        self._parents, self._deepest_first = parents, by_depth(parents)[:0:-1]
        lives = dict.fromkeys(half_lives)
        self._lives, self._life = list(lives), np.array([list(lives).index(each) for each in half_lives])
        self._decayed = np.zeros((len(parents), len(self._there)))
        self._using = np.zeros_like(self._decayed)
        self._seen = 0.0

    def until(self, now: float, using: Int) -> Seconds:
        """Q, dominant shares at `now`, given Q x V GPUs that each queue itself uses from now on."""
        kept = np.array([0.5 ** ((now - self._seen) / life) for life in self._lives])[self._life, None]
        self._decayed = self._decayed * kept + self._using * (1 - kept)
        with_children = using.astype(np.float64)
        for rows in self._deepest_first:
            np.add.at(with_children, self._parents[rows], with_children[rows])
        self._using = with_children / self._there
        self._seen = now
        shares: Seconds = self._decayed.max(axis=1)
        return shares
