"""A worker of the gang ended badly: restart the whole gang from its last checkpoint, or give the job up.

Losses that `replacement` mends in the living gang do not come here. Every recovery is a new generation of the whole
gang, in the room that it has: the nodes are promised to it in the same write that stops it, so nobody else gets them
meanwhile, and it does not queue again. Where a node broke, the planner gives the workers there another one
(`muster.scheduling.mending`); all others keep theirs, with image and caches.

Each kind of cause has a limit of its own within a sliding window: failures of the script `restart.limit`, those
included that the launchers answered by themselves by starting the processes again in their pods. What the platform does
never spends it. The same failure twice, at the same place and step, ends the job whatever is left: it would come again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, Final

from muster.api import restarts
from muster.api.effective import EffectiveSpec
from muster.api.jobparts import MAX_RESTARTS
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import Placement, format_indexes
from muster.api.queue_position import QueuePosition
from muster.api.restarts import Group, InPlace, group_of
from muster.api.trainingjob_status import Failure, PastFailure, TrainingJobStatus
from muster.cluster.status import is_true
from muster.cluster.views import PodView
from muster.controllers.lifecycle import blame, causes, preemption, resized
from muster.controllers.lifecycle.causes import BROKEN, COUNTED, FATAL, End, Kind
from muster.controllers.lifecycle.completion import finish_run
from muster.controllers.lifecycle.stopping import clean_up
from muster.controllers.lifecycle.turn import TERMINAL, Turn
from muster_protocol.durations import format_duration

PEER_PATIENCE: Final = 15.0
"""Seconds to wait for the pod that its peers followed, before they are believed to be the cause themselves."""

FREE_DISRUPTIONS: Final = 3
"""Disruptions and lost nodes after which a gang that hardly trained waits before its next start."""

UNANSWERED: Final = 10.0
"""Seconds between the first and the last of the questions that a gang's leader has left unanswered, after which nobody
vouches for its workers on unreachable nodes. The age of its last answer says nothing: thousands are asked in turn."""

SETTLED: Final = 300.0
"""Seconds of training after which a disruption counts as a new one."""

ALIKE: Final = 2
"""Failures in a row that are one and the same, after which the script is not started again."""

LONGEST_KEPT: Final = 60
"""Seconds of back-off over which the gang's room is kept. GPUs that stand idle for longer are somebody else's: then the
gang queues again, with its first submit time."""

_FAILED_REASON: Final = {
    Kind.CONFIG: Reason.CONFIGURATION_ERROR,
    Kind.STORAGE: Reason.STORAGE_ERROR,
    Kind.NUMERICS: Reason.UNSOUND_NUMBERS,
    Kind.USER: Reason.USER_ERROR,
    Kind.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    Kind.HANG: Reason.HUNG,
}


_MISUSE: Final = "muster_runtime.errors.UsageError"
"""What a rank raises whose script does what no start makes right."""


def recover(turn: Turn) -> bool:
    """Find the first cause among the gang's ends and act on it."""
    placement = turn.status.placement
    if placement is None:
        return False
    cause = causes.first_cause(ends(turn))
    if cause is None or cause.kind is Kind.SUCCEEDED:
        return False
    if cause.kind is Kind.PREEMPTED:
        cause = _by_others(cause, placement)
    if cause.kind is Kind.REJECTED and not is_true(turn.status, ConditionType.RUNNING):
        return False  # the placement was wrong: `withdraw` takes it back
    followed = placement.replacing is None  # else one that was lost, and is known to be
    if cause.kind is Kind.PEER and followed and _somebody_lives(turn) and turn.s.peers_wait < PEER_PATIENCE:
        turn.wake_in(PEER_PATIENCE - turn.s.peers_wait)
        return True
    answered = max(cause.restarts, placement.restarts or 0)  # a pod that is lost leaves no word of them
    book_failures(turn, placement, answered, cause.memory_restarts, "user", "a crash of the script")
    record(turn, cause)
    failures = (turn.status.failures or 0) + answered + (1 if cause.kind in COUNTED else 0)
    unseen = max(0, min(answered, MAX_RESTARTS + 1) - (placement.restarts or 0))  # no launcher was asked in between
    in_place = (turn.status.restarts_in_place or 0) + unseen
    turn.draft.set(failures=failures or None, restarts_in_place=in_place or None, placement=placement.settled())
    blame.note(turn, cause)
    if cause.kind is Kind.MAX_RUNTIME:
        told = replace(cause, index=-1, message=cause.message or "maxRuntime is over")  # no worker is to blame
        fail(turn, told, Reason.MAX_RUNTIME_EXCEEDED, "")
    elif cause.kind in FATAL:
        fail(turn, cause, _FAILED_REASON[cause.kind], "")
    else:
        go_on(turn, cause)
    return True


def _by_others(cause: End, placement: Placement) -> End:
    """A stop that Muster has not asked for, in words that put it down to no preemption and to no worker that tells."""
    who = "somebody else than Muster, as SIGTERM to a worker does"
    if lost := placement.replaced:  # kubelet gives who is deleted by force two seconds, enough to save for some
        who = f"worker{'s' if len(lost) > 1 else ''} {format_indexes(lost)} before being lost"
    return replace(cause, index=-1, message=f"the gang was asked to stop by {who}, and has stopped: {cause.message}")


def go_on(turn: Turn, cause: End) -> None:
    """Start the gang again where that may help and the limit of such causes allows it, or give the job up."""
    last, group = turn.status.failure, group_of(cause.cause)
    alike = (last.alike or 1) if last is not None else 1
    used, limit = spent(turn, cause), turn.s.spec.restart_limits[group] if group is not None else None
    misused = cause.signature.startswith(_MISUSE)
    if (alike >= ALIKE or misused) and cause.kind in COUNTED and resized.go_back(turn, cause, alike):
        restart(turn, cause, 1, None)  # it was not the author who chose that size
    elif misused:
        remark = "the script uses its session in a way that it can't, and would again: mend it, then delete the job"
        fail(turn, cause, Reason.USER_ERROR, f"{remark} and apply it again")
    elif alike >= ALIKE and cause.kind in COUNTED:
        reason = Reason.OUT_OF_MEMORY if cause.kind is Kind.OUT_OF_MEMORY else Reason.IDENTICAL_FAILURES
        fail(turn, cause, reason, _alike(cause, alike))
    elif group is not None and limit is not None and used > limit:
        tried = f"{group.value} {limit} is used up" if limit else ""
        fail(turn, cause, _FAILED_REASON.get(cause.kind, Reason.RESTART_LIMIT_EXCEEDED), tried)
    else:
        blame.shun(turn, cause)
        restart(turn, cause, used, limit)


def spent(turn: Turn, cause: End) -> int:
    """Failures of such causes within the window, the last one included."""
    group = group_of(cause.cause)
    return restarts.used(turn.status.recent_failures, group, turn.s.spec.restart_window, turn.s.now) if group else 0


def _alike(cause: End, times: int) -> str:
    # A script without a session tells of none, and may have done many.
    where = f"at step {cause.step}" if cause.step is not None else "before it told of a step"
    often = "twice" if times == ALIKE else f"{times} times"
    if cause.kind is Kind.OUT_OF_MEMORY:
        return f"it ran out of memory {often} {where}, and would again"
    mend = "mend the script" if "Traceback" in cause.traceback else "correct spec.command, the script or the image"
    return f"it failed {often} alike {where}, and would again: {mend}, then delete the job and apply it again"


def allowed_in_place(spec: EffectiveSpec, status: TrainingJobStatus, now: datetime) -> InPlace:
    """What the job's limits still allow of the failures that the launchers answer in their pods."""

    def left(group: Group) -> int:
        used = restarts.used(status.recent_failures, group, spec.restart_window, now)
        return max(0, (spec.restart_limits[group] or 0) - used)

    return InPlace(left(Group.SCRIPT), left(Group.MEMORY), left(Group.NETWORK))


def ends(turn: Turn) -> Iterator[End]:
    """Every end within the present placement that we did not ask for."""
    placement = turn.status.placement
    assert placement is not None
    pods, replaced = turn.by_index(), frozenset(placement.replaced)
    begun = is_true(turn.status, ConditionType.PODS_READY) or is_true(turn.status, ConditionType.RUNNING)
    for index in range(placement.workers):
        pod = pods.get(index)
        if pod is not None:
            if _lives_on(turn, pod):
                continue
            end = causes.end_of(pod, lost_nodes=turn.s.lost_nodes)
            if end is None and index in turn.s.missed and index not in replaced and pod.outlived_since is None:
                end = causes.missed(pod)
            if end is not None:
                yield end
        elif (begun and index not in replaced) or turn.name_of(index) in turn.s.shown:
            yield causes.gone(index, turn.name_of(index))


def _lives_on(turn: Turn, pod: PodView) -> bool:
    """Whether a pod whose node does not answer trains all the same, as its gang's leader has said, or may do so, for
    the leader has not been asked for long enough: what is broken then is the kubelet or the API server, and what the
    latter shows of the pods is old."""
    launcher = turn.s.launcher
    if pod.node not in turn.s.lost_nodes or pod.phase in TERMINAL or not is_true(turn.status, ConditionType.RUNNING):
        return False
    missed = pod.index in turn.s.missed or (launcher is not None and pod.index in launcher.lost)
    return not missed and turn.s.unanswered_for < UNANSWERED


def fail(turn: Turn, cause: End, reason: Reason, remark: str) -> None:
    """The job has failed for good; its pods stay for their logs, but for those that do not end soon."""
    message = sentence(cause) if not remark else f"{remark}; {sentence(cause)}"
    finish_run(turn, reason)
    turn.draft.set(queue=QueuePosition(reason=reason.value, message=message))  # what `kubectl get` shows
    turn.draft.condition(ConditionType.FAILED, True, reason.value, message)
    if cause.kind is Kind.STORAGE:
        turn.draft.condition(ConditionType.CHECKPOINT_STORAGE_READY, False, Reason.STORAGE_ERROR.value, cause.message)
    turn.tell(EventReason.FAILED, message, warning=True)
    clean_up(turn)


def restart(turn: Turn, cause: End, used: int, limit: int | None) -> None:
    """Stop the whole gang; it starts again from its last checkpoint. `used` of `limit` are gone, this one included."""
    delay = _delay(turn, cause, used)
    if cause.kind in BROKEN:
        turn.draft.set(breakdowns=(turn.status.breakdowns or 0) + 1)
    turn.draft.set(restarts=(turn.status.restarts or 0) + 1)
    turn.draft.set(not_before=turn.s.now + timedelta(seconds=delay) if delay else None)
    checkpoint = turn.status.checkpoint
    # One that the launchers have committed since they were last asked is not known, nor is one that is saved just now.
    origin = "from its last committed checkpoint, if it has one"
    if checkpoint is not None:
        origin = f"from step {checkpoint.step}, or from a later one that it has saved by then"
    window = format_duration(turn.s.spec.restart_window)
    count = f" (restart {used} of at most {limit} within {window})" if limit is not None else ""
    message = f"{sentence(cause)}{count}"
    then = f"{f'after {delay} s ' if delay else ''}the gang starts again {origin}"
    if cause.evicted:
        turn.tell(EventReason.RESTARTING, f"{message}; {then}")
    else:
        turn.tell(EventReason.WORKER_FAILED, message, warning=True)
        turn.tell(EventReason.RESTARTING, then)
    stop_whole(turn, message, keeps_room=delay <= LONGEST_KEPT)


def stop_whole(turn: Turn, message: str, *, keeps_room: bool = True) -> None:
    """Stop a gang that is to start again: in the room that it has, if that is still its own and of a size that it may
    have. One that was to move or to shrink for another goes on where that leaves it."""
    placement, spec, claim = turn.status.placement, turn.s.spec, turn.s.claim
    assert placement is not None
    size = resized.size_of_restart(turn.status, placement)
    if keeps_room and claim is not None and claim.victim.nodes:
        preemption.give_way(turn)
        return
    if keeps_room and claim is None and spec.may_have(size) and size <= placement.workers:
        preemption.keep_room(turn, size)
    turn.stop(Reason.RESTARTING, message)


def _delay(turn: Turn, cause: End, used: int) -> int:
    """Seconds before the next placement. A disruption needs none, since the job did nothing wrong; but one that meets
    the gang again and again before it has trained for a while is something that nobody should repeat at full speed."""
    if cause.kind in COUNTED:
        return turn.s.spec.restart_delay(used)
    if cause.kind in (Kind.INFRASTRUCTURE, Kind.PEER, Kind.REJECTED, Kind.NETWORK, Kind.NODE):
        return turn.s.spec.restart_delay(used - 1) if used > 1 else 0  # once may be chance
    if used <= FREE_DISRUPTIONS or turn.since(turn.status.running_since) >= SETTLED:
        return 0
    return turn.s.spec.restart_delay(used - FREE_DISRUPTIONS)


def record(turn: Turn, cause: End) -> None:
    """Keep the cause in `status.failure`, and in short among those before."""
    known: dict[str, Any] = {
        "at": turn.s.now,
        "cause": cause.cause,
        "index": cause.index if cause.index >= 0 else None,
        "node": cause.node or None,
        "step": cause.step,
        "message": cause.message,
    }
    short = PastFailure(**known)
    if cause.kind in COUNTED and cause.signature:
        short = PastFailure(**known, signature=cause.signature, observed_generation=turn.generation)
    alike = cause.alike + restarts.alike(turn.status.recent_failures, short)
    turn.draft.set(
        failure=Failure(
            **known,
            rank=cause.rank,
            exit_code=cause.exit_code,
            traceback=cause.traceback,
            alike=alike if alike > 1 else None,
        ),
        recent_failures=restarts.booked(turn.status.recent_failures, short),
    )


def book_failures(turn: Turn, placement: Placement, failures: int, memory: int, cause: str, message: str) -> None:
    """Keep those of the script's `failures` that are new since the placement was last looked at; `memory` of them, all
    told, were for want of memory, the others are `cause`'s."""
    told, told_memory = placement.restarts or 0, placement.memory_restarts or 0
    memory = max(memory, told_memory)
    book_crashes(turn, memory - told_memory, "out-of-memory", message)
    book_crashes(turn, (failures - memory) - (told - told_memory), cause, message)


def book_crashes(turn: Turn, count: int, cause: str, message: str) -> None:
    """Keep failures in short that were answered by starting the processes again in their pods. The number may be
    nonsense: a script can write its own termination message."""
    one = PastFailure(at=turn.s.now, cause=cause, message=message, in_place=True)
    new = repeat(one, max(0, min(count, MAX_RESTARTS + 1)))
    turn.draft.set(recent_failures=restarts.booked(turn.status.recent_failures, *new))


def sentence(cause: End) -> str:
    """Who ended, where, and why: what the message says of that is not said before it."""
    if cause.evicted:
        return cause.message  # it names pod and node
    said = cause.rank is not None and cause.message.startswith(f"rank {cause.rank} ")
    who = f"worker {cause.index}" if cause.rank is None or said else f"rank {cause.rank}, worker {cause.index}"
    named = re.search(rf"\bnode {re.escape(cause.node)}(?![\w.-])", cause.message)
    where = f" on node {cause.node}" if cause.node and named is None else ""
    last = cause.traceback.strip().splitlines()[-1] if "Traceback" in cause.traceback else ""
    told = cause.message if not last or last in cause.message else f"{cause.message} ({last})"
    return f"{who}{where}: {told}" if cause.index >= 0 else told


def _somebody_lives(turn: Turn) -> bool:
    return any(pod.phase not in TERMINAL for pod in turn.by_index().values())
