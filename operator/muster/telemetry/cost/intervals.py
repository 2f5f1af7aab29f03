"""What the ledger counts: who held which GPUs when, what the cluster had, and what was kept in the store.

Each row has a key. A row may come again, in any order, as its facts become known: what `current` keeps of them does not
depend on how often or in which order they came. Moments are aware, in UTC. Spans are half open: [begins, ends).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar


@dataclass(frozen=True)
class Interval:
    """One worker's hold of GPUs on one node: what a job is charged for. From when the room was taken, since nobody else
    can have it from then on, until the worker's containers finished.

    Attributes:
        job: the job's UID.
        attempt: generation of the gang's placement.
        index: of the worker in the gang.
        replacement: attempt of the index within the generation; 0 for the first.
        node: its name.
        gpu_type: short, like H100; "" for a worker without GPUs.
        capacity: on-demand, reserved or spot.
        gpus: how many the worker holds.
        begins: when the room was taken (`placedAt`, or when the replacement was placed).
        ends: when its containers finished; when it was last seen, if its end was not; None while it goes on.
        estimated: `ends` is the last time that it was seen.
    """

    job: str
    attempt: int
    index: int
    replacement: int
    node: str
    gpu_type: str
    capacity: str
    gpus: int
    begins: datetime
    ends: datetime | None = None
    estimated: bool = False

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.job, self.attempt, self.index, self.replacement


@dataclass(frozen=True)
class JobFacts:
    """What a chargeback groups a job by.

    Attributes:
        user: who pays for it or sent it; "" where nothing says so.
        project: from the label that the platform team chose; "" for none.
        labels: the job's own, for groups that are of no other kind.
    """

    uid: str
    namespace: str
    name: str
    queue: str
    user: str = ""
    project: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        return self.uid


@dataclass(frozen=True)
class PoolInterval:
    """GPUs of one flavour that the cluster had, whoever used them. Where two rows of a flavour overlap, the one that
    begins later holds: the earlier one was never closed.

    Attributes:
        ends: when there were more or fewer; None while it goes on.
        estimated: `ends` is the last time that the nodes were seen.
    """

    gpu_type: str
    capacity: str
    gpus: int
    begins: datetime
    ends: datetime | None = None
    estimated: bool = False

    @property
    def key(self) -> tuple[str, str, datetime]:
        return self.gpu_type, self.capacity, self.begins


@dataclass(frozen=True)
class AttemptParts:
    """How one placement of a job spent its time, as goodput counts it, and for whom.

    Attributes:
        seconds: by part (`muster.api.goodput.PARTS`), of this placement alone; without `queued`, since a job that waits
            holds no GPUs. `underused` is no part of `training` here.
        queue: whose quota it drew on, since a job may be moved to another while it waits; "" where nobody told: then it
            is the job's.
    """

    job: str
    attempt: int
    seconds: Mapping[str, int] = field(hash=False)
    queue: str = ""

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.attempt


@dataclass(frozen=True)
class Stored:
    """Bytes of one checkpoint that were kept in the store.

    Attributes:
        checkpoint: what names it within its job, like its step.
        begins: when it was committed.
        ends: when it was removed, or was last seen; None while it is kept.
    """

    job: str
    checkpoint: str
    size: int
    begins: datetime
    ends: datetime | None = None
    estimated: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.job, self.checkpoint


Span = TypeVar("Span", bound="Interval | PoolInterval | Stored")


def current(rows: Iterable[Span]) -> list[Span]:
    """One row a key, by key: that of which most is known. An end that was seen goes before one that is estimated, that
    before none; of two that are alike the later one."""
    found: dict[object, Span] = {}
    for row in rows:
        known = found.get(row.key)
        if known is None or _known(row) > _known(known):
            found[row.key] = row
    return [found[key] for key in sorted(found, key=repr)]


def _known(row: Span) -> tuple[bool, bool, float, str]:
    ends = row.ends.timestamp() if row.ends is not None else 0.0
    return row.ends is not None and not row.estimated, row.ends is not None, ends, repr(row)


def latest(rows: Iterable[AttemptParts]) -> list[AttemptParts]:
    """One row an attempt: that in which most time has been told, since seconds are only ever added."""
    found: dict[object, AttemptParts] = {}
    for row in rows:
        known = found.get(row.key)
        if known is None or _told(row) > _told(known):
            found[row.key] = row
    return [found[key] for key in sorted(found, key=repr)]


def _told(row: AttemptParts) -> tuple[int, str]:
    return sum(row.seconds.values()), repr(sorted(row.seconds.items()))
