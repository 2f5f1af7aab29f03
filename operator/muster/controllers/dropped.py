"""What the API server takes from a status without keeping it, as that of CRDs older than the operator does.

A turn would decide on the same status again, and its write would come to the same, several times a second for each job.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from muster.controllers.lifecycle.turn import Decision
from muster.controllers.records import Record

log = logging.getLogger(__name__)

_told: Final = set[str]()
"""Fields that were named in the log."""


def without_vain(record: Record, decision: Decision) -> Decision:
    """`decision` without a status that was written before and came to what the job has now. Called in each turn."""
    if decision.status is None:
        record.vain = None
    if decision.status is None or record.vain != (decision.status, record.job.status):
        return decision
    field = first_dropped(decision.status.to_raw(), record.job.status.to_raw())
    if field not in _told:
        _told.add(field)
        log.error(
            "TrainingJob %s/%s: the API server does not keep status%s: its CRDs are not of this operator's version; "
            "apply crds/ of this version, or install the chart with crds.enabled=true",
            record.identity.namespace,
            record.identity.name,
            field,
        )
    return replace(decision, status=None, notes=())


def first_dropped(wanted: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """The first field that is not as it was to be, like `.placement.flavour`; "" where there is none."""
    for name, value in wanted.items():
        found = kept.get(name)
        if found == value:
            continue
        inner = first_dropped(value, found) if isinstance(value, dict) and isinstance(found, dict) else ""
        return f".{name}{inner}"
    return ""
