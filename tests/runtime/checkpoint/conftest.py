"""A real S3 server, and the stores under test."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hack.s3server import S3Server, serving

from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint.store import open_store

sys.path.insert(0, str(Path(__file__).parent))  # for `made`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.runtime)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_environment(s3_server: S3Server) -> Iterator[S3Server]:
    """The server's address and keys in this process's environment."""
    before = dict(os.environ)
    os.environ.update(s3_server.environment())
    yield s3_server
    os.environ.clear()
    os.environ.update(before)


Opener = Callable[[], Store]


@pytest.fixture(params=["file", "s3"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same fresh place again and again, as ranks do; everything is closed in the end."""
    if request.param == "file":
        uri = f"file://{tmp_path}/run"
    else:
        request.getfixturevalue("s3_environment")
        uri = f"s3://models/{tmp_path.name}-{time.monotonic_ns()}"
    opened: list[Store] = []

    def open_again() -> Store:
        opened.append(open_store(uri))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()
