"""Fair shares: how much of the cluster a queue has had, and has, in one number that can be compared.

The share of a queue is its *dominant share* (Ghodsi et al., Dominant Resource Fairness, NSDI 2011): of each resource of
each flavour, the part of the whole cluster's that its jobs hold, and of those parts the largest. A queue above others
holds what they hold. Two parts add up to what fairness compares, after division by the queue's weight:

* what it holds now, as counted by `muster.scheduling.order` while it goes through the jobs in their order;
* what it has had: the mean of its share over the past, in which a moment counts half as much after each half-life. So a
  queue that has used a lot yields for about that long to one that has not, and then it is forgotten.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from muster.scheduling.hierarchy import by_depth
from muster.scheduling.snapshot import NONE, ONE_A_NODE, Mask, Seconds, Snapshot

HALF_LIFE: Final = 7 * 86_400.0
"""Seconds after which past use counts half, where a queue does not say otherwise: a week."""


def counted(resources: tuple[str, ...]) -> Mask:
    """R, the resources that shares are made of: room for pods and host ports are not what tenants compete for."""
    return np.array([name != "pods" and not name.startswith(ONE_A_NODE) for name in resources], dtype=np.bool_)


def parts(snapshot: Snapshot) -> Seconds:
    """V x R, the part of the cluster that one unit is; 0 where the cluster has none, or where it does not count.

    Jobs without accelerators, which have flavour 0, may run on any node: theirs is a part of all nodes.
    """
    nodes = snapshot.nodes
    totals = np.zeros((len(snapshot.flavours), len(snapshot.resources)))
    for flavour in range(1, len(totals)):
        totals[flavour] = nodes.allocatable[nodes.flavours == flavour].sum(axis=0, dtype=np.float64)
    totals[0] = nodes.allocatable.sum(axis=0, dtype=np.float64)
    there = (totals > 0) & counted(snapshot.resources)
    return np.divide(1.0, totals, out=np.zeros_like(totals), where=there)


def dominant_shares(snapshot: Snapshot) -> Seconds:
    """Q, the dominant share that each queue and those below it hold now, from 0 to 1."""
    jobs, queues = snapshot.jobs, snapshot.queues
    held = np.zeros((len(queues.names), len(snapshot.flavours), len(snapshot.resources)))
    rows = np.flatnonzero(jobs.holding & (jobs.queues != NONE))
    np.add.at(held, (jobs.queues[rows], jobs.flavours[rows]), jobs.held[rows].astype(np.float64))
    for depth in reversed(by_depth(queues.parents)[1:]):
        np.add.at(held, queues.parents[depth], held[depth])
    shares: Seconds = (held * parts(snapshot)).max(axis=(1, 2), initial=0.0)
    return shares


def decayed(mean: float, share: float, seconds: float, half_life: float) -> float:
    """The mean share after `seconds` more in which the queue held `share`.

    The exponentially weighted mean: mean(t) = ln 2 / h * (integral of share(s) * 2^((s - t) / h) ds over all s < t).
    """
    kept: float = 2.0 ** (-max(0.0, seconds) / half_life)
    return share + (mean - share) * kept
