"""Tells a job that waits what became of the request for more nodes."""

from __future__ import annotations

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Reason
from muster.cluster.provisioning import Answer
from muster.cluster.status import Draft
from muster.controllers.lifecycle.turn import Turn


def tell_capacity(turn: Turn) -> bool:
    """Set CapacityRequested; written when the answer changes."""
    capacity = turn.s.capacity
    if turn.status.placement is not None or turn.status.finished_at is not None:
        return False
    if capacity is None:
        not_needed(turn.draft, "the job does not wait for nodes")
        return False
    who = f"ProvisioningRequest {capacity.request}"
    if capacity.answer is Answer.FAILED:
        again = f"; asked again at {capacity.retry_at:%H:%M:%S} UTC" if capacity.retry_at else ""
        told = (False, Reason.PROVISIONING_FAILED, f"{who}: {capacity.message or 'failed'}{again}")
    elif capacity.answer is Answer.PROVISIONED:
        told = (True, Reason.PROVISIONED, f"{who}: {capacity.message or 'the nodes are there'}")
    else:
        told = (True, Reason.REQUESTED, f"{who} asks the autoscaler for the whole gang's nodes")
    known = find_condition(turn.status.conditions, ConditionType.CAPACITY_REQUESTED.value)
    if known is not None and (known.reason, known.message) == (told[1].value, told[2]):
        return False
    turn.draft.condition(ConditionType.CAPACITY_REQUESTED, told[0], told[1].value, told[2])
    if known is None or known.reason != told[1].value:
        failed = told[1] is Reason.PROVISIONING_FAILED
        turn.tell(EventReason.CAPACITY_REQUESTED, told[2], warning=failed)
    return False


def not_needed(draft: Draft, why: str) -> None:
    """Take back what was told, where anything was."""
    known = find_condition(draft.status.conditions, ConditionType.CAPACITY_REQUESTED.value)
    if known is not None and known.reason != Reason.NOT_NEEDED.value:
        draft.condition(ConditionType.CAPACITY_REQUESTED, False, Reason.NOT_NEEDED.value, why)
