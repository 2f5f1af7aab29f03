"""Workers of a running gang are lost: they alone are made anew, the others keep their pods, whatever cuts the operator.

API server, kube-scheduler and controllers are real; nodes and launchers are stand-ins (`launchers.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from muster.controllers.situations import Patience
from muster_protocol import env

from .conftest import ControlPlane
from .gangs import PATIENCE, Corner, condition, corner
from .launchers import Launchers
from .processes import Process, cut
from .test_replacement import nodes_of, spares_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Object = dict[str, Any]
WORKERS = 4


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    """Five nodes, of which a gang of four takes four."""
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(WORKERS + 1)
        yield found


@pytest.fixture
async def launchers(place: Corner) -> AsyncIterator[Launchers]:
    async with Launchers(place).answering() as found:
        yield found


async def trains(place: Corner, name: str = "train", *, spares: int = 0, **spec: Any) -> dict[int, Object]:
    """The pods, by index, of a gang of four that takes a node each and whose launchers have answered."""
    workers = {"gpusPerWorker": 4, **({"spares": spares} if spares else {})}
    await place.submit(name, WORKERS, workers=workers, **spec)
    job = await place.until_job(name, "trains", lambda job: job.get("status", {}).get("incarnation") == 1)
    assert job["status"]["phase"] == "Running"
    return await by_index(place, name)


async def by_index(place: Corner, name: str = "train") -> dict[int, Object]:
    """The job's pods that are not on their way out."""
    pods = [pod for pod in await place.pods(name) if "deletionTimestamp" not in pod["metadata"]]
    found = {int(pod["metadata"]["labels"]["muster.dev/index"]): pod for pod in pods}
    assert len(found) == len(pods), "two pods of one index"
    return found


async def replaced(place: Corner, count: int, name: str = "train") -> Object:
    """The job, once the gang has come together again."""

    def whole(job: Object) -> bool:
        status = job["status"]
        assert status.get("placement", {}).get("generation") == 1, f"the whole gang was restarted: {status}"
        return bool(status.get("replacements") == count and "replacing" not in status["placement"])

    job = await place.until_job(name, f"{count} workers are replaced", whole)
    status, ready = job["status"], condition(job, "PodsReady")
    assert status["phase"] == "Running"
    assert ready is not None
    assert ready["status"] == "True"
    assert status["ready"] == WORKERS
    assert not {"restarts", "failures", "restartsInPlace"} & status.keys()
    return job


def uids(pods: dict[int, Object], *indexes: int) -> dict[int, str]:
    return {index: pods[index]["metadata"]["uid"] for index in indexes}


def names(pods: dict[int, Object]) -> list[str]:
    return [pods[index]["metadata"]["name"] for index in sorted(pods)]


def environment(pod: Object) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}


def runtime_of(pod: Object) -> str:
    found: str = pod["spec"]["initContainers"][0]["image"]
    return found


async def kill(place: Corner, *pods: Object) -> None:
    """As kubelet tells it of a container that was killed from outside."""
    for pod in pods:
        await place.nodes.finish(pod, exit_code=137)


async def test_a_killed_worker_is_replaced_on_its_node_and_the_others_keep_their_pods(
    place: Corner, launchers: Launchers
) -> None:
    place.start()
    before = await trains(place, restart={"limit": 0})
    assert environment(before[1])[env.REPLACE_SECONDS] == "120"
    await kill(place, before[1])
    job = await replaced(place, 1)
    after = await by_index(place)
    assert uids(after, 0, 2, 3) == uids(before, 0, 2, 3)
    assert names(after) == ["train-g1-0-0", "train-g1-1-1", "train-g1-2-0", "train-g1-3-0"]
    assert after[1]["spec"]["nodeName"] == before[1]["spec"]["nodeName"]
    placement = job["status"]["placement"]
    assert (placement["attempts"], placement["incarnation"]) == ([{"index": 1, "attempt": 1}], 2)
    assert job["status"]["incarnation"] == 3
    gang = launchers.gangs[job["metadata"]["uid"], 1]
    assert {gang.told[uid].incarnation for uid in uids(after, *range(WORKERS)).values()} == {2}
    await kill(place, after[1])
    await replaced(place, 2)
    assert names(await by_index(place)) == ["train-g1-0-0", "train-g1-1-2", "train-g1-2-0", "train-g1-3-0"]


async def test_a_pod_that_an_upgraded_operator_replaces_runs_the_runtime_of_the_others(
    place: Corner, launchers: Launchers
) -> None:
    """Ranks of two versions would wait for each other in different exchanges."""
    place.start(runtime_image="localhost/muster/runtime:old")
    before = await trains(place)
    await place.stop()
    place.start(runtime_image="localhost/muster/runtime:new")
    await kill(place, before[0])
    await replaced(place, 1)
    after = await by_index(place)
    assert names(after)[0] == "train-g1-0-1"
    assert {runtime_of(pod) for pod in after.values()} == {"localhost/muster/runtime:old"}
    await place.submit("later", 1)
    later = await place.until("the pod of later is made", lambda: place.pods("later"))
    assert {runtime_of(pod) for pod in later} == {"localhost/muster/runtime:new"}


async def test_the_leader_and_another_are_replaced_at_once(place: Corner, launchers: Launchers) -> None:
    place.start()
    before = await trains(place)
    await kill(place, before[0])
    path = f"/api/v1/namespaces/{place.namespace}/pods/{before[2]['metadata']['name']}"
    await place.api.delete(path, grace=0)  # without a record
    await replaced(place, 2)
    after = await by_index(place)
    assert uids(after, 1, 3) == uids(before, 1, 3)
    assert names(after) == ["train-g1-0-1", "train-g1-1-0", "train-g1-2-1", "train-g1-3-0"]
    assert environment(after[0])[env.LEADER_HOST].startswith("g1-0-1.")
    # Whichever was seen first, a pod that is made when the new leader is known looks for that one.
    assert environment(after[2])[env.LEADER_HOST].startswith("g1-0-")


async def test_the_worker_of_a_node_that_is_gone_goes_to_the_free_one_before_those_who_wait(
    place: Corner, launchers: Launchers
) -> None:
    place.start()
    before = await trains(place)
    await place.submit("waits", 2, workers={"gpusPerWorker": 4})
    await place.until_job("waits", "waits", lambda job: job.get("status", {}).get("phase") == "Queued")
    gone = before[2]["spec"]["nodeName"]
    (free,) = place.nodes.names - {pod["spec"]["nodeName"] for pod in before.values()}
    await launchers.lose_node(gone)
    await place.nodes.remove(gone)
    job = await replaced(place, 1)
    after = {index: pod for index, pod in (await by_index(place)).items() if pod["spec"]["nodeName"] != gone}
    assert uids(after, 0, 1, 3) == uids(before, 0, 1, 3)
    assert after[2]["spec"]["nodeName"] == free
    assert nodes_of(job)[2] == free
    assert free in job["status"]["nodes"]
    assert (await place.job("waits"))["status"]["phase"] == "Queued"


async def test_an_elastic_gang_goes_on_without_a_node_that_does_not_come_back_and_grows_when_there_is_one(
    place: Corner, launchers: Launchers
) -> None:
    place.start()
    await place.submit("train", WORKERS, workers={"gpusPerWorker": 4, "min": 2, "shrinkAfter": "1s"})
    await place.until_job("train", "trains", lambda job: job.get("status", {}).get("incarnation") == 1)
    before = await by_index(place)
    gone = before[1]["spec"]["nodeName"]
    (free,) = place.nodes.names - {pod["spec"]["nodeName"] for pod in before.values()}
    await _cordon(place, free)
    await launchers.lose_node(gone)
    await place.nodes.remove(gone)
    job = await _trains_with(place, WORKERS - 1)
    assert list(nodes_of(job).values()) == [before[index]["spec"]["nodeName"] for index in (0, 2, 3)], (
        "they keep their nodes"
    )
    assert sizes(job) == [(WORKERS, "Started"), (WORKERS - 1, "WorkersLost")]
    assert job["status"]["breakdowns"] == 1
    assert not {"restarts", "failures", "preemptions", "replacements"} & job["status"].keys()

    await _cordon(place, free, cordoned=False)
    long_ago = "2026-03-01T12:00:00Z"
    saved = {"step": 12, "committedAt": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"}
    status = {"placement": {"placedAt": long_ago}, "checkpoint": saved}
    path = f"{place.jobs()}/train/status"
    await place.api.merge_patch(path, {"status": status})  # it has stood for long, and has just saved
    job = await _trains_with(place, WORKERS)
    assert sizes(job)[-1] == (WORKERS, "Grown")
    assert free in nodes_of(job).values()
    assert "preemptions" not in job["status"]


def sizes(job: Object) -> list[tuple[int, str]]:
    return [(size["workers"], size["reason"]) for size in job["status"]["sizes"]]


async def _trains_with(place: Corner, workers: int) -> Object:
    def trains(job: Object) -> bool:
        status = job["status"]
        return status.get("phase") == "Running" and status["replicas"] == workers

    return await place.until_job("train", f"trains with {workers} workers", trains)


async def test_a_spare_takes_over_in_the_living_gang(place: Corner, launchers: Launchers) -> None:
    place.start()
    before = await trains(place, spares=1)
    (spare,) = spares_of(await place.job("train"))
    node = before[3]["spec"]["nodeName"]
    await place.api.merge_patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    await kill(place, before[3])
    job = await replaced(place, 1)
    after = await by_index(place)
    assert uids(after, 0, 1, 2) == uids(before, 0, 1, 2)
    assert after[3]["spec"]["nodeName"] == spare
    assert spares_of(job) == []


async def test_an_operator_that_was_away_catches_up(place: Corner, launchers: Launchers) -> None:
    place.start()
    before = await trains(place)
    await place.stop()
    await kill(place, before[1])
    place.start()
    await replaced(place, 1)
    assert uids(await by_index(place), 0, 2, 3) == uids(before, 0, 2, 3)


async def test_a_gang_that_does_not_come_together_starts_again_whole_in_its_room(
    place: Corner, launchers: Launchers
) -> None:
    place.start(patience=Patience(launcher=0.5, replace=4.0))
    before = await trains(place, restart={"limit": 0})
    launchers.joins = lambda pod: pod["metadata"]["name"] != "train-g1-1-1"
    await kill(place, before[1])

    def again(job: Object) -> bool:
        status = job["status"]
        return status.get("phase") == "Running" and status["placement"]["generation"] == 2

    job = await place.until_job("train", "starts again whole", again)
    assert job["status"]["restarts"] == 1
    assert not {"replacements", "failures"} & job["status"].keys()
    assert "did not come together again within 4 s" in job["status"]["failure"]["message"]
    after = await by_index(place)
    assert names(after) == [f"train-g2-{index}-0" for index in range(WORKERS)]
    assert [after[i]["spec"]["nodeName"] for i in range(WORKERS)] == [
        before[i]["spec"]["nodeName"] for i in range(WORKERS)
    ]


async def test_cut_at_every_write_both_workers_are_replaced_once(
    place: Corner, launchers: Launchers, tmp_path: Path
) -> None:
    """One goes back to its node, the other's is cordoned, and the operator finds both lost when it starts."""
    log = tmp_path / "writes"
    before = await _two_are_lost(place, "reference")
    process = await Process.start(place, MUSTER_FAULT_LOG=str(log))
    try:
        await _assert_replaced_once(place, "reference", before)
    finally:
        await process.kill()
    await _clear(place, "reference")
    written = (await asyncio.to_thread(log.read_text)).splitlines()
    kinds = Counter(line.split()[1] for line in written if "/trainingjobs/" in line or "/pods" in line)
    assert kinds["create-pods"] == 2, kinds
    assert kinds["delete-pods"] == 2, kinds
    reached = 0
    for kind, number in ((kind, number) for kind, count in kinds.items() for number in range(1, count + 1)):
        name = f"after-{kind.replace('/', '-')}-{number}"
        before = await _two_are_lost(place, name)
        reached += await cut(place, f"after:{kind}:{number}", lambda name=name: _over(place, name), PATIENCE)
        place.start()
        await _assert_replaced_once(place, name, before)
        await place.stop()
        await _clear(place, name)
    assert reached >= 6, "the loss, two deletions, the planner's move, two pods"


async def _two_are_lost(place: Corner, name: str) -> dict[int, Object]:
    place.start()
    before = await trains(place, name)
    await place.stop()
    await _cordon(place, before[3]["spec"]["nodeName"])
    await kill(place, before[1], before[3])
    return before


async def _cordon(place: Corner, node: str, *, cordoned: bool = True) -> None:
    await place.api.merge_patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned}})


async def _over(place: Corner, name: str) -> bool:
    return bool((await place.job(name))["status"].get("replacements"))


async def _assert_replaced_once(place: Corner, name: str, before: dict[int, Object]) -> None:
    await replaced(place, 2, name)
    after = await by_index(place, name)
    assert names(after) == [f"{name}-g1-0-0", f"{name}-g1-1-1", f"{name}-g1-2-0", f"{name}-g1-3-1"]
    assert uids(after, 0, 2) == uids(before, 0, 2)
    assert after[1]["spec"]["nodeName"] == before[1]["spec"]["nodeName"]
    assert after[3]["spec"]["nodeName"] not in {pod["spec"]["nodeName"] for pod in before.values()}
    await _cordon(place, before[3]["spec"]["nodeName"], cordoned=False)


async def _clear(place: Corner, name: str) -> None:
    await place.delete_job(name)

    async def none() -> bool:
        return not await place.pods(name)

    await place.until(f"the pods of {name} are gone", none)
