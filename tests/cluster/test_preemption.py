"""A job of high priority takes the room of another: on a real API server, with slow victims, late watches and cuts.

The planner is the real one. A witness looks at the pods all the time: whatever happens, living pods never ask for more
GPUs of a node than it has, those being deleted included, so no pod of the gang ever waits on room that is taken.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from muster.cluster.errors import ApiError

from .conftest import ControlPlane
from .gangs import Corner, corner
from .processes import MOMENTS, Process, cut

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

Object = dict[str, Any]
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
GPUS = 4
"""Of each node."""
WORKERS = 4
"""Of each gang: on two nodes, two GPUs a worker."""
GRACE, LATE = 60.0, 5.0
"""Seconds that a slow victim takes to end, and that watches come late."""


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(2, gpus=GPUS)
        await found.api.create(CLASSES, {"metadata": {"name": found.name}, "value": 100})
        try:
            yield found
        finally:
            with suppress(ApiError):
                await found.api.delete(f"{CLASSES}/{found.name}")


class Witness:
    """Lists the pods again and again, and remembers the worst that it has seen.

    Attributes:
        overdrawn: node, GPUs asked for there and names of the pods, each time that it was more than there are.
        unschedulable: names of pods of which kube-scheduler said so.
        looks: how often it has looked.
    """

    def __init__(self, place: Corner) -> None:
        self._place = place
        self.overdrawn: list[tuple[str, int, list[str]]] = []
        self.unschedulable: set[str] = set()
        self.looks = 0

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Witness]:
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert self.looks > 5
        assert not self.overdrawn

    async def _run(self) -> None:
        while True:
            asked: Counter[str] = Counter()
            pods: dict[str, list[str]] = {}
            for pod in await self._place.pods():
                if pod["status"].get("phase") in ("Succeeded", "Failed"):
                    continue
                if any(item.get("reason") == "Unschedulable" for item in pod["status"].get("conditions") or ()):
                    self.unschedulable.add(pod["metadata"]["name"])
                node = pod["spec"].get("nodeName") or _pinned(pod)
                asked[node] += int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
                pods.setdefault(node, []).append(pod["metadata"]["name"])
            self.overdrawn += [(node, count, pods[node]) for node, count in asked.items() if count > GPUS]
            self.looks += 1
            await asyncio.sleep(0.05)


def _pinned(pod: Object) -> str:
    terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


async def submit(place: Corner, name: str, *, high: bool = False, **spec: Any) -> Object:
    more = {"priorityClassName": place.name} if high else {}
    return await place.submit(name, WORKERS, workers={"gpusPerWorker": 2}, **more, **spec)


async def until_stopping(place: Corner, name: str) -> Object:
    return await place.until_job(name, "is asked to stop", lambda job: job.get("status", {}).get("stop"))


async def let_go(place: Corner, job: str) -> None:
    """The kubelet has ended the pods of the job that are being deleted."""
    for pod in await place.pods(job):
        if pod["metadata"].get("deletionTimestamp"):
            path = f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}"
            with suppress(ApiError):
                await place.api.delete(path, uid=pod["metadata"]["uid"], grace=0)


async def assert_handed_over(place: Corner, low: str, high: str) -> None:
    """`high` runs whole where `low` ran, and `low` queues again with its first submit time."""
    await place.until_phase(high, "Running")
    job = await place.until_job(low, "queues again", lambda job: job["status"].get("phase") == "Queued")
    status = job["status"]
    assert status["preemptions"] == 1
    assert status["submittedAt"] == job["metadata"]["creationTimestamp"]
    assert "failures" not in status
    assert not await place.pods(low)
    pods = await place.pods(high)
    assert len(pods) == WORKERS
    assert "withdrawals" not in (await place.job(high))["status"]


async def test_late_watches_a_victim_that_takes_its_whole_minute_and_an_operator_killed_meanwhile(
    place: Corner,
) -> None:
    """All three at once. Killed while the victim's pods are being deleted; the next one sees as late."""
    place.start(watch_delay=LATE)
    await submit(place, "low", terminationGracePeriod=f"{GRACE:.0f}s")
    await place.until_phase("low", "Running")
    await place.stop()
    place.nodes.ends = lambda pod: False  # it takes its whole grace
    process = await Process.start(place, watch_delay=LATE)
    async with Witness(place).looking() as witness:
        try:
            await submit(place, "high", high=True)
            low = await until_stopping(place, "low")
            assert low["status"]["phase"] == "Preempting"
            assert f"{place.namespace}/high" in low["status"]["stop"]["message"]
            await place.until("all pods of low are being deleted", lambda: _deleted(place, "low"))
            asked = time.monotonic()
        finally:
            await process.kill()
        await submit(place, "third")  # asks for the same room while it is being cleared
        place.start(watch_delay=LATE)
        await place.until_job("third", "waits", lambda job: job.get("status", {}).get("queue"))
        await place.until_waits("high", "Preempting")
        while time.monotonic() - asked < GRACE:
            assert not await place.pods("high"), "no pod is made before the room is free"
            assert not await place.pods("third")
            await asyncio.sleep(1)
        await let_go(place, "low")
        place.nodes.ends = lambda pod: True
        await assert_handed_over(place, "low", "high")
        assert not await place.pods("third")
    assert not witness.unschedulable, "pods of a gang that wait for their node"


async def _deleted(place: Corner, job: str) -> bool:
    return all(pod["metadata"].get("deletionTimestamp") for pod in await place.pods(job))


@pytest.mark.parametrize("moment", ["promise", "stop", "start"])
async def test_an_operator_killed_on_the_way_and_a_new_one_with_late_watches_finish_it(
    place: Corner, moment: str
) -> None:
    """Killed right after it wrote the promise, the victim's stop, or the placement of the one that gets the room."""
    place.start()
    await submit(place, "low", terminationGracePeriod="60s")
    await place.until_phase("low", "Running")
    await place.stop()
    place.nodes.ends = lambda pod: False
    # The job's first word, its promise, the victim's stop; the victim's end and the placement come when pods are gone.
    process = await Process.start(place)
    async with Witness(place).looking():
        await submit(place, "high", high=True)
        try:
            if moment == "promise":
                await place.until_job("high", "has a promise", lambda job: job.get("status", {}).get("promise"))
            else:
                await until_stopping(place, "low")
            if moment == "start":
                place.nodes.ends = lambda pod: True
                await let_go_until_gone(place, "low")
                await place.until_job("high", "is placed", lambda job: job["status"].get("placement"))
        finally:
            await process.kill()
        place.start(watch_delay=5.0)
        await until_stopping_or_gone(place, "low")
        place.nodes.ends = lambda pod: True
        await let_go_until_gone(place, "low")
        await assert_handed_over(place, "low", "high")


async def until_stopping_or_gone(place: Corner, name: str) -> None:
    def holds(job: Object) -> bool:
        status = job.get("status", {})
        return "stop" in status or "placement" not in status

    await place.until_job(name, "stops or has stopped", holds)


async def let_go_until_gone(place: Corner, name: str) -> None:
    async def gone() -> bool:
        await let_go(place, name)
        return not await place.pods(name)

    await place.until(f"the pods of {name} are gone", gone)


async def test_cut_at_every_write_of_a_preemption_it_is_finished(place: Corner, tmp_path: Path) -> None:
    writes = await _recorded(place, tmp_path / "writes")
    kinds = Counter(line.split()[1] for line in writes if "trainingqueues" not in line and "topologies" not in line)
    assert kinds["create-pods"] == WORKERS, kinds
    assert kinds["delete-pods"] == WORKERS, kinds
    async with Witness(place).looking():
        for kind, count in kinds.items():
            for number in range(1, count + 1):
                for moment in MOMENTS:
                    await _cut(place, f"{moment[0]}{kind.replace('/', '-')}{number}", f"{moment}:{kind}:{number}")


async def _recorded(place: Corner, log: Path) -> list[str]:
    """The writes that a preemption takes when nothing goes wrong."""
    await _low_runs(place, "low-0")
    process = await Process.start(place, MUSTER_FAULT_LOG=str(log))
    try:
        await submit(place, "high-0", high=True)
        await assert_handed_over(place, "low-0", "high-0")
    finally:
        await process.kill()
    await _clear(place, "low-0", "high-0")
    return (await asyncio.to_thread(log.read_text)).splitlines()


async def _cut(place: Corner, name: str, fault: str) -> None:
    low, high = f"low-{name}", f"high-{name}"
    await _low_runs(place, low)
    await submit(place, high, high=True)

    async def runs() -> bool:
        return bool((await place.job(high)).get("status", {}).get("phase") == "Running")

    await cut(place, fault, runs)
    place.start()
    await assert_handed_over(place, low, high)
    await place.stop()
    await _clear(place, low, high)


async def _low_runs(place: Corner, name: str) -> None:
    place.start()
    await submit(place, name)
    await place.until_phase(name, "Running")
    await place.stop()


async def _clear(place: Corner, *jobs: str) -> None:
    for job in jobs:
        await place.delete_job(job)

    async def none() -> bool:
        return not await place.pods()

    await place.until("their pods are gone", none)
