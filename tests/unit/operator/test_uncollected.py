"""Pods whose job is gone, where Kubernetes' garbage collector leaves them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from muster.api.trainingjob import TrainingJob
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.executor import Executor
from muster.cluster.views import PodView
from muster.controllers.cache import Cache
from muster.controllers.uncollected import PATIENCE, Uncollected

from .loops import Items, worker_pod

pytestmark = pytest.mark.unit

RAW: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "research", "uid": "u1", "generation": 1, "resourceVersion": "1"},
    "spec": {"queue": "q", "image": "i", "command": ["x"], "workers": {"replicas": 2}},
}


def worker(index: int) -> PodView:
    return worker_pod("train", index, namespace="research", owner="u1", node="n", uid=f"pod-{index}")


class Server:
    """Has a TrainingJob of the UID `uid`, or none where that is ""; `trouble`: what it raises instead."""

    def __init__(self) -> None:
        self.uid, self.asked = "", 0
        self.trouble: Exception | None = None
        self.deleted: list[tuple[str, str, int | None]] = []

    async def get(self, path: str) -> dict[str, Any]:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        if not self.uid:
            raise ApiError(404, "NotFound", "it is not there", {"name": path.rsplit("/", 1)[1]})
        return {"metadata": {"uid": self.uid}}

    async def delete(self, path: str, *, uid: str = "", grace: int | None = None) -> dict[str, Any]:
        self.deleted.append((path.rsplit("/", 1)[1], uid, grace))
        return {}


class Cluster:
    """A gang of two, whose job is there as long as the cache says so."""

    def __init__(self) -> None:
        self.server = Server()
        self.cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
        self.cache.on_job(("research", "train"), TrainingJob.from_raw(RAW))
        for index in (0, 1):
            self.show(worker(index))
        api: Any = self.server
        self.uncollected = Uncollected(self.cache, Executor(api, b"k" * 16))

    def show(self, pod: PodView) -> None:
        self.cache.on_pod(pod.key, pod)

    def delete_job(self) -> None:
        self.cache.on_job(("research", "train"), None)

    async def look(self, *moments: float) -> list[str]:
        """The names of the pods that were deleted at these moments."""
        self.server.deleted = []
        for moment in moments:
            await self.uncollected.look(moment)
        return sorted(name for name, _, _ in self.server.deleted)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_a_deleted_jobs_gang_goes_by_its_own_grace_once_the_garbage_collector_had_its_time(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert await cluster.look(0.0, 100.0) == [], "its job is there"
    cluster.delete_job()
    assert await cluster.look(200.0, 199.0 + PATIENCE) == []
    with caplog.at_level(logging.WARNING):
        await cluster.look(200.0 + PATIENCE)
    assert cluster.server.deleted == [("train-g1-0-0", "pod-0", None), ("train-g1-1-0", "pod-1", None)]
    assert "TrainingJob research/train is gone" in caplog.text
    assert "2 of its pods" in caplog.text


async def test_what_goes_already_is_not_asked_again(cluster: Cluster) -> None:
    cluster.delete_job()
    cluster.show(replace(worker(0), terminating=True))
    assert await cluster.look(0.0, PATIENCE) == ["train-g1-1-0"]
    cluster.show(replace(worker(1), terminating=True))
    assert await cluster.look(2 * PATIENCE, 3 * PATIENCE) == []
    assert cluster.server.asked == 1


async def test_ended_pods_go_too_for_the_name_of_one_that_is_made_again(cluster: Cluster) -> None:
    cluster.delete_job()
    cluster.show(replace(worker(0), phase="Succeeded"))
    assert await cluster.look(0.0, PATIENCE) == ["train-g1-0-0", "train-g1-1-0"]


async def test_a_job_made_again_under_the_name_keeps_none_of_the_others_pods(cluster: Cluster) -> None:
    again = {**RAW, "metadata": {**RAW["metadata"], "uid": "u2"}}
    cluster.cache.on_job(("research", "train"), TrainingJob.from_raw(again))
    cluster.server.uid = "u2"
    assert await cluster.look(0.0, PATIENCE) == ["train-g1-0-0", "train-g1-1-0"]


async def test_the_pods_of_one_that_cannot_be_read_or_that_the_watch_has_not_shown_stay(cluster: Cluster) -> None:
    cluster.delete_job()
    cluster.server.uid = "u1"
    assert await cluster.look(*(PATIENCE * number / 4 for number in range(13))) == []
    assert cluster.server.asked == 3, "it is asked for as often as the patience ends, not in each look"


@pytest.mark.parametrize(
    "trouble",
    [
        ApiError(503, "", "overloaded"),
        ApiUnreachable("refused"),
        ApiError(404, "NotFound", "the kind is not served"),
    ],
)
async def test_they_stay_while_the_api_server_does_not_say_that_it_is_gone(
    cluster: Cluster, trouble: Exception
) -> None:
    cluster.delete_job()
    cluster.server.trouble = trouble
    assert await cluster.look(0.0, PATIENCE) == []
    cluster.server.trouble = None
    assert await cluster.look(2 * PATIENCE) == ["train-g1-0-0", "train-g1-1-0"]


async def test_a_job_is_not_taken_for_deleted_while_its_kind_is_not_served(cluster: Cluster) -> None:
    """When it is read because nobody knows what its last write came to."""
    api: Any = cluster.server
    job, executor = TrainingJob.from_raw(RAW), Executor(api, b"k" * 16)
    assert await executor.read(job) is None, "it is gone"
    cluster.server.trouble = ApiError(404, "NotFound", "the kind is not served")
    with pytest.raises(ApiError):
        await executor.read(job)
