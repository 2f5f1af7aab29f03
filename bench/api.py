"""The API with 10,000 jobs and 20 clients: how long a page of 100 takes, and what a plan beside it suffers.

A process of its own serves as the operator does: the same app, tokens and rights asked of a real API server, and a
loop that plans half of its time (12,500 nodes, 10,000 waiting jobs), while 50 jobs change in a second. Three ways are
compared: nobody plans; uvicorn in a thread of its own, as Muster has it; uvicorn in the loop that plans.

`--kubeconfig` takes an API server that runs, in which it leaves nothing; without it one is started and taken down. On a
machine that other work keeps busy only the comparison means something, and the processor time that the serving process
spends from a question to its answer: on a quiet machine that is about the wait. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np
import uvicorn

from muster.cluster.client import Api
from muster.cluster.credentials import Credentials
from muster.controllers.garbage import keep_looks_short
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import Snapshot
from muster.server.board import Board
from muster.server.probes import Probes
from muster.server.replica import Replica, app_of
from muster.server.serving import Server
from planner import crowded
from report import Target, report

JOBS: Final = 10_000
NAMESPACES: Final = 50
CLIENTS: Final = 20
CHANGES: Final = 50
"""Jobs that change in a second."""
PLACES: Final = ("idle", "thread", "loop")
NOTES: Final = {
    "idle": "nobody plans",
    "thread": "the loop plans half of its time; uvicorn in a thread of its own",
    "loop": "the loop plans half of its time; uvicorn in that loop",
}
USER: Final = "muster-bench-api"
ALONE_SECONDS: Final = 4.0
"""Of planning before anybody asks."""


class Nothing:
    """A cluster without nodes and queues: only jobs are asked for here."""

    queues: Mapping[str, Any] = {}
    topologies: Mapping[str, Any] = {}

    def nodes(self) -> list[Any]:
        return []

    def pods(self) -> list[Any]:
        return []


def job(number: int) -> dict[str, Any]:
    """A TrainingJob as the API server gives it: a third runs, the rest waits with a reason."""
    runs = number % 3 == 0
    waiting = {
        "position": number % 97 + 1,
        "reason": "QuotaExceeded",
        "message": f"queue team-{number % 40} may use 64 nvidia.com/gpu of H100 and uses 60: 4 are left of 16 asked",
        "expectedStart": "2026-01-03T04:05:06Z",
        "basis": "limits",
    }
    running = {
        "placement": {"generation": 1, "workers": 4},
        "nodes": f"gpu-[{number:05d}-{number + 3:05d}]",
        "progress": {"step": number * 7, "totalSteps": 100_000, "eta": "2026-01-05T06:07:08Z"},
        "checkpoint": {"step": number * 7 - number % 500},
        "goodput": {"ratio": "0.9431"},
        "startedAt": "2026-01-02T04:04:05Z",
    }
    return {
        "metadata": {
            "namespace": f"team-{number % NAMESPACES}",
            "name": f"llama-{number:05d}",
            "uid": f"0b6f3a52-7c07-4c0e-b5f5-{number:012d}",
            "creationTimestamp": f"2026-01-02T{number % 24:02d}:{number % 60:02d}:05Z",
            "labels": {"team": f"team-{number % NAMESPACES}", "experiment": f"exp-{number % 1000}"},
        },
        "spec": {
            "queue": f"team-{number % 40}",
            "image": "registry.example/train:1.2",
            "command": ["python", "train.py"],
            "workers": {"replicas": 4, "gpusPerWorker": 4, "gpuType": "H100"},
        },
        "status": {
            "phase": "Running" if runs else "Queued",
            "gpus": 16,
            "submittedAt": "2026-01-02T03:04:06Z",
            **(running if runs else {"queue": waiting}),
        },
    }


# -- the process that serves -------------------------------------------------------------------------------------------


def serve(place: str, kubeconfig: str) -> None:
    """Until stdin ends; then a line of JSON with the seconds that each plan took."""
    asyncio.run(_serve(place, kubeconfig))


async def _serve(place: str, kubeconfig: str) -> None:
    board, before = Board(), resident_mib()
    for number in range(JOBS):
        raw = job(number)
        board.job((raw["metadata"]["namespace"], raw["metadata"]["name"]), raw)
    memory = {"rows_mib": resident_mib() - before}

    async def connect() -> Api:
        credentials = Credentials(Path(kubeconfig))
        await credentials.load()
        return Api(credentials)

    replica = Replica(board, "bench", connect, lambda: True, lambda: "", 10.0)
    enter = app_of(Probes(lambda: b"", dict, str, 60.0), replica)
    publishing = asyncio.create_task(board.run(Nothing(), "default"))
    changing = asyncio.create_task(_change(board))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    alone: list[float] = []
    took: list[float] = []
    collecting, planning = asyncio.create_task(keep_looks_short()), None
    spent = time.process_time()
    if place != "idle":
        snapshot = _snapshot()
        with suppress(TimeoutError):
            await asyncio.wait_for(_plan(snapshot, alone), ALONE_SECONDS)
        planning = asyncio.create_task(_plan(snapshot, took))
    if place == "loop":
        await _in_this_loop(enter, ended)
    else:
        server, before = Server(enter), resident_mib()
        await server.start("127.0.0.1", 0)
        memory["fastapi_mib"] = resident_mib() - before
        spent = time.process_time()
        print(server.port, flush=True)
        await ended
        await server.stop()
    for task in (publishing, changing, planning, collecting):
        if task is not None:
            task.cancel()
    print(
        json.dumps(
            {
                "plan": took,
                "alone": alone,
                "memory": memory if place == "idle" else {},
                "cpu": time.process_time() - spent,
            }
        )
    )


async def _change(board: Board) -> None:
    """Each second so many jobs have made progress as the operator writes down at most."""
    for turn in itertools.count(1):
        await asyncio.sleep(1)
        for number in range(0, JOBS, JOBS // CHANGES):
            raw = job(number)
            raw["status"]["preemptions"] = turn
            board.job((raw["metadata"]["namespace"], raw["metadata"]["name"]), raw)


async def _in_this_loop(enter: Any, ended: asyncio.Task[str]) -> None:
    async with enter() as app:
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, access_log=False, log_level="error", timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        running = asyncio.create_task(server.serve(sockets=[sock]))
        print(port, flush=True)
        await ended
        server.should_exit = True
        await running


def _snapshot() -> Snapshot:
    return crowded(12_500, 5_000, JOBS, np.random.default_rng(1))


async def _plan(snapshot: Snapshot, took: list[float]) -> None:
    """As the operator's loop: no more than half of the time."""
    while True:
        started = time.monotonic()
        plan(snapshot)
        took.append(time.monotonic() - started)
        await asyncio.sleep(took[-1])


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# -- the clients -------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """Attributes:
    took: seconds of each answer.
    spent: seconds of processor time of the serving process, meanwhile, on whatever.
    size: bytes of one, as it is before compression.
    cpu: seconds of processor time of all clients.
    """

    took: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    size: int = 0
    cpu: float = 0.0


class Client(asyncio.Protocol):
    """Goes through the pages again and again, and does little else: its processor time is the server's neighbours'."""

    def __init__(self, port: int, token: str, sort: str, until: float, told: Told, server: int) -> None:
        """`server`: the clock of the serving process's processor time."""
        self._headers = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nAccept-Encoding: gzip\r\n\r\n"
        self._sort, self._until, self._told, self._server = sort, until, told, server
        self._cursor, self._got, self._asked_at, self._spent_at = "", b"", 0.0, 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        query = f"limit=100&sort={self._sort}&cursor={self._cursor}"
        self._got, self._asked_at, self._spent_at = b"", time.monotonic(), time.clock_gettime(self._server)
        self._transport.write(f"GET /v1/jobs?{query} HTTP/1.1\r\n{self._headers}".encode())

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if not end or len(body) < int(headers[b"content-length"]):
            return
        self._told.took.append(time.monotonic() - self._asked_at)
        self._told.spent.append(time.clock_gettime(self._server) - self._spent_at)
        page = zlib.decompress(body, wbits=31) if b"content-encoding" in headers else body
        if not head.startswith(b"HTTP/1.1 200 "):
            self._end(SystemExit(page.decode()))
            return
        self._told.size = max(self._told.size, len(page))
        self._cursor = page.rpartition(b'"next":"')[2].partition(b'"')[0].decode()
        if time.monotonic() < self._until:
            self._ask()
        else:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(SystemExit(f"the server has hung up: {exc}"))

    def _end(self, error: BaseException | None) -> None:
        if not self.done.done():
            self.done.set_exception(error) if error else self.done.set_result(None)
        self._transport.close()


async def ask(port: int, token: str, seconds: float, server: int) -> Told:
    await until_answered(port, token)
    told, spent, loop = Told(), time.process_time(), asyncio.get_running_loop()
    until = time.monotonic() + seconds
    clients = []
    for number in range(CLIENTS):
        sort = ("name", "-created", "queue", "gpus")[number % 4]
        _, client = await loop.create_connection(
            partial(Client, port, token, sort, until, told, server), "127.0.0.1", port
        )
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    told.cpu = time.process_time() - spent
    return told


async def until_answered(port: int, token: str) -> None:
    """The first question waits for the token's review."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/v1/jobs?limit=1") as answer:
                if answer.status == 200:
                    return
                text = await answer.text()
            if answer.status != 503:
                raise SystemExit(f"{answer.status}: {text}")
            await asyncio.sleep(0.2)


def measure(place: str, kubeconfig: str, token: str, seconds: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--serve", place, "--kubeconfig", kubeconfig]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdin is not None
    assert process.stdout is not None
    port = int(process.stdout.readline())
    asked = asyncio.run(ask(port, token, seconds, processor_clock(process.pid)))
    took = asked.took
    process.stdin.close()
    told = json.loads(process.stdout.readline())
    process.wait(30)
    cut, spent = statistics.quantiles(took, n=100), statistics.quantiles(asked.spent, n=100)
    return {
        f"{place}_p50_ms": 1e3 * cut[49],
        f"{place}_p99_ms": 1e3 * cut[98],
        f"{place}_p50_spent_ms": 1e3 * spent[49],
        f"{place}_p99_spent_ms": 1e3 * spent[98],
        f"{place}_answers_per_s": len(took) / seconds,
        **({"idle_cpu_ms": 1e3 * told["cpu"] / len(took)} if place == "idle" else {}),
        f"{place}_clients_cpu_ms": 1e3 * asked.cpu / len(took),
        "page_kib": asked.size / 1024,
        **told["memory"],
        **{
            f"{place}_plan{suffix}_ms": 1e3 * statistics.median(told[when])
            for suffix, when in (("_alone", "alone"), ("", "plan"))
            if told[when]
        },
    }


def processor_clock(pid: int) -> int:
    """For `time.clock_gettime`, as Linux numbers these: clock_getcpuclockid(3)."""
    return (~pid << 3) | 2


@contextmanager
def signed_in(kubeconfig: str, kubectl: str) -> Iterator[str]:
    """A token of a user who may list all jobs."""

    def run(*arguments: str) -> str:
        command = [kubectl, f"--kubeconfig={kubeconfig}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("create", "serviceaccount", USER, "-n", "default")
    try:
        run("create", "clusterrole", USER, "--verb=list", "--resource=trainingjobs.muster.dev")
        run("create", "clusterrolebinding", USER, f"--clusterrole={USER}", f"--serviceaccount=default:{USER}")
        yield run("create", "token", USER, "-n", "default")
    finally:
        run("delete", "--ignore-not-found", f"clusterrolebinding/{USER}", f"clusterrole/{USER}")
        run("delete", "serviceaccount", USER, "-n", "default")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="for each of the three")
    parser.add_argument("--kubeconfig", help="an API server that runs and has Muster's CRDs")
    parser.add_argument("--serve", choices=PLACES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.kubeconfig)
        return 0
    with ExitStack() as stack:
        kubeconfig, kubectl = given.kubeconfig, "kubectl"
        if kubeconfig is None:
            from testbed import control_plane

            cluster = stack.enter_context(control_plane())
            kubeconfig, kubectl = str(cluster.kubeconfig), str(cluster.kubectl)
        token = stack.enter_context(signed_in(kubeconfig, kubectl))
        figures: dict[str, float] = {}
        for place in PLACES:
            figures |= measure(place, kubeconfig, token, given.seconds)
    notes = {name: NOTES.get(name.partition("_")[0], "") for name in figures}
    notes |= {name: "before anybody asks" for name in figures if name.endswith("alone_ms")}
    notes |= {name: "processor time of the serving process meanwhile" for name in figures if name.endswith("_spent_ms")}
    notes |= {
        "page_kib": "100 of 10,000 jobs, JSON",
        "idle_cpu_ms": "processor time of the serving process for one answer; other work does not count",
        "idle_clients_cpu_ms": "processor time of the clients for one answer: they share the processors",
        "rows_mib": "memory of the rows of 10,000 jobs",
        "fastapi_mib": "memory of FastAPI, uvicorn's thread and the app",
    }
    targets = {"idle_p99_ms": Target(50), "thread_p99_ms": Target(50)}
    return 0 if report("api", figures, targets, notes) else 1


if __name__ == "__main__":
    sys.exit(main())
