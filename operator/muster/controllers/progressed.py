"""What a launcher's answer brings into its job's status: progress, checkpoints, where the time went. Pure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Final

from muster.api import goodput
from muster.api.common import LONGEST_URI
from muster.api.names import ConditionType, Reason
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import CommittedCheckpoint, FixedSize, Goodput, Progress, Saving, TrainingJobStatus
from muster.cluster.status import Draft, is_true
from muster.controllers import tracking
from muster.controllers.terms import LONGEST_ETA
from muster_protocol.goodput import Spent
from muster_protocol.launcher_status import Kept, MemoryTier
from muster_protocol.launcher_status import Saving as LauncherSaving
from muster_protocol.launcher_status import Status as LauncherStatus

COUNTED_EVERY: Final = 60.0
"""Seconds after which it is written where the time goes, though nothing else is news: a hang makes none."""

STILL_SECONDS: Final = 60.0
STILL_STEPS: Final = 20
"""A gang stands still that has done no step for so long, and for as long as so many of its steps take."""

MOVED: Final = 0.2
"""Share of it by which the interval that `auto` has chosen must change to be told anew."""

_MOST: Final = 2**31 - 1
_KEPT: Final = {Kept.OFF: Reason.NOT_KEPT, Kept.LOCAL: Reason.KEPT_LOCALLY, Kept.PEER: Reason.KEPT_BY_PEERS}


def progressed(job: TrainingJob, answer: LauncherStatus, now: datetime) -> TrainingJobStatus | None:
    """The status with the launcher's progress and checkpoint in it; None when they bring nothing new."""
    draft = Draft(job, now)
    old, committed = job.status.progress, answer.checkpoint
    if answer.step is not None and (old is None or old.step != answer.step or old.loss != answer.loss):
        draft.set(progress=_progress(answer, now))
    elif answer.step is None and old is not None and committed is not None and old.step < committed.step:
        # The last answer before the ranks were lost was older than their last save, where they go on.
        draft.set(progress=old.model_copy(update={"step": committed.step, "loss": None}))
    elif old is not None and old.stands_still is None and _stands_still(old, answer, now):
        draft.set(progress=old.model_copy(update={"stands_still": True}))
    placement = job.status.placement
    if placement is not None and answer.step is not None:
        known = job.status.fixed_size
        if answer.fixed_size:
            draft.set(fixed_size=FixedSize(workers=placement.workers, message=answer.fixed_size))
        elif known is not None and known.failed is None:
            draft.set(fixed_size=None)
    if committed is not None and (job.status.checkpoint is None or job.status.checkpoint.step != committed.step):
        draft.set(
            checkpoint=CommittedCheckpoint(
                step=committed.step,
                uri=_place(committed.uri),
                committed_at=datetime.fromtimestamp(committed.committed_at, timezone.utc),
            )
        )
    elif committed is None and job.status.checkpoint is None and (found := _resumed(job, answer)) is not None:
        draft.set(checkpoint=found)
    if answer.storage_error:
        draft.condition(ConditionType.CHECKPOINT_STORAGE_READY, False, Reason.STORAGE_ERROR.value, answer.storage_error)
    elif not is_true(job.status, ConditionType.CHECKPOINT_STORAGE_READY) and job.spec.checkpoint is not None:
        told = f"{job.spec.checkpoint.uri} can be read and written"
        draft.condition(ConditionType.CHECKPOINT_STORAGE_READY, True, Reason.STORAGE_READY.value, told)
    if answer.memory_tier is not None and job.spec.checkpoint is not None and job.status.stop is None:
        kept, reason = answer.memory_tier.kept is not Kept.OFF, _kept(answer.memory_tier)
        draft.condition(ConditionType.CHECKPOINT_IN_MEMORY, kept, reason.value, answer.memory_tier.why)
    if answer.tracking is not None:
        tracking.tell(draft, answer.tracking)
    if answer.saving is not None:
        draft.set(saving=_saving(job.status.saving, answer.saving))
    changed = draft.done() != job.status
    counted = _counted(job, answer, now)
    if counted is not None and (changed or job.status.goodput is None or _stale(job.status.goodput, counted)):
        draft.set(goodput=counted)
    status = draft.done()
    return None if status == job.status else status


def _place(uri: str) -> str | None:
    """Of a checkpoint, as far as a status has room for it. A launcher's word may be nonsense."""
    return uri if uri.startswith("s3://") and len(uri) <= LONGEST_URI else None


def _stands_still(old: Progress, answer: LauncherStatus, now: datetime) -> bool:
    """Whether the launcher tells again of the step that it had told of long before."""
    pace, ended = answer.steps_per_second, answer.total_steps is not None and old.step >= answer.total_steps
    if answer.step != old.step or old.updated_at is None or not pace or ended:
        return False  # what follows a script's loop may take as long as it likes
    return (now - old.updated_at).total_seconds() >= max(STILL_SECONDS, STILL_STEPS / pace)


def _resumed(job: TrainingJob, answer: LauncherStatus) -> CommittedCheckpoint | None:
    """The checkpoint at the job's own uri that its ranks went on from, of a run before this job. None until they have
    done a step: of a run that had finished nothing is left to train, which is told at its end."""
    own, step = job.spec.checkpoint, answer.resumed_from
    if own is None or step is None or answer.step is None or answer.step <= step:
        return None
    return CommittedCheckpoint(step=step, uri=own.uri) if answer.resumed_uri == own.uri.rstrip("/") else None


def _counted(job: TrainingJob, answer: LauncherStatus, now: datetime) -> Goodput | None:
    """Where the job's time went, with what index 0's launcher has counted; None without its word."""
    spent = Spent.read(asdict(answer.spent)) if answer.spent is not None else None
    placement = job.status.placement
    if spent is None or placement is None:
        return None
    submitted_at = job.status.submitted_at or job.metadata.creation_timestamp or now
    return goodput.told(goodput.account(job.status, submitted_at), placement.attempt_of(0), spent, now)


def _stale(told: Goodput, counted: Goodput) -> bool:
    return (counted.until - told.until).total_seconds() >= COUNTED_EVERY


def _kept(tier: MemoryTier) -> Reason:
    return Reason.COPY_FAILS if tier.kept is Kept.PEER and tier.why else _KEPT[tier.kept]


def _saving(old: Saving | None, said: LauncherSaving) -> Saving | None:
    """An interval that hardly differs from the old one stays as it is told."""
    interval = None if said.interval_seconds is None else _count(said.interval_seconds)
    told = old.interval_seconds if old is not None else None
    if told is not None and interval is not None and abs(interval - told) <= MOVED * told:
        interval = told
    left_out = _count(said.left_out) or None
    return None if interval is None and left_out is None else Saving(interval_seconds=interval, left_out=left_out)


def _count(number: float) -> int:
    return round(min(max(number, 0), _MOST))


def _progress(answer: LauncherStatus, now: datetime) -> Progress:
    step, total, rate = answer.step or 0, answer.total_steps, answer.steps_per_second
    left = max(0, total - step) / rate if total is not None and rate else None
    return Progress(
        step=step,
        total_steps=total,
        steps_per_second=None if rate is None else f"{rate:.4g}",
        loss=None if answer.loss is None else answer.loss[:32],
        eta=None if left is None or left > LONGEST_ETA else now + timedelta(seconds=left),
        updated_at=now,
    )
