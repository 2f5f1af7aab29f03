"""What a gang's launchers learn from their environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from muster.api.effective import EffectiveSpec
from muster.cluster import pod_storage, pod_tracking
from muster.cluster.overrides import TRAINER
from muster_protocol import env

Object = dict[str, Any]

REPLACE_SECONDS: Final = 120
"""How long the launchers of a gang wait in their pods for a lost one to be replaced: longer than the operator tries."""
_SHRINK_SECONDS: Final = 60
"""How much longer than `workers.shrinkAfter` those of an elastic gang wait at least."""


def _replace_seconds(spec: EffectiveSpec) -> int:
    return max(REPLACE_SECONDS, spec.shrink_after + _SHRINK_SECONDS) if spec.elastic else REPLACE_SECONDS


def environment(
    job: Mapping[str, str], spec: EffectiveSpec, token: Object, node_hours: Mapping[str, float]
) -> list[Object]:
    """The variables of the container; what a job sets itself goes last, and stands.

    Args:
        job: those that say which one it is.
        token: the key of a Secret that has the launcher's.
        node_hours: that one node runs between two failures, by kind of capacity.
    """
    values = {
        **job,
        env.PROCESSES_PER_WORKER: str(spec.processes_per_worker),
        env.PORT: str(env.DEFAULT_PORT),
        env.READY_TIMEOUT: str(spec.ready_timeout),
        env.GRACE_SECONDS: str(spec.grace),
        env.REPLACE_SECONDS: str(_replace_seconds(spec)),
        env.STRATEGY: spec.strategy.value,
        env.HANG_START: str(spec.hang.start),
        env.HANG_STEP: str(spec.hang.step),
        env.HANG_EVALUATION: str(spec.hang.evaluation),
        env.HANG_CHECKPOINT: str(spec.hang.checkpoint),
        env.SLOWER_BY: str(spec.slower_by),
        env.PREFLIGHT: str(int(spec.preflight)),
    }
    if spec.numerics is not None:
        watched = {env.NUMERICS_LOSS: spec.numerics.loss, env.NUMERICS_NORM: spec.numerics.gradient_norm}
        values |= {env.NUMERICS: spec.numerics.action.value, env.NUMERICS_LIMIT: str(spec.numerics.limit)}
        values |= {name: factor for name, factor in watched.items() if factor}
    result: list[Object] = [{"name": name, "value": value} for name, value in values.items()]
    for name, path in (
        (env.POD_NAME, "metadata.name"),
        (env.POD_UID, "metadata.uid"),
        (env.POD_IP, "status.podIP"),
        (env.NODE_NAME, "spec.nodeName"),
    ):
        result.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    requested = {"containerName": TRAINER, "resource": "requests.memory"}  # also what a LimitRange has put there
    result.append({"name": env.MEMORY_REQUEST, "valueFrom": {"resourceFieldRef": requested}})
    result.append({"name": env.TOKEN, "valueFrom": {"secretKeyRef": token}})
    own = {entry.name for entry in spec.env}
    if spec.checkpoint is not None:
        storage = pod_storage.environment(spec.checkpoint, spec.kinds, node_hours)
        result += [entry for entry in storage if entry["name"] not in own]
    if spec.tracking is not None:
        result += [entry for entry in pod_tracking.environment(spec.tracking) if entry["name"] not in own]
    return result + [entry.to_raw() for entry in spec.env]
