"""The history in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hack import postgres

from muster.telemetry.history.database import parse
from muster.telemetry.history.writer import Writer

from ..unit.history.cases import CASES, Database, until
from ..unit.history.rows import at

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


def test_a_wrong_password_is_told_and_not_shown(database: Server) -> None:
    writer = Writer(database.url.set(password="mistaken"), identity="one", first_wait=0.02)
    writer.start()
    writer.picture(at(0))
    until("trouble", lambda: writer.health.trouble)
    writer.close()
    assert "password authentication failed" in writer.health.trouble
    assert "mistaken" not in writer.health.trouble
