"""Gangs that need every GPU; run last, when nothing else holds one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hack.cluster.plan import Options
from hack.demo.kube import condition

if TYPE_CHECKING:
    from conftest import World

ECHO = ("python3", "-c", "print('hello')")


def test_a_gang_starts_when_the_room_for_its_last_pod_is_free(world: World) -> None:
    """Other people's pods hold one GPU of the cluster: a gang that needs all starts none, and then all."""
    squatter = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "squatter", "namespace": world.namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "pause",
                    "image": "localhost/muster/pause:local",
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                }
            ],
        },
    }
    world.apply(squatter)
    world.wait("the squatter", lambda: _runs(world, "squatter"), 60)
    whole = world.plain("whole-cluster", *ECHO, replicas=2, gpus=Options().gpus)
    whole["spec"]["workers"]["processesPerWorker"] = 1
    world.apply(whole)
    world.until("whole-cluster", "waits", lambda job: condition(job, "Admitted") and job["status"].get("queue"))
    assert not world.pods("whole-cluster")
    world.kube.kubectl("delete", "pod", "squatter", "-n", world.namespace)
    world.until_succeeded("whole-cluster")


def _runs(world: World, pod: str) -> bool:
    found = world.kube.get(f"/api/v1/namespaces/{world.namespace}/pods/{pod}")
    return bool(found) and found["status"].get("phase") == "Running"


def test_two_gangs_that_each_need_the_whole_cluster_run_one_after_the_other(world: World) -> None:
    names = ("whole-a", "whole-b")
    for name in names:
        job = world.plain(name, *ECHO, replicas=2, gpus=Options().gpus)
        job["spec"]["workers"]["processesPerWorker"] = 1
        world.apply(job)
    for name in names:
        world.until_succeeded(name)
