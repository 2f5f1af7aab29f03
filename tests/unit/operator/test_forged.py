"""Pods that say they are a gang's and are not: who may make pods in a namespace writes labels and owners at will."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.trainingqueue import TrainingQueue
from muster.cluster.views import PodView

from .loops import World, compressed, world

pytestmark = pytest.mark.unit

QUEUE = TrainingQueue.from_raw(
    {
        "metadata": {"name": "q", "uid": "q", "generation": 2},
        "spec": {
            "namespaces": {"matchLabels": {"kubernetes.io/metadata.name": "ns"}},
            "quotas": [{"resources": [{"name": "cpu", "nominal": "3"}, {"name": "memory", "nominal": "1Gi"}]}],
        },
    }
)
OURS = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}


def pod(
    name: str, namespace: str, owner: dict[str, Any], *, phase: str, cpu: str = "1", **labels: str
) -> tuple[str, PodView]:
    raw = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-of-{namespace}/{name}",
            "labels": {f"muster.dev/{key}": value for key, value in labels.items()},
            "ownerReferences": [{"name": "victim", "controller": True, **owner}],
        },
        "spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": phase, "reason": "OutOfcpu" if phase == "Failed" else ""},
    }
    view = PodView.from_raw(raw)
    return view.key, view


def show(around: World, key: str, view: PodView) -> None:
    around.pods.items[key] = view
    around.cache.on_pod(key, view)


async def running(around: World, name: str) -> None:
    """Its gang of two, all ready."""
    around.submit(name)
    await around.until(lambda: len(around.server.pods) == 2)
    for pod in list(around.server.pods):
        around.show(pod, "Running")
    await around.until(lambda: around.status(name).get("ready") == 2)


def test_a_pod_of_another_namespace_is_no_worker_whatever_owner_it_names() -> None:
    async def scene() -> None:
        async with world() as around:
            await running(around, "victim")
            gang = {"job": "victim", "generation": "1", "attempt": "0"}
            owner = {**OURS, "uid": "uid-of-victim"}
            show(around, *pod("victim-g1-0-0", "elsewhere", owner, phase="Failed", index="0", **gang))
            show(around, *pod("victim-g9--1-0", "elsewhere", owner, phase="Pending", **{**gang, "generation": "9"}))
            around.submit("after", workers=1)  # what comes later is looked at later
            await around.until(lambda: around.placed("after"))
            assert around.status("victim").get("stop") is None
            assert around.status("victim").get("placement")
            assert "DELETE pods" not in around.server.calls, "nothing is deleted for what is elsewhere"

    compressed(scene())


@pytest.mark.parametrize("phase", ["Failed", "Succeeded", "Pending"])
def test_a_copy_of_a_workers_pod_under_another_name_is_no_worker(phase: str) -> None:
    """Who debugs takes a pod's YAML, changes its name, and applies it: labels and owner stay."""

    async def scene() -> None:
        async with world() as around:
            await running(around, "job")
            gang = {"job": "job", "generation": "1", "index": "1", "attempt": "0"}
            show(around, *pod("my-copy", "ns", {**OURS, "uid": "uid-of-job"}, phase=phase, **gang))
            around.submit("after", workers=1)  # what comes later is looked at later
            await around.until(lambda: around.placed("after"))
            assert around.status("job").get("stop") is None
            assert around.status("job")["ready"] == 2
            assert "DELETE pods" not in around.server.calls

    compressed(scene())


@pytest.mark.parametrize(
    ("owner", "namespace", "starts"),
    [
        pytest.param({**OURS, "uid": "gone"}, "ns", False, id="a job's that is gone holds its queue's quota"),
        pytest.param({**OURS, "uid": "gone"}, "elsewhere", True, id="the queue is not open to its namespace"),
        pytest.param({"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "r"}, "ns", True, id="no job's"),
    ],
)
def test_a_queues_quota_is_held_by_jobs_that_may_be_in_it(owner: dict[str, Any], namespace: str, starts: bool) -> None:
    async def scene() -> None:
        async with world() as around:
            around.cache.on_queue("q", QUEUE)
            worker = {"job": "some", "queue": "q", "generation": "1", "index": "0", "attempt": "0"}
            show(around, *pod("some-g1-0-0", namespace, owner, phase="Pending", cpu="2", **worker))
            around.submit("job")
            await around.until(lambda: around.placed("job") or (around.status("job").get("queue") or {}).get("reason"))
            assert around.placed("job") is starts

    compressed(scene())
