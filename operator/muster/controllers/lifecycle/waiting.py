"""A job without a placement: may the planner have it now, and if not, until when not?"""

from __future__ import annotations

from muster.api.names import ConditionType, Reason
from muster.cluster.hindrances import keeps_pods
from muster.cluster.status import reason_of
from muster.controllers.lifecycle.turn import Turn


def wait(turn: Turn) -> bool:
    """Offer the job to the planner, unless it backs off."""
    if turn.status.placement is not None:
        return False
    if not reason_of(turn.status, ConditionType.ADMITTED):
        turn.draft.condition(ConditionType.ADMITTED, False, Reason.PENDING.value, "waits to be planned")
    if turn.status.observed_generation not in (None, turn.s.job.metadata.generation):
        turn.draft.set(not_before=None)  # the spec was mended: try it at once
        if turn.status.queue is not None and keeps_pods(turn.status.queue.reason):
            turn.draft.set(queue=None)
    avoided = tuple(item for item in turn.status.avoided if item.until > turn.s.now)
    for item in avoided:
        turn.wake_at(item.until)
    not_before = turn.status.not_before
    if not_before is not None and not_before > turn.s.now:
        turn.wake_at(not_before)
    elif (not turn.s.pods and not turn.s.unshown) or (
        all(pod.terminating and pod.node in turn.s.lost_nodes for pod in turn.s.pods) and not turn.s.unshown
    ):
        turn.plannable = True
    return True
