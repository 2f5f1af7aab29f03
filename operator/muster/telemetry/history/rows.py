"""The rows of the history that are not the ledger's own (`muster.telemetry.cost.intervals`). Moments are aware, in UTC.

A row is an instance of a frozen dataclass whose fields are the columns of its table, so that what is written is what is
read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from muster.telemetry.cost.intervals import Interval, JobFacts, PoolInterval


@dataclass(frozen=True, slots=True)
class Job:
    """One TrainingJob.

    Attributes:
        user, project: from the job's labels `muster.dev/user` and `muster.dev/project`; "" without.
        gpu_type: as the spec asks for it; "" for any.
        gpus, workers: that it asks for, or holds.
        phase: its last one.
        cause, message: of its last failure.
        deleted_at: when the object was gone; `estimated` when that is the last time at which it was seen.
        gpu_seconds: of the placements that have ended, as the status has them.
        goodput: seconds by part, over all placements.
        step: the last that was reported.
    """

    uid: str
    namespace: str
    name: str
    queue: str
    user: str
    project: str
    labels: Mapping[str, str] = field(hash=False)
    image: str
    gpu_type: str
    gpus: int
    workers: int
    phase: str
    cause: str
    message: str
    submitted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deleted_at: datetime | None
    estimated: bool
    restarts: int
    preemptions: int
    lost_gpu_seconds: int
    gpu_seconds: int
    goodput: Mapping[str, int] = field(hash=False)
    step: int | None

    @property
    def facts(self) -> JobFacts:
        """What a chargeback groups it by."""
        return JobFacts(self.uid, self.namespace, self.name, self.queue, self.user, self.project, self.labels)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One placement of a job's gang.

    Attributes:
        attempt: its generation.
        gpus: of all its workers, spares included.
        domain: the narrowest one that holds the gang.
        running_at: when it passed its barrier.
        ended_at: when its last pod was gone; `estimated` when that is the last time at which it was seen.
        reason: why it was ended, in the operator's words: Preempted, Restarting, ...; or the job's phase at its end.
        cause: of the failure that ended it; "" when none did.
        restarts: of its processes, in their pods.
        replacements: workers that were replaced.
        goodput: seconds by part over all of the job's time up to its end. What this attempt took is the difference to
            the one before.
    """

    job: str
    attempt: int
    queue: str
    workers: int
    gpus: int
    domain: str
    placed_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    estimated: bool
    reason: str
    cause: str
    message: str
    restarts: int
    replacements: int
    goodput: Mapping[str, int] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Preemption:
    """A gang that was asked to give its room to another job.

    Attributes:
        job, attempt: the gang that lost its room.
        beneficiary: UID of the job that got it.
        reason: Preempted, Reclaimed, Yielded, Shrunk, ...
        lost_gpu_seconds: of work, as far as it was known when it was asked.
    """

    job: str
    attempt: int
    at: datetime
    beneficiary: str
    reason: str
    lost_gpu_seconds: int
    message: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint, as far as the operator saw it: of several within ten seconds it sees the last.

    Attributes:
        attempt: that committed it; 0 where that isn't known.
        bytes: of all its shards; 0 where that isn't known.
        save_seconds: from its begin until it was committed; 0 where that isn't known.
    """

    job: str
    step: int
    attempt: int
    uri: str
    committed_at: datetime
    bytes: int
    save_seconds: float


@dataclass(frozen=True, slots=True)
class Storage:
    """What a run's committed checkpoints take in the store from a moment on, until the next row of the same uri. The
    checkpoints outlive their job, so these rows say when they went, too: `bytes` is 0 then.

    Attributes:
        uri: as `place` makes it.
        job: that told it, and is charged.
    """

    uri: str
    at: datetime
    job: str
    bytes: int

    @property
    def located(self) -> tuple[str, str]:
        """The uri as a job has it, and the S3 server's endpoint; "" for AWS's own, or that of who looks."""
        uri, _, endpoint = self.uri.partition(_ENDPOINT)
        return uri, endpoint


_ENDPOINT: Final = "?endpoint="
"""No uri of checkpoints has a `?`."""


def place(uri: str, endpoint: str = "") -> str:
    """Where checkpoints lie, in one text: two S3 servers may have buckets of one name."""
    return uri.rstrip("/") + (_ENDPOINT + endpoint.rstrip("/") if endpoint else "")


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a run; `cause` as in the job's `status.failure`."""

    job: str
    at: datetime
    cause: str
    index: int | None
    node: str
    step: int | None
    in_place: bool
    message: str


Row = Job | Attempt | Interval | PoolInterval | Preemption | Checkpoint | Storage | Failure
