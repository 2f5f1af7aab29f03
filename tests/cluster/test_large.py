"""A gang of 12,500 workers on the real API server: its object stays small, and its nodes come back as they were."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from muster.api.placement import Placement
from muster.api.trainingjob import TrainingJob
from muster.cluster.executor import Executor

from .conftest import ControlPlane
from .gangs import Corner, corner

pytestmark = pytest.mark.cluster

WORKERS = 12_500


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        yield found


async def test_the_nodes_of_a_large_gang_lie_beside_its_object(place: Corner) -> None:
    job = TrainingJob.from_raw(await place.submit("large", WORKERS))
    placement = Placement.of(1, [f"gpu-pool-a1b2c3-{index:05}" for index in range(WORKERS)])
    bare = job.status
    written = await Executor(place.api, b"k").write_status(job, bare.model_copy(update={"placement": placement}))
    assert written.status.placement == placement
    raw = await place.job("large")
    assert len(json.dumps(raw)) <= 64 * 1024
    assert len(raw["status"]["placement"]["chunks"]) == 5
    another = Executor(place.api, b"k")
    read = await another.read(job)
    assert read is not None
    assert read.status.placement == placement
    await another.write_status(read, bare)
    path = f"/api/v1/namespaces/{place.namespace}/configmaps"
    left = [item["metadata"]["name"] for item in (await place.api.get(path))["items"]]
    assert not [name for name in left if name.startswith("large-")]
