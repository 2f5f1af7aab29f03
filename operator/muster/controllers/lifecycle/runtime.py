"""`maxRuntime`: the launcher saves and ends at its time; the operator makes sure of it."""

from __future__ import annotations

from muster.api.effective import EffectiveSpec
from muster.api.names import Reason
from muster.api.trainingjob_status import TrainingJobStatus
from muster.controllers.lifecycle.causes import End, Kind
from muster.controllers.lifecycle.failure import fail
from muster.controllers.lifecycle.turn import Turn
from muster.controllers.terms import MARGIN


def limit_runtime(turn: Turn) -> bool:
    """End a run that has outlived `maxRuntime` and its launcher's own attempt to end it."""
    limit, since = turn.s.spec.max_runtime, turn.status.running_since
    if limit is None or since is None or turn.status.placement is None:
        return False
    left = limit + turn.s.spec.grace + MARGIN - (turn.status.runtime_seconds or 0) - turn.since(since)
    if left > 0:
        turn.wake_in(left)
        return False
    cause = End(Kind.MAX_RUNTIME, f"the job trained for longer than maxRuntime ({limit} s); its checkpoints are kept")
    fail(turn, cause, Reason.MAX_RUNTIME_EXCEEDED, "")
    return True


def remaining_seconds(spec: EffectiveSpec, status: TrainingJobStatus) -> int | None:
    """Seconds that the job may still train; None for ever."""
    return None if spec.max_runtime is None else max(1, spec.max_runtime - (status.runtime_seconds or 0))
