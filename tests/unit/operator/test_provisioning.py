"""Requests for nodes as they are made and deleted, against an API server that is a dict."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.api.trainingjob import TrainingJob
from muster.cluster.errors import ApiError
from muster.cluster.pods import PodSettings
from muster.cluster.provisioning import Asking
from muster.controllers import provisioning
from muster.controllers.cache import Cache
from muster.controllers.provisioning import Provisioning
from muster.controllers.records import Record
from muster.scheduling.plan import Waiting, WaitReason, Wanted

from .lifecycle.cases import trainingjob
from .loops import Items

pytestmark = pytest.mark.unit

Object = dict[str, Any]
GROUPS = {f"H100/{kind}": {"pool": kind} for kind in ("spot", "on-demand")}


class Server:
    """The API server's requests and templates by path."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}

    @property
    def requests(self) -> list[Object]:
        return [raw for path, raw in self.objects.items() if "/provisioningrequests/" in path]

    async def list(self, path: str, *, labelSelector: str) -> list[Object]:  # noqa: N803 - as the API has it
        return self.requests

    async def create(self, path: str, body: Object) -> Object:
        own = {"uid": f"uid-of-{body['metadata']['name']}", "creationTimestamp": "2026-03-01T12:00:00Z"}
        made = {**body, "metadata": {**body["metadata"], **own}}
        self.objects[f"{path}/{body['metadata']['name']}"] = made
        return made

    async def delete(self, path: str, *, uid: str = "") -> None:
        del self.objects[path]


def operator(server: Server, *, patience: float = 0.0) -> Provisioning:
    """What one operator asks an autoscaler, from its start on."""
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    asking = Asking("some.class", patience=patience, node_selectors=GROUPS)
    return Provisioning(server, cache, asking, PodSettings("runtime"))  # type: ignore[arg-type]  # all that is called


def waiting(record: Record, *wanted: Wanted) -> Record:
    wanted = wanted or (Wanted("H100/on-demand", 2),)
    record.waiting = Waiting(record.uid, WaitReason.INSUFFICIENT_CAPACITY, "", 1, wanted=wanted)
    return record


def of(name: str) -> Record:
    raw = trainingjob().to_raw()
    raw["metadata"] |= {"name": name, "uid": f"uid-of-{name}"}
    return Record.of(TrainingJob.from_raw(raw))


async def test_an_operator_that_begins_keeps_what_the_one_before_it_has_asked_for() -> None:
    server, job = Server(), trainingjob()
    await operator(server).round({"0123456789abcdef": waiting(Record.of(job))})
    (request,) = server.requests
    begun, record = operator(server, patience=15.0), Record.of(job)
    await begun.round({})  # the loop has not come to its jobs
    await begun.round({record.uid: record})  # no plan has had a word on it
    await begun.round({record.uid: waiting(record)})  # it has not lacked nodes for long in this operator's time
    assert server.requests == [request]
    await begun.round({})
    assert not server.objects, "its job is gone"


async def test_what_the_planner_wants_nodes_for_is_asked_for_one_after_the_other() -> None:
    server, record = Server(), Record.of(trainingjob(workers={"replicas": 4, "min": 2, "gpusPerWorker": 1}))
    waiting(record, Wanted("H100/spot", 4), Wanted("H100/spot", 2), Wanted("H100/on-demand", 2))
    begun, asked = operator(server), []
    for _ in range(4):
        await begun.round({record.uid: record})
        (request,) = server.requests
        (template,) = [raw for raw in server.objects.values() if raw["kind"] == "PodTemplate"]
        asked.append((template["template"]["spec"]["nodeSelector"]["pool"], request["spec"]["podSets"][0]["count"]))
        failed = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-03-01T12:00:00Z"}
        request["status"] = {"conditions": [failed]}
    assert asked == [("spot", 4), ("spot", 2), ("on-demand", 2), ("spot", 4)]


async def test_a_job_that_goes_while_others_are_asked_for_ends_nothing() -> None:
    server, records = Server(), {each.uid: waiting(each) for each in (of("a"), of("b"))}
    create = server.create

    async def and_one_goes(path: str, body: Object) -> Object:
        records.pop("uid-of-b", None)
        return await create(path, body)

    server.create = and_one_goes  # type: ignore[method-assign]
    await operator(server).round(records)
    assert records["uid-of-a"].capacity is not None


async def test_a_request_that_a_webhook_guards_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    server, records = Server(), {each.uid: waiting(each) for each in (of("a"), of("b"))}
    begun, delete = operator(server), server.delete
    await begun.round(records)
    guarded, plain = (f"{each['metadata']['name']}" for each in server.requests)

    async def guard(path: str, *, uid: str = "") -> None:
        if guarded in path:
            raise ApiError(403, "Forbidden", "a webhook denied the request")
        await delete(path, uid=uid)

    server.delete = guard  # type: ignore[method-assign]
    late = waiting(of("c"))
    await begun.round({late.uid: late})
    assert late.capacity is not None
    assert not [path for path in server.objects if plain in path]
    assert f"{guarded}: the request can't be deleted: " in caplog.text


async def test_a_cluster_without_the_api_is_told_of_once_and_when_it_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Without(Server):
        looks = 0

        async def list(self, path: str, *, labelSelector: str) -> list[Object]:  # noqa: N803 - as the API has it
            self.looks += 1
            if self.looks == 4:
                raise asyncio.CancelledError
            if self.looks < 3:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")
            return []

    monkeypatch.setattr(provisioning, "ABSENT", 0.0)
    monkeypatch.setattr(provisioning, "LOOK", 0.0)
    caplog.set_level("INFO")
    with pytest.raises(asyncio.CancelledError):
        await operator(Without()).run({})
    absent, there = [record for record in caplog.records if record.name == provisioning.__name__]
    assert absent.levelname == "WARNING"
    assert "does not serve /apis/autoscaling.x-k8s.io/" in absent.getMessage()
    assert there.getMessage().endswith("the API is there now")
