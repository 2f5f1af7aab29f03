"""What makes the planner look again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.cluster.views import PodView
from muster.controllers.cache import Cache

from .loops import Items

pytestmark = pytest.mark.unit


def pod(name: str, owner: str = "job-uid") -> PodView:
    raw: dict[str, Any] = {
        "metadata": {"namespace": "team", "name": name, "uid": f"{name}-uid"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "trainer", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Pending"},
    }
    if owner:
        raw["metadata"]["labels"] = {"muster.dev/job": "job"}
        reference = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": "job", "uid": owner}
        raw["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    return PodView.from_raw(raw)


@pytest.fixture
def cache() -> Cache:
    made = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    made.take_world_changed()
    return made


def test_a_gangs_pod_that_comes_is_no_reason_to_plan_but_its_end_is(cache: Cache) -> None:
    came = pod("worker-0")
    cache.on_pod(came.key, came)
    assert not cache.take_world_changed()
    assert cache.dirty == {"job-uid"}
    cache.on_pod(came.key, replace(came, phase="Running"))
    assert not cache.take_world_changed()
    cache.on_pod(came.key, replace(came, phase="Succeeded"))
    assert cache.take_world_changed()
    cache.on_pod(came.key, None)
    assert cache.take_world_changed()


def test_a_strangers_pod_is_a_reason_to_plan_when_it_comes_and_when_it_goes(cache: Cache) -> None:
    came = pod("stranger", owner="")
    cache.on_pod(came.key, came)
    assert cache.take_world_changed()
    cache.on_pod(came.key, came)
    assert not cache.take_world_changed()
    cache.on_pod(came.key, None)
    assert cache.take_world_changed()
