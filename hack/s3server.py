"""A real S3 server for tests and benchmarks: versitygw on a free port of this machine, its objects in a folder."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hack.cluster import build
from hack.cluster.progress import Progress
from muster_protocol import env

BUCKET: Final = "models"
ACCESS_KEY: Final = "test-access"
SECRET_KEY: Final = "test-secret"
_PATIENCE: Final = 20.0
_END_SECONDS: Final = 30.0
"""It gives open connections ten seconds to end, and only then ends itself."""


class S3Server:
    """versitygw with the bucket `models`; its objects are files below `folder`. It keeps its port when it is away."""

    access_key, secret_key = ACCESS_KEY, SECRET_KEY

    def __init__(
        self,
        folder: Path,
        certificate: tuple[Path, Path] | None = None,
        *,
        log: Path | None = None,
        niceness: int = 0,
        versions: Path | None = None,
    ) -> None:
        """`certificate` and its private key, both PEM: the server speaks TLS. `log` gets a line of each request.
        `niceness` above 0: it gives way to everything else on this machine. `versions`: buckets may have versions, of
        which the old ones lie there.
        """
        self.folder, self._certificate, self._log, self._niceness = folder, certificate, log, niceness
        self._versions = versions
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.endpoint = f"http{'s' if certificate else ''}://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self, **more: str) -> dict[str, str]:
        """What a client needs to reach it."""
        return {
            env.S3_ENDPOINT: self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
            **more,
        }

    def start(self) -> None:
        """Returns when it listens; RuntimeError when it does not."""
        where = f"127.0.0.1:{self._port}"
        command = ["nice", "-n", str(self._niceness), str(build.program("versitygw")), "--port", where, "--quiet"]
        command += ["--keep-alive"]  # as S3 does; by itself it ends a connection with each answer
        if self._certificate is not None:
            command += ["--cert", str(self._certificate[0]), "--key", str(self._certificate[1])]
        if self._log is not None:
            command += ["--access-log", str(self._log)]
        command += ["posix", *(["--versioning-dir", str(self._versions)] if self._versions else []), str(self.folder)]
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        self._process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL)
        until = time.monotonic() + _PATIENCE
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("versitygw doesn't listen")
            time.sleep(0.02)

    def stop(self) -> None:
        """Away, until it is started again; what it holds stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_END_SECONDS)
            self._process = None

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


@contextmanager
def serving(
    folder: Path,
    certificate: tuple[Path, Path] | None = None,
    *,
    log: Path | None = None,
    niceness: int = 0,
    versions: Path | None = None,
) -> Iterator[S3Server]:
    """The server on an empty bucket below `folder`, which must exist."""
    build.ensure(["versitygw"], Progress())
    (folder / BUCKET).mkdir()
    server = S3Server(folder, certificate, log=log, niceness=niceness, versions=versions)
    server.start()
    try:
        yield server
    finally:
        server.stop()
