"""The history in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from muster.telemetry.history.database import BadUrl, engine_of, migrate, parse, sentence
from muster.telemetry.history.retention import expire
from muster.telemetry.history.rows import Row, Storage

from .cases import CASES, Database, first_rows
from .rows import at, job

pytestmark = pytest.mark.unit


class File:
    """Away is a folder that isn't there."""

    def __init__(self, folder: Path) -> None:
        self._here, self._elsewhere = folder / "here", folder / "elsewhere"
        self._here.mkdir()
        self.url: URL = parse(f"sqlite:///{self._here}/history.db")

    def away(self) -> None:
        self._here.rename(self._elsewhere)

    def back(self) -> None:
        self._elsewhere.rename(self._here)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_sqlite(case: Callable[[Database], None], tmp_path: Path) -> None:
    case(File(tmp_path))


def test_a_new_file_that_another_writes_to_is_waited_for(tmp_path: Path) -> None:
    """SQLite waits for none when it brings a file to write-ahead logging."""
    other = sqlite3.connect(tmp_path / "history.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    through = Timer(0.3, other.execute, ["ROLLBACK"])
    through.start()
    try:
        with engine_of(parse(f"sqlite:///{tmp_path}/history.db"), writes=True).begin() as connection:
            migrate(connection)
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    finally:
        through.join()
        other.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("history.db", "it is no URL"),
        ("mysql://a:geheim@b/c", "mysql is not supported"),
        ("sqlite://", "four slashes"),
        ("postgresql://a:geheim@b:port/c", "it is no URL"),
        ("postgresql://a:ge@1/heim@b:5432/c", "%40 for @"),
        ("postgresql://a:geheim@heim@b/c", "%40 for @"),
    ],
)
def test_a_url_that_is_wrong(url: str, says: str) -> None:
    with pytest.raises(BadUrl, match=says) as caught:
        parse(url)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgres_by_any_of_its_names(scheme: str) -> None:
    assert parse(f"{scheme}://a:b@c/d").drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "unable to open database file; the file or its folder is not there, or user "),
        (b"no database at all, but long enough to be read as one" * 100, "a new one is begun"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_helps(content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "history.db"
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(SQLAlchemyError) as caught, engine_of(parse(f"sqlite:///{path}"), writes=True).begin():
        pass
    assert says in sentence(caught.value)


def test_a_full_volume_says_what_helps(tmp_path: Path) -> None:
    with engine_of(parse(f"sqlite:///{tmp_path}/history.db"), writes=True).connect() as connection:
        migrate(connection)
        connection.exec_driver_sql("PRAGMA max_page_count=1")  # SQLite's own way to have no more room
        with pytest.raises(SQLAlchemyError) as caught:
            connection.exec_driver_sql("CREATE TABLE more AS SELECT zeroblob(1000000) AS it")
    assert sentence(caught.value) == "database or disk is full; enlarge the volume, or keep less of the history"


def test_a_look_for_what_is_old_does_not_walk_through_what_was_stored(tmp_path: Path) -> None:
    """It comes each hour, a run may have saved ten thousand times, and meanwhile nothing can be written."""
    database, saves = File(tmp_path), 3000
    kept: list[Row] = [job("young"), *(Storage("s3://m/young", at(number), "young", 5) for number in range(saves))]
    first_rows(database, [job("old", deleted_at=at(5)), Storage("s3://m/old", at(1), "old", 5), *kept])
    engine, thousands = engine_of(database.url, writes=True), 0

    def count() -> None:
        nonlocal thousands
        thousands += 1

    with engine.begin() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_progress_handler(count, 1000)
        assert expire(connection, at(6)) == 1
    assert thousands < saves / 10, f"SQLite took {thousands},000 instructions"
