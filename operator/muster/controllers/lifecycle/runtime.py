"""`maxRuntime`: the launcher saves and ends at its time; the operator makes sure of it."""

from __future__ import annotations

import math
from datetime import datetime

from muster.api.effective import EffectiveSpec
from muster.api.names import EventReason, Reason
from muster.api.trainingjob_status import TrainingJobStatus
from muster.controllers.lifecycle import causes, failure
from muster.controllers.lifecycle.causes import End, Kind
from muster.controllers.lifecycle.turn import Turn
from muster.controllers.terms import MARGIN

_RAISED = (
    "the run has ended at the maxRuntime that its launcher was given, which was raised since: the gang starts again, "
    "from its last committed checkpoint, if it has one"
)


def run_longer(turn: Turn) -> bool:
    """Start a gang again that was ended by its launcher at a limit which has been raised since its pod was made."""
    if turn.status.placement is None or not _raised(turn):
        return False
    cause = causes.first_cause(failure.ends(turn))
    if cause is None or cause.kind is not Kind.MAX_RUNTIME:
        return False
    turn.tell(EventReason.RESTARTING, _RAISED)
    failure.stop_whole(turn, _RAISED)
    return True


def _raised(turn: Turn) -> bool:
    leader, allowed = turn.by_index().get(0), remaining_seconds(turn.s.spec, turn.status)
    told = leader.max_runtime if leader is not None else None
    return told is not None and (allowed is None or allowed > told)


def limit_runtime(turn: Turn) -> bool:
    """End a run that has outlived `maxRuntime` and, where its launcher knows that limit, its own attempt to end it."""
    limit, since = turn.s.spec.max_runtime, turn.status.running_since
    if limit is None or since is None or turn.status.placement is None:
        return False
    allowed = limit - (turn.status.runtime_seconds or 0)
    patience = turn.s.spec.grace + MARGIN if _launcher_ends_within(turn, since, allowed) else 0.0
    left = allowed + patience - turn.since(since)
    if left > 0:
        turn.wake_in(left)
        return False
    cause = End(Kind.MAX_RUNTIME, f"the job trained for longer than maxRuntime ({limit} s); its checkpoints are kept")
    failure.fail(turn, cause, Reason.MAX_RUNTIME_EXCEEDED, "")
    return True


def _launcher_ends_within(turn: Turn, since: datetime, allowed: float) -> bool:
    """Whether index 0's launcher ends the run by itself in time. It knows the limit that was set when its pod was made:
    not a lower one that came later; and the clock of one that took another's place began with it."""
    leader = turn.by_index().get(0)
    if leader is None:
        return False
    late = max(0.0, (leader.created - since).total_seconds()) if leader.created is not None else 0.0
    told = math.inf if leader.max_runtime is None else leader.max_runtime
    return late + told <= max(1.0, allowed)


def remaining_seconds(spec: EffectiveSpec, status: TrainingJobStatus) -> int | None:
    """Seconds that the job may still train; None for ever."""
    return None if spec.max_runtime is None else max(1, spec.max_runtime - (status.runtime_seconds or 0))
