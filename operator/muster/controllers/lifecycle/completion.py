"""The good end: every worker's pod has Succeeded."""

from __future__ import annotations

from muster.api.names import ConditionType, Reason
from muster.api.trainingjob_status import CommittedCheckpoint, QueuePosition
from muster.cluster.views import PodView
from muster.controllers.lifecycle.causes import Kind, end_of
from muster.controllers.lifecycle.turn import TERMINAL, Turn
from muster_protocol import exits


def complete(turn: Turn) -> bool:
    """A gang of which every index has ended well is done; while some still run, it is waited for."""
    placement = turn.status.placement
    if placement is None:
        return False
    pods = turn.by_index()
    if not all(index in pods and _ended_well(turn, pods[index], pods[0]) for index in range(placement.workers)):
        return False
    finish_run(turn, Reason.COMPLETED)
    message = f"all {placement.workers} workers ended with exit code 0"
    if told := _nothing_left(turn, pods[0]):
        turn.draft.set(queue=QueuePosition(reason=Reason.NOTHING_LEFT.value, message=told))  # for `kubectl get`
        turn.draft.condition(ConditionType.SUCCEEDED, True, Reason.NOTHING_LEFT.value, f"{message}; {told}")
    else:
        turn.draft.condition(ConditionType.SUCCEEDED, True, Reason.COMPLETED.value, message)
    if placement.replaced:  # it had come together again, and ended before anybody saw that
        turn.draft.set(replacements=(turn.status.replacements or 0) + len(placement.replaced))
    turn.draft.set(placement=None, replicas=0, ready=0, failure=None)
    return True


def _nothing_left(turn: Turn, leader: PodView) -> str:
    """Why a job that has never committed a checkpoint had nothing to train, as its launcher says: the run at its uri
    had finished before. "" for any other: its own run was started again after its end."""
    facts, spec = exits.decode(leader.termination_message), turn.s.spec.checkpoint
    if facts is None or not facts.nothing_left or spec is None or turn.status.checkpoint is not None:
        return ""
    if facts.step is not None:
        turn.draft.set(checkpoint=CommittedCheckpoint(step=facts.step, uri=spec.uri))
    return facts.message


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
