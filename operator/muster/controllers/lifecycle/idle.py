"""A gang that trains and hardly uses its GPUs: its owner is told and, where the queue wants that, it stops with a
checkpoint and stays suspended until its spec changes.

Launchers count, so that an operator that was restarted knows as much as before. They leave out all time in which a gang
starts, restores or saves. Nothing is told or done where one worker's GPUs are not known.
"""

from __future__ import annotations

from typing import Final

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Reason
from muster.cluster.status import is_false, is_true, reason_of
from muster.controllers.idle_limits import IdleLimit
from muster.controllers.lifecycle.turn import Turn
from muster_protocol.durations import format_duration
from muster_protocol.idleness import MINUTE, Idleness
from muster_protocol.launcher_status import Phase

FRESH: Final = 300.0
"""Seconds for which a launcher's answer holds. Of ten thousand calm gangs each is asked every 200 s (`questions`)."""

_GO_ON: Final = (
    "it goes on from its checkpoint when its spec changes: mend it, or set health.idle to false; or set spec.suspend "
    "to true, and to false again"
)


def watch_gpus(turn: Turn) -> bool:
    """Set GPUsIdle while the gang runs, and stop it where its queue says so. Without the queue's `idle` nothing is
    done. The condition isn't there before the first time."""
    limit, launcher = turn.s.idle, turn.s.launcher
    if not turn.s.spec.gpus_per_worker or not is_true(turn.status, ConditionType.RUNNING):
        return False
    if limit is None or not turn.s.spec.watch_idle:
        _take_back(turn, None, Reason.NOT_WATCHED, "nobody asks for how long its GPUs are idle")
        return False
    if launcher is None or launcher.phase is not Phase.RUNNING:
        return False  # there will be news, of an operator that has just started or of a gang that is mended
    seen = launcher.idleness if turn.s.answered_ago < FRESH else None
    if seen is None or not seen.plausible:
        turn.wake_in(max(limit.after, MINUTE))
        _take_back(turn, None, Reason.NOT_KNOWN, "it is not known of all workers how busy their GPUs are")
        return False
    left = limit.after - seen.below(limit.below)
    turn.wake_in(max(left, MINUTE))
    if left > 0:
        used = f"there were no {format_duration(limit.after)} of training without a minute of {limit.below} % or more"
        _take_back(turn, False, Reason.IN_USE, used)
        return False
    return _is_idle(turn, limit, seen)


def _is_idle(turn: Turn, limit: IdleLimit, seen: Idleness) -> bool:
    idle_for = seen.below(limit.below)
    told = (
        f"for {format_duration(idle_for)} the GPUs of all workers were at work for {seen.busiest(idle_for)} % of a "
        f"minute at most; queue {limit.queue} wants {limit.below} % within {format_duration(limit.after)}"
    )
    storage_fails = is_false(turn.status, ConditionType.CHECKPOINT_STORAGE_READY)
    stops = limit.suspends and turn.status.checkpoint is not None and not storage_fails
    mend = "muster explain says where its time goes; if it has to be so, set health.idle to false"
    if stops:
        what_next = f"the gang saves a checkpoint, stops, and gives its GPUs back; {_GO_ON}"
    elif limit.suspends:
        what_next = f"it is not suspended as long as it can't save: that would lose its work; {mend}"
    else:
        what_next = f"it trains on; {mend}"
    message = f"{told}; {what_next}"
    if stops or not is_true(turn.status, ConditionType.GPUS_IDLE):
        turn.draft.condition(ConditionType.GPUS_IDLE, True, Reason.HARDLY_USED.value, message)
        turn.tell(EventReason.GPUS_IDLE, message, warning=True)
    if stops:
        turn.stop(Reason.GPUS_IDLE, f"{told}; {_GO_ON}")
    return stops


def _take_back(turn: Turn, value: bool | None, reason: Reason, message: str) -> None:
    """Say that the GPUs aren't known to be idle, where they were told to be something else."""
    known = find_condition(turn.status.conditions, ConditionType.GPUS_IDLE.value)
    if known is not None and known.reason != reason.value:
        turn.draft.condition(ConditionType.GPUS_IDLE, value, reason.value, message)


def stay_suspended(turn: Turn) -> bool:
    """Hold a job back whose gang was stopped because its GPUs were idle, until its spec is another one than then."""
    known = find_condition(turn.status.conditions, ConditionType.GPUS_IDLE.value)
    if known is None or known.status != "True" or turn.status.placement is not None:
        return False
    stopped_for_it = reason_of(turn.status, ConditionType.ADMITTED) == Reason.GPUS_IDLE.value
    if known.observed_generation != turn.generation or not stopped_for_it:
        turn.draft.condition(ConditionType.GPUS_IDLE, False, Reason.NO_PODS.value, "the job holds no GPUs")
        return False
    if not is_true(turn.status, ConditionType.SUSPENDED):
        why = turn.status.queue.message if turn.status.queue is not None else ""
        turn.draft.condition(ConditionType.SUSPENDED, True, Reason.GPUS_IDLE.value, why)
        turn.tell(EventReason.SUSPENDED, why)
    return True
