"""A gang whose pods hang while they are being created says what kubelet tells in Events alone, on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timezone

import pytest

from .conftest import ControlPlane
from .gangs import Corner, condition, corner

pytestmark = pytest.mark.cluster


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        yield found


async def test_a_volume_that_does_not_mount_is_told_in_pods_ready(place: Corner) -> None:
    await place.add_nodes(1)
    place.nodes.starts = lambda pod: False
    place.start()
    await place.submit("hangs", 2)
    await place.until("two pods", lambda: _bound(place))
    (pod, _) = await place.pods("hangs")
    about = {"kind": "Pod", **{key: pod["metadata"][key] for key in ("namespace", "name", "uid")}}
    moment = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "mount", "namespace": place.namespace},
        "involvedObject": about,
        "type": "Warning",
        "reason": "FailedMount",
        "message": 'MountVolume.SetUp failed for volume "data"',
        "lastTimestamp": moment,
    }
    await place.api.create(f"/api/v1/namespaces/{place.namespace}/events", event)

    def told(job: dict[str, object]) -> bool:
        found = condition(job, "PodsReady")
        return found is not None and found["reason"] == "FailedMount"

    job = await place.until_job("hangs", "says why it hangs", told)
    found = condition(job, "PodsReady")
    assert found is not None
    assert 'FailedMount: MountVolume.SetUp failed for volume "data"' in found["message"]
    assert job["status"]["phase"] == "Starting"


async def _bound(place: Corner) -> bool:
    pods = await place.pods("hangs")
    return len(pods) == 2 and all(pod["spec"].get("nodeName") for pod in pods)
