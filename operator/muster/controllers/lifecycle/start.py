"""From placement to training: missing pods are made, and the conditions follow what the pods and the launcher show."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from pydantic import ValidationError

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.nodefaults import FaultCause
from muster.api.placement import Placement
from muster.api.queue_position import QueuePosition
from muster.api.trainingjob_status import Failure, ProfileStatus
from muster.cluster.hindrances import PODS_ARE_MADE, keeps_pods
from muster.cluster.status import is_true, reason_of
from muster.controllers.lifecycle import blame, failure, hindrance
from muster.controllers.lifecycle.facts import reach, tell_numerics
from muster.controllers.lifecycle.turn import Turn
from muster.controllers.lifecycle.withdraw import UNSCHEDULABLE_PATIENCE
from muster_protocol.counts import all_of
from muster_protocol.exits import Cause
from muster_protocol.launcher_status import Phase as LauncherPhase
from muster_protocol.launcher_status import ProfilePhase, Profiling
from muster_protocol.launcher_status import Status as LauncherStatus
from muster_protocol.messages import Ended

BARRIER: Final = 5.0
"""Seconds that a gang whose pods are all ready may take to its barrier before PodsReady is told by itself. Most take
less, and then PodsReady and Running are one write."""

UNMADE_PATIENCE: Final = 10.0
"""Seconds in which pods may fail to be made before it is told: an API server has bad moments."""
_UNMADE: Final = "pods can't be made, and are tried again"
_GATED: Final = "pods are not scheduled while a scheduling gate is on them"
_ELSEWHERE: Final = "pods wait for another scheduler than kube-scheduler"


def make_pods(turn: Turn) -> bool:
    """Ask for the pods of the placement that do not exist yet: of all workers or, once the gang was whole, of those
    that are replaced. One whose node can't have it waits until the planner has given it another."""
    placement = turn.status.placement
    if placement is None or is_true(turn.status, ConditionType.PODS_READY):
        return False
    present = {pod.name for pod in turn.gang} | {made.name for made in turn.s.unshown}
    missing = [index for index in range(placement.workers) if turn.name_of(index) not in present]
    if is_true(turn.status, ConditionType.RUNNING):
        nodes, replaced = placement.node_of_index(), frozenset(placement.replaced)
        missing = [index for index in missing if index in replaced and nodes[index] not in turn.s.unfit_nodes]
    turn.make = tuple(missing)
    return False


def follow(turn: Turn) -> bool:
    """Set PodsReady and Running."""
    placement = turn.status.placement
    if placement is None:
        return False
    pods = turn.by_index()
    ready = sum(pod.ready or pod.phase == "Succeeded" for pod in pods.values())
    if ready < placement.workers:
        _tell_hindrance(turn)
    elif not is_true(turn.status, ConditionType.RUNNING):
        if not _train(turn, placement.workers) and turn.s.whole_for < BARRIER:
            turn.wake_in(max(0.2, BARRIER - turn.s.whole_for))
            return False
        turn.draft.set(ready=ready, queue=None)
        turn.draft.condition(ConditionType.PODS_READY, True, Reason.PODS_READY.value, pods_run(placement.workers))
        if not is_true(turn.status, ConditionType.RUNNING):
            told = "the workers join the barrier"
            turn.draft.condition(ConditionType.RUNNING, False, Reason.WAITING_FOR_GANG.value, told)
            _tell_storage(turn)
    elif turn.s.launcher is not None and placement.replacing is None and not turn.s.launcher.lost:
        _tell_heard(turn, placement.workers)
        _tell_restarts(turn, placement, turn.s.launcher)
        tell_numerics(turn, turn.s.launcher.numerics)
        _tell_profile(turn, turn.s.launcher.profile)
    return False


def _tell_restarts(turn: Turn, placement: Placement, launcher: LauncherStatus) -> None:
    """Say that the launchers have started the processes again in the pods that they have."""
    if launcher.incarnation > (turn.status.incarnation or 0):
        turn.draft.set(incarnation=launcher.incarnation)
    scripts = launcher.restarts if launcher.failures is None else launcher.failures
    networks = launcher.restarts - scripts
    memory = max(launcher.memory_failures, placement.memory_restarts or 0)
    crashes = max(0, scripts - (placement.restarts or 0))
    breaks = max(0, networks - (placement.network_restarts or 0))
    if not crashes + breaks:  # processes also start anew where a launcher was only away for a while
        return
    counted = {"restarts": scripts or None, "memory_restarts": memory or None, "network_restarts": networks or None}
    in_place = (turn.status.restarts_in_place or 0) + crashes + breaks
    turn.draft.set(restarts_in_place=in_place, placement=placement.model_copy(update=counted))
    hung = launcher.restarted_by is not None and launcher.restarted_by.cause == Cause.HANG.value
    cause = launcher.restarted_after[:500] or "a rank crashed"  # before index 0 was replaced, which knows the number
    failure.book_failures(turn, placement, scripts, memory, "hang" if hung else "user", cause)
    failure.book_crashes(turn, breaks, "network", cause)
    told = f"{cause}; the gang's processes were started again in their pods"
    turn.tell(EventReason.RESTARTED_IN_PLACE, f"{told} ({launcher.restarts} in this placement)", warning=True)
    if launcher.restarted_by is not None:
        _keep_failure(turn, launcher.restarted_by)


def _tell_profile(turn: Turn, said: Profiling | None) -> None:
    """Say how a profile has ended, for those who don't look at the command's terminal. A word may be nonsense."""
    if said is None or said.phase not in (ProfilePhase.DONE, ProfilePhase.FAILED):
        return
    stored = said.phase is ProfilePhase.DONE
    try:
        asked_at = datetime.fromtimestamp(said.asked_at, timezone.utc)
        uri = said.uri if said.uri.startswith("s3://") else None
        known = ProfileStatus(asked_at=asked_at, stored=stored, uri=uri, message=said.text)
    except (ValidationError, ValueError, OverflowError, OSError, TypeError, AttributeError):
        return
    old = turn.status.profile
    if old is not None and old.asked_at >= known.asked_at:
        return
    turn.draft.set(profile=known)
    if stored:
        told = f"a profile lies at {said.uri}{f'; {known.message}' if known.message else ''}"
        turn.tell(EventReason.PROFILED, told)
    else:
        turn.tell(EventReason.PROFILE_FAILED, known.message, warning=True)


def _keep_failure(turn: Turn, ended: Ended) -> None:
    """In `status.failure`, with the traceback or, of a hang, the stack. A launcher's word may be nonsense."""
    pod = turn.by_index().get(ended.index)
    try:
        known = Failure(
            cause=ended.cause,
            index=ended.index,
            rank=ended.rank,
            step=ended.step,
            node=pod.node if pod is not None and pod.node else None,
            message=ended.message,
            traceback=ended.traceback,
            at=turn.s.now,
        )
    except ValidationError:
        return
    turn.draft.set(failure=known)
    reach(turn, known.step)
    if known.node and ended.cause == Cause.HANG.value and ended.suspect:
        blame.book(turn, known.node, FaultCause.HANG, known.message)


def _tell_hindrance(turn: Turn) -> None:
    """Say at once what keeps a pod from starting, in the words of who says it: a person can mend it meanwhile."""
    if is_true(turn.status, ConditionType.RUNNING) or is_true(turn.status, ConditionType.PODS_READY):
        return
    found, told = hindrance.first(turn.gang, turn.s.heard), reason_of(turn.status, ConditionType.PODS_READY)
    if found is None:
        if keeps_pods(told):
            turn.draft.condition(ConditionType.PODS_READY, False, Reason.PODS_STARTING.value, PODS_ARE_MADE)
            turn.draft.set(queue=None)
        else:
            _forget_last_try(turn)
            _tell_unmade(turn)
        if pulls := hindrance.pulls(turn.gang, turn.s.heard):
            turn.draft.condition(ConditionType.PODS_READY, False, Reason.PODS_STARTING.value, pulls)
    elif found.pod.unschedulable and turn.since(found.pod.unschedulable_since) < UNSCHEDULABLE_PATIENCE:
        turn.wake_in(UNSCHEDULABLE_PATIENCE)  # claims are made for pods, and that is no news
    elif not hindrance.alike(told, found.reason):
        turn.draft.condition(ConditionType.PODS_READY, False, found.reason, found.message)
        turn.draft.set(queue=QueuePosition(reason=found.reason, message=found.message))


def _tell_unmade(turn: Turn) -> None:
    """Say what pods can't be made for, or be scheduled, where that goes on: an admission webhook that does not answer,
    as it may be. The first that was told stands: each pod's making may fail in other words."""
    placement, condition = turn.status.placement, find_condition(turn.status.conditions, ConditionType.PODS_READY.value)
    told = condition is not None and condition.message.startswith((_UNMADE, _GATED, _ELSEWHERE))
    message = f"{_UNMADE}: {turn.s.unmade}" if turn.s.unmade else _gated(turn) or _elsewhere(turn)
    if told == bool(message) or placement is None:
        return
    waited = turn.since(placement.placed_at)
    if told:
        turn.draft.condition(ConditionType.PODS_READY, False, Reason.PODS_STARTING.value, PODS_ARE_MADE)
        turn.draft.set(queue=None)
    elif waited < UNMADE_PATIENCE:
        turn.wake_in(UNMADE_PATIENCE - waited)
    else:
        turn.draft.condition(ConditionType.PODS_READY, False, Reason.PODS_STARTING.value, message)
        turn.draft.set(queue=QueuePosition(reason=Reason.PODS_STARTING.value, message=message))


def _gated(turn: Turn) -> str:
    """Muster makes no pod with scheduling gates, but a webhook may put some on it, as Kueue's does."""
    pod = min((pod for pod in turn.by_index().values() if pod.gates), key=lambda pod: pod.index, default=None)
    if pod is None:
        return ""
    gates = ", ".join(pod.gates)
    return f"{_GATED}: {pod.name} has {gates}; whose webhook put it there has to take it away, or to leave the pods out"


def _elsewhere(turn: Turn) -> str:
    """Muster's pods are kube-scheduler's, but a webhook may hand them to another, as Volcano's and YuniKorn's do."""
    waiting = [pod for pod in turn.by_index().values() if pod.silent_scheduler]
    pod = min(waiting, key=lambda pod: pod.index, default=None)
    if pod is None:
        return ""
    return (
        f"{_ELSEWHERE}: a webhook has given {pod.name} the schedulerName {pod.scheduler}, which has said nothing of "
        "it; have the webhook leave the pods out, or see whether that scheduler runs"
    )


def _forget_last_try(turn: Turn) -> None:
    """What kept the pods of the placement before from starting stays told until it would have been met again."""
    placement, place = turn.status.placement, turn.status.queue
    if placement is None or place is None or not keeps_pods(place.reason):
        return
    waited = turn.since(placement.placed_at)
    if waited >= hindrance.PATIENCE:
        turn.draft.set(queue=None)
    else:
        turn.wake_in(hindrance.PATIENCE - waited)


def pods_run(workers: int) -> str:
    """What is told of a gang whose pods are ready."""
    return f"{all_of(workers, 'pod')} {'runs' if workers == 1 else 'run'}"


def _tell_storage(turn: Turn) -> None:
    """Say at once what the preflight waits for: it tries a server that can't be reached for minutes."""
    told = turn.s.launcher.storage_error if turn.s.launcher is not None else ""
    if told:
        turn.draft.condition(ConditionType.CHECKPOINT_STORAGE_READY, False, Reason.STORAGE_ERROR.value, told)
        turn.draft.set(queue=QueuePosition(reason=Reason.STORAGE_ERROR.value, message=told))


def _joined(workers: int) -> str:
    joined = "its worker has joined, and its" if workers == 1 else f"all {workers} workers have joined, and their"
    return f"{joined} ranks run"


def _unheard(workers: int) -> str:
    return f"{pods_run(workers)}, but the launcher does not answer the operator: no progress is shown"


def _tell_heard(turn: Turn, workers: int) -> None:
    """The launcher answers after all."""
    running = find_condition(turn.status.conditions, ConditionType.RUNNING.value)
    if running is not None and running.message == _unheard(workers):
        turn.draft.condition(ConditionType.RUNNING, True, Reason.TRAINING.value, _joined(workers))


def _train(turn: Turn, workers: int) -> bool:
    """Set Running when the launcher says so, or has been silent for long. False: not yet."""
    launcher = turn.s.launcher
    if launcher is not None and launcher.phase in (LauncherPhase.JOINING, LauncherPhase.PREFLIGHT):
        return False
    if launcher is not None:
        message = _joined(workers)
        turn.draft.set(incarnation=launcher.incarnation)
        if turn.s.spec.checkpoint is not None and not launcher.storage_error:
            told = f"{turn.s.spec.checkpoint.uri} can be read and written"
            turn.draft.condition(ConditionType.CHECKPOINT_STORAGE_READY, True, Reason.STORAGE_READY.value, told)
    elif turn.s.silent_for >= turn.s.launcher_patience:
        message = _unheard(workers)
    else:
        turn.wake_in(max(0.2, turn.s.launcher_patience - turn.s.silent_for))
        return False
    now = turn.s.now
    placed_at = turn.status.placement.placed_at if turn.status.placement else None
    turn.draft.set(start_seconds=max(0, round(turn.since(placed_at))) if placed_at else None)
    turn.draft.condition(ConditionType.RUNNING, True, Reason.TRAINING.value, message)
    turn.draft.set(running_since=now, started_at=turn.status.started_at or now, withdrawals=None, avoided=())
    return True
