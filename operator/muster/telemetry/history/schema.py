"""The tables. What they are made by is the migrations beside this file; a test holds that both are the same.

Every table has a column `revision`: rows are written by upserts that leave a newer row alone, so the same rows may come
twice and in any order. A revision is the writer's term (counted up by each new leader) and a number within it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.types import TypeDecorator

from muster.telemetry.cost.intervals import Interval, PoolInterval
from muster.telemetry.history.rows import Attempt, Checkpoint, Failure, Job, Preemption, Storage
from muster_protocol.text import encodable


class Moment(TypeDecorator[datetime]):
    """An aware moment in UTC: `timestamptz` in PostgreSQL, text like `2026-11-22 18:48:33.000000` in SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = value.astimezone(timezone.utc)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment: datetime = value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value
        return moment.astimezone(timezone.utc)


class Words(TypeDecorator[str]):
    """Text that a database takes: a process may print what PostgreSQL refuses, NUL and halves of surrogate pairs."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else encodable(value.replace("\x00", ""))


metadata: Final = MetaData(naming_convention={"ix": "ix_%(table_name)s_%(column_0_name)s", "pk": "pk_%(table_name)s"})


def _words(name: str, **options: Any) -> Column[str]:
    return Column(name, Words, nullable=False, **options)


def _count(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, nullable=False, autoincrement=False, **options)


def _revision() -> Column[int]:
    return Column("revision", BigInteger, nullable=False)


jobs: Final = Table(
    "jobs",
    metadata,
    _words("uid", primary_key=True),
    _words("namespace"),
    _words("name"),
    _words("queue"),
    _words("user_name", key="user"),
    _words("project"),
    Column("labels", JSON, nullable=False),
    _words("image"),
    _words("gpu_type"),
    _count("gpus"),
    _count("workers"),
    _words("phase"),
    _words("cause"),
    _words("message"),
    Column("submitted_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("finished_at", Moment),
    Column("deleted_at", Moment),
    Column("estimated", Boolean, nullable=False),
    _count("restarts"),
    _count("preemptions"),
    _count("lost_gpu_seconds"),
    _count("gpu_seconds"),
    Column("goodput", JSON, nullable=False),
    Column("step", BigInteger),
    _revision(),
    Index("ix_jobs_submitted_at", "submitted_at", "uid"),
    Index("ix_jobs_namespace", "namespace", "submitted_at"),
    Index("ix_jobs_queue", "queue", "submitted_at"),
)

attempts: Final = Table(
    "attempts",
    metadata,
    _words("job", primary_key=True),
    _count("attempt", primary_key=True),
    _words("queue"),
    _count("workers"),
    _count("gpus"),
    _words("domain"),
    Column("placed_at", Moment, nullable=False),
    Column("running_at", Moment),
    Column("ended_at", Moment),
    Column("estimated", Boolean, nullable=False),
    _words("reason"),
    _words("cause"),
    _words("message"),
    _count("restarts"),
    _count("replacements"),
    Column("goodput", JSON, nullable=False),
    _revision(),
)

intervals: Final = Table(
    "intervals",
    metadata,
    _words("job", primary_key=True),
    _count("attempt", primary_key=True),
    Column("worker", Integer, key="index", primary_key=True, autoincrement=False),
    Column("replacement", Integer, primary_key=True, autoincrement=False),
    _words("node"),
    _words("gpu_type"),
    _words("capacity"),
    _count("gpus"),
    Column("begins", Moment, nullable=False),
    Column("ends", Moment),
    Column("estimated", Boolean, nullable=False),
    _revision(),
    Index("ix_intervals_begins", "begins"),
    Index("ix_intervals_ends", "ends"),
)

pools: Final = Table(
    "pools",
    metadata,
    _words("gpu_type", primary_key=True),
    _words("capacity", primary_key=True),
    Column("begins", Moment, primary_key=True),
    _count("gpus"),
    Column("ends", Moment),
    Column("estimated", Boolean, nullable=False),
    _revision(),
    Index("ix_pools_ends", "ends"),
)

preemptions: Final = Table(
    "preemptions",
    metadata,
    _words("job", primary_key=True),
    _count("attempt", primary_key=True),
    Column("at", Moment, nullable=False),
    _words("beneficiary"),
    _words("reason"),
    _count("lost_gpu_seconds"),
    _words("message"),
    _revision(),
    Index("ix_preemptions_at", "at"),
)

checkpoints: Final = Table(
    "checkpoints",
    metadata,
    _words("job", primary_key=True),
    _count("step", primary_key=True),
    _count("attempt"),
    _words("uri"),
    Column("committed_at", Moment, nullable=False),
    _count("bytes"),
    Column("save_seconds", Float, nullable=False),
    _revision(),
)

storage: Final = Table(
    "storage",
    metadata,
    _words("uri", primary_key=True),
    Column("at", Moment, primary_key=True),
    _words("job"),
    _count("bytes"),
    _revision(),
    Index("ix_storage_job", "job"),
)

failures: Final = Table(
    "failures",
    metadata,
    _words("job", primary_key=True),
    Column("at", Moment, primary_key=True),
    _words("cause", primary_key=True),
    Column("worker", Integer, key="index"),
    _words("node"),
    Column("step", BigInteger),
    Column("in_place", Boolean, nullable=False),
    _words("message"),
    _revision(),
)

writers: Final = Table(
    "writers",
    metadata,
    _words("name", primary_key=True),
    _words("identity"),
    _count("term"),
    Column("seen_at", Moment, nullable=False),
)
"""One row, `operator`: who writes, in which term, and up to when it has seen the cluster."""


@dataclass(frozen=True)
class Kind:
    """How rows of one type are written.

    Attributes:
        first: columns whose first value stays: when something began is known best by who saw it begin.
        kept: columns in which a value is not replaced by an empty one: a node that is gone tells nothing any more.
        keeps_end: `ends` that was seen is never taken back, and of two estimates the later one stays.
    """

    table: Table
    first: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    keeps_end: bool = False

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Fields that name a row."""
        return tuple(column.key for column in self.table.primary_key)

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """The dataclass's fields, in the table's order: columns' keys, for `user` and `index` are SQL's own words."""
        return tuple(column.key for column in self.table.columns if column.key != "revision")


KINDS: Final[dict[type[Any], Kind]] = {
    Job: Kind(jobs),
    Attempt: Kind(attempts, kept=frozenset({"running_at", "reason", "cause", "message", "domain"})),
    Interval: Kind(intervals, first=frozenset({"begins"}), kept=frozenset({"gpu_type", "capacity"}), keeps_end=True),
    PoolInterval: Kind(pools),
    Preemption: Kind(preemptions),
    Checkpoint: Kind(checkpoints, kept=frozenset({"attempt", "bytes", "save_seconds"})),
    Storage: Kind(storage),
    Failure: Kind(failures),
}
