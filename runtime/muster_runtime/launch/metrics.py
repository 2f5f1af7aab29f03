"""/metrics: one training pod, in a registry of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from muster_protocol.goodput import Spent
from muster_protocol.launcher_api import Straggler
from muster_runtime import report, vendored
from muster_runtime.launch.config import Config

if TYPE_CHECKING:
    from prometheus_client import Gauge

_STEP_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_SAVE_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class Metrics:
    """The gang's own figures (loss, tokens, MFU) are given by index 0 alone, so that sums over pods stay true."""

    def __init__(self, config: Config) -> None:
        vendored.use()
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        self._values = (config.job, config.namespace, str(config.index))
        labels = ("job", "namespace", "index")

        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(f"muster_worker_{name}", text, (*labels, *more), registry=self._registry)

        self._leads = config.leads
        self._step = gauge("step", "Last step that the rank reported.", "rank")
        self._loss = gauge("loss", "Last reported loss of the global batch.")
        self._tokens = gauge("tokens_per_second", "Tokens a second of the whole gang.")
        self._samples = gauge("samples_per_second", "Samples a second of the whole gang.")
        self._mfu = gauge("mfu_ratio", "Model FLOP utilisation, 0 to 1.")
        self._ranks = gauge("ranks_running", "Rank processes that run in this pod.").labels(*self._values)
        self._incarnation = gauge("incarnation", "Counts every restart of the gang's processes.").labels(*self._values)
        self._straggling = gauge(
            "straggler_factor", "Own time of a step over the gang's median, of each rank that is a straggler.", "rank"
        )
        self._committed = gauge("checkpoint_last_committed_step", "Step of the last committed checkpoint.")
        self._resumed = gauge("resumed_step", "Step that this incarnation restored.")
        self._skipped = gauge("updates_skipped", "Updates left out since the run began, their numbers being unsound.")
        self._rollbacks = gauge("rollbacks", "Returns to a checkpoint since the run began, for unsound numbers.")
        self._step_seconds = Histogram(
            "muster_worker_step_seconds",
            "Time of one training step.",
            (*labels, "rank"),
            buckets=_STEP_BUCKETS,
            registry=self._registry,
        )
        self._save_seconds = Histogram(
            "muster_worker_checkpoint_seconds",
            "Time from the start of a save to its commit.",
            labels,
            buckets=_SAVE_BUCKETS,
            registry=self._registry,
        )
        self._save_bytes = Counter(
            "muster_worker_checkpoint_bytes", "Bytes written for checkpoints.", labels, registry=self._registry
        )

        self._seconds = Counter(
            "muster_run_seconds",
            "Time of the run since this pod's launcher started, by what it was spent on. Index 0 tells it.",
            (*labels, "part"),
            registry=self._registry,
        )
        self._spent = Spent()

    def take(self, message: report.Message) -> None:
        if isinstance(message, report.Progress):
            rank = str(message.rank)
            self._step.labels(*self._values, rank).set(message.step)
            if message.step_seconds is not None:
                self._step_seconds.labels(*self._values, rank).observe(message.step_seconds)
            if self._leads and message.rank == 0:
                self._gang(message)
        elif isinstance(message, report.CheckpointCommitted):
            self._committed.labels(*self._values).set(message.step)
            self._save_seconds.labels(*self._values).observe(message.seconds)
            self._save_bytes.labels(*self._values).inc(max(0, message.bytes))
        elif isinstance(message, report.Resumed):
            self._resumed.labels(*self._values).set(message.step)
        elif isinstance(message, report.Numerics) and self._leads and message.rank == 0:
            self._skipped.labels(*self._values).set(message.skipped)
            self._rollbacks.labels(*self._values).set(message.rollbacks)

    def spent(self, spent: Spent) -> None:
        """Where the time went until now."""
        before, self._spent = asdict(self._spent), spent
        for part, seconds in asdict(spent).items():
            if part != "pending":
                self._seconds.labels(*self._values, part).inc(max(0.0, seconds - before[part]))

    def processes(self, running: int, incarnation: int) -> None:
        self._ranks.set(running)
        self._incarnation.set(incarnation)

    def stragglers(self, found: Iterable[Straggler]) -> None:
        """Of the whole gang, as index 0 knows them; a rank that keeps up again has no series."""
        self._straggling.clear()
        for one in found:
            self._straggling.labels(*self._values, str(one.rank)).set(one.factor)

    def text(self) -> tuple[bytes, str]:
        """(body, content type) for Prometheus."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _gang(self, message: report.Progress) -> None:
        for gauge, value in (
            (self._loss, None if message.loss is None else float(message.loss)),
            (self._tokens, message.tokens_per_second),
            (self._samples, message.samples_per_second),
            (self._mfu, message.mfu),
        ):
            if value is not None:
                gauge.labels(*self._values).set(value)
