"""The operator's metrics: what has happened is counted here, what stands is put here before each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from muster.telemetry import metrics_declared as declared
from muster.telemetry.exposition import CONTENT_TYPE, Labels, Store
from muster_protocol.metrics import Metric

__all__ = ["CONTENT_TYPE", "Metrics"]


class Metrics:
    """One a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = Store(declared.OPERATOR, clock)
        self.store.set(declared.LEADS, 0)

    def request(self, method: str, code: int, seconds: float) -> None:
        """The API server has answered."""
        self.store.count(declared.REQUESTS, 1, method, str(code))
        self.store.observe(declared.REQUEST_SECONDS, seconds, method)

    def wrote(self, verb: str, resource: str) -> None:
        """The API server is asked to write."""
        self.store.count(declared.WRITES, 1, verb, resource)

    def leads(self) -> None:
        self.store.set(declared.LEADS, 1)

    def planned(self, seconds: float) -> None:
        """A plan was made."""
        self.store.observe(declared.PLAN_SECONDS, seconds)

    def show(self, what: Mapping[Metric, Mapping[Labels, float]]) -> None:
        """What stands now; series that are not named go."""
        for metric, values in what.items():
            self.store.replace(metric, values)

    def text(self) -> bytes:
        return self.store.text()
