"""Nodes whose kubelet is silent for long: the taint manager lets gangs that live stay, and what is left of dead ones
keeps nobody waiting.

Nodes and launchers are stand-ins; API server, kube-scheduler and controllers are real.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hack.scheduling import GROUP

from muster.cluster.eligibility import UNREACHABLE

from .conftest import ControlPlane
from .gangs import Corner, corner
from .launchers import Launchers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Object = dict[str, Any]


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    """One node for gangs, and one for nobody: where all nodes are silent at once, Kubernetes evicts from none."""
    async with corner(str(control_plane.kubeconfig)) as found:
        await found.add_nodes(1)
        await found.add_nodes(1, labels={"pool": "nobody"})
        yield found


async def silence(place: Corner, name: str) -> None:
    """The node's kubelet says nothing any more; its node is tainted, and it ends no pods."""
    place.nodes.dead.add(name)
    place.nodes.ends = lambda pod: pod["spec"].get("nodeName") != name
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": ""}

    async def tainted() -> bool:
        await place.api.merge_patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [unknown]}})
        taints = (await place.api.get(f"/api/v1/nodes/{name}"))["spec"].get("taints") or []
        return any(taint["key"] == UNREACHABLE and taint["effect"] == "NoExecute" for taint in taints)

    await place.until("the node is unreachable", tainted)


async def test_a_gang_that_lives_stays_when_the_taint_manager_evicts_those_that_ask_for_it(place: Corner) -> None:
    leaves = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}
    async with Launchers(place).answering():
        place.start()
        await place.submit("stays", 2)
        await place.submit("leaves", 1, tolerations=[leaves])
        for name in ("stays", "leaves"):
            await place.until_job(name, "trains", lambda job: job.get("status", {}).get("incarnation") == 1)
        await silence(place, place.made[0])

        async def evicted() -> bool:
            (pod,) = await place.pods("leaves")
            return "deletionTimestamp" in pod["metadata"]

        await place.until("the other pod is evicted", evicted)
        pods = await place.pods("stays")
        assert len(pods) == 2
        assert not any("deletionTimestamp" in pod["metadata"] for pod in pods)
        for pod in pods:
            said = [each for each in pod["spec"]["tolerations"] if each["key"].startswith("node.kubernetes.io/")]
            assert {each["key"] for each in said} >= {UNREACHABLE, "node.kubernetes.io/not-ready"}
            assert not any("tolerationSeconds" in each for each in said), "admission added its 300 s"
        for name in ("stays", "leaves"):
            status = (await place.job(name))["status"]
            assert status["phase"] == "Running"
            assert not {"restarts", "replacements", "stop"} & status.keys()


async def test_a_pod_that_is_left_on_a_dead_node_keeps_no_quota_of_a_job_that_is_gone(place: Corner) -> None:
    quotas = [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": 4}]}]
    await place.api.merge_patch(f"{GROUP}/trainingqueues/{place.queue}", {"spec": {"quotas": quotas}})
    place.start()
    await place.submit("first", 1, workers={"gpusPerWorker": 4})
    await place.until_phase("first", "Running")
    await silence(place, place.made[0])
    await place.delete_job("first")

    async def terminating() -> bool:
        return any("deletionTimestamp" in pod["metadata"] for pod in await place.pods("first"))

    await place.until("the pod's deletion was asked for", terminating)
    await place.add_nodes(1)
    await place.submit("second", 1, workers={"gpusPerWorker": 4})
    await place.until_phase("second", "Running")
    assert await terminating(), "nobody ends it before its node is back or gone"
