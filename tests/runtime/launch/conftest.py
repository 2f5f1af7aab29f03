"""Gangs of real launchers: processes with loopback addresses of their own, joined over real sockets."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hack.s3server import S3Server, serving

from muster_protocol import env, exits, launcher_api
from muster_protocol.launcher_status import Phase, Status
from muster_protocol.wire import decode

sys.path.insert(0, str(Path(__file__).parent))
from memory_runs import Outage

TOKEN = "t" * 64
PORT = 29400


def eventually(holds: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    """Returns as soon as `holds` is true; fails the test when it isn't in time."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            pytest.fail(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


@dataclass
class Pod:
    """One launcher as a pod would run it."""

    index: int
    uid: str
    address: str
    process: subprocess.Popen[str]
    termination_log: Path
    output: Path

    def url(self, path: str) -> str:
        return f"http://{self.address}:{PORT}{path}"

    def ask(
        self, method: str, path: str, body: bytes | None = None, token: str | None = TOKEN, **more: str
    ) -> tuple[int, bytes]:
        """`more` are headers, with `_` for `-`."""
        headers = {launcher_api.TOKEN_HEADER: token} if token else {}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        request = urllib.request.Request(self.url(path), data=body, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def listens(self) -> bool:
        try:
            return self.ask("GET", launcher_api.HEALTH_PATH)[0] == 200
        except OSError:
            return False

    def status(self) -> Status:
        code, body = self.ask("GET", launcher_api.STATUS_PATH)
        assert code == 200, body
        return decode(Status, body)

    def phase_is(self, phase: Phase) -> bool:
        try:
            return self.status().phase is phase
        except OSError:
            return False

    def end(self, seconds: float = 90.0) -> exits.ExitFacts:
        """The exit facts, once the launcher has ended; its exit code is the one that they give."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"launcher {self.index} still runs after {seconds:g} s:\n{self.log()}")
        facts = exits.decode(self.termination_log.read_text())
        assert facts is not None, self.log()
        assert facts.exit_code == code
        assert "asyncio" not in self.log(), self.log()
        assert "was never retrieved" not in self.log(), self.log()
        assert "the launcher failed" not in facts.message, self.log()
        return facts

    def log(self) -> str:
        return self.output.read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@dataclass
class Gang:
    """Starts pods of one job. Each gang has a /24 of the loopback network for itself."""

    folder: Path
    workers: int
    processes: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    net: str = field(default_factory=lambda: f"127.{random.randint(10, 250)}.{random.randint(1, 250)}")
    pods: list[Pod] = field(default_factory=list)
    runs: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="gang-")))
    """What is in it holds sockets, whose paths must be short: pytest's folders are too deep."""

    def pod(self, index: int, command: list[str], *, attempt: int = 0, uid: str = "", **more: str) -> Pod:
        number = len(self.pods)
        uid = uid or f"uid-{index}-{attempt}"
        address = f"{self.net}.{index + 1 if attempt == 0 else 100 + number}"
        log = self.folder / f"termination-{number}"
        log.touch()
        environment = {
            **os.environ,
            env.JOB: "probe",
            env.NAMESPACE: "research",
            env.GENERATION: "1",
            env.INDEX: str(index),
            env.ATTEMPT: str(attempt),
            env.WORKERS: str(self.workers),
            env.PROCESSES_PER_WORKER: str(self.processes),
            env.LEADER_HOST: f"{self.net}.1",
            env.PORT: str(PORT),
            env.POD_UID: uid,
            env.POD_IP: address,
            env.TOKEN: TOKEN,
            env.READY_TIMEOUT: "30",
            env.GRACE_SECONDS: "10",
            "MUSTER_BIND": address,
            "MUSTER_TERMINATION_LOG": str(log),
            "MUSTER_RUN_ROOT": str(self.runs / f"run-{number}"),
            **self.environment,
            **more,
        }
        (self.runs / f"run-{number}").mkdir()
        output = self.folder / f"output-{number}"
        with output.open("w") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "muster_runtime.launch", "--", *command],
                env=environment,
                cwd=self.folder,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
            )
        pod = Pod(index, uid, address, process, log, output)
        self.pods.append(pod)
        return pod

    def all(self, command: list[str], **more: str) -> list[Pod]:
        return [self.pod(index, command, **more) for index in range(self.workers)]

    def script(self, text: str, name: str = "script.py") -> list[str]:
        """The command that runs `text`; it finds `mark(name)`, which leaves a file, in its scope."""
        path = self.folder / name
        path.write_text(_PRELUDE.format(folder=str(self.folder)) + text)
        return [sys.executable, str(path)]

    def marks(self, name: str) -> set[str]:
        return {path.name for path in self.folder.glob(f"mark-{name}*")}

    eventually = staticmethod(eventually)

    def close(self) -> None:
        for pod in self.pods:
            if pod.process.poll() is None:
                pod.process.kill()  # the kernel ends its ranks with it
                pod.process.wait()
        shutil.rmtree(self.runs)


_PRELUDE = """\
import os, signal, sys, time
from pathlib import Path
RANK = int(os.environ["RANK"])
def mark(name):
    written = Path({folder!r}, f".{{name}}-{{RANK}}")
    written.write_text(str(os.getpid()))
    written.rename(written.with_name(f"mark-{{name}}-{{RANK}}"))  # whole as soon as it is seen
"""


def _gangs(below: Path) -> Iterator[Callable[..., Gang]]:
    gangs: list[Gang] = []

    def make(workers: int, processes: int = 1, **environment: str) -> Gang:
        folder = below / f"g{len(gangs)}"
        folder.mkdir()
        gangs.append(Gang(folder, workers, processes, environment))
        return gangs[-1]

    yield make
    for gang in gangs:
        gang.close()


@pytest.fixture
def make_gang(tmp_path: Path) -> Iterator[Callable[..., Gang]]:
    yield from _gangs(tmp_path)


@pytest.fixture(scope="module")
def make_shared_gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Gang]]:
    """For what several tests of a module look at."""
    yield from _gangs(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    """Before the server, whose keys are in the environment."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    made = Outage(s3_server.endpoint)
    yield made
    made.shutdown()
    made.server_close()
