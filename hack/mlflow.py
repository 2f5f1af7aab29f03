"""A real MLflow tracking server for tests, with SQLite in a folder; and the Python that has it and W&B's client.

They live in an environment of their own in the cache, made at the first use from `hack/trackers/uv.lock`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hack.cluster.paths import cache_root, locked

_PROJECT: Final = Path(__file__).parent / "trackers"
_PATIENCE: Final = 300.0
"""Imports of the server take ten processor seconds."""


def python() -> Path:
    """The interpreter of the trackers' environment, which is made first where it is missing."""
    key = hashlib.sha256((_PROJECT / "uv.lock").read_bytes()).hexdigest()[:12]
    root = cache_root() / "trackers"
    done = root / key
    with locked(cache_root() / "locks" / "trackers.lock"):
        if not (done / "ready").exists():
            shutil.rmtree(root, ignore_errors=True)
            environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(done)}
            environment.pop("VIRTUAL_ENV", None)
            uv = shutil.which("uv") or str(cache_root() / "uv" / "bin" / "uv")
            command = [uv, "sync", "--quiet", "--locked", "--project", str(_PROJECT), "--python", sys.executable]
            made = subprocess.run(command, env=environment, capture_output=True, text=True)
            if made.returncode:
                raise RuntimeError(f"the trackers can't be installed: {made.stderr.strip()}")
            (done / "ready").touch()
    return done / "bin" / "python"


class MLflowServer:
    """One server. It keeps its port and its data when it is away.

    Attributes:
        uri: as `tracking.uri` has it.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        """`host`: the address that it listens on, as those see it who call."""
        self._folder, self._host = folder, host
        with socket.socket() as probe:
            probe.bind((host, 0))
            self.port: int = probe.getsockname()[1]
        self.uri = f"http://{host}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        command = [str(python()), "-m", "mlflow", "server", "--host", self._host, "--port", str(self.port)]
        command += [
            "--allowed-hosts",
            "*",
            "--workers",
            "1",
            "--backend-store-uri",
            f"sqlite:///{self._folder / 'runs.db'}",
        ]
        command += ["--default-artifact-root", str(self._folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        until = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"MLflow does not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Away at once, until it is started again; what it has stored stays."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def ask(self, path: str, body: object = None) -> Any:
        """The answer to a call of its REST API: a POST with a body, else a GET."""
        data = None if body is None else json.dumps(body).encode()
        url, headers = f"{self.uri}/api/2.0/mlflow/{path}", {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return json.load(answer)

    def runs(self, experiment: str) -> list[Any]:
        """All runs of an experiment."""
        found = self.ask(f"experiments/get-by-name?experiment_name={experiment}")["experiment"]
        return list(self.ask("runs/search", {"experiment_ids": [found["experiment_id"]]}).get("runs", []))

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


def values(run: Any, kind: str) -> dict[str, Any]:
    """Of a run: its params, tags, or the last values of its metrics."""
    return {each["key"]: each["value"] for each in run["data"].get(kind, ())}


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1") -> Iterator[MLflowServer]:
    """A server whose files lie in `folder`."""
    server = MLflowServer(folder, host)
    try:
        server.start()
        yield server
    finally:
        server.stop()
