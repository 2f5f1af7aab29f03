"""When nodes fail and come back: drawn for each node apart, so that every policy meets the same faults."""

from __future__ import annotations

from typing import Final

import numpy as np

from muster.simulate.cluster import Cluster

DAY: Final = 86_400.0


class Faults:
    """The next fault of each node, drawn as it is needed."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._faults = cluster.file.faults
        self._spot = [cluster.flavours[flavour].endswith("/spot") for flavour in cluster.flavour.tolist()]
        self._rngs = [np.random.default_rng([seed, 77, node]) for node in range(len(self._spot))]

    def next(self, node: int, now: float) -> tuple[float, bool, float] | None:
        """The node's next fault: when, whether with notice (a reclaim), and when the node is back; None: never."""
        rng, faults = self._rngs[node], self._faults
        failure = self._after(rng, now, faults.failures)
        reclaim = self._after(rng, now, faults.reclaims if self._spot[node] else 0.0)
        away = rng.exponential()
        if min(failure, reclaim) == np.inf:
            return None
        if reclaim < failure:
            return reclaim, True, reclaim + faults.notice + away * faults.absence
        return failure, False, failure + away * faults.repair

    @staticmethod
    def _after(rng: np.random.Generator, now: float, rate: float) -> float:
        """`rate` per 1,000 node-days."""
        wait = rng.exponential()
        return now + wait * 1000 * DAY / rate if rate > 0 else float("inf")
