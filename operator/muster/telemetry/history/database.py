"""How the database is reached, and brought to this version's tables."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

log = logging.getLogger(__name__)

_MIGRATIONS: Final = Path(__file__).parent / "migrations"
_LOCK: Final = 0x6D757374
"""Key of the lock that one migration at a time holds in PostgreSQL."""
_DRIVERS: Final = {"sqlite": "sqlite+pysqlite", "postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}

CONNECT_SECONDS: Final = 10
BUSY_SECONDS: Final = 10
LOST_SECONDS: Final = 30
"""After which a server that is cut off counts as away: by itself Linux tries for 15 minutes to send, and who waits for
an answer asks after two hours whether anybody is still there."""
_ON_POSTGRESQL: Final = {
    "application_name": "muster",
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": LOST_SECONDS * 1000,
    "keepalives_idle": LOST_SECONDS // 3,
    "keepalives_interval": LOST_SECONDS // 6,
    "keepalives_count": 4,
}
"""Of libpq; what the URL says goes before."""

_NO_ACCESS: Final = "the file or its folder is not there, or user {user} may not write to both"
_NO_DATABASE: Final = "put a backup in its place, or move the file away, and a new one is begun"
_MENDS: Final = {
    sqlite3.SQLITE_CANTOPEN: _NO_ACCESS,
    sqlite3.SQLITE_READONLY: _NO_ACCESS,
    sqlite3.SQLITE_FULL: "enlarge the volume, or keep less of the history",
    sqlite3.SQLITE_CORRUPT: _NO_DATABASE,
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
}
"""What helps, by SQLite's error."""


Renew = Callable[[], URL]
"""The URL as it is told now. It never raises."""


class OldTables(RuntimeError):
    """The tables are of an older version, or there are none; the message says what to do."""


class BadUrl(ValueError):
    """Nothing can be stored at this URL; the message says why, without the password."""


def parse(text: str) -> URL:
    """The URL with the driver that we bring: `postgresql://USER:PASSWORD@HOST/NAME`, `sqlite:////PATH`. Raises
    BadUrl."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise BadUrl("it is no URL: write postgresql://USER:PASSWORD@HOST:5432/NAME, or sqlite:////PATH") from None
    kind = url.drivername.partition("+")[0]
    if kind not in _DRIVERS:
        raise BadUrl(f"{url.drivername} is not supported: write postgresql://... or sqlite:////PATH")
    if kind == "sqlite" and (not url.database or url.database == ":memory:"):
        raise BadUrl("a history in memory is none: write sqlite:////PATH, with four slashes")
    if kind != "sqlite" and "@" in f"{url.host}{url.database}":
        raise BadUrl("it has more than one @: in a user's name or password write %40 for @, %2F for /, and %25 for %")
    return url.set(drivername=_DRIVERS[kind])


def shown(url: URL) -> str:
    """For people: the file of SQLite, or the URL without its password and our driver."""
    kind = url.drivername.partition("+")[0]
    return str(url.database) if kind == "sqlite" else url.set(drivername=kind).render_as_string(hide_password=True)


def sentence(error: Exception) -> str:
    """The driver's own words, on one line; libpq has several, and SQLite too few to mend anything by."""
    told = getattr(error, "orig", None) or error
    lines = [" ".join(line.split()) for line in str(told).splitlines() if line.strip()] or [type(told).__name__]
    if isinstance(told, sqlite3.Error):
        more = _MENDS.get(getattr(told, "sqlite_errorcode", 0) & 0xFF, "")  # ours has one only where SQLite gave it
        lines += [more.format(user=os.geteuid())] if more else []
    return "; ".join(lines)


def engine_of(url: URL, *, writes: bool, renew: Renew | None = None) -> Engine:
    """Connections are made when they are needed. `writes`: a transaction takes SQLite's write lock when it begins, and
    SQLite makes the file where there is none. `renew`: asked at each connection to PostgreSQL, whose password may have
    been changed meanwhile."""
    if url.drivername.startswith("sqlite"):
        # A connection for each use: they cost little, and none is left open for a thread that is gone.
        engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS}, poolclass=NullPool)
        if not writes:
            event.listen(engine, "do_connect", _existing)
        event.listen(engine, "connect", _on_sqlite)
        event.listen(engine, "begin", _begin_to_write if writes else _begin)
        return engine
    engine = create_engine(url, pool_pre_ping=True, pool_size=2, pool_recycle=1800)
    event.listen(engine, "do_connect", _as_told_now(renew or (lambda: url)))
    return engine


def _as_told_now(renew: Renew) -> Callable[..., None]:
    def connects(dialect: Any, _record: Any, _arguments: list[Any], options: dict[str, Any]) -> None:
        url = renew()
        _, given = dialect.create_connect_args(url)
        ours = {name: value for name, value in _ON_POSTGRESQL.items() if name not in url.query}
        options.clear()
        options.update(given, **ours)

    return connects


def _existing(_dialect: Any, _record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
    """Who only reads leaves no empty database at a path that was mistyped."""
    if not options.get("uri"):
        arguments[0] = f"{Path(arguments[0]).absolute().as_uri()}?mode=rw"
        options["uri"] = True


def _on_sqlite(connection: Any, _: Any) -> None:
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # so that BEGIN is ours to say, and tables are made within the transaction too
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous=FULL")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Who reads does not wait for who writes. A file is brought there once, and for that alone SQLite doesn't wait for
    others who have it open: it says at once that they are in the way."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        connection.execute("BEGIN IMMEDIATE")  # this does wait until they are through
        connection.execute("ROLLBACK")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_to_write(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def migrate(connection: Connection) -> None:
    """Bring the tables to this version, within the transaction of `connection`; others that want to wait for it. Tables
    of a newer version stay as they are: versions only add."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = _config()
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    found, known = MigrationContext.configure(connection).get_current_revision(), script.get_current_head()
    if found == known:
        return
    if found is not None and found not in _revisions(script):
        log.warning("history: the database has the tables of a newer version, %s: going on as with %s", found, known)
        return
    command.upgrade(config, "head")
    log.info("history: the database has the tables of version %s now", known)


def check(connection: Connection) -> None:
    """Whether this version can read the tables: it only reads, so it does not bring them there. Raises OldTables."""
    script = ScriptDirectory.from_config(_config())
    found, known = MigrationContext.configure(connection).get_current_revision(), script.get_current_head()
    if found is None:
        raise OldTables(f"no operator has written one to {shown(connection.engine.url)}")
    if found != known and found in _revisions(script):
        raise OldTables(
            f"its tables are of version {found}, and this muster reads {known}: the operator that writes it is older; "
            "upgrade it"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _revisions(script: ScriptDirectory) -> set[str]:
    """All that this version knows."""
    return {step.revision for step in script.walk_revisions()}
