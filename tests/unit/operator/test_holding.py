"""`muster hold` and `muster release` write one field, and say what follows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from muster.api.trainingqueue import StopPolicy
from muster.cli import holding
from muster.cli.scene import NotThere
from muster.cluster.errors import ApiError

pytestmark = pytest.mark.unit

HOLD, DRAIN, OPEN = StopPolicy.HOLD, StopPolicy.HOLD_AND_DRAIN, StopPolicy.NONE


class Server:
    """Queues by name with their parent and policy, and what is written of them."""

    def __init__(self, queues: dict[str, tuple[str | None, StopPolicy]], refuses: int = 0) -> None:
        self.queues, self.refuses, self.running = queues, refuses, 2

    async def list(self, path: str) -> list[dict[str, Any]]:
        assert path == "/apis/muster.dev/v1alpha1/trainingqueues"
        return [
            {
                "metadata": {"name": name, "uid": f"uid-of-{name}"},
                "spec": {"stopPolicy": policy.value, **({"parent": parent} if parent else {})},
                "status": {"running": self.running},
            }
            for name, (parent, policy) in self.queues.items()
        ]

    async def merge_patch(self, path: str, patch: dict[str, Any], *, manager: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        assert patch == {"metadata": {"uid": f"uid-of-{name}"}, "spec": {"stopPolicy": patch["spec"]["stopPolicy"]}}
        assert manager == "muster-cli"
        if self.refuses:
            raise ApiError(self.refuses, "Forbidden", "you may not patch trainingqueues")
        self.queues[name] = (self.queues[name][0], StopPolicy(patch["spec"]["stopPolicy"]))
        return {}


def tree(**policies: StopPolicy) -> dict[str, tuple[str | None, StopPolicy]]:
    parents = {"lab": None, "vision": "lab", "speech": "lab"}
    return {name: (parent, policies.get(name, OPEN)) for name, parent in parents.items()}


async def said(monkeypatch: pytest.MonkeyPatch, server: Server, policy: StopPolicy, *names: str) -> str:
    @asynccontextmanager
    async def connected(*_: Any) -> AsyncIterator[Server]:
        yield server

    async def somebody_leads(*_: Any) -> None:
        return None

    monkeypatch.setattr(holding, "connected", connected)
    monkeypatch.setattr(holding, "warn_unasked", somebody_leads)
    told: list[str] = []
    assert await holding.stop(names, policy, kubeconfig=None, context=None, write=told.append) == 0
    return "".join(told)


async def test_a_queue_is_held_drained_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tree())
    assert await said(monkeypatch, server, HOLD, "lab") == (
        "lab is held: nothing new starts in it and 2 queues below it, and what runs (2 jobs) goes on; "
        "`muster release lab` ends that\n"
    )
    assert (await said(monkeypatch, server, HOLD, "lab")).startswith("lab is held already: ")
    assert (await said(monkeypatch, server, DRAIN, "vision")).startswith(
        "vision drains: nothing new starts in it, and what runs (2 jobs) saves a checkpoint, stops and waits"
    )
    assert server.queues == tree(lab=HOLD, vision=DRAIN)
    server.running = 0
    assert "and nothing runs there; `muster release vision`" in await said(monkeypatch, server, DRAIN, "vision")
    assert await said(monkeypatch, server, OPEN, "vision") == (
        "vision is released, but what is above it is held: `muster release lab`\n"
    )
    assert await said(monkeypatch, server, OPEN, "lab") == "lab is released: its jobs start again\n"
    assert await said(monkeypatch, server, OPEN, "lab") == "lab is not held\n"
    assert server.queues == tree()


async def test_what_is_released_together_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tree(lab=HOLD, vision=HOLD))
    told = await said(monkeypatch, server, OPEN, "vision", "lab", "vision")
    assert told == "vision is released: its jobs start again\nlab is released: its jobs start again\n"


async def test_nothing_is_written_where_one_name_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(tree())
    with pytest.raises(NotThere, match="no TrainingQueue 'vison'; did you mean 'vision'"):
        await said(monkeypatch, server, HOLD, "lab", "vison")
    assert server.queues == tree()


async def test_who_may_not_edit_queues_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotThere, match="you may not patch trainingqueues; queues are held and released by who may"):
        await said(monkeypatch, Server(tree(), refuses=403), HOLD, "lab")
    with pytest.raises(ApiError):
        await said(monkeypatch, Server(tree(), refuses=409), HOLD, "lab")
