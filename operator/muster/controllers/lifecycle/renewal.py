"""A gang runs what its placement was made for: when the spec is another one, it stops and starts again with that.

The API server refuses most such edits while a job is admitted. A quick suspend, edit and unsuspend gets past it, an
edit of a job that waits can meet its placement, and some fields its rules cannot compare, such as the pod template.

A gang that runs is not stopped for a spec that it could not start again with: first the API server is asked whether it
takes the pods. Where it doesn't, the gang runs on as it was made until the edit is mended or taken back. No pod is made
of such a spec, so a lost worker ends that, too.

Other fields that pods are made from may be edited, such as `numerics` and most of `checkpoint`: a gang that is whole
runs on as it was made, and gets them with its next start. One that needs a pod starts again whole.
"""

from __future__ import annotations

from muster.api.common import find_condition
from muster.api.effective import EffectiveSpec
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.status import is_true
from muster.controllers.lifecycle.turn import Turn

_CHANGED = (
    "the spec has changed in fields that a running gang keeps: it stops, and starts again with the new spec from its "
    "last committed checkpoint, if it has one"
)


def edited(status: TrainingJobStatus, spec: EffectiveSpec, placement_hash: str) -> bool:
    """Whether the present placement was made for another spec."""
    placement = status.placement
    if placement is None:
        return False
    as_placed = not placement.spec or placement.spec == placement_hash
    # The size is no part of the hash, for an elastic gang changes it while it runs.
    return not as_placed or not (spec.elastic or placement.workers == spec.replicas)


def makes_no_pods(turn: Turn) -> bool:
    """Whether a pod that is made now would be of another spec than the present gang's others, which is no worker of
    theirs: ranks that watch their losses, and others that don't, wait for one another in vain."""
    placement = turn.status.placement
    others = placement is not None and placement.pods not in ("", turn.s.pods_hash)
    return others or edited(turn.status, turn.s.spec, turn.s.placement_hash)


def whole(status: TrainingJobStatus) -> bool:
    """Whether the gang trains and waits for no worker that is made anew, so that it needs nothing of its spec."""
    return is_true(status, ConditionType.RUNNING) and (status.placement is None or status.placement.replacing is None)


def renew(turn: Turn) -> bool:
    """Stop a gang that was placed for another spec, unless it could not start again with the one that it has now."""
    if not edited(turn.status, turn.s.spec, turn.s.placement_hash):
        if not whole(turn.status) and makes_no_pods(turn):
            return _start_again(turn)
        if is_true(turn.status, ConditionType.EDIT_REFUSED):
            again = "the spec is again the one that the gang runs"
            turn.draft.condition(ConditionType.EDIT_REFUSED, False, Reason.EDIT_TAKEN_BACK.value, again)
        return False
    if whole(turn.status) and (not turn.s.edit.judged or turn.s.edit.message):
        if turn.s.edit.message:
            _refuse(turn)
        return False
    return _start_again(turn)


def confirm(turn: Turn) -> bool:
    """Say of a gang that is as the spec wants it that this is so since an edit which it does not mind, too."""
    status = turn.status
    if status.placement is not None and status.stop is None and not edited(status, turn.s.spec, turn.s.placement_hash):
        turn.draft.confirm(ConditionType.ADMITTED, ConditionType.PODS_READY, ConditionType.RUNNING)
    return False


def _start_again(turn: Turn) -> bool:
    turn.tell(EventReason.RESTARTING, _CHANGED)
    turn.stop(Reason.RESTARTING, _CHANGED)
    return True


def _refuse(turn: Turn) -> None:
    """Once for each edit, and for each other reason why it is refused."""
    kind, edit = ConditionType.EDIT_REFUSED, turn.s.edit
    message = (
        f"{edit.message}; the gang runs on as it was made, and could not start again: mend the spec, or take the edit "
        "back"
    )
    known = find_condition(turn.status.conditions, kind.value)
    told = known is not None and known.status == "True" and known.message == message
    if not told or known is None or known.observed_generation != turn.generation:
        turn.draft.condition(kind, True, edit.reason, message)
    if not told:
        turn.tell(EventReason.EDIT_REFUSED, message, warning=True)
