"""Whose word on idle GPUs holds for a queue's jobs."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.trainingqueue import TrainingQueue
from muster.controllers.idle_limits import IdleLimit, idle_limit

pytestmark = pytest.mark.unit


def queues(**specs: dict[str, Any]) -> dict[str, TrainingQueue]:
    return {name: TrainingQueue.from_raw({"metadata": {"name": name}, "spec": spec}) for name, spec in specs.items()}


def test_the_nearest_queue_speaks() -> None:
    found = queues(
        lab={"idle": {"after": "2h", "action": "suspend"}},
        vision={"parent": "lab"},
        speech={"parent": "lab", "idle": {}},
        notebooks={"parent": "lab", "idle": {"action": "none"}},
        other={},
    )
    assert idle_limit("lab", found) == idle_limit("vision", found) == IdleLimit("lab", 7200, 30, suspends=True)
    assert idle_limit("speech", found) == IdleLimit("speech", 1800, 30, suspends=False)
    assert idle_limit("notebooks", found) is None
    assert idle_limit("other", found) is None
    assert idle_limit("nowhere", found) is None


def test_parents_in_a_circle_say_nothing() -> None:
    assert idle_limit("a", queues(a={"parent": "b"}, b={"parent": "a"})) is None
