"""Every metric that a training pod's launcher serves, declared once. The operator's are in `muster.telemetry`.

What is exported is made from these, `docs/reference/metrics.md` is written from them, and rules and dashboards are
checked against them. To add a metric, declare it here and make it in `muster_runtime.launch.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(str, Enum):
    """Prometheus' types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """
    Attributes:
        name: as it is served, `_total` of counters included.
        text: what it is, one sentence.
        labels: names, in the order in which values are given.
        who: who serves it, for people.
        buckets: upper bounds of a histogram, ascending, without the infinite one.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    who: str = ""
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names that its samples have."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


# The run's name is `job_name`, as kube-state-metrics has it: Prometheus gives every sample a label `job` of its own.
POD: Final = ("job_name", "namespace", "index")
RANK: Final = (*POD, "rank")

EVERY_POD: Final = "each training pod"
INDEX_0: Final = "index 0's pod"


def _gauge(name: str, text: str, labels: tuple[str, ...] = POD, *, who: str = EVERY_POD) -> Metric:
    return Metric(name, Kind.GAUGE, text, labels, who)


def _counter(name: str, text: str, labels: tuple[str, ...] = POD, *, who: str = EVERY_POD) -> Metric:
    return Metric(name, Kind.COUNTER, text, labels, who)


def _histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = POD) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, labels, EVERY_POD, buckets)


STEP: Final = _gauge("muster_worker_step", "Last step that the rank reported.", RANK)
STEP_SECONDS: Final = _histogram(
    "muster_worker_step_seconds",
    "Time of one training step; all ranks take as long, and the pod's first tells it.",
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100),
)
STEPS: Final = _counter("muster_worker_steps_total", "Steps since the rank's process started, but for its first.", RANK)
STAGE_SECONDS: Final = _counter(
    "muster_worker_stage_seconds_total",
    "Time of those steps by stage: data, compute, forward, backward, optimizer, boundary; and beside them checkpoint, "
    "while training stood still for a save.",
    (*RANK, "stage"),
)
OWN_SECONDS: Final = _counter(
    "muster_worker_own_seconds_total",
    "Time of those steps in which the rank worked by itself and waited for no other: by it stragglers are known.",
    RANK,
)
GRAD_NORM: Final = _gauge(
    "muster_worker_gradient_norm",
    "Norm of the global batch's gradient, as an update of the last seconds got it.",
    who=INDEX_0,
)
LOSS: Final = _gauge("muster_worker_loss", "Last reported loss of the global batch.", who=INDEX_0)
_STANDS: Final = "None while no step is done for a minute, and for three times as long as one takes."
TOKENS: Final = _gauge("muster_worker_tokens_per_second", f"Tokens a second of the whole gang. {_STANDS}", who=INDEX_0)
SAMPLES: Final = _gauge(
    "muster_worker_samples_per_second", f"Samples a second of the whole gang. {_STANDS}", who=INDEX_0
)
MFU: Final = _gauge("muster_worker_mfu_ratio", f"Model FLOP utilisation, 0 to 1. {_STANDS}", who=INDEX_0)
RANKS: Final = _gauge("muster_worker_ranks_running", "Rank processes that run in this pod.")
INCARNATION: Final = _gauge("muster_worker_incarnation", "Counts every restart of the gang's processes.")
STRAGGLER: Final = _gauge(
    "muster_worker_straggler_factor",
    "Own time of a step over the gang's median, of each rank that is a straggler.",
    RANK,
    who=INDEX_0,
)
COMMITTED_STEP: Final = _gauge("muster_worker_checkpoint_last_committed_step", "Step of the last committed checkpoint.")
COMMITTED_AT: Final = _gauge(
    "muster_worker_checkpoint_last_committed_timestamp_seconds",
    "When the last checkpoint was committed, since the epoch; before the first, when the launcher started. Only with "
    "`checkpoint.uri`.",
    who=INDEX_0,
)
SAVE_SECONDS: Final = _histogram(
    "muster_worker_checkpoint_seconds",
    "Time from the start of a save to its commit.",
    (0.1, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500),
)
SAVE_STALL: Final = _histogram(
    "muster_worker_checkpoint_stall_seconds",
    "How long a rank's training stood still for a save.",
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 50),
)
SAVE_BYTES: Final = _counter("muster_worker_checkpoint_bytes_total", "Bytes written for checkpoints.")
SAVES_LEFT_OUT: Final = _gauge(
    "muster_worker_checkpoints_left_out",
    "Saves left out since the processes started, the one before being still on its way to storage.",
    who=INDEX_0,
)
STORAGE_FAILURES: Final = _counter("muster_worker_checkpoint_failures_total", "Saves that the storage has refused.")
FAILED_AT: Final = _gauge(
    "muster_worker_checkpoint_last_failed_timestamp_seconds",
    "When the storage refused a save last, since the epoch; 0 before the first time. Only with `checkpoint.uri`.",
)
FELL_BACK_AT: Final = _gauge(
    "muster_worker_checkpoint_last_fallback_timestamp_seconds",
    "When a restore took an older checkpoint last, the newest being damaged, since the epoch; 0 before the first time. "
    "Only with `checkpoint.uri`.",
    who=INDEX_0,
)
TRACKING_UP: Final = _gauge(
    "muster_worker_tracking_up",
    "Whether the run's tracker takes what it is told: 1 or 0. Only with `tracking`.",
    who=INDEX_0,
)
TRACKING_DROPPED: Final = _counter(
    "muster_worker_tracking_dropped_values_total",
    "Values of metrics that the run's tracker will never get, to make room or because it refused them.",
    who=INDEX_0,
)
RESUMED: Final = _gauge("muster_worker_resumed_step", "Step that this incarnation restored.")
SKIPPED: Final = _gauge(
    "muster_worker_updates_skipped", "Updates left out since the run began, their numbers being unsound.", who=INDEX_0
)
ROLLBACKS: Final = _gauge(
    "muster_worker_rollbacks", "Returns to a checkpoint since the run began, for unsound numbers.", who=INDEX_0
)
RUN_SECONDS: Final = _counter(
    "muster_run_seconds_total",
    "Time of the run since this pod's launcher started, by what it was spent on.",
    (*POD, "part"),
    who=INDEX_0,
)
PROGRESS: Final = _gauge(
    "muster_run_progress_ratio",
    "Part of the run's steps that are done, 0 to 1, where their number is known.",
    who=INDEX_0,
)
ETA: Final = _gauge(
    "muster_run_eta_seconds", f"Time to the run's last step, at the pace of the last minute. {_STANDS}", who=INDEX_0
)
TOTAL_STEPS: Final = _gauge("muster_run_total_steps", "Steps of the whole run, where the script tells.", who=INDEX_0)

# By NVML, where there is a driver. A GPU that doesn't have the figure has no series.
GPU: Final = (*POD, "gpu", "uuid", "model")
GPU_UTILIZATION: Final = _gauge(
    "muster_worker_gpu_utilization_ratio", "Part of the time in which the GPU ran anything, 0 to 1.", GPU
)
GPU_MEMORY_USED: Final = _gauge("muster_worker_gpu_memory_used_bytes", "Memory of the GPU that is taken.", GPU)
GPU_MEMORY_TOTAL: Final = _gauge("muster_worker_gpu_memory_total_bytes", "Memory of the GPU.", GPU)
GPU_POWER: Final = _gauge("muster_worker_gpu_power_watts", "Power that the GPU draws.", GPU)
GPU_TEMPERATURE: Final = _gauge("muster_worker_gpu_temperature_celsius", "Temperature of the GPU.", GPU)
GPU_ECC: Final = _counter(
    "muster_worker_gpu_ecc_errors_total",
    "Errors of the GPU's memory since its driver was loaded, by kind: corrected or uncorrected.",
    (*GPU, "kind"),
)
GPU_XID: Final = _counter(
    "muster_worker_gpu_xid_errors_total",
    "Errors that the driver has told of the GPU since the launcher started, by NVIDIA's code.",
    (*GPU, "xid"),
)

RUNTIME: Final = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
"""All of them, in the order of their declarations."""
