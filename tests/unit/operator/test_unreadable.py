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


async def test_what_an_older_crd_took_is_told_and_stops_nobody() -> None:
    """Durations have at most six digits for each unit now; a stored object keeps what it was made with."""
    api: Any = Api()
    side = scheduling(api)
    side.job("ns/old", raw("old", maxRuntime="9999999s"))
    side.job("ns/good", raw("good"))
    queue = {"metadata": {"name": "q", "uid": "u", "resourceVersion": "1", "generation": 1}}
    side.queue(("", "q"), {**queue, "spec": {"defaultTemplate": {"maxRuntime": "9999999s"}}})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [job.metadata.name for job in side.cache.take_jobs()] == ["good"]
    assert ("q" in side.cache.queues, side.cache.unreadable) == (False, {"q"})
    (job_path, job), (queue_path, told) = api.patches
    assert (job_path.rsplit("/", 2)[1:], queue_path.rsplit("/", 2)[1:]) == (["old", "status"], ["q", "status"])
    assert "spec.maxRuntime: Value error, '9999999s' is not a duration" in job["status"]["conditions"][0]["message"]
    (ready,) = told["status"]["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "InvalidSpec")
    assert "can't read the queue: spec.defaultTemplate.maxRuntime" in ready["message"]
    side.queue(("", "q"), {**queue, "spec": {}})
    assert ("q" in side.cache.queues, side.cache.unreadable) == (True, set())


@pytest.mark.parametrize(
    "status",
    [
        {"month": {"until": "2026-01-01T00:00:00Z", "uses": [{"gpuType": "H100", "hourly": "much"}]}},
        {"fairShare": {"share": "nan", "mean": "0", "at": "2026-01-01T00:00:00Z"}},
        {"fairShare": {"share": "0", "mean": "0", "at": "0001-01-01T00:00:00+12:00"}},
    ],
)
async def test_a_queues_status_that_cannot_be_read_begins_anew(status: dict[str, Any]) -> None:
    side = scheduling(Api())
    side.queue(("", "q"), {"metadata": {"name": "q", "uid": "u"}, "spec": {"cohort": "c"}, "status": status})
    found = side.cache.queues["q"]
    assert (found.spec.cohort, found.status.month, found.status.fair_share) == ("c", None, None)


@pytest.mark.parametrize("levels", [65, 900, 5000])
@pytest.mark.parametrize("where", ["podTemplate", "volumes"])
async def test_what_is_too_deep_to_be_written_again_is_unreadable(where: str, levels: int) -> None:
    deep: Any = "x"
    for level in range(levels):
        deep = {"a": deep} if level % 2 else [deep]
    spec = {"podTemplate": {"spec": {"affinity": deep}}, "volumes": [{"name": "v", "any": deep}]}
    api: Any = Api()
    side = scheduling(api)
    side.job("ns/bad", raw("bad", **{where: spec[where]}))
    side.job("ns/good", raw("good", podTemplate={"spec": {"affinity": {"nodeAffinity": {"a": [{"b": ["c"]}]}}}}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [job.metadata.name for job in side.cache.take_jobs()] == ["good"]
    ((_, patch),) = api.patches
    assert "more than 64 levels of mappings and lists" in str(patch)
