"""A real PostgreSQL server for tests: Debian's, on a free port of 127.0.0.1, with files that go when it ends."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from hack.cluster import packages, versions
from hack.cluster.progress import Progress

USER: Final = "muster"
PASSWORD: Final = "test-password"
_BIN: Final = Path("/usr/lib/postgresql/15/bin")
_PATIENCE: Final = 30.0


class Postgres:
    """One server with an empty database. It keeps its port and its data when it is away.

    Attributes:
        url: as the operator takes it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Write an empty database into the folder."""
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            for path in (self._folder, secret):
                os.chown(path, account.pw_uid, account.pw_gid)
        options = ["--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync", "--encoding=UTF8", "--locale=C"]
        command = [str(_BIN / "initdb"), "-D", str(self._folder / "data"), "-U", USER, *options]
        done = subprocess.run(command, **_unprivileged(), cwd="/", capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"initdb: {done.stderr}{done.stdout}")

    def start(self) -> None:
        """Returns when it takes connections."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._folder,
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": 20,
        }
        command = [str(_BIN / "postgres"), "-D", str(self._folder / "data")]
        command += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, **_unprivileged(), cwd="/", stdout=log, stderr=log)
        ready = [str(_BIN / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        until = time.monotonic() + _PATIENCE
        while subprocess.run(ready).returncode:
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL does not start: {(self._folder / 'log').read_text()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Away at once, as by a broken machine, until it is started again; what was committed stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_PATIENCE)
            self._process = None

    def empty(self) -> None:
        """Without any table again."""

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


@contextmanager
def serving() -> Iterator[Postgres]:
    """A server, installed first where it is missing."""
    packages.ensure(versions.DEBIAN_DATABASE, Progress())
    folder = Path(tempfile.mkdtemp(prefix="muster-postgres-"))
    server = Postgres(folder)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)
