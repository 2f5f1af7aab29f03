"""Takes the whole gang back before it trained: one pod can't be made, bound, started or made ready.

It is nobody's failure. The node or the cause is avoided for a while, longer each time, and the job waits with the
reason, holding no GPUs meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import AvoidedNode, Stop
from muster.cluster.hindrances import keeps_pods
from muster.cluster.status import is_true, reason_of
from muster.cluster.views import PodView
from muster.controllers.lifecycle import hindrance
from muster.controllers.lifecycle.causes import Kind, end_of
from muster.controllers.lifecycle.preemption import NAMESPACE_ENDS
from muster.controllers.lifecycle.turn import TERMINAL, Turn

UNSCHEDULABLE_PATIENCE: Final = 3.0
"""Seconds that kube-scheduler may call a pod unschedulable: its cache may be a moment behind ours."""

FIRST_DELAY: Final = 10
LAST_DELAY: Final = 300
"""Seconds that a cause is avoided: doubled with each withdrawal in a row."""


@dataclass(frozen=True)
class Obstacle:
    """Why the gang can't start; `node` is set when another node may do better."""

    reason: str
    message: str
    node: str = ""


def withdraw(turn: Turn) -> bool:
    """Withdraw a gang that can't start."""
    if turn.status.placement is None or is_true(turn.status, ConditionType.RUNNING):
        return False
    obstacle = next(_obstacles(turn), None)
    if obstacle is None:
        return False
    count = (turn.status.withdrawals or 0) + 1
    delay = min(FIRST_DELAY * 2 ** min(count - 1, 10), LAST_DELAY)
    until = turn.s.now + timedelta(seconds=delay)
    turn.draft.set(withdrawals=count)
    if obstacle.node:
        avoid(turn, obstacle.node, obstacle.message, delay)
        told = f"{obstacle.message}; node {obstacle.node} is avoided for {delay} s"
    else:
        turn.draft.set(not_before=until)
        told = f"{obstacle.message}; tried again in {delay} s"
    turn.tell(EventReason.WITHDRAWN, told, warning=True)
    turn.record_stop(Stop(reason=obstacle.reason, message=told, requested_at=turn.s.now))
    if keeps_pods(obstacle.reason):  # it stays told until the next start, whatever the job waits for meanwhile
        turn.draft.condition(ConditionType.PODS_READY, False, obstacle.reason, obstacle.message)
    return True


def _obstacles(turn: Turn) -> Iterator[Obstacle]:
    refusal, placement = turn.s.refusal, turn.status.placement
    assert placement is not None
    if refusal is not None and refusal.generation == placement.generation:
        yield Obstacle(Reason.POD_REFUSED.value, refusal.message)
    if turn.s.stranded >= placement.generation:  # the node was lost later; the next placement's pods have other names
        yield Obstacle(Reason.POD_REFUSED.value, f"a node that keeps pods of an earlier job is lost: {turn.s.unmade}")
    if turn.s.namespace_ends and len(turn.gang) < placement.workers:
        yield Obstacle(Reason.POD_REFUSED.value, f"{NAMESPACE_ENDS}, so no pod can be made there")
    for pod in sorted(turn.gang, key=lambda pod: pod.index):
        yield from of_pod(turn, pod)
    waited = turn.since(placement.placed_at)
    if waited < turn.s.spec.ready_timeout:
        turn.wake_in(turn.s.spec.ready_timeout - waited)
    elif not is_true(turn.status, ConditionType.PODS_READY):
        ready = sum(pod.ready for pod in turn.gang)
        were = f"{ready} of {placement.workers} pods were" if placement.workers > 1 else "its pod was not"
        message = f"{were} ready after readyTimeout ({turn.s.spec.ready_timeout} s)"
        told = reason_of(turn.status, ConditionType.PODS_READY)
        reason = told if keeps_pods(told) else Reason.READY_TIMEOUT.value  # one word for one cause
        yield Obstacle(reason, f"{message}{_first_unready(turn)}")


def of_pod(turn: Turn, pod: PodView) -> Iterator[Obstacle]:
    """What keeps one pod from starting for longer than it may."""
    end = end_of(pod)
    if end is not None and end.kind is Kind.REJECTED:
        yield Obstacle(Reason.POD_UNSCHEDULABLE.value, end.message, pod.node)
        return
    if pod.phase in TERMINAL or pod.terminating:
        return
    if pod.unschedulable and not hindrance.refused_anywhere(pod):
        waited = turn.since(pod.unschedulable_since)
        patience = hindrance.PATIENCE if hindrance.awaits_volume(pod) else UNSCHEDULABLE_PATIENCE
        if waited >= patience:
            told = pod.unschedulable.partition(" preemption: ")[0].rstrip(".")
            message = f"kube-scheduler can't place pod {pod.name} on node {pod.node}: {told}"
            yield Obstacle(Reason.POD_UNSCHEDULABLE.value, message, pod.node)
        turn.wake_in(max(0.2, patience - waited))
    age, told = turn.since(pod.created), reason_of(turn.status, ConditionType.PODS_READY)
    for found in hindrance.of_pod(pod):
        if found.unread:
            continue  # kubelet may have started the pod by now, and its word of that is on its way as well
        if age < hindrance.PATIENCE and not found.hopeless:
            turn.wake_in(hindrance.PATIENCE - age)
        else:
            yield Obstacle(told if hindrance.alike(told, found.reason) else found.reason, found.message)


def avoid(turn: Turn, node: str, reason: str, seconds: float) -> None:
    """Keep the gang away from a node for a while."""
    until = (turn.s.now + timedelta(seconds=seconds)).replace(microsecond=0)
    others = [item for item in turn.status.avoided if item.node != node and item.until > turn.s.now]
    turn.draft.set(avoided=(*others[-63:], AvoidedNode(node=node, reason=reason, until=until)))


def _first_unready(turn: Turn) -> str:
    placement = turn.status.placement
    assert placement is not None
    pods = turn.by_index()
    for index in range(placement.workers):
        pod = pods.get(index)
        if pod is None:
            why = f", for it can't be made: {turn.s.unmade}" if turn.s.unmade else ""
            return f"; pod {turn.name_of(index)} does not exist{why}"
        if not pod.ready:
            heard = turn.s.heard
            waiting = "; ".join(f"{item.reason} {item.message}".strip() for item in pod.waiting) or pod.unschedulable
            if pod.gates:
                waiting = f"it has the scheduling gate {', '.join(pod.gates)}"
            elif pod.silent_scheduler and not waiting:
                waiting = f"a webhook has given it the schedulerName {pod.scheduler}, which has said nothing of it"
            if heard is not None and heard.pod == pod.name:
                waiting = f"{heard.reason} {heard.message}".strip()
            return f"; pod {pod.name} on node {pod.node} is {pod.phase}" + (f": {waiting}" if waiting else "")
    return ""
