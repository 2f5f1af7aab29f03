"""Edits a job's status in memory; the executor writes it once, whole, when a turn is over.

The conditions are the state; `phase` follows from them by one pure function.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from muster.api import names
from muster.api.common import Condition, find_condition, set_condition
from muster.api.effective_parts import EffectiveCheckpoint
from muster.api.names import ConditionType, Phase, Reason
from muster.api.trainingjob import Checkpoint, TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.scheduling.plan import MoveReason, WaitReason


def is_true(status: TrainingJobStatus, kind: ConditionType) -> bool:
    condition = find_condition(status.conditions, kind.value)
    return condition is not None and condition.status == "True"


def is_false(status: TrainingJobStatus, kind: ConditionType) -> bool:
    """Not so of a condition that isn't there."""
    condition = find_condition(status.conditions, kind.value)
    return condition is not None and condition.status == "False"


def reason_of(status: TrainingJobStatus, kind: ConditionType) -> str:
    """The condition's reason, or "" without the condition."""
    condition = find_condition(status.conditions, kind.value)
    return condition.reason if condition else ""


def nothing_saved(status: TrainingJobStatus, place: Checkpoint | EffectiveCheckpoint | None) -> str:
    """What is told of a run that has told of no step and no checkpoint, where there is a place for one; else "".

    Args:
        place: the spec's `checkpoint`.
    """
    if place is None or status.started_at is None or status.progress is not None or status.checkpoint is not None:
        return ""
    return (
        f"nothing was saved at {place.uri}: its script told of no step, and only one that starts a session saves there"
    )


def finished(status: TrainingJobStatus) -> bool:
    """Whether the job has ended for good."""
    return is_true(status, ConditionType.SUCCEEDED) or is_true(status, ConditionType.FAILED)


def phase_of(status: TrainingJobStatus) -> Phase:
    """One word for people."""
    if is_true(status, ConditionType.FAILED):
        return Phase.FAILED
    if is_true(status, ConditionType.SUCCEEDED):
        return Phase.SUCCEEDED
    if status.stop is not None:
        return _phase_while_stopping(status.stop.reason)
    if status.placement is not None:
        return Phase.RUNNING if is_true(status, ConditionType.RUNNING) else Phase.STARTING
    if is_true(status, ConditionType.SUSPENDED):
        return Phase.SUSPENDED
    if reason_of(status, ConditionType.ADMITTED) in _RESTARTS:
        return Phase.RESTARTING
    return Phase.QUEUED


def _phase_while_stopping(reason: str) -> Phase:
    if reason in _RESTARTS:
        return Phase.RESTARTING
    return Phase.PREEMPTING if reason in MOVES or reason in _SUSPENSIONS else Phase.QUEUED


def held_of(status: TrainingJobStatus, wish: int) -> str:
    """How many workers a job has: `8`, or `6/8` where it asks for 8. What it asks for while it holds none."""
    held = status.placement.workers if status.placement is not None else wish
    return str(wish) if held == wish else f"{held}/{wish}"


def below_wish(status: TrainingJobStatus, wish: int) -> bool:
    """Whether a gang that is to stay has fewer workers than it asks for."""
    return status.placement is not None and status.stop is None and status.placement.workers < wish


def goes_on(status: TrainingJobStatus) -> bool:
    """Whether a gang that ran starts again on nodes that are kept for it alone: after a failure, with another size or
    elsewhere. What is promised to one that waits is not its own, though nobody has to go."""
    own = status.promise is not None and not status.promise.victims and bool(status.placements)
    return own and reason_of(status, ConditionType.ADMITTED) != WaitReason.PREEMPTING.value


_RESTARTS: Final = frozenset({Reason.RESTARTING.value, MoveReason.WORKERS_LOST.value})
"""Reasons of a stop after which the gang goes on by itself."""

_SUSPENSIONS: Final = frozenset({Reason.SUSPENDED.value, Reason.GPUS_IDLE.value})
"""Reasons of a stop after which the job is suspended."""

MOVES: Final = frozenset(reason.value for reason in MoveReason)
"""Reasons for which the planner ends a placement."""


class Draft:
    """A status being edited. Nothing is written; `done` gives the result."""

    def __init__(self, job: TrainingJob, now: datetime) -> None:
        self.status = job.status
        self._job = job
        self._generation = job.metadata.generation
        self._now = now

    def set(self, **fields: Any) -> None:
        """Replace fields of the status by their Python names."""
        self.status = self.status.model_copy(update=fields)

    def condition(self, kind: ConditionType, value: bool | None, reason: str, message: str = "") -> None:
        """Set a condition; None is Unknown. The transition time stays while the value does."""
        condition = Condition(
            type=kind.value,
            status={True: "True", False: "False", None: "Unknown"}[value],
            reason=reason,
            message=message,
            last_transition_time=self._now,
            observed_generation=self._generation,
        )
        self.set(conditions=set_condition(self.status.conditions, condition))

    def confirm(self, *kinds: ConditionType) -> None:
        """Say of those that are true that they are of the spec as it is now: `kubectl wait` takes no condition for true
        that was told of an older one."""
        told, types = self._generation, {kind.value for kind in kinds}
        stale = [it for it in self.status.conditions if it.type in types and it.observed_generation != told]
        for condition in stale:
            if condition.status == "True":
                fresh = condition.model_copy(update={"observed_generation": told})
                self.set(conditions=set_condition(self.status.conditions, fresh))

    def done(self) -> TrainingJobStatus:
        """The edited status, with its phase, its generation, and the fields that only say what the spec asks for.

        `workers` is written with others alone: a status of an operator that didn't have it is no reason for a write.
        """
        metadata, workers, placement = self._job.metadata, self._job.spec.workers, self.status.placement
        each, size = workers.gpus_per_worker or 0, workers.replicas + (workers.spares or 0)
        update = {
            "phase": phase_of(self.status),
            "observed_generation": self._generation,
            "submitted_at": self.status.submitted_at or metadata.creation_timestamp,
            "selector": f"{names.JOB_UID_LABEL}={metadata.uid}",
            "gpus": placement.gpus(each) if placement else size * each,
            "growth": self.status.growth if below_wish(self.status, workers.replicas) else None,
        }
        found = self.status.model_copy(update=update)
        if found == self._job.status:
            return found
        return found.model_copy(update={"workers": held_of(self.status, workers.replicas)})
