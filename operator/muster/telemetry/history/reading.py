"""Reads the history, for the API and the cost report: typed, paged, filtered. Each call is one short transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Tuple,
    and_,
    func,
    literal,
    or_,
    select,
    tuple_,
    union,
    union_all,
)
from sqlalchemy.engine import URL, Row

from muster.telemetry.cost.intervals import AttemptParts, Interval, JobFacts, PoolInterval, Stored
from muster.telemetry.history import rows, schema
from muster.telemetry.history.database import Renew, check, engine_of
from muster.telemetry.history.schema import KINDS, Moment, Words, attempts, intervals, jobs, pools, preemptions, storage

LONGEST_PAGE: Final = 1_000
LONGEST_PART: Final = 20_000
"""Rows of one kind that are read of one job, the newest: a placement of the largest gang has fewer workers, and one
that was placed a hundred times has a hundred times as many."""

T = TypeVar("T")

_FACTS: Final = tuple(one.name for one in fields(JobFacts))


@dataclass(frozen=True)
class Filter:
    """Which jobs; what is not set filters nothing.

    Attributes:
        namespaces: any of these; an empty tuple is none.
        phase: the last one, like Succeeded.
        begins, ends: jobs that existed at some time within [begins, ends).
        gone: only those whose object is gone (True), or still there (False).
    """

    namespaces: tuple[str, ...] | None = None
    name: str | None = None
    queue: str | None = None
    user: str | None = None
    project: str | None = None
    phase: str | None = None
    begins: datetime | None = None
    ends: datetime | None = None
    gone: bool | None = None


@dataclass(frozen=True)
class Cursor:
    """Where the next page begins: after this job."""

    submitted_at: datetime
    uid: str


@dataclass(frozen=True)
class Page:
    """Jobs, those submitted last first. `next`: where there are more."""

    jobs: tuple[rows.Job, ...]
    next: Cursor | None


@dataclass(frozen=True)
class Whole:
    """What is known of one job, each part in the order of time.

    Attributes:
        left_out: how many older rows there are of the parts of which there are more than `LONGEST_PART`, by part.
    """

    job: rows.Job
    attempts: tuple[rows.Attempt, ...]
    intervals: tuple[Interval, ...]
    preemptions: tuple[rows.Preemption, ...]
    checkpoints: tuple[rows.Checkpoint, ...]
    failures: tuple[rows.Failure, ...]
    left_out: Mapping[str, int]


class Reader:
    """From any thread. Raises sqlalchemy.exc.SQLAlchemyError while the database is away."""

    def __init__(self, url: URL, renew: Renew | None = None) -> None:
        """`renew`: see `engine_of`."""
        self._engine: Engine = engine_of(url, writes=False, renew=renew)

    def close(self) -> None:
        self._engine.dispose()

    def check(self) -> None:
        """Whether the tables are those that this version reads. Raises OldTables."""
        with self._reading() as connection:
            check(connection)

    def jobs(self, which: Filter | None = None, *, after: Cursor | None = None, limit: int = 100) -> Page:
        """A page of at most `limit` (1,000) jobs."""
        limit = max(1, min(limit, LONGEST_PAGE))
        wanted = _conditions(which or Filter())
        if after is not None:
            # NB: as a pair, which is found in the index; an OR would walk through all pages before this one.
            place = tuple_(literal(after.submitted_at, Moment), literal(after.uid, Words))
            wanted.append(tuple_(jobs.c.submitted_at, jobs.c.uid) < place)
        query = select(jobs).where(*wanted).order_by(jobs.c.submitted_at.desc(), jobs.c.uid.desc()).limit(limit + 1)
        with self._reading() as connection:
            found = [_read(rows.Job, row) for row in connection.execute(query)]
        page = tuple(found[:limit])
        return Page(page, Cursor(page[-1].submitted_at, page[-1].uid) if len(found) > limit else None)

    def job(self, uid: str) -> Whole | None:
        """One job by its UID, or None."""
        with self._reading() as connection:
            found = connection.execute(select(jobs).where(jobs.c.uid == uid)).one_or_none()
            if found is None:
                return None
            job, left_out = _read(rows.Job, found), dict[str, int]()
            return Whole(
                job,
                _of_job(connection, rows.Attempt, uid, left_out),
                _of_job(connection, Interval, uid, left_out),
                _of_job(connection, rows.Preemption, uid, left_out),
                _of_job(connection, rows.Checkpoint, uid, left_out),
                _of_job(connection, rows.Failure, uid, left_out),
                left_out,
            )

    def intervals(
        self, begins: datetime, ends: datetime, namespaces: Collection[str] | None = None
    ) -> tuple[Interval, ...]:
        """Those that overlap [begins, ends), whole, by job and worker; in `namespaces`, or (None) in all."""
        wanted = _overlaps(intervals.c.begins, intervals.c.ends, begins, ends)
        if namespaces is not None:
            wanted = and_(wanted, intervals.c.job.in_(select(jobs.c.uid).where(jobs.c.namespace.in_(namespaces))))
        return self._all(Interval, wanted, tuple(KINDS[Interval].table.primary_key))

    def pools(self, begins: datetime, ends: datetime) -> tuple[PoolInterval, ...]:
        """Those that overlap [begins, ends), whole, the oldest first."""
        return self._all(PoolInterval, _overlaps(pools.c.begins, pools.c.ends, begins, ends), (pools.c.begins,))

    def facts(
        self, begins: datetime, ends: datetime, namespaces: Collection[str] | None = None
    ) -> tuple[JobFacts, ...]:
        """Of the jobs (in `namespaces`; None: in all) that have intervals that overlap [begins, ends), or checkpoints
        that lay in the store then."""
        saved = select(storage.c.job).where(storage.c.bytes > 0, _lay(begins, ends))
        wanted: ColumnElement[bool] = jobs.c.uid.in_(union(_holding(begins, ends, None), saved))
        if namespaces is not None:
            wanted = and_(wanted, jobs.c.namespace.in_(namespaces))
        query = select(*(jobs.c[name] for name in _FACTS)).where(wanted).order_by(jobs.c.uid)
        with self._reading() as connection:
            return tuple(JobFacts(*row) for row in connection.execute(query))

    def parts(
        self, begins: datetime, ends: datetime, namespaces: Collection[str] | None = None
    ) -> tuple[AttemptParts, ...]:
        """How the placements of jobs (in `namespaces`; None: in all) spent their time that have intervals that overlap
        [begins, ends)."""
        wanted = attempts.c.job.in_(_holding(begins, ends, namespaces))
        return parts_of(self._all(rows.Attempt, wanted, (attempts.c.job, attempts.c.attempt)))

    def stored(self, begins: datetime, ends: datetime) -> tuple[Stored, ...]:
        """What lay in the store at some time within [begins, ends)."""
        return stored_of(self._all(rows.Storage, _lay(begins, ends), (storage.c.uri, storage.c.at)))

    def storage(self) -> tuple[rows.Storage, ...]:
        """The last row of each uri."""
        return self._all(rows.Storage, _moments().in_(_last()), (storage.c.uri,))

    def preemptions(self, begins: datetime, ends: datetime) -> tuple[rows.Preemption, ...]:
        """Those within [begins, ends), the oldest first."""
        at = preemptions.c.at
        return self._all(rows.Preemption, and_(at >= begins, at < ends), (at, preemptions.c.job))

    def namespaces(self) -> frozenset[str]:
        """Those that have, or had, jobs."""
        with self._reading() as connection:
            return frozenset(connection.execute(select(jobs.c.namespace).distinct()).scalars())

    def seen_at(self) -> datetime | None:
        """Up to when the history reaches: what goes on by then is open. None for an empty one."""
        with self._reading() as connection:
            moment: datetime | None = connection.execute(select(schema.writers.c.seen_at)).scalar()
            return moment

    def _all(self, row_type: type[T], wanted: ColumnElement[bool], order: tuple[Any, ...]) -> tuple[T, ...]:
        query = select(KINDS[row_type].table).where(wanted).order_by(*order)
        with self._reading() as connection:
            return tuple(_read(row_type, row) for row in connection.execute(query))

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            yield connection


def parts_of(found: tuple[rows.Attempt, ...]) -> tuple[AttemptParts, ...]:
    """What each of the attempts took alone, without waiting in the queue; they come ordered by job and number."""
    told, before = [], dict[str, Mapping[str, int]]()
    for one in found:
        last = before.get(one.job, {})
        took = {part: seconds - last.get(part, 0) for part, seconds in one.goodput.items() if part != "queued"}
        spent = {part: seconds for part, seconds in took.items() if seconds > 0}
        told.append(AttemptParts(one.job, one.attempt, spent, one.queue))
        before[one.job] = one.goodput or last
    return tuple(told)


def stored_of(found: tuple[rows.Storage, ...]) -> tuple[Stored, ...]:
    """The spans between rows, which come ordered by uri and time."""
    return tuple(
        Stored(
            one.job,
            f"{one.uri} {one.at.isoformat()}",
            one.bytes,
            one.at,
            then.at if then is not None and then.uri == one.uri else None,
        )
        for one, then in zip_longest(found, found[1:])
        if one.bytes
    )


def _conditions(which: Filter) -> list[ColumnElement[bool]]:
    wanted = [
        jobs.c[name] == value
        for name in ("name", "queue", "user", "project", "phase")
        if (value := getattr(which, name)) is not None
    ]
    if which.namespaces is not None:
        wanted.append(jobs.c.namespace.in_(which.namespaces))
    if which.ends is not None:
        wanted.append(jobs.c.submitted_at < which.ends)
    if which.begins is not None:
        wanted.append(or_(jobs.c.deleted_at.is_(None), jobs.c.deleted_at > which.begins))
    if which.gone is not None:
        wanted.append(jobs.c.deleted_at.is_not(None) if which.gone else jobs.c.deleted_at.is_(None))
    return wanted


def _overlaps(begin: Any, end: Any, begins: datetime, ends: datetime) -> ColumnElement[bool]:
    return and_(begin < ends, or_(end.is_(None), end > begins))


def _moments() -> Tuple:
    return tuple_(storage.c.uri, storage.c.at)


def _last(*among: ColumnElement[bool]) -> Select[tuple[str, datetime]]:
    """The last moment of each uri. There is a row of storage for each save: it is found in one pass, with no subquery
    for each row."""
    return select(storage.c.uri, func.max(storage.c.at)).where(*among).group_by(storage.c.uri)


def _lay(begins: datetime, ends: datetime) -> ColumnElement[bool]:
    """Rows of storage that tell what lay there at some time within [begins, ends): those within, and the last of each
    uri before."""
    # NB: a union, and no OR: what is within an OR PostgreSQL looks through anew for each row, once it is large.
    at = storage.c.at
    within = select(storage.c.uri, at).where(at > begins, at < ends)
    return _moments().in_(union_all(within, _last(at <= begins)))


def _holding(begins: datetime, ends: datetime, namespaces: Collection[str] | None) -> Select[tuple[str]]:
    """UIDs of jobs in `namespaces` (None: in all) that have intervals that overlap [begins, ends)."""
    found = select(intervals.c.job).where(_overlaps(intervals.c.begins, intervals.c.ends, begins, ends))
    if namespaces is None:
        return found
    return found.join(jobs, jobs.c.uid == intervals.c.job).where(jobs.c.namespace.in_(namespaces))


def _of_job(connection: Connection, row_type: type[T], uid: str, left_out: dict[str, int]) -> tuple[T, ...]:
    """The newest rows; of older ones their number is put into `left_out`."""
    table = KINDS[row_type].table
    mine, order = table.c.job == uid, [column.desc() for column in table.primary_key]
    query = select(table).where(mine).order_by(*order).limit(LONGEST_PART)
    found = tuple(_read(row_type, row) for row in connection.execute(query))
    if len(found) == LONGEST_PART:
        number: int = connection.execute(select(func.count()).where(mine)).scalar_one()
        left_out |= {table.name: number - LONGEST_PART} if number > LONGEST_PART else {}
    return found[::-1]


def _read(row_type: type[T], row: Row[Any]) -> T:
    kind = KINDS[row_type]
    found = row._mapping
    return row_type(**{name: found[kind.table.c[name]] for name in kind.fields})
