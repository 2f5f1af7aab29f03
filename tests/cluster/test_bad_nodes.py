"""A node on which gangs fail is tainted, the next operator finds that, and it is forgiven: on a real API server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.cluster.events import EventRecorder, News
from muster.controllers import quarantining
from muster.controllers.quarantine import Rules
from muster_protocol import exits

from .conftest import ControlPlane
from .gangs import Corner, corner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Object = dict[str, Any]
TAINT = "muster.dev/quarantined"
ECC = "rank 0 exited with code 1: CUDA error: uncorrectable ECC error encountered"


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    """Two nodes of a kind of their own: of a small pool one may be in quarantine."""
    async with corner(str(control_plane.kubeconfig)) as found:
        kind = f"T{secrets.randbelow(10**6)}"
        await found.add_nodes(2, labels={"muster.dev/gpu-type": kind})
        yield found


async def node(place: Corner, name: str) -> Object:
    return await place.api.get(f"/api/v1/nodes/{name}")


async def taints(place: Corner, name: str) -> list[str]:
    return [taint["key"] for taint in (await node(place, name))["spec"].get("taints", [])]


async def fails_on_broken_hardware(place: Corner, job: str) -> str:
    """Name of the node on which the job, of one worker that takes a node, has failed."""
    await place.submit(job, 1, workers={"gpusPerWorker": 4}, restart={"backoff": "1s"})
    await place.until_phase(job, "Running")
    (pod,) = await place.pods(job)
    facts = exits.ExitFacts(exits.Cause.NODE, exits.EXIT_INFRASTRUCTURE, ECC, rank=0, rank_exit_code=1)
    await place.nodes.finish(pod, exit_code=exits.EXIT_INFRASTRUCTURE, message=exits.encode(facts))
    return str(pod["spec"]["nodeName"])


def trains_again(job: Object) -> bool:
    return job["status"].get("restarts") == 1 and job["status"]["phase"] == "Running"


async def test_two_gangs_taint_the_node_and_time_forgives_it(place: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantining, "LOOK", 0.2)
    told: list[News] = []
    options = {"quarantine": Rules(threshold=2), "tell_node": told.append}
    place.start(**options)
    bad = await fails_on_broken_hardware(place, "first")
    await place.until_job("first", "trains on the other node: it stays away from this one", trains_again)
    assert await taints(place, bad) == [], "one gang is no pattern"
    assert await fails_on_broken_hardware(place, "second") == bad

    async def quarantined() -> bool:
        return TAINT in await taints(place, bad)

    await place.until("the taint", quarantined)
    notes = (await node(place, bad))["metadata"]["annotations"]
    assert notes["muster.dev/quarantine-reason"].startswith("2 gangs failed here: hardware (")
    assert "ECC" in notes["muster.dev/quarantine-reason"]
    await place.stop()
    await place.submit("third", 1, workers={"gpusPerWorker": 4})
    place.start(**options)
    await place.until_job("third", "waits", lambda job: job.get("status", {}).get("queue"))
    over = {"muster.dev/quarantine-until": "2026-01-01T00:00:00Z"}
    await place.api.merge_patch(f"/api/v1/nodes/{bad}", {"metadata": {"annotations": over}})

    async def forgiven() -> bool:
        return not await quarantined()

    await place.until("the pardon, by another operator", forgiven)
    await place.until_phase("third", "Running")
    (pod,) = await place.pods("third")
    assert pod["spec"]["nodeName"] == bad
    found = (await node(place, bad))["metadata"]["annotations"]
    assert {key for key in found if "quarantine" in key} == {"muster.dev/quarantine-lifted"}
    assert [one.reason for one in told] == ["Quarantined", "QuarantineLifted"]
    await EventRecorder(place.api, "test").write(told[0])  # as the API server wants it
