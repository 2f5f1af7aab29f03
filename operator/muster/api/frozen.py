"""Tells by a hash whether a job is still the one that a placement or a promise was made for. Pure.

The CEL rules refuse most edits of a running job, but they can be walked round: suspend, edit and unsuspend faster than
the operator looks, and some fields they cannot compare. The hash is of what the user wrote, not of the effective spec,
so that a newer operator with other defaults stops nobody's gang.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Final

from muster.api.rules import FROZEN_WHILE_ADMITTED
from muster.api.trainingjob import TrainingJobSpec

OF_PLACEMENT: Final = (*FROZEN_WHILE_ADMITTED, "volumes", "podTemplate", "imagePullSecrets")
"""Fields that the pods of a gang are made from, and those that say where it may lie."""

OF_PODS: Final = ("checkpoint", "numerics", "hang", "health.preflight", "health.slowerBy", "terminationGracePeriod")
"""Fields that the pods of a gang are made from, too, and that may be edited while it runs. Its ranks do the same by
them, so no pod is made of others than the gang's own."""

OF_PROMISE: Final = (*OF_PLACEMENT, "workers", "capacity", "priorityClassName")
"""Fields that the planner looked at when it chose the nodes."""


def frozen_hash(spec: TrainingJobSpec, fields: Iterable[str]) -> str:
    """16 hex digits that change when one of `fields` (paths in the spec) does.

    What is not there leaves no trace, so that an operator that knows another field stops nobody's gang either.
    """
    raw = spec.to_raw()
    found = [[path, value] for path in sorted(fields) if (value := _at(raw, path)) is not None]
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _at(raw: dict[str, Any], path: str) -> Any:
    found: Any = raw
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
