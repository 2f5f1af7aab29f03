"""`muster suspend` and `muster resume` write one field, and say what follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.cli import suspending
from muster.cli.scene import NotThere
from muster.cluster.errors import ApiError

pytestmark = pytest.mark.unit

PLACED = {"generation": 1, "workers": 1, "nodes": [{"node": "a", "indexes": "0"}]}


class Server:
    """A job, and what is written of it."""

    def __init__(self, *, suspended: bool = False, refuses: int = 0, saves: bool = True, **status: Any) -> None:
        spec = {
            "image": "i",
            "command": ["c"],
            "workers": {"replicas": 1},
            "suspend": suspended,
            **({"checkpoint": {"uri": "s3://models/train"}} if saves else {}),
        }
        meta = {"name": "train", "namespace": "research", "uid": "u"}
        self.job = {"metadata": meta, "spec": spec, "status": status}
        self.refuses, self.written = refuses, list[bool]()
        self.credentials = type("Credentials", (), {"namespace": "research"})

    async def get(self, path: str) -> dict[str, Any]:
        """Nothing else need be readable for whoever may edit the job: no pods, and no Events."""
        assert path == "/apis/muster.dev/v1alpha1/namespaces/research/trainingjobs/train"
        return self.job

    async def merge_patch(self, path: str, patch: dict[str, Any], *, manager: str) -> dict[str, Any]:
        assert (path, manager) == ("/apis/muster.dev/v1alpha1/namespaces/research/trainingjobs/train", "muster-cli")
        assert patch.keys() == {"metadata", "spec"}
        assert patch["metadata"] == {"uid": "u"}, "another job of that name is not meant"
        if self.refuses:
            raise ApiError(self.refuses, "Forbidden", "you may not patch trainingjobs")
        self.written.append(patch["spec"]["suspend"])
        return {}


async def said(monkeypatch: pytest.MonkeyPatch, what: str, server: Server) -> str:
    @asynccontextmanager
    async def connected(*_: Any) -> AsyncIterator[Server]:
        yield server

    async def somebody_leads(*_: Any) -> None:
        return None

    monkeypatch.setattr(suspending, "connected", connected)
    monkeypatch.setattr(suspending, "warn_unasked", somebody_leads)
    told: list[str] = []
    assert await getattr(suspending, what)("train", None, kubeconfig=None, context=None, write=told.append) == 0
    return "".join(told)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"phase": "Running", "placement": PLACED, "progress": {"step": 3}}, "train saves a checkpoint and stops; "),
        ({"phase": "Running", "placement": PLACED}, "train saves a checkpoint and stops; "),
        ({"phase": "Queued"}, "train waits no more; "),
        (
            {"phase": "Running", "placement": PLACED, "startedAt": "2026-01-01T00:00:00Z"},
            "train stops; its script has told of no step so far, and saves where it has a session and is in its loop",
        ),
    ],
)
async def test_a_job_is_suspended(monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], told: str) -> None:
    server = Server(**status)
    said_ = await said(monkeypatch, "suspend", server)
    assert said_.startswith(told)
    assert "`muster resume train -n research` queues it again" in said_
    assert server.written == [True]


async def test_one_that_saves_no_checkpoints_is_suspended_with_a_word_of_what_that_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(saves=False, phase="Running", placement=PLACED)
    said_ = await said(monkeypatch, "suspend", server)
    assert said_.startswith("train stops; it names no checkpoint.uri: what stops it loses all of its work; ")


async def test_a_suspended_one_is_resumed_and_stays_as_it_is_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(suspended=True, phase="Suspended")
    assert "suspended already" in await said(monkeypatch, "suspend", server)
    assert server.written == []
    assert await said(monkeypatch, "resume", server) == "train queues again, with its first submit time\n"
    assert server.written == [False]
    server = Server(phase="Running")
    assert await said(monkeypatch, "resume", server) == "train is not suspended\n"
    assert server.written == []


async def test_one_that_is_suspended_for_idle_gpus_is_resumed_by_a_spec_that_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    condition = {
        "type": "Suspended",
        "status": "True",
        "reason": "GPUsIdle",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    server = Server(phase="Suspended", conditions=[condition])
    assert "queues again" in await said(monkeypatch, "resume", server)
    assert server.written == [True, False]


@pytest.mark.parametrize("what", ["suspend", "resume"])
async def test_what_can_not_be_done_is_told(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with pytest.raises(NotThere, match="train has ended; only a job that has not"):
        await said(monkeypatch, what, Server(phase="Failed", finishedAt="2026-01-01T00:00:00Z"))
    with pytest.raises(NotThere, match="you may not patch trainingjobs; ask for Kubernetes' role edit"):
        await said(monkeypatch, what, Server(suspended=what == "resume", refuses=403))
    with pytest.raises(ApiError):
        await said(monkeypatch, what, Server(suspended=what == "resume", refuses=409))
