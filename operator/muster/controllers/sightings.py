"""What the operator sees of a job, as rows of its history. Pure: `now` is given.

`look` compares a sight with what was put before, and gives the rows that have changed. All of a job can be looked at
anew after a restart: what is put twice does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from muster.api.effective import EffectiveSpec
from muster.api.goodput import TRAINING, UNDERUSED
from muster.api.names import PROJECT_LABEL, USER_LABEL
from muster.api.placement import Placement
from muster.api.trainingjob_status import Goodput, PastFailure, TrainingJobStatus
from muster.controllers import terms
from muster.controllers.devices import held
from muster.controllers.sight import Sight, Worker
from muster.controllers.spans import ending, intervals_of, workers_of
from muster.controllers.stored import stored
from muster.telemetry.cost.intervals import Interval
from muster.telemetry.history.rows import Attempt, Checkpoint, Failure, Job, Preemption, Row, Storage, place

STEADY: Final = timedelta(minutes=10)
"""How long the step and the goodput of a job may be old when nothing else of it changes."""

DELETED: Final = "Deleted"
"""Why an attempt ended whose job is gone before its end."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was put of a job.

    Attributes:
        told_at: when its row was.
        attempt, intervals: of the present or last placement.
        alive: workers of it whose pods were seen running.
        absent: workers of it that had no pod when this operator first saw the job: they went while nobody looked, or
            are not made yet. Their rows stay as they are, until a pod shows.
        version, spec, placement, basis: what they were made from.
        asked: the last placement that was told to be ended for another job.
        step: of the last checkpoint.
        stored: bytes of all of them.
    """

    job: Job
    told_at: datetime
    attempt: Attempt | None = None
    intervals: Mapping[Worker, Interval] = field(default_factory=dict)
    alive: frozenset[Worker] = frozenset()
    absent: frozenset[Worker] = frozenset()
    version: str = ""
    spec: EffectiveSpec | None = None
    placement: Placement | None = None
    basis: tuple[object, ...] = ()
    asked: int = 0
    step: int | None = None
    stored: int | None = None
    failures: tuple[PastFailure, ...] = ()

    def open(self) -> Iterable[Row]:
        """What a whole picture has of the job."""
        yield self.job
        if self.attempt is not None and self.attempt.ended_at is None:
            yield self.attempt
        yield from (one for one in self.intervals.values() if one.ends is None)


def look(seen: Seen | None, sight: Sight) -> tuple[Seen, list[Row]]:
    """What is known of the job now, and the rows that say what is new in it."""
    version, basis = sight.job.metadata.resource_version, _basis(sight)
    if seen is not None and version and (version, basis) == (seen.version, seen.basis) and seen.spec is sight.spec:
        return seen, []  # most turns are for the sake of time
    rows: list[Row] = []
    first = seen is None
    job = _job(sight, seen.job.deleted_at if seen is not None else None)
    if seen is None or _differs(seen.job, job) or (job != seen.job and sight.now - seen.told_at >= STEADY):
        rows.append(job)
        seen = Seen(job, sight.now) if seen is None else replace(seen, job=job, told_at=sight.now)
    placement = sight.job.status.placement
    if seen.attempt is not None and (placement is None or placement.generation != seen.attempt.attempt):
        seen = _end(seen, sight, rows)
    if placement is not None:
        seen = _place(seen, placement, basis, sight, rows, first=first)
    seen = _events(seen, sight, rows, first=first)
    return replace(seen, version=version, spec=sight.spec, basis=basis), rows


def gone(seen: Seen, sight: Sight) -> list[Row]:
    """The job's object is gone with all its pods."""
    used = max(seen.job.gpu_seconds, _used(sight))
    rows: list[Row] = [replace(seen.job, deleted_at=seen.job.deleted_at or sight.now, gpu_seconds=used)]
    _end(seen, sight, rows)
    _keep(seen, sight, rows)
    return rows


def _used(sight: Sight) -> int:
    """GPU-seconds, the present placement's included: of a job whose object is gone nobody adds these to its status."""
    placement = sight.job.status.placement
    node = placement.nodes[0].node if placement is not None and placement.nodes else ""
    gpus = held(placement, sight.spec, sight.flavour(node)[0]) if placement is not None else 0
    return terms.used(sight.job.status, gpus, 0.0, sight.now).gpu_seconds


def parts(goodput: Goodput | None) -> dict[str, int]:
    """Seconds by part. What of training was underused stands apart from the rest of it."""
    if goodput is None:
        return {}
    found = {part: number for part, number in goodput.seconds if number}
    if goodput.underused:
        found |= {TRAINING: found.get(TRAINING, 0) - goodput.underused, UNDERUSED: goodput.underused}
    return {part: number for part, number in found.items() if number > 0}


def _basis(sight: Sight) -> tuple[object, ...]:
    """What of its pods and its launcher a job's rows depend on."""
    pods = ((pod.generation, pod.index, pod.attempt, pod.phase) for pod in sight.pods)
    return (sight.deleted, len(sight.finished), _stored(sight), *pods)


def _stored(sight: Sight) -> int | None:
    """Bytes of all checkpoints."""
    return stored(sight.launcher, sight.left)


def _job(sight: Sight, deleted_at: datetime | None) -> Job:
    job, spec, status = sight.job, sight.spec, sight.job.status
    metadata, failure = job.metadata, status.failure
    placement = status.placement
    return Job(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        queue=job.spec.queue,
        user=metadata.labels.get(USER_LABEL) or metadata.annotations.get(USER_LABEL, ""),
        project=metadata.labels.get(PROJECT_LABEL) or metadata.annotations.get(PROJECT_LABEL, ""),
        labels=metadata.labels,
        image=job.spec.image,
        gpu_type=spec.gpu_type,
        gpus=placement.gpus(spec.gpus_per_worker) if placement is not None else spec.gpus,
        workers=placement.workers if placement is not None else spec.replicas,
        phase=status.phase.value if status.phase is not None else "",
        cause=failure.cause if failure is not None else "",
        message=failure.message if failure is not None else "",
        submitted_at=status.submitted_at or metadata.creation_timestamp or sight.now,
        started_at=status.started_at,
        finished_at=status.finished_at,
        deleted_at=deleted_at or (sight.now if sight.deleted else None),
        estimated=False,
        restarts=status.restarts or 0,
        preemptions=status.preemptions or 0,
        lost_gpu_seconds=status.lost_gpu_seconds or 0,
        gpu_seconds=status.usage.gpu_seconds if status.usage is not None else 0,
        goodput=parts(status.goodput),
        step=status.progress.step if status.progress is not None else None,
    )


def _differs(old: Job, new: Job) -> bool:
    """In more than what changes all the time."""
    return replace(new, step=old.step, goodput=old.goodput) != old


def _place(
    seen: Seen, placement: Placement, basis: tuple[object, ...], sight: Sight, rows: list[Row], *, first: bool
) -> Seen:
    """`first`: the operator has not seen the job before."""
    attempt = _attempt(placement, sight)
    before = seen.attempt if seen.attempt is not None and seen.attempt.attempt == attempt.attempt else None
    if before is not None and seen.told_at != sight.now:
        attempt = replace(attempt, goodput=before.goodput)
    if attempt != before:
        rows.append(attempt)
    if before is not None and basis == seen.basis and placement == seen.placement:
        return replace(seen, attempt=attempt)
    pods = {(pod.index, pod.attempt): pod for pod in sight.pods if pod.generation == placement.generation}
    known, alive, absent = (
        (seen.intervals, seen.alive, seen.absent) if before is not None else ({}, frozenset(), frozenset())
    )
    alive |= {worker for worker, pod in pods.items() if pod.phase == "Running"}
    absent = frozenset((workers_of(placement) if first else absent) - pods.keys())
    intervals = intervals_of(known, alive, absent, placement, pods, sight)
    rows += (one for key, one in intervals.items() if known.get(key) != one)
    return replace(seen, attempt=attempt, intervals=intervals, alive=alive, absent=absent, placement=placement)


def _attempt(placement: Placement, sight: Sight) -> Attempt:
    status, stop = sight.job.status, sight.job.status.stop
    return Attempt(
        job=sight.job.metadata.uid,
        attempt=placement.generation,
        queue=placement.queue or sight.job.spec.queue,
        workers=placement.workers,
        gpus=placement.gpus(sight.spec.gpus_per_worker),
        domain=placement.domain,
        placed_at=placement.placed_at or sight.now,
        running_at=status.running_since,
        ended_at=None,
        estimated=False,
        reason=stop.reason if stop is not None else "",
        cause="",
        message=stop.message if stop is not None else "",
        restarts=(placement.restarts or 0) + (placement.network_restarts or 0),
        replacements=sum(item.attempt for item in placement.attempts),
        goodput=parts(status.goodput),
    )


def _end(seen: Seen, sight: Sight, rows: list[Row]) -> Seen:
    """The placement that was seen last is over."""
    attempt = seen.attempt
    if attempt is None or attempt.ended_at is not None:
        return seen
    status, failure = sight.job.status, sight.job.status.failure
    caused = failure is not None and failure.at is not None and failure.at >= attempt.placed_at
    attempt = replace(
        attempt,
        ended_at=max(sight.now, attempt.placed_at),
        reason=attempt.reason or _word(status) or (DELETED if sight.deleted else ""),
        cause=failure.cause if caused and failure is not None else "",
        message=failure.message if caused and failure is not None else attempt.message,
        goodput=parts(status.goodput) or attempt.goodput,
    )
    rows.append(attempt)
    intervals = {
        worker: one if one.ends is not None else ending(one, sight, guessed=worker in seen.alive)
        for worker, one in seen.intervals.items()
    }
    rows += (one for worker, one in intervals.items() if one != seen.intervals[worker])
    return replace(seen, attempt=attempt, intervals={}, alive=frozenset(), placement=None)


def _word(status: TrainingJobStatus) -> str:
    return status.phase.value if status.finished_at is not None and status.phase is not None else ""


def _events(seen: Seen, sight: Sight, rows: list[Row], *, first: bool) -> Seen:
    """Preemptions, checkpoints, what these take, and failures, each told once."""
    uid, status = sight.job.metadata.uid, sight.job.status
    stop, placement, saved = status.stop, status.placement, status.checkpoint
    if stop is not None and stop.beneficiary and placement is not None and placement.generation != seen.asked:
        at, number = stop.requested_at, placement.generation
        rows.append(Preemption(uid, number, at, stop.beneficiary, stop.reason, stop.lost, stop.message))
        seen = replace(seen, asked=number)
    if saved is not None and saved.step != seen.step:
        told = sight.launcher.checkpoint if sight.launcher is not None else None
        same = told is not None and told.step == saved.step
        if saved.committed_at is not None:  # else it was there before the job
            rows.append(
                Checkpoint(
                    job=uid,
                    step=saved.step,
                    attempt=placement.generation if placement is not None and same else 0,
                    uri=saved.uri or "",
                    committed_at=saved.committed_at,
                    bytes=told.bytes if told is not None and same else 0,
                    save_seconds=told.save_seconds if told is not None and same else 0.0,
                )
            )
        seen = replace(seen, step=saved.step)
    seen = _keep(seen, sight, rows, first=first)
    if status.recent_failures != seen.failures:
        rows += (
            Failure(uid, one.at, one.cause, one.index, one.node or "", one.step, one.in_place, one.message)
            for one in status.recent_failures
            if one not in seen.failures
        )
        seen = replace(seen, failures=status.recent_failures)
    return seen


def _keep(seen: Seen, sight: Sight, rows: list[Row], *, first: bool = False) -> Seen:
    """What its checkpoints take, where that has changed. `first`: the operator has not seen the job before, so that
    what an ended pod left may be old news. It stands at the pod's end, since somebody may have looked into the bucket
    since, or another job gone on there."""
    found, checkpoint = _stored(sight), sight.spec.checkpoint
    if found is None or found == seen.stored or checkpoint is None:
        return seen
    answered = sight.launcher is not None and sight.launcher.stored is not None
    old = sight.left if first and not answered else None
    at = min(old.at, sight.now) if old is not None and old.at is not None else sight.now
    rows.append(Storage(place(checkpoint.uri, checkpoint.endpoint), at, sight.job.metadata.uid, found))
    over = old is None or sight.job.status.finished_at is not None
    return replace(seen, stored=found if over else None)  # a launcher that lives may have told something else since
