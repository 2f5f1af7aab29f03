"""Requests for nodes as they are made and deleted, against an API server that is a dict."""

from __future__ import annotations

from typing import Any

import pytest

from muster.cluster.pods import PodSettings
from muster.cluster.provisioning import Asking
from muster.controllers.cache import Cache
from muster.controllers.provisioning import Provisioning
from muster.controllers.records import Record
from muster.scheduling.plan import Waiting, WaitReason

from .lifecycle.cases import trainingjob
from .loops import Items

pytestmark = pytest.mark.unit

Object = dict[str, Any]


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
    asking = Asking("some.class", patience=patience)
    return Provisioning(server, cache, asking, PodSettings("runtime"))  # type: ignore[arg-type]  # all that is called


def waiting(record: Record) -> Record:
    record.waiting = Waiting(record.uid, WaitReason.INSUFFICIENT_CAPACITY, "", 1, has_quota=True)
    return record


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
