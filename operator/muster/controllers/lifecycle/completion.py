"""The good end: every worker's pod has Succeeded."""

from __future__ import annotations

from muster.api.names import ConditionType, Reason
from muster.controllers.lifecycle.causes import Kind, end_of
from muster.controllers.lifecycle.turn import Turn


def complete(turn: Turn) -> bool:
    """A gang of which every index has ended well is done; while some still run, it is waited for."""
    placement = turn.status.placement
    if placement is None:
        return False
    pods = turn.by_index()
    ends = [end_of(pods[index]) for index in range(placement.workers) if index in pods]
    if len(ends) < placement.workers or any(end is None or end.kind is not Kind.SUCCEEDED for end in ends):
        return False
    finish_run(turn, Reason.COMPLETED)
    message = f"all {placement.workers} workers ended with exit code 0"
    turn.draft.condition(ConditionType.SUCCEEDED, True, Reason.COMPLETED.value, message)
    if placement.replaced:  # it had come together again, and ended before anybody saw that
        turn.draft.set(replacements=(turn.status.replacements or 0) + len(placement.replaced))
    turn.draft.set(placement=None, replicas=0, ready=0, failure=None)
    return True


def finish_run(turn: Turn, reason: Reason) -> None:
    """What every end has in common: the run's account is closed and nothing is held or awaited any more."""
    turn.end_run(reason.value, "the job has ended")
    turn.draft.condition(ConditionType.ADMITTED, False, Reason.FINISHED.value, "the job has ended")
    turn.draft.set(finished_at=turn.s.now, queue=None, not_before=None, avoided=(), promise=None)
