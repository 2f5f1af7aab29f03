"""What a quarantine leaves on a node: our taint, and annotations that say why and until when. Pure.

All of the state is there, so that whoever leads next goes on with it, and people see it and may change it. A taint of
ours without a moment of its end beside it is somebody else's doing and never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from muster.api.common import format_time
from muster.api.names import QUARANTINE_LIFTED, QUARANTINE_REASON, QUARANTINE_TAINT, QUARANTINE_UNTIL
from muster.cluster.views import NodeView, parse_time

Object = Mapping[str, Any]
EFFECT: Final = "NoSchedule"


def tainted(node: NodeView) -> bool:
    """Whether the node has the taint, whoever put it there."""
    return any(taint.key == QUARANTINE_TAINT for taint in node.taints)


def moment(text: str) -> datetime | None:
    """What an annotation says; None for nothing, and for what a person mistyped."""
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        return None


def quarantined(raw: Object, reason: str, until: datetime) -> dict[str, Any] | None:
    """The merge patch that quarantines the node; None where it has the taint already."""
    taints = list((raw.get("spec") or {}).get("taints") or ())
    if any(taint.get("key") == QUARANTINE_TAINT for taint in taints):
        return None
    annotations = {QUARANTINE_REASON: reason, QUARANTINE_UNTIL: format_time(until)}
    return _patch(raw, [*taints, {"key": QUARANTINE_TAINT, "effect": EFFECT}], annotations)


def lifted(raw: Object, now: datetime) -> dict[str, Any] | None:
    """The merge patch that ends a quarantine of ours; None where there is none, or where somebody prolonged it or made
    it theirs meanwhile."""
    until = ((raw.get("metadata") or {}).get("annotations") or {}).get(QUARANTINE_UNTIL)
    before = list((raw.get("spec") or {}).get("taints") or ())
    taints = [taint for taint in before if taint.get("key") != QUARANTINE_TAINT]
    ends = moment(until or "")
    if until is None or (len(taints) < len(before) and (ends is None or ends > now)):
        return None
    annotations = {QUARANTINE_REASON: None, QUARANTINE_UNTIL: None, QUARANTINE_LIFTED: format_time(now)}
    return _patch(raw, taints, annotations)


def _patch(raw: Object, taints: list[Any], annotations: Mapping[str, str | None]) -> dict[str, Any]:
    """With the resourceVersion that was read: a merge patch replaces the whole list, and others write taints, too."""
    metadata = {"resourceVersion": raw["metadata"]["resourceVersion"], "annotations": dict(annotations)}
    return {"metadata": metadata, "spec": {"taints": taints or None}}
