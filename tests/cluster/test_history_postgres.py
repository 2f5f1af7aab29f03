"""The history in a real PostgreSQL."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hack import postgres
from sqlalchemy import text

from muster.cli.settings import Settings
from muster.controllers.chosen import history_of
from muster.sizing.prices import catalogue
from muster.telemetry.history.database import LOST_SECONDS, engine_of, parse
from muster.telemetry.history.reading import Reader
from muster.telemetry.history.writer import Writer

from ..unit.history.cases import CASES, Database, until
from ..unit.history.rows import at, job

pytestmark = pytest.mark.cluster


@dataclass
class Server:
    """Away is a server that was ended without any grace."""

    server: postgres.Postgres

    def __post_init__(self) -> None:
        self.url = parse(self.server.url)

    def away(self) -> None:
        self.server.stop()

    def back(self) -> None:
        self.server.start()


@pytest.fixture(scope="module")
def running() -> Iterator[postgres.Postgres]:
    with postgres.serving() as server:
        yield server


@pytest.fixture
def database(running: postgres.Postgres) -> Server:
    running.empty()
    return Server(running)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_postgres(case: Callable[[Database], None], database: Server) -> None:
    case(database)


def test_a_password_that_is_mended_in_the_file_is_used_without_a_restart(database: Server, tmp_path: Path) -> None:
    """So it is with a Secret that the chart mounts: what waits is in the operator's memory."""
    file, right = tmp_path / "url", database.url.render_as_string(hide_password=False)
    file.write_text(database.url.set(password="mistaken").render_as_string(hide_password=False))
    history = history_of(Settings(history_url_file=str(file)), catalogue())
    assert history is not None
    assert history.renew is not None
    writer = Writer(history.url, identity="one", first_wait=0.02, renew=history.renew)
    reader = Reader(history.url, history.renew)
    writer.start()
    writer.put([job("a")])
    writer.picture(at(0))
    until("trouble", lambda: writer.health.trouble)
    for nonsense in ("", "mysql://a:b@c/d", "sqlite:////tmp/other.db"):
        file.write_text(nonsense)
        assert history.renew() == history.url, "the last that could be"
    file.unlink()
    assert history.renew() == history.url
    file.write_text(f"{right}\n")
    until("it is written", lambda: writer.health.written)
    assert writer.health.trouble == ""
    assert [found.uid for found in reader.jobs().jobs] == ["a"]
    reader.close()
    writer.close()


def test_a_wrong_password_is_told_and_not_shown(database: Server) -> None:
    writer = Writer(database.url.set(password="mistaken"), identity="one", first_wait=0.02)
    writer.start()
    writer.picture(at(0))
    until("trouble", lambda: writer.health.trouble)
    writer.close()
    assert "password authentication failed" in writer.health.trouble
    assert "mistaken" not in writer.health.trouble


def test_a_database_that_gives_no_answer_is_told(database: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the server nor the wire ends the wait for a lock, and while it lasts nothing is written."""
    writer, engine = Writer(database.url, identity="one", patience=0.05), engine_of(database.url, writes=True)
    writer.start()
    try:
        writer.picture(at(0))
        until("the term", lambda: writer.health.written_at)
        with engine.begin() as connection:
            connection.execute(text("LOCK TABLE writers"))

            def told() -> str:
                writer.seen(at(1))
                return writer.health.trouble

            until("trouble", told)
            assert writer.health.trouble.startswith("it gives no answer")
            told()
            assert not [line for line in caplog.messages if "is back" in line]
        until("the end of the trouble", lambda: not writer.health.trouble)
    finally:
        writer.close()
        engine.dispose()
    assert [line.split(":")[1] for line in caplog.messages if "gives no answer" in line] == [
        " cannot write to the database, rows are kept"
    ], "once, however often it was found"


@pytest.mark.parametrize(("said", "seconds"), [({}, LOST_SECONDS), ({"tcp_user_timeout": "5000"}, 5)])
def test_a_server_that_is_cut_off_is_not_waited_for(database: Server, said: dict[str, str], seconds: int) -> None:
    """By itself Linux waits for 15 minutes, or for two hours; meanwhile nothing would be written, or told."""
    engine = engine_of(database.url.update_query_dict(said), writes=True)
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        with socket.socket(fileno=os.dup(raw.fileno())) as wire:
            idle, between, times, until_sent = (
                wire.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
            assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    engine.dispose()
    assert idle + times * between <= LOST_SECONDS
    assert until_sent == seconds * 1000
