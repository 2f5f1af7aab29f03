"""What the writer does within a transaction: take over, and write rows that leave newer ones alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    and_,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, IntegrityError

from muster.telemetry.history.database import engine_of, migrate
from muster.telemetry.history.rows import Row, Storage
from muster.telemetry.history.schema import KINDS, Kind, Moment, attempts, intervals, jobs, pools, writers

log = logging.getLogger(__name__)

OPERATOR: Final = "operator"
BATCH: Final = 2_000
"""Rows of one statement."""
TERM: Final = 2**40
"""A revision is a term times this, and the number of the row within the term."""

Key = tuple[type[Any], tuple[Any, ...]]


class Superseded(Exception):
    """Another operator has taken this database over."""


class TakenBack(Exception):
    """The database is not what was written to: an older copy of it, or an empty one."""


def key_of(row: Row) -> Key:
    kind = KINDS[type(row)]
    return type(row), tuple(getattr(row, name) for name in kind.key)


def take_over(
    connection: Connection, identity: str, picture: datetime, seen_at: datetime, gap: datetime | None = None
) -> int:
    """Begin a term: end all that is open, as an estimate, at the time up to which the rows are known to be complete:
    when the predecessor last saw the cluster, or when `gap` began. Nodes are taken to have been there until `picture`.

    Args:
        picture: when the rows of everything that exists were taken.
        seen_at: up to when the rows that now follow reach.
        gap: from when on rows were dropped; None where none were.

    Returns:
        The term.
    """
    found = connection.execute(
        select(writers.c.term, writers.c.seen_at).where(writers.c.name == OPERATOR).with_for_update()
    ).one_or_none()
    if found is None:
        values = {"name": OPERATOR, "identity": identity, "term": 1, "seen_at": seen_at}
        connection.execute(insert(writers).values(values))
        return 1
    term: int = found.term + 1
    last_seen = min(found.seen_at, gap or found.seen_at)
    values = {"identity": identity, "term": term, "seen_at": seen_at}
    connection.execute(update(writers).where(writers.c.name == OPERATOR).values(values))
    for table, begins, ends, moment in (
        (intervals, intervals.c.begins, intervals.c.ends, last_seen),
        (attempts, attempts.c.placed_at, attempts.c.ended_at, last_seen),
        (jobs, jobs.c.submitted_at, jobs.c.deleted_at, last_seen),
        (pools, pools.c.begins, pools.c.ends, picture),
    ):
        end = literal(moment, Moment)
        closed = {ends: case((begins > end, begins), else_=end), table.c.estimated: True, table.c.revision: term * TERM}
        connection.execute(update(table).where(ends.is_(None)).values(closed))
    return term


def beat(connection: Connection, term: int, seen_at: datetime, told: datetime) -> None:
    """What is in the database is how the cluster was at `seen_at`; it had come to `told` before. Raises Superseded when
    the term is over, and TakenBack."""
    mine = writers.c.name == OPERATOR
    found = connection.execute(select(writers).where(mine).with_for_update()).one_or_none()
    if found is not None and found.term > term:
        raise Superseded(
            f"{found.identity} writes to this database now: each cluster needs a database of its own, and in a cluster "
            "only the leader writes"
        )
    if found is None or found.term < term or found.seen_at < told:
        raise TakenBack(f"it reaches to {found.seen_at:%Y-%m-%d %H:%M:%S} UTC" if found is not None else "it is empty")
    connection.execute(update(writers).where(mine).values(seen_at=seen_at))


def write(connection: Connection, term: int, rows: Sequence[tuple[int, Row]]) -> int:
    """Write rows with their numbers within the term. Returns how many the database refused for what is in them; these
    are logged, and left out."""
    refused = 0
    for row_type, group in groupby(sorted(rows, key=_type_name), lambda item: type(item[1])):
        kind, statement = KINDS[row_type], _upsert(KINDS[row_type].table.name, connection.dialect.name)
        for batch in _batches(list(group)):
            values = [_values(kind, row, term * TERM + number) for number, row in batch]
            try:
                with connection.begin_nested():
                    connection.execute(statement, values)
            except (DataError, IntegrityError, OverflowError):
                refused += sum(not _write_one(connection, statement, one) for one in values)
    return refused


def tell(url: URL, rows: Sequence[Storage]) -> None:
    """Write rows beside the operator: of their kind every row stands for itself. Raises SQLAlchemyError."""
    engine = engine_of(url, writes=True)
    try:
        with engine.begin() as connection:
            migrate(connection)
            write(connection, 0, list(enumerate(rows)))
    finally:
        engine.dispose()


def _write_one(connection: Connection, statement: Any, values: dict[str, Any]) -> bool:
    try:
        with connection.begin_nested():
            connection.execute(statement, values)
    except (DataError, IntegrityError, OverflowError) as error:
        log.error("history: a row is left out: %s: %s", getattr(error, "orig", error), values)
        return False
    return True


def _type_name(item: tuple[int, Row]) -> str:
    return type(item[1]).__name__


def _batches(rows: list[tuple[int, Row]]) -> Iterator[list[tuple[int, Row]]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def _values(kind: Kind, row: Row, revision: int) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in kind.fields}, "revision": revision}


@cache
def _upsert(table_name: str, dialect: str) -> Any:
    kind = next(kind for kind in KINDS.values() if kind.table.name == table_name)
    table = kind.table
    made = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    said = made.excluded
    replaced = {
        column: _kept(column, said[column.key]) if column.key in kind.kept else said[column.key]
        for column in table.columns
        if column.key not in kind.key and column.key not in kind.first
    }
    if kind.keeps_end:
        stays = _end_stays(table.c, said)
        for column in (table.c.ends, table.c.estimated):
            replaced[column] = case((stays, column), else_=said[column.key])
    return made.on_conflict_do_update(
        index_elements=list(table.primary_key), set_=replaced, where=table.c.revision <= said.revision
    )


def _end_stays(old: Any, new: Any) -> ColumnElement[bool]:
    """Of the columns of two rows with one key: more is known of the old one's end."""
    seen = and_(old.ends.is_not(None), ~old.estimated)
    both_guessed = and_(old.estimated, new.estimated, old.ends > new.ends)
    return or_(and_(seen, or_(new.ends.is_(None), new.estimated)), both_guessed)


def _kept(column: Column[Any], new: ColumnElement[Any]) -> ColumnElement[Any]:
    """The new value, but for an empty one."""
    if column.nullable:
        return func.coalesce(new, column)
    empty: Any = 0 if column.type.python_type in (int, float) else ""
    return case((new == literal(empty, column.type), column), else_=new)
