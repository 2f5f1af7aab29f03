"""What of `spec.tracking` goes into a pod's environment. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from muster.api.effective_parts import EffectiveTracking
from muster_protocol import env

_CREDENTIALS: Final = (
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "WANDB_API_KEY",
)
"""Keys of `tracking.secretRef`; the pod starts without those that are not there, and without the Secret, too."""


def environment(tracking: EffectiveTracking) -> list[dict[str, Any]]:
    values = {
        env.TRACKING_URI: tracking.uri,
        env.TRACKING_EXPERIMENT: tracking.experiment,
        env.TRACKING_RUN_NAME: tracking.run_name,
        env.TRACKING_TAGS: json.dumps(dict(tracking.tags)) if tracking.tags else "",
    }
    result: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items() if value]
    for name in _CREDENTIALS if tracking.secret else ():
        reference = {"name": tracking.secret, "key": name, "optional": True}
        result.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    return result
