"""What holds for every database that the history is kept in; each case gets an empty one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Thread
from typing import Any, Protocol

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, delete, event, func, insert, select, text
from sqlalchemy.engine import URL

from muster.telemetry.cost.intervals import AttemptParts, PoolInterval
from muster.telemetry.history import upserts
from muster.telemetry.history.database import engine_of, migrate
from muster.telemetry.history.reading import LONGEST_PART, Cursor, Filter, Reader
from muster.telemetry.history.retention import expire
from muster.telemetry.history.rows import Checkpoint, Failure, Preemption, Row, Storage
from muster.telemetry.history.schema import intervals, metadata, writers
from muster.telemetry.history.writer import Writer

from .rows import at, attempt, interval, job


class Database(Protocol):
    """Where a case works, and how the database goes away and comes back."""

    url: URL

    def away(self) -> None: ...

    def back(self) -> None: ...


def until(what: str, holds: Callable[[], Any], timeout: float = 60.0) -> None:
    end = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {timeout} s"
        time.sleep(0.01)


@contextmanager
def writing(database: Database, **options: Any) -> Iterator[Writer]:
    writer = Writer(database.url, **{"identity": "one", "first_wait": 0.02, **options})
    writer.start()
    try:
        yield writer
    finally:
        writer.close(30.0)


@contextmanager
def reading(database: Database) -> Iterator[Reader]:
    reader = Reader(database.url)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def engine(database: Database) -> Iterator[Engine]:
    made = engine_of(database.url, writes=True)
    try:
        yield made
    finally:
        made.dispose()


def first_rows(database: Database, rows: list[Row], moment: float = 10) -> None:
    """One operator's life: its picture, and what it saw until `moment`."""
    with writing(database) as writer:
        writer.put(rows)
        writer.picture(at(moment))
        until("written", lambda: writer.health.written == len(rows))


# -- the cases ---------------------------------------------------------------------------------------------------------


def migrations_make_the_schema(database: Database) -> None:
    with engine(database) as made, made.begin() as connection:
        migrate(connection)
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
        migrate(connection)  # once more does nothing


def two_migrate_at_once(database: Database) -> None:
    failed: list[BaseException] = []

    def one() -> None:
        try:
            with engine(database) as made, made.begin() as connection:
                migrate(connection)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []


def an_older_version_goes_on(database: Database) -> None:
    """What a newer version has added has defaults, and stays."""
    with engine(database) as made, made.begin() as connection:
        migrate(connection)
        connection.execute(text("ALTER TABLE jobs ADD COLUMN later INTEGER NOT NULL DEFAULT 7"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    first_rows(database, [job("a")])
    with engine(database) as made, made.begin() as connection:
        assert connection.execute(text("SELECT uid, later FROM jobs")).all() == [("a", 7)]
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"


def what_is_written_is_read(database: Database) -> None:
    rows: list[Row] = [
        job("a", message="a NUL \x00 and half a pair \ud83d", labels={"team": "blue"}, step=2**40),
        attempt("a", goodput={"queued": 60, "training": 100}),
        attempt("a", 2, goodput={"queued": 90, "training": 250}, ended_at=at(9), reason="Preempted"),
        interval("a", 0, ends=at(5)),
        interval("a", 1),
        Preemption("a", 2, at(8), "b", "Reclaimed", 1200, "b is owed it"),
        Checkpoint("a", 500, 2, "s3://models/a", at(7), 2**41, 1.5),
        Failure("a", at(6), "network", 1, "node-1", 480, True, "a peer went"),
        PoolInterval("H100", "on-demand", 64, at(0)),
        Storage("s3://models/a", at(7), "a", 2**42),
    ]
    first_rows(database, rows)
    with reading(database) as reader:
        found = reader.job("a")
        assert found is not None
        assert found.job == replace(rows[0], message="a NUL  and half a pair ?")
        told = [*found.attempts, *found.intervals, *found.preemptions, *found.checkpoints, *found.failures]
        assert [*told, *reader.pools(at(0), at(1)), *reader.storage()] == rows[1:]
        assert found.job.facts.user == "ada"
        assert found.job.facts.labels == {"team": "blue"}
        assert reader.parts(at(0), at(20)) == (
            AttemptParts("a", 1, {"training": 100}, "research"),
            AttemptParts("a", 2, {"training": 150}, "research"),
        )
        assert reader.preemptions(at(8), at(9)) == (rows[5],)
        assert reader.preemptions(at(9), at(10)) == ()
        assert reader.seen_at() == at(10)
        assert reader.job("nobody") is None


def pages_and_filters(database: Database) -> None:
    many = [job(f"{number:02}", submitted_at=at(number // 2), namespace=f"ns{number % 3}") for number in range(20)]
    many[3] = replace(many[3], queue="other", phase="Failed", deleted_at=at(4))
    first_rows(database, [*many])
    with reading(database) as reader:
        whole, after, sizes = [], None, []
        while True:
            page = reader.jobs(after=after, limit=8)
            whole += [one.uid for one in page.jobs]
            sizes.append(len(page.jobs))
            after = page.next
            if after is None:
                break
        assert whole == [f"{number:02}" for number in reversed(range(20))]
        assert sizes == [8, 8, 4]

        def uids(**which: Any) -> list[str]:
            return [one.uid for one in reader.jobs(Filter(**which)).jobs]

        assert uids(queue="other") == uids(phase="Failed") == uids(gone=True) == ["03"]
        assert uids(name="run-05", user="ada", project="llm") == ["05"]
        assert uids(user="bob") == []
        assert uids(namespaces=("ns0", "ns1"), ends=at(2)) == ["03", "01", "00"]
        assert uids(namespaces=()) == []
        assert uids(ends=at(1)) == ["01", "00"]
        assert "03" not in uids(begins=at(4))
        assert "03" in uids(begins=at(3))


def a_late_page_is_found_as_soon_as_the_first(database: Database) -> None:
    """By the index: who pages through a year must not have all pages before each one walked through."""
    first_rows(database, [job(f"{number:04}", submitted_at=at(number // 2)) for number in range(2000)], 2000)
    asked = list[tuple[Any, Any]]()

    def note(_connection: Any, _cursor: Any, statement: Any, values: Any, _context: Any, _many: Any) -> None:
        asked.append((statement, values))

    with reading(database) as reader:
        event.listen(reader._engine, "before_cursor_execute", note)
        page = reader.jobs(after=Cursor(at(50), "0101"), limit=5)
        assert [one.uid for one in page.jobs] == ["0100", "0099", "0098", "0097", "0096"]
        explain = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN (ANALYZE)"}[reader._engine.dialect.name]
        with reader._engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE")
            statement, values = next(one for one in asked if one[0].startswith("SELECT"))
            found = connection.exec_driver_sql(f"{explain} {statement}", values)
            plan = "\n".join(str(row) for row in found)
        assert re.search(r"Index Cond: \(ROW\(|ix_jobs_submitted_at \(\(submitted_at,uid\)<", plan), plan


def intervals_overlap_half_open(database: Database) -> None:
    rows: list[Row] = [
        interval("a", 0, begins=at(1), ends=at(3)),
        interval("a", 1, begins=at(3), ends=at(5)),
        interval("a", 2, begins=at(5)),
        job("a"),
    ]
    first_rows(database, rows)
    with reading(database) as reader:

        def within(begins: float, ends: float) -> list[int]:
            return [one.index for one in reader.intervals(at(begins), at(ends))]

        assert within(3, 5) == [1]
        assert within(2.9, 5.1) == [0, 1, 2]
        assert within(9, 10) == [2]
        assert within(0, 1) == []
        assert [one.uid for one in reader.facts(at(0), at(9))] == ["a"]
        assert reader.facts(at(0), at(1)) == ()


def checkpoints_are_kept_until_less_is_told(database: Database) -> None:
    """A uri is charged to one job at a time; what is kept goes on when the job is gone."""
    rows: list[Row] = [
        job("a", deleted_at=at(3)),
        job("b"),
        Storage("s3://m/one", at(1), "a", 100),
        Storage("s3://m/one", at(2), "a", 300),
        Storage("s3://m/one", at(5), "b", 400),
        Storage("s3://m/one", at(9), "b", 0),
        Storage("s3://m/two", at(1), "a", 7),
    ]
    first_rows(database, rows)
    with reading(database) as reader:

        def kept(begins: float, ends: float) -> list[tuple[str, int, datetime, datetime | None]]:
            return [(one.job, one.size, one.begins, one.ends) for one in reader.stored(at(begins), at(ends))]

        assert kept(0, 20) == [
            ("a", 100, at(1), at(2)),
            ("a", 300, at(2), at(5)),
            ("b", 400, at(5), at(9)),
            ("a", 7, at(1), None),
        ]
        assert kept(3, 4) == [("a", 300, at(2), None), ("a", 7, at(1), None)], "what the period has not seen to end"
        assert kept(9, 10) == kept(15, 20) == [("a", 7, at(1), None)]
        assert kept(0, 1) == []
        assert {one.uid for one in reader.facts(at(6), at(8))} == {"a", "b"}
        assert [one.uid for one in reader.facts(at(15), at(20))] == ["a"], "nothing of b lies there any more"
        assert [(one.uri, one.bytes) for one in reader.storage()] == [("s3://m/one", 0), ("s3://m/two", 7)]


def questions_about_storage_are_one_pass(database: Database) -> None:
    """There is a row for each save of each run: no subquery is asked for each of them."""
    rows: list[Row] = [job("a")]
    rows += (Storage(f"s3://m/{run}", at(save), "a", save) for run in range(20) for save in range(1, 20))
    first_rows(database, rows)
    asked = list[tuple[Any, Any]]()

    def note(_connection: Any, _cursor: Any, statement: Any, values: Any, _context: Any, _many: Any) -> None:
        asked.append((statement, values))

    with reading(database) as reader:
        event.listen(reader._engine, "before_cursor_execute", note)
        assert len(reader.storage()) == 20
        assert len(reader.stored(at(10), at(12))) == 40
        assert [one.uid for one in reader.facts(at(10), at(12))] == ["a"]
        explain = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN (ANALYZE)"}[reader._engine.dialect.name]
        for statement, values in asked[:]:
            with reader._engine.begin() as connection:
                found = connection.exec_driver_sql(f"{explain} {statement}", values)
                plan = "\n".join(str(row) for row in found)
            assert not re.search(r"CORRELATED|loops=\d{3}", plan), plan
            # PostgreSQL keeps what one finds by a hash while it is small, and then looks through all of it each time.
            assert "SubPlan" not in plan, plan


def of_a_job_that_was_placed_very_often_the_newest_rows_are_read(database: Database) -> None:
    gang = 150
    rows: list[Row] = [job("a")]
    rows += (attempt("a", number, ended_at=at(number + 1)) for number in range(1, 201))
    rows += (
        replace(interval("a", worker), attempt=number, ends=at(number + 1))
        for number in range(1, 201)
        for worker in range(gang)
    )
    first_rows(database, rows, 300)
    with reading(database) as reader:
        found = reader.job("a")
        assert found is not None
        assert len(found.attempts) == 200
        assert len(found.intervals) == LONGEST_PART
        assert [found.intervals[place].key for place in (-gang, -1)] == [("a", 200, 0, 0), ("a", 200, gang - 1, 0)]
        assert found.left_out == {"intervals": 200 * gang - LONGEST_PART}


def an_end_that_was_seen_stays(database: Database) -> None:
    """Whatever a later operator says of it; and of two guesses the later one."""
    seen, guess = interval("a", ends=at(5)), interval("a", 1, ends=at(5), estimated=True)
    first_rows(database, [job("a"), seen, guess])
    later = [interval("a"), interval("a", 1, ends=at(4), estimated=True)]
    with writing(database, identity="two") as writer:
        writer.put([job("a"), *later])
        writer.picture(at(30))
        until("taken over", lambda: writer.health.written == 3)
        with reading(database) as reader:
            assert list(reader.intervals(at(0), at(60))) == [seen, guess]
        writer.put([interval("a", ends=at(20), estimated=True), interval("a", 1, ends=at(6))])
        writer.seen(at(31))
        until("the rest", lambda: writer.health.written == 5)
    with reading(database) as reader:
        assert list(reader.intervals(at(0), at(60))) == [seen, interval("a", 1, ends=at(6))]


def rows_come_twice_and_out_of_order(database: Database) -> None:
    begun = interval("a")
    ended = replace(begun, ends=at(5), begins=at(2))
    orders = [[(1, begun), (2, ended)], [(2, ended), (1, begun)], [(2, ended), (2, ended), (1, begun), (1, begun)]]
    for order in orders:
        with engine(database) as made, made.begin() as connection:
            migrate(connection)
            connection.execute(intervals.delete())
            for numbered in order:
                upserts.write(connection, 1, [numbered])
        with reading(database) as reader:
            (found,) = reader.intervals(at(0), at(9))
            assert found.ends == at(5)
            assert found.begins == (at(1) if order[0][0] == 1 else at(2))


def the_database_goes_and_comes_back(database: Database) -> None:
    with writing(database) as writer:
        writer.put([job("a"), interval("a")])
        writer.picture(at(2))
        until("the first rows", lambda: writer.health.written == 2)
        database.away()
        writer.put([interval("a", ends=at(3)), job("b")])
        writer.seen(at(3))
        until("trouble", lambda: writer.health.trouble)
        assert writer.health.waiting == 2
        assert "test-password" not in writer.health.trouble
        writer.put([job("b", phase="Succeeded")])
        database.back()
        until("catching up", lambda: not writer.health.trouble and not writer.health.waiting)
    with reading(database) as reader:
        assert [one.ends for one in reader.intervals(at(0), at(9))] == [at(3)]
        assert [(one.uid, one.phase) for one in reader.jobs().jobs] == [("b", "Succeeded"), ("a", "Running")]


def cut_between_write_and_commit(database: Database) -> None:
    cut: list[int] = []

    def before_commit(_: Any) -> None:
        if not cut and writer.health.written:
            cut.append(1)
            database.away()
            database.back()
            raise ConnectionError("cut")

    with writing(database) as writer:
        writer.put([job("a"), interval("a")])
        writer.picture(at(2))
        until("the first rows", lambda: writer.health.written == 2)
        event.listen(Engine, "commit", before_commit)
        try:
            writer.put([interval("a", ends=at(3)), interval("a", 1)])
            writer.seen(at(3))
            until("the rest", lambda: writer.health.written == 4)
        finally:
            event.remove(Engine, "commit", before_commit)
    assert cut
    with reading(database) as reader:
        assert [(one.index, one.ends) for one in reader.intervals(at(0), at(9))] == [(0, at(3)), (1, None)]


def a_successor_ends_what_is_gone(database: Database) -> None:
    live: list[Row] = [job("a"), attempt("a"), interval("a"), interval("a", 1, ends=at(4))]
    gone: list[Row] = [job("b"), attempt("b"), interval("b"), interval("b", 1, begins=at(11))]
    first_rows(database, [*live, *gone, PoolInterval("H100", "spot", 8, at(0))], moment=10)
    later = [job("a"), attempt("a"), interval("a", begins=at(30), gpu_type="", capacity=""), live[3]]
    with writing(database, identity="two") as writer:
        writer.put([*later, PoolInterval("H100", "spot", 16, at(30))])
        writer.picture(at(30))
        until("taken over", lambda: writer.health.written == 5)
    with reading(database) as reader:
        found = {(one.job, one.index): one for one in reader.intervals(at(0), at(60))}
        assert found["a", 0] == interval("a"), "its begin, its flavour, and that it goes on"
        assert found["a", 1] == live[3], "an end that was seen"
        assert (found["b", 0].ends, found["b", 0].estimated) == (at(10), True)
        assert (found["b", 1].ends, found["b", 1].estimated) == (at(11), True), "none ends before it begins"
        a, b = reader.job("a"), reader.job("b")
        assert a is not None
        assert b is not None
        assert (a.job.deleted_at, a.job.estimated, a.attempts[0].ended_at) == (None, False, None)
        assert (b.job.deleted_at, b.job.estimated) == (at(10), True)
        assert (b.attempts[0].ended_at, b.attempts[0].estimated) == (at(10), True)
        pools = reader.pools(at(0), at(60))
        assert [(one.gpus, one.ends, one.estimated) for one in pools] == [(8, at(30), True), (16, None, False)]


def nobody_writes_after_a_successor(database: Database) -> None:
    with writing(database) as first:
        first.put([job("a")])
        first.picture(at(1))
        until("the first", lambda: first.health.written == 1)
        with writing(database, identity="two") as second:
            second.put([job("a", phase="Failed")])
            second.picture(at(2))
            until("the second", lambda: second.health.written == 1)
            first.put([job("a"), job("b")])
            first.seen(at(3))
            until("the end of the first", lambda: first.health.trouble)
            assert first.health.trouble.startswith("two writes to this database now")
            first.put([job("c"), job("d")])
            assert first.health.waiting == 0, "they would be kept for ever"
    with reading(database) as reader:
        assert [(one.uid, one.phase) for one in reader.jobs().jobs] == [("a", "Failed")]


def a_backup_is_put_in_its_place(database: Database) -> None:
    """What was written since is lost. What exists is said again, and nothing that has ended since goes on for ever."""
    with writing(database) as writer:
        writer.put([job("a"), interval("a"), job("b"), interval("b")])
        writer.picture(at(2))
        until("the picture", lambda: writer.health.written == 4)
        with engine(database) as made, made.begin() as connection:
            backup = connection.execute(select(intervals)).all(), connection.execute(select(writers)).all()
        writer.put([interval("b", ends=at(3)), job("b", deleted_at=at(3))])
        writer.seen(at(4))
        until("the end of b", lambda: writer.health.written == 6)
        with engine(database) as made, made.begin() as connection:
            for table, rows in zip((intervals, writers), backup, strict=True):
                connection.execute(delete(table))
                connection.execute(insert(table), [{c.key: row._mapping[c] for c in table.c} for row in rows])
        writer.seen(at(5))
        until("a picture is wanted", lambda: writer.wants_picture)
        writer.put([job("a"), interval("a")])
        writer.picture(at(6))
        until("all is well", lambda: not writer.health.waiting and not writer.wants_picture)
    with reading(database) as reader:
        found = {one.job: (one.ends, one.estimated) for one in reader.intervals(at(0), at(9))}
        assert found == {"a": (None, False), "b": (at(2), True)}
        assert reader.seen_at() == at(6)


def an_empty_one_is_put_in_its_place(database: Database) -> None:
    with writing(database) as writer:
        writer.put([job("a"), interval("a")])
        writer.picture(at(2))
        until("the picture", lambda: writer.health.written == 2)
        with engine(database) as made, made.begin() as connection:
            metadata.drop_all(connection)
            connection.exec_driver_sql("DROP TABLE alembic_version")
        writer.put([job("b")])
        writer.seen(at(3))
        until("a picture is wanted", lambda: writer.wants_picture)
        writer.put([job("a"), interval("a")])
        writer.picture(at(4))
        until("all is well", lambda: not writer.health.waiting and not writer.wants_picture)
    with reading(database) as reader:
        assert {one.uid for one in reader.jobs().jobs} == {"a", "b"}


def a_row_that_is_refused_holds_up_no_other(database: Database) -> None:
    with writing(database) as writer:
        writer.put([job("a"), job("b", gpus=2**70), job("c", submitted_at=None)])
        writer.put([job("d"), interval("d")])
        writer.picture(at(1))
        until("written", lambda: writer.health.written == 3)
        assert writer.health.dropped == 2
        assert writer.health.waiting == 0
    with reading(database) as reader:
        assert [one.uid for one in reader.jobs().jobs] == ["d", "a"]


def too_many_rows_while_it_is_away(database: Database) -> None:
    """What found no room is said again; what ended meanwhile ends when the rows began to be dropped."""
    with writing(database, most_rows=3) as writer:
        writer.put([job("a"), interval("a"), job("b"), interval("b")])  # a picture is taken whole
        writer.picture(at(2))
        until("the picture", lambda: writer.health.written == 4)
        database.away()
        writer.seen(at(3))
        until("trouble", lambda: writer.health.trouble)
        writer.put([job(name) for name in ("c", "d", "e")])
        writer.put([interval("b", ends=at(5)), job("b", deleted_at=at(5))])
        assert (writer.health.waiting, writer.health.dropped) == (3, 2)
        database.back()
        until("a picture is wanted", lambda: writer.wants_picture)
        writer.put([job(name) for name in ("a", "c", "d", "e")])
        writer.put([interval("a")])
        writer.picture(at(60))
        until("all is well", lambda: not writer.health.waiting and not writer.wants_picture)
    with reading(database) as reader:
        found = {one.job: one for one in reader.intervals(at(0), at(90))}
        assert (found["a"].ends, found["b"].ends, found["b"].estimated) == (None, at(3), True)
        assert [one.uid for one in reader.jobs(Filter(gone=True)).jobs] == ["b"]
        assert len(reader.jobs().jobs) == 5


def what_is_old_is_forgotten(database: Database) -> None:
    rows: list[Row] = [
        *(job(uid, deleted_at=ended) for uid, ended in (("a", at(5)), ("b", at(7)), ("c", None))),
        *(interval(uid) for uid in "abc"),
        *(attempt(uid) for uid in "abc"),
        PoolInterval("H100", "spot", 8, at(0), at(5)),
        PoolInterval("H100", "spot", 9, at(5)),
        Storage("s3://m/taken-over", at(1), "b", 5),
        Storage("s3://m/taken-over", at(3), "a", 0),
        Storage("s3://m/b", at(1), "b", 5),
    ]
    first_rows(database, rows)
    with engine(database) as made, made.begin() as connection:
        assert expire(connection, at(6)) == 1
        assert expire(connection, at(6)) == 0
        assert connection.execute(select(func.count()).select_from(intervals)).scalar() == 2
    with reading(database) as reader:
        assert [one.uid for one in reader.jobs().jobs] == ["c", "b"]
        assert [one.gpus for one in reader.pools(at(0), at(9))] == [9]
        assert reader.job("a") is None
        assert [one.uri for one in reader.storage()] == ["s3://m/b"], "what was taken over does not come back"


def more_than_the_calendar_has_is_for_ever(database: Database) -> None:
    with writing(database, retention=timedelta(days=999_999)) as writer:
        writer.put([job("a", deleted_at=at(5))])
        writer.picture(at(9))
        until("written", lambda: writer.health.written)
    assert (writer.health.trouble, writer.health.waiting) == ("", 0)
    with reading(database) as reader:
        assert len(reader.jobs().jobs) == 1


CASES: tuple[Callable[[Database], None], ...] = (
    migrations_make_the_schema,
    two_migrate_at_once,
    an_older_version_goes_on,
    what_is_written_is_read,
    pages_and_filters,
    a_late_page_is_found_as_soon_as_the_first,
    intervals_overlap_half_open,
    checkpoints_are_kept_until_less_is_told,
    questions_about_storage_are_one_pass,
    of_a_job_that_was_placed_very_often_the_newest_rows_are_read,
    an_end_that_was_seen_stays,
    rows_come_twice_and_out_of_order,
    the_database_goes_and_comes_back,
    cut_between_write_and_commit,
    a_successor_ends_what_is_gone,
    nobody_writes_after_a_successor,
    a_backup_is_put_in_its_place,
    an_empty_one_is_put_in_its_place,
    a_row_that_is_refused_holds_up_no_other,
    too_many_rows_while_it_is_away,
    what_is_old_is_forgotten,
    more_than_the_calendar_has_is_for_ever,
)
