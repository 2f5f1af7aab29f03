"""The good end: every worker's pod has Succeeded."""

from __future__ import annotations

from muster.api.names import ConditionType, Reason
from muster.api.queue_position import QueuePosition
from muster.api.trainingjob_status import CommittedCheckpoint
from muster.cluster.status import nothing_saved
from muster.cluster.views import PodView
from muster.controllers.lifecycle.causes import Kind, end_of
from muster.controllers.lifecycle.turn import TERMINAL, Turn
from muster_protocol.counts import all_of
from muster_protocol.exits import ExitFacts, decode


def complete(turn: Turn) -> bool:
    """A gang of which every index has ended well is done; while some still run, it is waited for."""
    placement = turn.status.placement
    if placement is None:
        return False
    pods = turn.by_index()
    if not all(index in pods and _ended_well(turn, pods[index], pods[0]) for index in range(placement.workers)):
        return False
    finish_run(turn, Reason.COMPLETED)
    message = f"{all_of(placement.workers, 'worker')} ended with exit code 0"
    reason, found, saved = Reason.COMPLETED, _found_finished(turn, pods[0]), turn.s.spec.checkpoint
    if found is not None:
        reason, message = Reason.NOTHING_LEFT, f"{message}; {found.message}"
        turn.draft.set(queue=QueuePosition(reason=reason.value, message=found.message))  # what `kubectl get` shows
        if saved is not None and found.step is not None:
            turn.draft.set(checkpoint=CommittedCheckpoint(step=found.step, uri=saved.uri))
    elif missed := nothing_saved(turn.status, saved):
        message = f"{message}; {missed}"
    turn.draft.condition(ConditionType.SUCCEEDED, True, reason.value, message)
    if placement.replaced:  # it had come together again, and ended before anybody saw that
        turn.draft.set(replacements=(turn.status.replacements or 0) + len(placement.replaced))
    turn.draft.set(placement=None, replicas=0, ready=0, failure=None)
    return True


def _found_finished(turn: Turn, leader: PodView) -> ExitFacts | None:
    """What the launcher says where the run at the job's uri had finished before the job. None for any other, also for
    one that has committed a checkpoint: its own run was started again after its end."""
    facts = decode(leader.termination_message)
    return facts if facts is not None and facts.nothing_left and turn.status.checkpoint is None else None


def _ended_well(turn: Turn, pod: PodView, leader: PodView) -> bool:
    """By its own record. Index 0 ends well only when all others have told it that they did, so its word does for a pod
    whose kubelet is silent and will not tell."""
    if pod.node in turn.s.lost_nodes and pod.phase not in TERMINAL and pod is not leader:
        pod = leader
    end = end_of(pod)
    return end is not None and end.kind is Kind.SUCCEEDED


def finish_run(turn: Turn, reason: Reason) -> None:
    """What every end has in common: the run's account is closed and nothing is held or awaited any more."""
    turn.end_run(reason.value, "the job has ended")
    turn.draft.condition(ConditionType.ADMITTED, False, Reason.FINISHED.value, "the job has ended")
    turn.draft.set(finished_at=turn.s.now, queue=None, not_before=None, avoided=(), promise=None)
