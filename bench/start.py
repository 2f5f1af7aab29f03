"""How soon a gang of 512 pods is bound: one TrainingJob beside a bare Indexed Job of the same pods, in turns.

Both on one API server with simulated nodes (kwok); kube-scheduler binds both, and its client is not throttled. First
with the controller manager's own client limits (20 requests a second), then with them lifted. Exit code 1 if a target
is missed.
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
from pathlib import Path
from typing import Any, Final

from hack.cluster import network, processes, state
from hack.cluster.processes import Launcher

from muster.api.common import API_VERSION
from muster.api.effective import effective_spec
from muster.api.trainingjob import TrainingJobSpec
from muster.cluster import pods
from muster.cluster.pods import Identity, PodSettings
from report import Target, report
from testbed import NAMESPACE, OPERATOR, control_plane, muster, wait_account
from wire import Refused, Wire

Object = dict[str, Any]

PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS: Final = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
GANGS: Final = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainingjobs"
SETTINGS: Final = PodSettings("registry.example/runtime:1", priority_class="")

TARGETS: Final = {"share_of_job": Target(0.25), "share_of_job_lifted": Target(1.0)}
NOTES: Final = {
    "muster_s": "TrainingJob, from apply to the last pod's binding, median",
    "job_s": "Indexed Job, the controller manager's client as it comes (20 requests a second)",
    "share_of_job": "muster_s over job_s",
    "muster_lifted_s": "TrainingJob beside an unthrottled controller manager",
    "job_lifted_s": "Indexed Job, the controller manager's client lifted (400 requests a second, bursts of 800)",
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


class Pods:
    """Watches the namespace's pods: which are there, and which of them are bound."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._changed = asyncio.Event()
        self.there: dict[str, bool] = {}

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
                self._changed.set()

    async def until(self, bound: int, timeout: float) -> None:
        """Until exactly so many pods are bound and no others are there. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while sum(self.there.values()) != bound or len(self.there) != bound:
                await self._changed.wait()
                self._changed.clear()


async def one(wire: Wire, there: Pods, path: str, body: Object, workers: int) -> float:
    """Seconds from the POST to the last pod's binding; then everything is taken away again."""
    name = body["metadata"]["name"]
    began = time.monotonic()
    await wire.call("POST", path, body)
    await there.until(workers, 300)
    took = time.monotonic() - began
    await wire.call("DELETE", f"{path}/{name}", {"propagationPolicy": "Background"})
    await _gone(wire, f"{path}/{name}", 120)
    await wire.call("DELETE", PODS, {"gracePeriodSeconds": 0})
    await there.until(0, 180)
    return took


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
                async with watching(wire) as there:
                    # The controller manager is at work again when it has made a Job's pod.
                    await one(wire, there, JOBS, bare("warm", 1), 1)
                    await one(wire, there, GANGS, gang("warm", 1), 1)
                    found: dict[str, list[float]] = {"muster": [], "job": []}
                    for number in range(rounds):
                        made = gang(f"gang-{number}", workers)
                        found["muster"].append(await one(wire, there, GANGS, made, workers))
                        found["job"].append(await one(wire, there, JOBS, bare(f"job-{number}", workers), workers))
                        print(
                            f"round {number + 1}{suffix}: " + ", ".join(f"{k} {v[-1]:.2f} s" for k, v in found.items())
                        )
                for kind, times in found.items():
                    figures[f"{kind}{suffix}_s"] = statistics.median(times)
                figures[f"share_of_job{suffix}"] = figures[f"muster{suffix}_s"] / figures[f"job{suffix}_s"]
        await wire.close()
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, help="keep Muster's log in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(options.workers, options.rounds, options.logs or Path(folder)))
    return 0 if report("start", figures, TARGETS, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
