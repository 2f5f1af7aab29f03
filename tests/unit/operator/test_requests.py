"""Cases after kube-scheduler's own: what a pod asks of its node."""

from __future__ import annotations

from typing import Any

import pytest

from muster.cluster.requests import requests_of

pytestmark = pytest.mark.unit


def container(name: str = "c", **more: Any) -> dict[str, Any]:
    requests = {key: more.pop(key) for key in ("cpu", "memory") if key in more}
    return {"name": name, "resources": {"requests": requests}, **more}


def asked(spec: dict[str, Any], status: dict[str, Any] | None = None) -> dict[str, int]:
    return dict(requests_of(spec, status))


def test_containers_run_together_and_are_summed() -> None:
    spec = {"containers": [container("a", cpu="500m", memory="1Gi"), container("b", cpu="1")]}
    assert asked(spec) == {"cpu": 1500, "memory": 2**30, "pods": 1}


def test_fractions_are_rounded_once_after_the_sum() -> None:
    spec = {"containers": [container("a", cpu="0.1m"), container("b", cpu="0.1m")]}
    assert asked(spec) == {"cpu": 1, "pods": 1}


def test_init_containers_run_one_after_another() -> None:
    spec = {
        "initContainers": [container("i", cpu="2"), container("j", cpu="3", memory="10")],
        "containers": [container("a", cpu="1", memory="20")],
    }
    assert asked(spec) == {"cpu": 3000, "memory": 20, "pods": 1}


def test_a_sidecar_runs_beside_the_containers() -> None:
    spec = {
        "initContainers": [container("s", cpu="2", restartPolicy="Always")],
        "containers": [container("a", cpu="1")],
    }
    assert asked(spec)["cpu"] == 3000


def test_a_sidecar_runs_beside_the_init_containers_that_follow_it_but_not_those_before() -> None:
    sidecar = container("s", cpu="2", restartPolicy="Always")
    early, late = container("early", cpu="4"), container("late", cpu="4")
    containers = [container("a", cpu="1")]
    assert asked({"initContainers": [early, sidecar], "containers": containers})["cpu"] == 4000
    assert asked({"initContainers": [sidecar, late], "containers": containers})["cpu"] == 6000


def test_overhead_comes_on_top() -> None:
    spec = {"containers": [container(cpu="1")], "overhead": {"cpu": "250m", "memory": "10"}}
    assert asked(spec) == {"cpu": 1250, "memory": 10, "pods": 1}


def test_requests_of_the_whole_pod_take_the_place_of_the_sum() -> None:
    spec = {
        "containers": [container(cpu="1", memory="10")],
        "resources": {"requests": {"cpu": "5"}},
        "overhead": {"cpu": "1"},
    }
    assert asked(spec) == {"cpu": 6000, "memory": 10, "pods": 1}


def test_extended_resources_are_counted_in_pieces() -> None:
    spec = {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "8", "example.com/nic": "2"}}}]}
    assert asked(spec) == {"nvidia.com/gpu": 8, "example.com/nic": 2, "pods": 1}


def test_host_ports_are_resources_of_their_own() -> None:
    spec = {
        "initContainers": [container("s", restartPolicy="Always", ports=[{"containerPort": 1, "hostPort": 9100}])],
        "containers": [
            container("a", ports=[{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]),
            container("b", ports=[{"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]),
        ],
    }
    assert asked(spec) == {"hostport/TCP/8080": 1, "hostport/TCP/9100": 1, "hostport/UDP/53": 1, "pods": 1}


def test_on_the_hosts_network_every_port_is_a_host_port() -> None:
    spec = {"hostNetwork": True, "containers": [container("a", ports=[{"containerPort": 80}])]}
    assert asked(spec) == {"hostport/TCP/80": 1, "pods": 1}


def test_while_a_resize_is_under_way_the_most_counts() -> None:
    spec = {"containers": [container("a", cpu="1")]}
    status = {
        "containerStatuses": [
            {"name": "a", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1500m"}}
        ]
    }
    assert asked(spec, status)["cpu"] == 2000


def test_what_the_node_can_never_give_is_a_wish() -> None:
    spec = {"containers": [container("a", cpu="100")]}
    status: dict[str, Any] = {
        "containerStatuses": [
            {"name": "a", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"}}
        ]
    }
    status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    assert asked(spec, status)["cpu"] == 2000
    status["conditions"][0]["reason"] = "Deferred"
    assert asked(spec, status)["cpu"] == 100_000


def test_a_resize_of_the_whole_pod_counts_as_one_of_a_container_does() -> None:
    spec = {"containers": [container(cpu="1")], "resources": {"requests": {"cpu": "5"}}}
    status: dict[str, Any] = {"resources": {"requests": {"cpu": "7"}}, "allocatedResources": {"cpu": "6"}}
    assert asked(spec, status)["cpu"] == 7000
    assert asked(spec, {"allocatedResources": {"cpu": "6"}})["cpu"] == 5000
    spec["resources"] = {"requests": {"cpu": "50"}}
    status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    assert asked(spec, status)["cpu"] == 7000


def test_init_containers_are_not_resized_but_sidecars_are() -> None:
    status = {"initContainerStatuses": [{"name": "i", "resources": {"requests": {"cpu": "9"}}}]}
    assert asked({"initContainers": [container("i", cpu="1")], "containers": []}, status)["cpu"] == 1000
    sidecar = container("i", cpu="1", restartPolicy="Always")
    assert asked({"initContainers": [sidecar], "containers": []}, status)["cpu"] == 9000


def test_what_is_only_limited_is_asked_for_as_the_api_server_makes_it_so() -> None:
    limited = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "4"}, "requests": {"cpu": "1"}}}
    assert asked({"containers": [limited]}) == {"nvidia.com/gpu": 8, "cpu": 1000, "pods": 1}
    whole = {"limits": {"cpu": "8", "memory": "10", "hugepages-2Mi": "4"}}
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "hugepages-2Mi": "2"}}}],
        "resources": whole,
    }
    assert asked(spec) == {"cpu": 1000, "memory": 10, "hugepages-2Mi": 4, "pods": 1}


def test_a_pod_that_asks_for_nothing_still_takes_a_pods_place() -> None:
    assert asked({"containers": [{"name": "c"}]}) == {"pods": 1}
