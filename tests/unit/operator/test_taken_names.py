"""The name of a job's Service is taken: by whom, and what helps."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.placement import Placement
from muster.cluster.errors import ApiError
from muster.cluster.executor import Executor, Outcome
from muster.cluster.pods import Identity

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
    assert "not gone yet" in (await made(labels=OURS, ownerReferences=earlier)).incomplete
    found = await made(labels=OURS, ownerReferences=own)
    assert (found.refused, found.incomplete) == ("", "")
