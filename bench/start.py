"""How soon a gang of 512 pods is bound: one TrainingJob beside a bare Indexed Job of the same pods, in turns.

Both on one API server with simulated nodes (kwok); kube-scheduler binds both, and its client is not throttled. First
with the controller manager's own client limits (20 requests a second), then with them lifted. A turn begins when what
the one before has left to do is done, and its processor time is counted by process. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.cluster import network, processes, state
from hack.cluster.api import Cluster
from hack.cluster.processes import Launcher

from muster.api.common import API_VERSION
from muster.api.effective import effective_spec
from muster.api.trainingjob import TrainingJobSpec
from muster.cluster import pods
from muster.cluster.pods import Identity, PodSettings
from report import Target, report
from testbed import NAMESPACE, OPERATOR, Muster, control_plane, cpu_seconds, muster, wait_account
from wire import Refused, Wire

Object = dict[str, Any]

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS: Final = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
GANGS: Final = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainingjobs"
SETTINGS: Final = PodSettings("registry.example/runtime:1", priority_class="")
CONTROL_PLANE: Final = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "kwok")
AT_REST: Final = 0.2
"""Processor seconds a second: the control plane takes fewer when it only keeps the nodes' leases."""

TARGETS: Final = {"share_of_job": Target(0.25), "share_of_job_lifted": Target(1.0)}
NOTES: Final = {
    "muster_s": "TrainingJob, from apply to the last pod's binding, median",
    "muster_processor_s": "processor time of all until then: API server, etcd, scheduler, controllers, kwok and Muster",
    "job_s": "Indexed Job, the controller manager's client as it comes (20 requests a second)",
    "job_processor_s": "the same for the Indexed Job",
    "share_of_job": "muster_s over job_s",
    "muster_lifted_s": "TrainingJob beside an unthrottled controller manager",
    "muster_lifted_processor_s": "its processor time",
    "job_lifted_s": "Indexed Job, the controller manager's client lifted (400 requests a second, bursts of 800)",
    "job_lifted_processor_s": "its processor time",
    "share_of_job_lifted": "muster_lifted_s over job_lifted_s",
}


def gang(name: str, workers: int) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "queue": "start",
            "image": "registry.example/bench:1",
            "command": ["python", "train.py"],
            "workers": {"replicas": workers, "gpusPerWorker": 1},
        },
    }


def bare(name: str, workers: int) -> Object:
    """The same pods, made by the Job controller: neither pinned to nodes nor with a Service."""
    spec = effective_spec(TrainingJobSpec.model_validate(gang(name, workers)["spec"]))
    template = pods.template(Identity(NAMESPACE, name, "0"), spec, SETTINGS)
    template["spec"]["restartPolicy"] = "Never"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            "backoffLimit": 0,
            "template": template,
        },
    }


@dataclass(frozen=True)
class Turn:
    """One workload's start.

    Attributes:
        made_s: from apply to the last pod's creation.
        bound_s: from apply to the last pod's binding.
        work: processor seconds until then, by process.
    """

    made_s: float
    bound_s: float
    work: dict[str, float]

    def __str__(self) -> str:
        work = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.work.items())
        total = sum(self.work.values())
        return f"made {self.made_s:.2f} s, bound {self.bound_s:.2f} s; processor {total:.2f} s: {work}"


class Accounts:
    """Processor time of everything that has a part in a start, except for this benchmark itself."""

    def __init__(self, cluster: Cluster, operator: Muster) -> None:
        self._cluster, self._operator = cluster, operator

    def read(self) -> dict[str, float]:
        """Seconds so far, by process."""
        found = {name: cpu_seconds(self._cluster.process(name).pid) for name in CONTROL_PLANE}
        return {**found, "muster": cpu_seconds(self._operator.process.pid)}

    async def at_rest(self, timeout: float) -> None:
        """Until nobody works any more: kwok and the controllers go on for long after pods are gone, and what a gang
        leaves would slow down the Job after it, and the other way round. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            seconds, quiet = sum(self.read().values()), 0
            while quiet < 2:
                await asyncio.sleep(1)
                now = sum(self.read().values())
                quiet = quiet + 1 if now - seconds < AT_REST else 0
                seconds = now


class Pods:
    """Watches the namespace's pods.

    Attributes:
        there: whether they are bound, by UID.
        most_at: the most that were there since there were none, and when (monotonic) it came to that.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._changed = asyncio.Event()
        self.there: dict[str, bool] = {}
        self.most_at = (0, 0.0)

    async def run(self) -> None:
        page = json.loads(await self._wire.call("GET", PODS))
        version = page["metadata"]["resourceVersion"]
        while True:
            async for line in self._wire.watch(PODS, version):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ConnectionError(f"the watch of pods failed: {event['object']}")
                pod = event["object"]
                version, uid = pod["metadata"]["resourceVersion"], pod["metadata"]["uid"]
                if event["type"] == "DELETED":
                    self.there.pop(uid, None)
                else:
                    self.there[uid] = bool(pod["spec"].get("nodeName"))
                if len(self.there) > self.most_at[0] or not self.there:
                    self.most_at = (len(self.there), time.monotonic())
                self._changed.set()

    async def until(self, bound: int, timeout: float) -> None:
        """Until exactly so many pods are bound and no others are there. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while sum(self.there.values()) != bound or len(self.there) != bound:
                await self._changed.wait()
                self._changed.clear()


async def one(wire: Wire, there: Pods, accounts: Accounts, path: str, body: Object, workers: int) -> Turn:
    """From the POST to the last pod's binding; then everything is taken away again."""
    name = body["metadata"]["name"]
    await accounts.at_rest(180)
    before, began = accounts.read(), time.monotonic()
    await wire.call("POST", path, body)
    await there.until(workers, 300)
    bound = time.monotonic() - began
    turn = Turn(there.most_at[1] - began, bound, {name: at - before[name] for name, at in accounts.read().items()})
    await wire.call("DELETE", f"{path}/{name}", {"propagationPolicy": "Background"})
    await _gone(wire, f"{path}/{name}", 120)
    await _delete_pods(wire)
    await there.until(0, 180)
    return turn


async def _delete_pods(wire: Wire) -> None:
    """Delete all of them. A busy API server does not come to the end within one request's time."""
    async with asyncio.timeout(180):
        while True:
            try:
                await wire.call("DELETE", PODS, {"gracePeriodSeconds": 0})
                return
            except Refused as error:
                if error.status != 504:
                    raise


async def _gone(wire: Wire, path: str, timeout: float) -> None:
    """Until there is no such object. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            await wire.call("GET", path)
        except Refused as error:
            if error.status == 404:
                return
            raise
        await asyncio.sleep(0.2)
    raise TimeoutError(f"{path} is not gone after {timeout:.0f} s")


def throttle(name: str, *, lifted: bool) -> None:
    """Start the controller manager anew, with its client as it comes, or with the local cluster's high limits."""
    site = state.require(name)
    running = processes.find(site.directory, "kube-controller-manager")
    if running is None:
        raise SystemExit("the controller manager does not run")
    command = [part for part in Path(f"/proc/{running.pid}/cmdline").read_text().split("\0") if part]
    kept = [part for part in command if not part.startswith("--kube-api-")]
    processes.stop(running)
    limits = ["--kube-api-qps=400", "--kube-api-burst=800"] if lifted else []
    inside = network.anchor(site, network.HUB)
    Launcher(site.directory, site.slot, network.HUB).start("kube-controller-manager", [*kept, *limits], inside=inside)


@asynccontextmanager
async def watching(wire: Wire) -> AsyncIterator[Pods]:
    there = Pods(wire)
    task = asyncio.create_task(there.run())
    try:
        yield there
    finally:
        task.cancel()


async def measure(workers: int, rounds: int, folder: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    with control_plane(kwok_nodes=-(-workers // 8), gpus=8) as cluster:
        await asyncio.to_thread(wait_account, cluster)
        wire = Wire(cluster.kubeconfig, 8)
        queue = {"apiVersion": API_VERSION, "kind": "TrainingQueue", "metadata": {"name": "start"}, "spec": {}}
        await wire.call("POST", f"/apis/{API_VERSION}/trainingqueues", queue)
        with muster(cluster, folder, OPERATOR) as process:
            process.wait_ready(60)
            for suffix, lifted in (("", False), ("_lifted", True)):
                await asyncio.to_thread(throttle, cluster.name, lifted=lifted)
                accounts = Accounts(cluster, process)
                await process.with_it(_in_turns(wire, accounts, workers, rounds, suffix, figures))
        await wire.close()
    return figures


async def _in_turns(
    wire: Wire, accounts: Accounts, workers: int, rounds: int, suffix: str, figures: dict[str, float]
) -> None:
    """Add to `figures` what the rounds under one controller manager have shown."""
    found: dict[str, list[Turn]] = {"muster": [], "job": []}
    async with watching(wire) as there:
        # The controller manager is at work again when it has made a Job's pod.
        await one(wire, there, accounts, JOBS, bare("warm", 1), 1)
        await one(wire, there, accounts, GANGS, gang("warm", 1), 1)
        both = (("muster", GANGS, gang), ("job", JOBS, bare))
        for number in range(rounds):
            # By turns the first, which finds the control plane colder than the second.
            for kind, path, make in both[:: 1 if number % 2 else -1]:
                turn = await one(wire, there, accounts, path, make(f"{kind}-{number}", workers), workers)
                found[kind].append(turn)
                print(f"round {number + 1}{suffix}, {kind}: {turn}", flush=True)
    for kind, turns in found.items():
        figures[f"{kind}{suffix}_s"] = statistics.median(turn.bound_s for turn in turns)
        figures[f"{kind}{suffix}_processor_s"] = statistics.median(sum(turn.work.values()) for turn in turns)
    figures[f"share_of_job{suffix}"] = figures[f"muster{suffix}_s"] / figures[f"job{suffix}_s"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--logs", type=Path, help="keep Muster's log in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(options.workers, options.rounds, options.logs or Path(folder)))
    return 0 if report("start", figures, TARGETS, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
