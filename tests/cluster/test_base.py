"""A gang with a safe base on a real API server: spot nodes come and go, and its first workers stay where they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from hack.scheduling import GROUP

from muster.cluster.errors import ApiError

from .conftest import ControlPlane
from .gangs import Corner, condition, corner
from .test_replacement import CLASSES, nodes_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

Object = dict[str, Any]
SURE, SPOT = 2, 2


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    """Nodes of both kinds, with room for one worker each."""
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(SURE, labels={"muster.dev/capacity": "on-demand"})
        await found.add_nodes(SPOT, labels={"muster.dev/capacity": "spot"})
        await found.api.create(CLASSES, {"metadata": {"name": found.name}, "value": 100})
        try:
            yield found
        finally:
            with suppress(ApiError):
                await found.api.delete(f"{CLASSES}/{found.name}")


def at(place: Corner, job: Object) -> list[str]:
    """Kind of each worker's node, in order of rank."""
    return ["on-demand" if place.made.index(node) < SURE else "spot" for _, node in sorted(nodes_of(job).items())]


async def test_who_takes_spot_nodes_back_leaves_the_base_of_a_gang_alone(place: Corner) -> None:
    place.start()
    sizes = {"min": 2, "max": 4, "gpusPerWorker": 4}
    await place.submit("train", 4, workers=sizes, capacity={"order": ["spot"], "base": "on-demand"})
    before = await place.until_phase("train", "Running")
    assert at(place, before) == ["on-demand", "on-demand", "spot", "spot"]
    kinds = {key: before["status"]["placement"][key] for key in ("base", "capacity", "beyond")}
    assert kinds == {"base": 2, "capacity": "on-demand", "beyond": "spot"}
    assert before["status"]["workers"] == "4"
    told = condition(before, "Admitted")
    assert told is not None
    assert "the first 2 are its base on on-demand nodes, 2 workers beyond it can be taken back" in told["message"]

    async def usage() -> dict[str, str]:
        queue = await place.api.get(f"{GROUP}/trainingqueues/{place.queue}")
        return {
            item["capacity"]: use["used"]
            for item in queue.get("status", {}).get("usage", [])
            for use in item["resources"]
            if use["name"] == "nvidia.com/gpu"
        }

    async def both() -> bool:
        return await usage() == {"on-demand": "8", "spot": "8"}

    await place.until("each part counts against its own kind", both)

    urgent: dict[str, Any] = {"priorityClassName": place.name, "capacity": {"order": ["spot"]}}
    await place.submit("urgent", 1, workers={"gpusPerWorker": 4}, **urgent)
    await place.until_phase("urgent", "Running")
    after = await place.until_job(
        "train", "goes on with three", lambda job: job["status"].get("phase") == "Running" and len(nodes_of(job)) == 3
    )
    assert at(place, after) == ["on-demand", "on-demand", "spot"]
    assert after["status"]["placement"]["generation"] == 2
    assert [size["reason"] for size in after["status"]["sizes"]] == ["Started", "Shrunk"]
    assert after["status"]["workers"] == "3/4"
    told = await place.until_job("train", "is told why it is not larger", lambda job: "growth" in job["status"])
    assert told["status"]["growth"]["workers"] == 4
    assert told["status"]["growth"]["reason"] == "NoCheckpoints"

    await place.nodes.remove(nodes_of(after)[2])  # the last spot node of the gang
    alone = await place.until_job(
        "train",
        "goes on with its base",
        lambda job: job["status"].get("phase") == "Running" and len(nodes_of(job)) == 2,
    )
    assert nodes_of(alone) == {index: node for index, node in nodes_of(before).items() if index < 2}
    assert alone["status"]["placement"]["base"] == 2
    pods = [pod["metadata"]["labels"] for pod in await place.pods("train")]
    assert sorted(pod["muster.dev/index"] for pod in pods if pod["muster.dev/generation"] == "3") == ["0", "1"]
    await place.succeed("urgent")
    await place.succeed("train")
