"""An object that does not fit this version's model is left alone, says so, and stops nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.cluster.pods import PodSettings
from muster.controllers.assembly import Scheduling

pytestmark = pytest.mark.unit


class Api:
    """Takes patches and remembers them."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, Any]] = []

    async def merge_patch(self, path: str, patch: Any) -> None:
        self.patches.append((path, patch))

    async def proxy(self) -> None:
        raise AssertionError("no launcher is to be called")


def raw(name: str, **spec: Any) -> dict[str, Any]:
    good = {"image": "x", "command": ["c"], "workers": {"replicas": 1}}
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "1", "generation": 3}
    return {"metadata": metadata, "spec": {**good, **spec}}


def scheduling(api: Any) -> Scheduling:
    settings = PodSettings("x")
    return Scheduling(api, settings=settings, token_key=b"k" * 32, tell=lambda record, note: None, through_proxy=True)


async def test_an_unreadable_job_under_the_name_of_one_that_is_gone_does_not_keep_it() -> None:
    side = scheduling(Api())
    side.job("ns/a", raw("a"))
    assert [job.metadata.uid for job in side.cache.take_jobs()] == ["uid-a"]
    other = raw("a", workers={"replicas": "many"})
    other["metadata"]["uid"] = "another"
    side.job("ns/a", other)
    assert side.cache.take_deleted() == {"uid-a"}
    await asyncio.sleep(0)


async def test_an_unreadable_job_gets_a_condition_once_and_the_others_go_on() -> None:
    api: Any = Api()
    side = scheduling(api)
    bad = raw("bad", workers={"replicas": "many"})
    bad["status"] = {"conditions": [{"type": "Running", "status": "True"}]}
    side.job("ns/bad", bad)
    side.job("ns/good", raw("good"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [job.metadata.name for job in side.cache.take_jobs()] == ["good"]
    ((path, patch),) = api.patches
    assert path.endswith("/namespaces/ns/trainingjobs/bad/status")
    kept, condition = patch["status"]["conditions"]
    assert kept == {"type": "Running", "status": "True"}
    assert (condition["type"], condition["status"], condition["reason"]) == ("Admitted", "False", "InvalidSpec")
    assert "spec.workers.replicas" in condition["message"]
    side.job("ns/bad", {**bad, "status": patch["status"]})
    await asyncio.sleep(0)
    assert len(api.patches) == 1
