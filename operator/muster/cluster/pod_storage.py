"""What of `spec.checkpoint` goes into a pod: environment, and the certificates to trust. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from muster.api.builtin import AUTO
from muster.api.effective_parts import EffectiveCheckpoint
from muster.api.jobparts import CapacityKind
from muster_protocol import env

Object = dict[str, Any]

_CA_VOLUME: Final = "muster-storage-ca"
_CA_PATH: Final = "/etc/muster/storage-ca"
_CA_FILE: Final = "ca.crt"
_AWS_KEYS: Final = (
    ("AWS_ACCESS_KEY_ID", False),
    ("AWS_SECRET_ACCESS_KEY", False),
    ("AWS_SESSION_TOKEN", True),
    ("AWS_REGION", True),
    (env.S3_ENDPOINT, True),
)
"""Keys of `checkpoint.secretRef`, and whether each may be left out."""


def volumes(checkpoint: EffectiveCheckpoint) -> list[Object]:
    if checkpoint.ca is None:
        return []
    name, key = checkpoint.ca
    return [{"name": _CA_VOLUME, "configMap": {"name": name, "items": [{"key": key, "path": _CA_FILE}]}}]


def mounts(checkpoint: EffectiveCheckpoint) -> list[Object]:
    """Of `volumes`, in the training container."""
    return [{"name": _CA_VOLUME, "mountPath": _CA_PATH, "readOnly": True}] if checkpoint.ca else []


def environment(
    checkpoint: EffectiveCheckpoint, capacity: Sequence[str], node_hours: Mapping[str, float]
) -> list[Object]:
    """`capacity`: the kinds that the job names; `node_hours`: hours between two failures of one node, by kind."""
    values = {
        env.CHECKPOINT_URI: checkpoint.uri,
        env.CHECKPOINT_INTERVAL: checkpoint.interval,
        env.CHECKPOINT_NODE_HOURS: f"{worst_hours(capacity, node_hours):.4g}" if checkpoint.interval == AUTO else None,
        env.CHECKPOINT_EVERY_STEPS: checkpoint.every_steps,
        env.CHECKPOINT_KEEP_LAST: checkpoint.retention.last,
        env.CHECKPOINT_KEEP_EVERY: checkpoint.retention.every,
        env.CHECKPOINT_KEEP_SECONDS: checkpoint.retention.every_seconds,
        env.CHECKPOINT_KEEP_BEST: checkpoint.retention.best,
        env.S3_ENDPOINT: checkpoint.endpoint,
        env.S3_ADDRESSING: checkpoint.addressing,
        env.CHECKPOINT_MEMORY: checkpoint.memory,
        env.S3_CA_FILE: f"{_CA_PATH}/{_CA_FILE}" if checkpoint.ca else None,
        env.S3_ENCRYPTION: checkpoint.encryption,
        env.S3_KMS_KEY: checkpoint.kms_key,
        env.CHECKPOINT_FROM: checkpoint.from_uri,
        env.CHECKPOINT_FROM_LOAD: checkpoint.load.value if checkpoint.from_uri else None,
    }
    result: list[Object] = [
        {"name": name, "value": str(value)} for name, value in values.items() if value not in (None, "")
    ]
    own = {entry["name"] for entry in result}
    for name, optional in _AWS_KEYS if checkpoint.secret else ():
        if name in own:
            continue  # `checkpoint.endpoint` wins over the Secret's
        reference = {"name": checkpoint.secret, "key": name, "optional": optional}
        result.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return result


def worst_hours(capacity: Sequence[str], node_hours: Mapping[str, float]) -> float:
    """Hours between two failures of one node of the kind that fails most often of those that the job names. To four
    digits: no more is known, and a running gang is told the same as a pod that is made now."""
    return float(f"{node_hours[worst_kind(capacity, node_hours)]:.4g}")


def worst_kind(capacity: Sequence[str], node_hours: Mapping[str, float]) -> str:
    """The kind that fails most often of those that the job names; on demand is what any job gets first."""
    return min(capacity or (CapacityKind.ON_DEMAND.value,), key=lambda kind: node_hours[kind])
