"""The name of a job's Service, or of its pods, is taken: by whom, and what helps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.api.placement import Placement
from muster.cluster.errors import ApiError
from muster.cluster.executor import Executor, Outcome
from muster.cluster.pods import Identity

from .loops import World, worker_pod, world

pytestmark = pytest.mark.unit

JOB = Identity("research", "llama", "new")
OURS = {"app.kubernetes.io/managed-by": "muster", "muster.dev/job": "llama", "muster.dev/job-uid": "old"}


class Taken:
    """An API server that has the Service already."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = {"name": "llama", **metadata}

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/services"):
            raise ApiError(409, "AlreadyExists", "is there")
        return body

    async def get(self, path: str) -> dict[str, Any]:
        assert path.endswith("/services/llama")
        return {"metadata": self.metadata}


async def made(**metadata: Any) -> Outcome:
    executor = Executor(Taken(metadata), b"k" * 16)  # type: ignore[arg-type]  # it has all that is called
    return await executor.make(JOB, {}, Placement.of(1, ["n0"]), ())


async def test_what_a_deleted_job_has_left_behind_is_named_with_the_command_that_removes_it() -> None:
    told = (await made(labels=OURS)).refused
    assert "--cascade=orphan" in told
    assert "kubectl delete pods,services,secrets -n research -l muster.dev/job-uid=old" in told


async def test_a_service_of_somebody_else_is_left_alone() -> None:
    assert "that is not Muster's" in (await made()).refused
    deployed = [{"kind": "Deployment", "uid": "d"}]
    assert "that is not Muster's" in (await made(labels=OURS, ownerReferences=deployed)).refused


async def test_an_earlier_jobs_is_waited_for_and_its_own_taken() -> None:
    earlier, own = ([{"kind": "TrainingJob", "uid": uid}] for uid in ("old", "new"))
    told = (await made(labels=OURS, ownerReferences=earlier)).incomplete
    assert "not gone yet" in told
    assert told.endswith("kubectl delete service llama -n research")
    found = await made(labels=OURS, ownerReferences=own)
    assert (found.refused, found.incomplete) == ("", "")


def leave(place: World, node: str, generation: int) -> None:
    """A pod of a job `llama` that is gone, as its node has not ended it."""
    deleted = "2026-03-01T12:00:00Z"
    pod = worker_pod("llama", 0, owner="old", generation=generation, node=node, deletionTimestamp=deleted)
    place.pods.items[pod.key] = pod
    place.cache.on_pod(pod.key, pod)


async def test_a_job_made_again_does_not_wait_for_pods_that_a_lost_node_keeps() -> None:
    async with world() as place:
        for generation in (1, 2):
            leave(place, "dead", generation)
        place.submit("llama")
        await place.until(lambda: {"llama-g3-0-0", "llama-g3-1-0"} <= place.server.pods.keys())
        assert place.status("llama")["placement"]["generation"] == 3


async def test_a_gang_that_meets_them_since_its_node_was_lost_later_is_taken_back() -> None:
    """And placed anew, with other names."""
    async with world() as place:
        place.nodes.items["dying"] = replace(place.nodes.items["n"], name="dying", unschedulable=True)
        leave(place, "dying", 1)
        place.server.fail["POST pods"] = lambda: ApiError(503, "", "as if the name were taken")
        place.submit("llama")
        await place.until(lambda: place.server.calls["POST pods"])
        del place.nodes.items["dying"]
        place.cache.on_node("dying", None)
        await place.until(lambda: place.status("llama").get("withdrawals"))
        assert "a node that keeps pods of an earlier job is lost" in str(place.notes)


async def test_pods_that_save_on_a_node_which_answers_are_waited_for() -> None:
    """What they save is what the job made again goes on from."""
    async with world() as place:
        leave(place, "n", 1)
        place.submit("llama")
        await place.until(lambda: place.placed("llama"))
        assert place.status("llama")["placement"]["generation"] == 1
