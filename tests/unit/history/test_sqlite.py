"""The history in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest
from sqlalchemy.engine import URL

from muster.telemetry.history.database import BadUrl, engine_of, migrate, parse

from .cases import CASES, Database

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
