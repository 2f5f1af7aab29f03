"""The built-in defaults: what holds where neither a job nor its queue's template says anything."""

from __future__ import annotations

from typing import Final, Literal

from muster.api.jobparts import CapacityPreference, TopologyMode
from muster.api.terms import AtWindowEnd
from muster.api.trainingjob import BestMode, Load, Strategy
from muster_protocol import env
from muster_protocol.durations import format_duration

STRATEGY: Final = Strategy.DDP
TOPOLOGY_MODE: Final = TopologyMode.PREFERRED
CHECKPOINT_INTERVAL_SECONDS: Final = 600
AUTO: Final[Literal["auto"]] = "auto"
RETENTION_LAST: Final = 3
RESTART_LIMIT: Final = 3
NUMERICS_LIMIT: Final = 10
NETWORK_LIMIT: Final = 10
RESTART_WINDOW_SECONDS: Final = 86400
RESTART_BACKOFF_SECONDS: Final = 10
RESTART_BACKOFF_LIMIT_SECONDS: Final = 300
READY_TIMEOUT_SECONDS: Final = 1800
GRACE_SECONDS: Final = 120
STEP: Final = 1
CAPACITY_PREFERENCE: Final = CapacityPreference.LISTED
FALLBACK_SECONDS: Final = 600
SHRINK_SECONDS: Final = 60
PREEMPTIBLE: Final = True
BUDGET_WINDOW_SECONDS: Final = 86400

BUILT_IN: Final[dict[str, str]] = {
    "spec.workers.min": "replicas",
    "spec.workers.max": "replicas",
    "spec.workers.step": str(STEP),
    "spec.workers.partial": "true when min is below replicas",
    "spec.workers.shrinkAfter": format_duration(SHRINK_SECONDS),
    "spec.workers.spares": "0",
    "spec.workers.gpusPerWorker": "0",
    "spec.workers.processesPerWorker": "gpusPerWorker or 1",
    "spec.parallelism.strategy": STRATEGY.value,
    "spec.topology.mode": TOPOLOGY_MODE.value,
    "spec.capacity.prefer": CAPACITY_PREFERENCE.value,
    "spec.capacity.fallbackAfter": format_duration(FALLBACK_SECONDS),
    "spec.preemptible": "true",
    "spec.disruptionBudget.window": format_duration(BUDGET_WINDOW_SECONDS),
    "spec.checkpoint.interval": f"{format_duration(CHECKPOINT_INTERVAL_SECONDS)}, or none with everySteps",
    "spec.checkpoint.retention.last": str(RETENTION_LAST),
    "spec.checkpoint.retention.best.mode": BestMode.MIN.value,
    "spec.checkpoint.retention.best.count": "1",
    "spec.checkpoint.load": Load.ALL.value,
    "spec.restart.limit": str(RESTART_LIMIT),
    "spec.restart.causes.outOfMemory": "restart.limit",
    "spec.restart.causes.network": str(NETWORK_LIMIT),
    "spec.restart.window": format_duration(RESTART_WINDOW_SECONDS),
    "spec.restart.backoff": format_duration(RESTART_BACKOFF_SECONDS),
    "spec.hang.start": AUTO,
    "spec.hang.step": AUTO,
    "spec.hang.evaluation": AUTO,
    "spec.hang.checkpoint": AUTO,
    "spec.numerics.limit": str(NUMERICS_LIMIT),
    "spec.tracking.enabled": "true",
    "spec.tracking.experiment": "the namespace",
    "spec.tracking.runName": "the job's name",
    "spec.health.preflight": "true",
    "spec.health.idle": "true",
    "spec.health.slowerBy": str(env.DEFAULT_SLOWER_BY),
    "spec.readyTimeout": format_duration(READY_TIMEOUT_SECONDS),
    "spec.window.atEnd": AtWindowEnd.STOP.value,
    "spec.terminationGracePeriod": format_duration(GRACE_SECONDS),
}
"""The built-in defaults by field, for the reference documentation."""
