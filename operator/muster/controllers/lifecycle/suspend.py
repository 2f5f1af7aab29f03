"""`spec.suspend`: stop with a checkpoint, wait, and queue again with the first submit time."""

from __future__ import annotations

from muster.api.names import ConditionType, EventReason, Reason
from muster.cluster.status import is_true, nothing_saved, reason_of
from muster.controllers.lifecycle.turn import Turn

_STOPPED = "spec.suspend is true; set it to false to queue the job again"


def suspend(turn: Turn) -> bool:
    """Stop a suspended job's gang; say so once its last pod is gone. An ended job stays ended."""
    suspended, was = is_true(turn.status, ConditionType.SUSPENDED), reason_of(turn.status, ConditionType.SUSPENDED)
    if not turn.s.spec.suspend:
        if suspended:
            turn.draft.condition(ConditionType.SUSPENDED, False, Reason.NOT_SUSPENDED.value)
            turn.draft.condition(ConditionType.ADMITTED, False, Reason.PENDING.value, "queued again")
            turn.draft.set(not_before=None, avoided=(), queue=None)
            why = "the spec has changed" if was == Reason.GPUS_IDLE.value else "spec.suspend is false"
            turn.tell(EventReason.RESUMED, f"{why}: queued again")
        return False
    if turn.status.placement is not None:
        turn.stop(Reason.SUSPENDED, "spec.suspend is true")
        return True
    if not suspended or was != Reason.SUSPENDED.value:
        turn.draft.condition(ConditionType.SUSPENDED, True, Reason.SUSPENDED.value, _STOPPED)
        turn.draft.set(priority=None)  # it may be edited, and is judged anew
        turn.waits(Reason.SUSPENDED.value, _STOPPED)
        missed = nothing_saved(turn.status, turn.s.spec.checkpoint)
        turn.tell(EventReason.SUSPENDED, f"{_STOPPED}; {missed}" if missed else _STOPPED)
    return True
