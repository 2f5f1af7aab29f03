"""What makes the planner look again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.cluster.views import NodeView, PodView
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
        place = {"generation": "1", "index": name.rpartition("-")[2], "attempt": "0"}
        raw["metadata"] |= {"name": f"{owner}-g1-{place['index']}-0"}
        raw["metadata"]["labels"] = {f"muster.dev/{key}": value for key, value in {"job": owner, **place}.items()}
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


def test_a_lost_node_gives_those_a_turn_that_have_pods_there_now(cache: Cache) -> None:
    stays, goes, moves = pod("stays-0", "a"), pod("goes-0", "b"), pod("moves-0", "c")
    for each in (stays, goes, moves):
        cache.on_pod(each.key, each)
    cache.on_pod(goes.key, None)
    cache.on_pod(moves.key, replace(moves, node="node-2"))
    cache.dirty.clear()
    cache.on_node("node-1", None)
    assert cache.dirty == {"a"}
    cache.on_pod(stays.key, None)
    cache.dirty.clear()
    cache.on_node("node-1", None)
    cache.on_node("node-3", None)
    assert not cache.dirty


def test_nothing_can_start_anywhere_while_no_node_with_gpus_is_ready() -> None:
    product = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}

    nodes = Items()
    cache = Cache(pods=Items(), nodes=nodes, namespaces=Items(), priority_classes=Items())

    def show(name: str, ready: str, labels: dict[str, str]) -> None:
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        nodes.items[name] = NodeView.from_raw({"metadata": {"name": name, "labels": labels}, "status": status})
        cache.on_node(name, nodes.items[name])

    show("cpus", "True", {})
    show("gpus", "Unknown", product)
    assert cache.nowhere(gpus=True)
    assert not cache.nowhere(gpus=False)
    cache.grows = True
    assert not cache.nowhere(gpus=True), "an autoscaler may bring one"
    cache.grows = False
    show("gpus", "True", product)
    assert not cache.nowhere(gpus=True)


def test_pods_that_went_are_told_once_with_the_job_that_owned_them(cache: Cache) -> None:
    first, other = pod("worker-0"), pod("worker-1")
    for one in (first, other):
        cache.on_pod(one.key, one)
    cache.on_pod(first.key, replace(first, phase="Running"))
    assert cache.take_gone() == {}
    cache.on_pod(first.key, replace(first, uid="made-anew"))
    cache.on_pod(other.key, None)
    assert cache.take_gone() == {("team", "job-uid"): {"worker-0-uid", "worker-1-uid"}}
    assert cache.take_gone() == {}


def test_a_strangers_pod_is_a_reason_to_plan_when_it_comes_and_when_it_goes(cache: Cache) -> None:
    came = pod("stranger", owner="")
    cache.on_pod(came.key, came)
    assert cache.take_world_changed()
    cache.on_pod(came.key, came)
    assert not cache.take_world_changed()
    cache.on_pod(came.key, None)
    assert cache.take_world_changed()
