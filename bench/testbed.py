"""What benchmarks against a real API server have in common: a control plane of their own, and Muster's process."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.cluster import api, processes
from hack.cluster.progress import Progress

from muster.telemetry.exposition import NEW_SECONDS

ROOT: Final = Path(__file__).resolve().parents[1]
NAMESPACE: Final = "bench"
OPERATOR: Final = [sys.executable, "-c", "from muster.cli.app import main; main()", "operator"]
TICKS: Final = os.sysconf("SC_CLK_TCK")
READY: Final = re.compile(r"probes and metrics on \S*:([0-9]+)$", re.MULTILINE)


@dataclass
class Muster:
    """The process under test."""

    process: subprocess.Popen[bytes]
    log: Path

    def port(self) -> int:
        """Of probes and metrics; 0 while it does not listen."""
        found = READY.search(self.log.read_text())
        return int(found[1]) if found else 0

    def ask(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port()}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while "planning begins" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"Muster did not get ready:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.2)

    async def with_it(self, work: Awaitable[None]) -> None:
        """Wait for `work`. Raises SystemExit when the process ends before."""
        task, end = asyncio.ensure_future(work), asyncio.create_task(asyncio.to_thread(self.process.wait))
        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            raise SystemExit(f"Muster has ended:\n{self.log.read_text()[-4000:]}")
        await task

    def writes(self) -> dict[tuple[str, str], int]:
        """Writes by (verb, resource) so far. It takes a minute: the operator tells new series as 0 at first."""
        self.ask("/metrics")
        time.sleep(NEW_SECONDS + 1)
        line = r'^muster_operator_api_writes_total\{verb="([\w-]+)",resource="([\w/]+)"\} ([0-9.e+]+)$'
        told = re.findall(line, self.ask("/metrics")[1], re.M)
        return {(verb, resource): int(float(count)) for verb, resource, count in told}


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    """Most resident memory that a process has had, in MiB."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) / 1024 if found else 0.0


@contextmanager
def control_plane(**options: Any) -> Iterator[api.Cluster]:
    """An API server of this run's own, which goes with it, also when it is ended by SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    name = f"bench-{secrets.token_hex(3)}"
    chosen = api.Options(name=name, nodes=0, control_plane_only=True, **options)
    cluster = api.up(chosen, Progress(quiet=True))
    try:
        crds = [str(path) for path in sorted((ROOT / "crds").glob("*.yaml"))]
        run(cluster, "apply", "--server-side", *[part for path in crds for part in ("-f", path)])
        run(cluster, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        run(cluster, "create", "namespace", NAMESPACE)
        yield cluster
    finally:
        api.down(name)


def run(cluster: api.Cluster, *arguments: str) -> None:
    """kubectl. Raises CalledProcessError."""
    subprocess.run(
        [str(cluster.kubectl), f"--kubeconfig={cluster.kubeconfig}", *arguments], check=True, stdout=subprocess.DEVNULL
    )


@contextmanager
def muster(cluster: api.Cluster, folder: Path, command: list[str], **extra: str) -> Iterator[Muster]:
    """Muster's process, as its chart would set it."""
    log = folder / "muster.log"
    settings = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "IDENTITY": "bench",
        "NAMESPACE": "default",
        "RUNTIME_IMAGE": "registry.example/runtime:1",
        "PRIORITY_CLASS": "",
        "TOKEN_KEY": "a key for a benchmark, used nowhere else",
        "HTTP_HOST": "127.0.0.1",
        "HTTP_PORT": "0",
    }
    environment = os.environ | {f"MUSTER_OPERATOR_{name}": value for name, value in settings.items()} | extra
    with running(command, environment, log) as process:
        yield Muster(process, log)


@contextmanager
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended with the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def control_plane_processes(cluster: api.Cluster, *, controllers: bool) -> list[processes.Process]:
    """API server and etcd. Without `controllers`, what takes nodes for lost for which nobody beats is stopped."""
    for name in () if controllers else ("kube-controller-manager", "kube-scheduler"):
        found = processes.find(cluster.directory, name)
        if found is not None:
            processes.stop(found)
    kept = [processes.find(cluster.directory, name) for name in ("kube-apiserver", "etcd")]
    return [one for one in kept if one is not None]


def wait_account(cluster: api.Cluster) -> None:
    """Pods are refused, also in rehearsals, before the namespace has its service account."""
    run(cluster, "wait", "--for=create", "--timeout=60s", "-n", NAMESPACE, "serviceaccount/default")
