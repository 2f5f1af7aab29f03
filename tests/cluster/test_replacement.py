"""Nodes of a running gang go: on a real API server only the workers there move, and nobody takes the gang's room."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hack.scheduling import GROUP

from muster.api.placement import parse_indexes
from muster.cluster.errors import ApiError

from .conftest import ControlPlane
from .gangs import PATIENCE, Corner, condition, corner
from .processes import Process, cut

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Object = dict[str, Any]
RACK = "muster.dev/rack"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    """Two racks of four nodes, and a Topology that knows them."""
    async with corner(str(control_plane.kubeconfig)) as found:
        for rack in range(2):
            await found.add_nodes(4, labels={RACK: f"{found.name}-{rack}"})
        levels = [{"name": "rack", "label": RACK}, {"name": "host", "label": "kubernetes.io/hostname"}]
        topology = {"apiVersion": "muster.dev/v1alpha1", "kind": "Topology", "metadata": {"name": "default"}}
        await found.api.create(f"{GROUP}/topologies", {**topology, "spec": {"levels": levels}})
        await found.api.create(CLASSES, {"metadata": {"name": found.name}, "value": 100})
        try:
            yield found
        finally:
            for path in (f"{GROUP}/topologies/default", f"{CLASSES}/{found.name}"):
                with suppress(ApiError):
                    await found.api.delete(path)


def nodes_of(job: Object) -> dict[int, str]:
    """Node by index of the placement's workers."""
    return {
        index: item["node"] for item in job["status"]["placement"]["nodes"] for index in parse_indexes(item["indexes"])
    }


def spares_of(job: Object) -> list[str]:
    return [item["node"] for item in job["status"]["placement"].get("spares", [])]


async def until_runs_again(place: Corner, name: str, generation: int) -> Object:
    def again(job: Object) -> bool:
        status = job["status"]
        return status.get("phase") == "Running" and status["placement"]["generation"] == generation

    return await place.until_job(name, f"runs in generation {generation}", again)


async def submit(place: Corner, name: str, replicas: int, *, spares: int = 0, **spec: Any) -> Object:
    """One worker a node, all in one rack."""
    workers = {"gpusPerWorker": 4, **({"spares": spares} if spares else {})}
    await place.submit(name, replicas, workers=workers, topology={"mode": "required", "level": "rack"}, **spec)
    return await place.job(name)


async def test_a_spare_takes_over_and_is_found_again_while_another_job_waits(place: Corner) -> None:
    place.start()
    await submit(place, "train", 2, spares=1)
    before = await place.until_phase("train", "Running")
    assert before["status"]["gpus"] == 12
    assert len(await place.pods("train")) == 2, "a spare is room, not a pod"
    (spare,) = spares_of(before)
    told = condition(before, "Admitted")
    assert told is not None
    assert f"room for 1 spare is kept on {spare}" in told["message"]
    await submit(place, "high", 4, priorityClassName=place.name, preemptible=False)  # takes the other rack
    await place.until_phase("high", "Running")
    await submit(place, "beside", 1, priorityClassName=place.name)
    await place.until_phase("beside", "Running")  # the fourth node of the gang's rack
    await submit(place, "waits", 1, preemptible=False)
    await place.until_job("waits", "waits", lambda job: job.get("status", {}).get("phase") == "Queued")

    await place.nodes.remove(nodes_of(before)[1])
    after = await until_runs_again(place, "train", 2)
    assert nodes_of(after) == {0: nodes_of(before)[0], 1: spare}
    assert spares_of(after) == []
    assert after["status"]["restarts"] == 1

    assert (await place.job("waits"))["status"]["phase"] == "Queued", "the gang's room was never free"

    await place.delete_job("waits")
    await place.delete_job("beside")
    found = await place.until_job("train", "has a spare", lambda job: spares_of(job))
    assert found["status"]["placement"]["generation"] == 2, "no stop for a spare"
    assert sorted(_index(pod) for pod in await place.pods("train") if _generation(pod) == "2") == ["0", "1"]
    await place.succeed("train")


async def test_a_drained_node_is_left_for_another_in_the_rack(place: Corner) -> None:
    place.start()
    await submit(place, "train", 2)
    before = await place.until_phase("train", "Running")
    rack = {item["metadata"]["name"]: item["metadata"]["labels"][RACK] for item in await _nodes(place)}
    await place.api.merge_patch(f"/api/v1/nodes/{nodes_of(before)[0]}", {"spec": {"unschedulable": True}})
    (lost,) = [pod for pod in await place.pods("train") if pod["spec"]["nodeName"] == nodes_of(before)[0]]
    await submit(place, "other", 3)
    await place.until_phase("other", "Running")
    await place.api.delete(f"/api/v1/namespaces/{place.namespace}/pods/{lost['metadata']['name']}")
    after = await until_runs_again(place, "train", 2)
    assert nodes_of(after)[1] == nodes_of(before)[1]
    assert nodes_of(after)[0] != nodes_of(before)[0]
    assert rack[nodes_of(after)[0]] == rack[nodes_of(before)[0]]


async def test_gang_is_placed_anew_whole_when_its_rack_has_no_other_node(place: Corner) -> None:
    place.start()
    await submit(place, "train", 4)
    before = await place.until_phase("train", "Running")
    await place.nodes.remove(nodes_of(before)[2])
    after = await until_runs_again(place, "train", 2)
    assert not set(nodes_of(after).values()) & set(nodes_of(before).values())


def _generation(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["muster.dev/generation"])


def _index(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["muster.dev/index"])


async def _nodes(place: Corner) -> list[Object]:
    found: list[Object] = (await place.api.get("/api/v1/nodes"))["items"]
    return [node for node in found if node["metadata"]["labels"].get("pool") == place.name]


async def test_a_restart_that_is_cut_at_every_write_keeps_its_room_and_counts_once(
    place: Corner, tmp_path: Path
) -> None:
    """The gang has all GPUs of its rack, and another job waits for them before, between and after all cuts."""
    await submit(place, "high", 4, preemptible=False)  # the other rack
    place.start()
    await place.until_phase("high", "Running")
    await _fail_beside_a_waiting_job(place, "reference")
    log = tmp_path / "writes"
    process = await Process.start(place, MUSTER_FAULT_LOG=str(log))
    try:
        await _assert_restarted_once(place, "reference")
    finally:
        await process.kill()
    writes = await asyncio.to_thread(log.read_text)
    await _clear(place, "reference")
    kinds = Counter(line.split()[1] for line in writes.splitlines() if "/trainingjobs/" in line or "/pods" in line)
    assert kinds["create-pods"] == 2, kinds
    reached = 0
    # A cut before a write finds what one after the write before it finds, so that only the latter are made.
    for kind, number in ((kind, number) for kind, count in kinds.items() for number in range(1, count + 1)):
        job = f"after-{kind.replace('/', '-')}-{number}"
        place.start()
        await _fail_beside_a_waiting_job(place, job)
        came = await _cut(place, job, f"after:{kind}:{number}")
        assert came or not kind.startswith("create-"), f"{job}: restarted without this write"
        reached += came
        place.start()
        await _assert_restarted_once(place, job)
        await place.stop()
        await _clear(place, job)
    assert reached > kinds["create-pods"]  # the end that was seen is written down, too


async def _fail_beside_a_waiting_job(place: Corner, name: str) -> None:
    """A gang of two runs, another job waits for its room, and a worker has failed that no operator has seen yet."""
    await submit(place, name, 2, restart={"backoff": "1s"})
    await place.until_phase(name, "Running")
    await submit(place, f"{name}-waits", 3, preemptible=False)
    await place.until_job(f"{name}-waits", "waits", lambda job: job.get("status", {}).get("phase") == "Queued")
    await place.stop()
    await place.nodes.finish((await place.pods(name))[0], exit_code=1)


async def _cut(place: Corner, name: str, fault: str) -> bool:
    """Whether the process came to its fault point, rather than to a restarted gang without it."""

    async def runs_again() -> bool:
        status = (await place.job(name))["status"]
        return bool(status["phase"] == "Running" and status["placement"]["generation"] == 2)

    return await cut(place, fault, runs_again, PATIENCE)


async def _assert_restarted_once(place: Corner, name: str) -> None:
    after = await until_runs_again(place, name, 2)
    assert after["status"]["restarts"] == 1
    waits = await place.job(f"{name}-waits")
    assert waits["status"]["phase"] == "Queued"
    assert "placement" not in waits["status"]
    pods = [pod for pod in await place.pods(name) if "deletionTimestamp" not in pod["metadata"]]
    assert sorted(_index(pod) for pod in pods if _generation(pod) == "2") == ["0", "1"]
    assert {pod["spec"]["nodeName"] for pod in pods} == set(nodes_of(after).values())


async def _clear(place: Corner, name: str) -> None:
    for job in (f"{name}-waits", name):
        await place.delete_job(job)

    async def none() -> bool:
        return not await place.pods(name)

    await place.until(f"the pods of {name} are gone", none)
