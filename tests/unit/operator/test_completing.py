"""What Tab offers behind a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from muster.cli import completing
from muster.cluster.errors import ApiError

pytestmark = pytest.mark.unit

OBJECTS = {
    ("trainingjobs", "own"): ["llama-b", "llama-a", "gpt"],
    ("trainingjobs", "other"): ["llama-c"],
    ("trainingqueues", None): ["lab", "vision"],
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    api = SimpleNamespace(credentials=SimpleNamespace(namespace="own"), refuses=False)

    @asynccontextmanager
    async def connected(*_: Any) -> AsyncIterator[SimpleNamespace]:
        yield api

    async def listed(_: Any, plural: str, namespace: str | None = None) -> list[dict[str, Any]]:
        if api.refuses:
            raise ApiError(403, "Forbidden", "you may not list them")
        return [{"metadata": {"name": name}} for name in OBJECTS[plural, namespace]]

    monkeypatch.setattr(completing, "connected", connected)
    monkeypatch.setattr(completing, "listed", listed)
    return api


def test_names_that_begin_as_typed_are_offered_of_the_namespace_that_is_meant(server: SimpleNamespace) -> None:
    line: Any = SimpleNamespace(params={})
    assert completing.jobs(line, "ll") == ["llama-a", "llama-b"]
    assert completing.queues(line, "") == ["lab", "vision"]
    line.params["namespace"] = "other"
    assert completing.jobs(line, "") == ["llama-c"]
    assert completing.queues(line, "v") == ["vision"], "they are of no namespace"
    server.refuses = True
    assert (completing.jobs(line, ""), completing.queues(line, "")) == ([], [])
