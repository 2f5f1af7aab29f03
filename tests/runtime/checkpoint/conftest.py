"""A real S3 server, and the stores under test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hack.cluster import build
from hack.cluster.progress import Progress

from muster_protocol import env
from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint.store import open_store

sys.path.insert(0, str(Path(__file__).parent))  # for `made`

ACCESS_KEY, SECRET_KEY = "checkpoint-access", "checkpoint-secret"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.runtime)


@dataclass(frozen=True)
class S3Server:
    """versitygw with the bucket `models`; its objects are files below `folder`."""

    endpoint: str
    folder: Path

    def environment(self, secret_key: str = SECRET_KEY) -> dict[str, str]:
        return {
            env.S3_ENDPOINT: self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    build.ensure(["versitygw"], Progress())
    folder = tmp_path_factory.mktemp("s3")
    (folder / "models").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(build.program("versitygw")), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)]
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while not _accepts(port):
            assert process.poll() is None, "versitygw ended"
            assert time.monotonic() < until, "versitygw doesn't listen"
            time.sleep(0.02)
        yield S3Server(f"http://127.0.0.1:{port}", folder)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


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
