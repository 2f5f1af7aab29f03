"""A real S3 server for benchmarks: versitygw on a free port, its objects in a folder that goes away with it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster import build
from hack.cluster.progress import Progress

BUCKET: Final = "bench"
_KEY, _SECRET = "bench-access", "bench-secret"


@dataclass(frozen=True)
class S3Server:
    """`environment` is what boto3 needs to reach it; `folder` has the bucket's objects as files."""

    environment: dict[str, str]
    folder: Path
    pid: int


def stored_bytes(folder: Path) -> int:
    """Bytes of all objects below a folder of the server."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def s3_server(parent: Path | None = None) -> Iterator[S3Server]:
    """The server with one empty bucket, its objects below `parent`. RuntimeError when it doesn't start."""
    build.ensure(["versitygw"], Progress())
    with tempfile.TemporaryDirectory(dir=parent, prefix="muster-bench-s3-") as folder:
        root = Path(folder)
        (root / BUCKET).mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [str(build.program("versitygw")), "--port", f"127.0.0.1:{port}", "--quiet", "posix", folder]
        keys = {"ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET}
        process = subprocess.Popen(command, env={**os.environ, **keys}, stdout=subprocess.DEVNULL)
        try:
            _wait(process, port)
            yield S3Server(
                {
                    "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
                    "AWS_ACCESS_KEY_ID": _KEY,
                    "AWS_SECRET_ACCESS_KEY": _SECRET,
                    "AWS_REGION": "us-east-1",
                    "AWS_EC2_METADATA_DISABLED": "true",
                },
                root / BUCKET,
                process.pid,
            )
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("versitygw doesn't listen")
