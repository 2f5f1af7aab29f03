"""/metrics: one training pod, in a registry of its own. What there is, `muster_protocol.metrics` declares."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from muster_protocol import metrics as declared
from muster_protocol.goodput import Spent
from muster_protocol.launcher_status import Straggler, Tracking
from muster_protocol.metrics import Kind, Metric
from muster_runtime import report, vendored
from muster_runtime.launch.config import Config
from muster_runtime.launch.gathered import GATHERED, Gathered, Sample

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge, Histogram


PACE_SECONDS: Final = 60.0
PACE_STEPS: Final = 3
"""After so long without a word of a step, and as long as so many steps take, a gang has no pace."""


class Metrics:
    """The gang's own figures (loss, tokens, MFU) are given by index 0 alone, so that sums over pods stay true."""

    def __init__(
        self,
        config: Config,
        gathered: Callable[[], Iterable[Sample]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        vendored.use()
        from prometheus_client import CollectorRegistry, disable_created_metrics

        # A second series for each counter, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._values = (config.job, config.namespace, str(config.index))
        self._leads = config.leads
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._declare()
        self._first = config.rank(0)
        self._registry.register(Gathered(self._values, gathered))
        self._spent = Spent()
        self._dropped = 0
        self._clock, self._pace_ends = clock, -math.inf
        if config.checkpoint_uri and config.leads:
            self._gauge(declared.COMMITTED_AT, time.time())
            self._gauge(declared.FELL_BACK_AT, 0)
        if config.checkpoint_uri:
            # There from the start: a counter that first appears as 1 has never increased, by Prometheus' reckoning.
            self._count(declared.STORAGE_FAILURES, 0)
            self._count(declared.SAVE_BYTES, 0)
            self._gauge(declared.FAILED_AT, 0)

    def take(self, message: report.Message) -> None:
        if isinstance(message, report.Progress):
            self._progress(message)
        elif isinstance(message, report.CheckpointCommitted):
            self._committed(message)
        elif isinstance(message, report.Resumed):
            self._gauge(declared.RESUMED, message.step)
        elif isinstance(message, report.FellBack) and self._leads:
            self._gauge(declared.FELL_BACK_AT, time.time())
        elif isinstance(message, report.StorageFailed):
            self._count(declared.STORAGE_FAILURES, 1)
            self._gauge(declared.FAILED_AT, time.time())
        elif isinstance(message, report.Saving) and self._leads and message.rank == 0:
            self._gauge(declared.SAVES_LEFT_OUT, message.left_out)
        elif isinstance(message, report.Numerics) and self._leads and message.rank == 0:
            self._gauge(declared.SKIPPED, message.skipped)
            self._gauge(declared.ROLLBACKS, message.rollbacks)

    def spent(self, spent: Spent) -> None:
        """Where the time went until now."""
        before, self._spent = asdict(self._spent), spent
        for part, seconds in asdict(spent).items():
            if part not in ("pending", "underused"):  # nothing beside the parts, or within one of them
                self._count(declared.RUN_SECONDS, max(0.0, seconds - before[part]), part)

    def pace(self, step: int | None, total: int | None, steps_per_second: float | None) -> None:
        """How far the run is, and how fast it goes on; of index 0."""
        if not self._leads or step is None or not total:
            return
        self._gauge(declared.TOTAL_STEPS, total)
        self._gauge(declared.PROGRESS, min(1.0, step / total))
        if steps_per_second and self._clock() < self._pace_ends:
            self._gauge(declared.ETA, max(0, total - step) / steps_per_second)

    def processes(self, running: int, incarnation: int) -> None:
        self._gauge(declared.RANKS, running)
        self._gauge(declared.INCARNATION, incarnation)

    def stragglers(self, found: Iterable[Straggler]) -> None:
        """Of the whole gang, as index 0 knows them; a rank that keeps up again has no series."""
        self._gauges[declared.STRAGGLER.name].clear()
        for one in found:
            self._gauge(declared.STRAGGLER, one.factor, str(one.rank))

    def tracking(self, told: Tracking | None) -> None:
        """How the run's tracker does; None where there is none."""
        if told is None or told.well is None:
            return
        self._gauge(declared.TRACKING_UP, told.well)
        self._count(declared.TRACKING_DROPPED, max(0, told.dropped - self._dropped))
        self._dropped = max(told.dropped, self._dropped)

    def text(self) -> tuple[bytes, str]:
        """(body, content type) for Prometheus."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        if self._clock() >= self._pace_ends:
            self._forget_pace()
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _progress(self, message: report.Progress) -> None:
        rank = str(message.rank)
        self._gauge(declared.STEP, message.step, rank)
        if message.step_seconds is not None and message.rank == self._first:
            self._observe(declared.STEP_SECONDS, message.step_seconds)
        if not self._leads or message.rank != 0:
            return
        for metric, value in (
            (declared.LOSS, None if message.loss is None else float(message.loss)),
            (declared.GRAD_NORM, None if message.grad_norm is None else float(message.grad_norm)),
            (declared.TOKENS, message.tokens_per_second),
            (declared.SAMPLES, message.samples_per_second),
            (declared.MFU, message.mfu),
        ):
            if value is not None:
                self._gauge(metric, value)
        self._pace_ends = self._clock() + max(PACE_SECONDS, PACE_STEPS * (message.step_seconds or 0.0))

    def _forget_pace(self) -> None:
        """A gang that stands still, or whose ranks are gone, does not do what it did a second before."""
        for metric in (declared.TOKENS, declared.SAMPLES, declared.MFU, declared.ETA):
            self._gauges[metric.name].clear()

    def _committed(self, message: report.CheckpointCommitted) -> None:
        self._gauge(declared.COMMITTED_STEP, message.step)
        if self._leads:
            self._gauge(declared.COMMITTED_AT, message.committed_at)
        self._observe(declared.SAVE_SECONDS, message.seconds)
        self._observe(declared.SAVE_STALL, message.stall)
        self._count(declared.SAVE_BYTES, max(0, message.bytes))

    # -- what is declared ----------------------------------------------------------------------------------------------

    def _declare(self) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        for one in declared.RUNTIME:
            if one in GATHERED:
                continue
            if one.kind is Kind.GAUGE:
                self._gauges[one.name] = Gauge(one.name, one.text, one.labels, registry=self._registry)
            elif one.kind is Kind.COUNTER:
                self._counters[one.name] = Counter(one.name, one.text, one.labels, registry=self._registry)
            else:
                self._histograms[one.name] = Histogram(
                    one.name, one.text, one.labels, buckets=one.buckets, registry=self._registry
                )

    def _gauge(self, metric: Metric, value: float, *more: str) -> None:
        """`more`: values of the labels behind those of the pod."""
        self._gauges[metric.name].labels(*self._values, *more).set(value)

    def _count(self, metric: Metric, amount: float, *more: str) -> None:
        self._counters[metric.name].labels(*self._values, *more).inc(amount)

    def _observe(self, metric: Metric, value: float, *more: str) -> None:
        self._histograms[metric.name].labels(*self._values, *more).observe(value)
