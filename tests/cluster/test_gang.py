"""Gangs on a real API server and scheduler: whole, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hack.scheduling import GROUP

from muster.cluster.errors import ApiError
from muster_protocol.exits import Cause, ExitFacts, encode

from .conftest import ControlPlane
from .gangs import Corner, condition, corner

pytestmark = pytest.mark.cluster


@pytest.fixture
async def place(control_plane: ControlPlane) -> AsyncIterator[Corner]:
    async with corner(str(control_plane.kubeconfig)) as found:
        yield found


def nodes_of(pods: list[dict[str, Any]]) -> Counter[str]:
    return Counter(pod["spec"]["nodeName"] for pod in pods)


async def test_a_gang_runs_and_succeeds(place: Corner) -> None:
    await place.add_nodes(4)
    place.start()
    await place.submit("whole", 16)
    await place.until_phase("whole", "Running")
    pods = await place.pods("whole")
    assert sorted(nodes_of(pods).values()) == [4, 4, 4, 4]
    assert {pod["metadata"]["name"] for pod in pods} == {f"whole-g1-{index}-0" for index in range(16)}
    job = await place.succeed("whole")
    admitted = condition(job, "Admitted")
    assert admitted is not None
    assert admitted["status"] == "False"
    assert len(await place.pods("whole")) == 16, "ended pods stay for their logs"


async def test_with_room_for_all_but_one_no_pod_is_made_and_the_job_says_what_is_missing(place: Corner) -> None:
    names = await place.add_nodes(4)
    await place.foreign("stranger", names[0])
    place.start()
    await place.submit("short", 16)
    message = await place.until_waits("short", "InsufficientCapacity")
    assert "nvidia.com/gpu" in message
    assert not await place.pods("short")
    await place.api.delete(f"/api/v1/namespaces/{place.namespace}/pods/stranger")
    await place.until_phase("short", "Running")


async def test_two_gangs_that_each_need_the_whole_cluster_run_one_after_the_other(place: Corner) -> None:
    await place.add_nodes(2)
    place.start()
    await asyncio.gather(place.submit("one", 8), place.submit("two", 8))

    async def running() -> list[str]:
        jobs = [await place.job(name) for name in ("one", "two")]
        return [job["metadata"]["name"] for job in jobs if job.get("status", {}).get("phase") == "Running"]

    (first,) = await place.until("one of them runs", running)
    second = "two" if first == "one" else "one"
    await place.until_waits(second, "InsufficientCapacity")
    assert not await place.pods(second)
    await place.succeed(first)
    await place.until_phase(second, "Running")


async def test_room_that_a_stranger_takes_in_between_makes_the_gang_back_off_whole(place: Corner) -> None:
    """The operator sees pods 5 s late: it places a gang where kube-scheduler knows better."""
    names = await place.add_nodes(2)
    place.start(watch_delay=5.0)
    await place.submit("probe", 1, queue="none")
    await place.until_waits("probe", "QueueNotFound")  # its lists are in; what happens now is seen late
    await place.foreign("stranger", names[1])
    await place.submit("late", 8)
    job = await place.until_job("late", "is withdrawn", lambda job: job.get("status", {}).get("withdrawals") == 1)
    assert "Insufficient nvidia.com/gpu" in job["status"]["avoided"][0]["reason"]
    await place.until("no pod left", lambda: _none(place, "late"))
    job = await place.until_job("late", "tells why", lambda job: _waits_and_avoids(job, names[1]))
    assert "failures" not in job["status"]
    await place.api.delete(f"/api/v1/namespaces/{place.namespace}/pods/stranger")
    await place.until_phase("late", "Running", 60)


async def test_a_resource_quota_of_one_pod_too_few_withdraws_the_gang(place: Corner) -> None:
    await place.add_nodes(1)
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}}
    path = f"/api/v1/namespaces/{place.namespace}/resourcequotas"
    await place.api.create(path, quota)
    await place.until("the quota counts", lambda: _counted(place, path))
    place.start()
    await place.submit("quota", 4)
    message = await place.until_waits("quota", "PodRefused")
    assert "exceeded quota: few" in message
    await place.until("no pod left", lambda: _none(place, "quota"))
    await place.api.merge_patch(f"{path}/few", {"spec": {"hard": {"pods": "4"}}})
    job = await place.until_phase("quota", "Running", 60)
    assert "failures" not in job["status"]


async def test_a_limit_range_refuses_before_anything_is_held(place: Corner) -> None:
    await place.add_nodes(1)
    limit = {"type": "Container", "max": {"cpu": "1"}}
    await place.api.create(
        f"/api/v1/namespaces/{place.namespace}/limitranges",
        {"metadata": {"name": "small"}, "spec": {"limits": [limit]}},
    )
    place.start()
    await place.submit("large", 1, workers={"resources": {"limits": {"cpu": "2"}}})
    message = await place.until_waits("large", "PodRefused")
    assert "maximum cpu usage per Container is 1" in message
    assert not await place.pods("large")


async def test_requests_that_admission_adds_are_planned_for(place: Corner) -> None:
    """A policy gives every pod 40 of a node's 64 cores: the gang that would fit one node takes four."""
    if int((await place.api.get("/version"))["minor"]) < 36:
        pytest.skip("policies that mutate came with Kubernetes 1.36")
    await place.add_nodes(4)
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    patch = (
        "Object{spec: Object.spec{containers: [Object.spec.containers{name: 'trainer', "
        "resources: Object.spec.containers.resources{requests: {'cpu': quantity('40')}}}]}}"
    )
    expression = patch.replace("quantity('40')", "'40'")
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": place.name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}},
                "resourceRules": [rule],
            },
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": place.name},
        "spec": {"policyName": place.name},
    }
    group = "/apis/admissionregistration.k8s.io/v1"
    await place.api.create(f"{group}/mutatingadmissionpolicies", policy)
    await place.api.create(f"{group}/mutatingadmissionpolicybindings", binding)
    try:
        await place.until("the policy is in force", lambda: _mutated(place))
        place.start()
        await place.submit("grown", 4)
        job = await place.until_phase("grown", "Running")
        assert sorted(nodes_of(await place.pods("grown")).values()) == [1, 1, 1, 1]
        assert job["status"]["placements"] == 1
    finally:
        await place.api.delete(f"{group}/mutatingadmissionpolicybindings/{place.name}")
        await place.api.delete(f"{group}/mutatingadmissionpolicies/{place.name}")


async def test_a_stranger_of_higher_priority_takes_room_and_the_gang_goes_whole(place: Corner) -> None:
    (name,) = await place.add_nodes(1)
    await priority_class(place, 100_000)
    place.start()
    await place.submit("gang", 4)
    await place.until_phase("gang", "Running")
    await place.foreign("important", name, priorityClassName=place.name)
    await place.until_waits("gang", "InsufficientCapacity")
    job = await place.job("gang")
    assert "failures" not in job["status"]
    assert job["status"]["restarts"] == 1
    assert not await place.pods("gang")
    await place.api.delete(f"/api/v1/namespaces/{place.namespace}/pods/important")
    await place.until_phase("gang", "Running")


async def test_a_job_of_high_priority_evicts_nobody(place: Corner) -> None:
    (name,) = await place.add_nodes(1)
    await priority_class(place, 100_000)
    await place.foreign("humble", name)
    place.start()
    await place.submit("proud", 4, priorityClassName=place.name)
    await place.until_waits("proud", "InsufficientCapacity")
    humble = await place.api.get(f"/api/v1/namespaces/{place.namespace}/pods/humble")
    assert "deletionTimestamp" not in humble["metadata"]
    assert all(item["type"] != "DisruptionTarget" for item in humble["status"]["conditions"])


async def test_a_missing_priority_class_is_named(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("proud", 1, priorityClassName="there-is-no-such-class")
    assert "there-is-no-such-class" in await place.until_waits("proud", "PriorityClassNotFound")


async def test_a_class_that_a_running_job_is_given_and_there_is_not_is_told_at_once(place: Corner) -> None:
    await place.add_nodes(1)
    await priority_class(place, 100)
    place.start()
    await place.submit("proud", 2, priorityClassName=place.name)
    await place.until_phase("proud", "Running")
    edit = {"spec": {"priorityClassName": "there-is-no-such-class"}}
    await place.api.merge_patch(f"{place.jobs()}/proud", edit)

    def told(job: dict[str, Any]) -> bool:
        found = condition(job, "PriorityClassMissing")
        return found is not None and found["status"] == "True" and "the priority that it has, 100" in found["message"]

    job = await place.until_job("proud", "says so", told)
    assert job["status"]["priority"] == 100
    await place.api.delete(f"/api/v1/namespaces/{place.namespace}/pods/proud-g1-1-0", grace=0)
    await place.until_job("proud", "runs again", lambda job: _runs(job, 2))
    assert (await place.job("proud"))["status"]["priority"] == 100


async def test_without_the_gangs_priority_class_jobs_say_so(place: Corner) -> None:
    await place.add_nodes(1)
    place.start(priority_class="there-is-no-such-class")
    await place.submit("any", 1)
    assert "there-is-no-such-class" in await place.until_waits("any", "PodRefused")


async def test_a_deleted_queue_stops_nobody_and_those_that_wait_go_on_when_it_is_back(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("runs", 4)
    await place.until_phase("runs", "Running")
    await place.submit("waits", 1)
    await place.until_waits("waits", "InsufficientCapacity")
    await place.api.delete(f"{GROUP}/trainingqueues/{place.queue}")
    assert place.queue in await place.until_waits("waits", "QueueNotFound")
    await place.succeed("runs")
    assert not await place.pods("waits")
    queue = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingQueue", "metadata": {"name": place.queue}}
    await place.api.create(f"{GROUP}/trainingqueues", queue)
    await place.until_phase("waits", "Running")


async def test_queue_and_topology_show_who_uses_what(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("runs", 3)
    await place.until_phase("runs", "Running")
    await place.submit("waits", 2)

    async def shown() -> bool:
        queue = await place.api.get(f"{GROUP}/trainingqueues/{place.queue}")
        status = queue.get("status", {})
        return (status.get("running"), status.get("waiting"), status.get("usedGpus")) == (1, 1, 3)

    await place.until("the queue shows it", shown)
    await place.succeed("runs")
    await place.until_phase("waits", "Running")


async def test_bad_references_become_conditions(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("type", 1, workers={"gpuType": "Z9000"})
    await place.submit("level", 1, topology={"mode": "required", "level": "galaxy"})
    await place.submit("template", 1, podTemplate={"spec": {"containers": [{"name": "trainer", "command": ["sh"]}]}})
    typo = {"spec": {"nodeselector": {"a": "b"}, "containers": [{"name": "trainer", "resorces": {}}]}}
    await place.submit("typo", 1, podTemplate=typo, volumes=[{"name": "own", "configmap": {"name": "x"}}])
    await place.submit("name", 1, podTemplate={"spec": {"containers": [{"name": "traner", "tty": True}]}})
    await place.submit("huge", 400)
    await place.submit("fine", 1)
    message = await place.until_waits("type", "UnknownGpuType")
    assert "Z9000" in message
    assert "H100" in message

    def level(job: dict[str, Any]) -> bool:
        found = condition(job, "Admitted")
        return found is not None and found["reason"] in ("TopologyNotFound", "LevelNotFound")

    await place.until_job("level", "says so", level)
    assert "spec.command" in await place.until_waits("template", "InvalidPodTemplate")
    message = await place.until_waits("typo", "InvalidPodTemplate")
    for path in ("podTemplate.spec.nodeselector", "podTemplate.spec.containers[0].resorces", "volumes[0].configmap"):
        assert f"spec.{path}" in message
    assert "is named 'trainer'" in await place.until_waits("name", "InvalidPodTemplate")
    assert "nvidia.com/gpu" in await place.until_waits("huge", "ExceedsCluster")
    await place.until_phase("fine", "Running")


async def test_a_slip_in_the_pod_template_of_a_running_job_does_not_stop_it(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("careful", 2)
    await place.until_phase("careful", "Running")
    path = f"{place.jobs()}/careful"
    await place.api.merge_patch(path, {"spec": {"podTemplate": {"spec": {"nodeselector": {"a": "b"}}}}})

    def refused(job: dict[str, Any]) -> bool:
        found = condition(job, "EditRefused")
        return found is not None and found["status"] == "True" and found["reason"] == "InvalidPodTemplate"

    job = await place.until_job("careful", "says so", refused)
    assert job["status"]["phase"] == "Running"
    assert "spec.podTemplate.spec.nodeselector" in condition(job, "EditRefused")["message"]
    mended = {"nodeselector": None, "tolerations": [{"key": "a", "operator": "Exists"}]}
    await place.api.merge_patch(path, {"spec": {"podTemplate": {"spec": mended}}})
    await place.until_job("careful", "starts again with what is mended", lambda job: _runs(job, 2))


async def test_room_is_free_only_when_the_deleted_jobs_pods_are_gone(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("first", 4)
    await place.until_phase("first", "Running")
    place.nodes.ends = lambda pod: False
    await place.submit("second", 4)
    await place.until_waits("second", "InsufficientCapacity")
    await place.delete_job("first")
    await place.until("the pods are told to go", lambda: _terminating(place, "first"))
    await asyncio.sleep(1)  # time in which a wrong operator would start the second
    assert not await place.pods("second")
    place.nodes.ends = lambda pod: True
    for pod in await place.pods("first"):
        path = f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}"
        await place.api.delete(path, grace=0)
    await place.until_phase("second", "Running")


async def test_a_deleted_namespace_leaves_nothing_behind(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("runs", 2)
    await place.until_phase("runs", "Running")
    await place.submit("waits", 4)
    await place.until_waits("waits", "InsufficientCapacity")
    await place.api.delete(f"/api/v1/namespaces/{place.namespace}")

    async def gone() -> bool:
        try:
            await place.api.get(f"/api/v1/namespaces/{place.namespace}")
        except ApiError as error:
            return error.status == 404
        return False

    await place.until("the namespace is gone", gone, 60)


async def test_a_node_deleted_and_added_again_ends_in_a_restart(place: Corner) -> None:
    names = await place.add_nodes(2)
    place.start()
    await place.submit("moved", 8)
    await place.until_phase("moved", "Running")
    await place.nodes.remove(names[1])
    await place.until_job("moved", "restarts", lambda job: job["status"].get("restarts") == 1)
    await place.nodes.add(names[1], gpus=4, labels={"pool": place.name})
    job = await place.until_job("moved", "runs again", lambda job: job["status"]["phase"] == "Running", 90)
    assert job["status"]["placement"]["generation"] == 2
    assert "failures" not in job["status"]


async def test_a_pod_that_kubelet_rejects_moves_the_gang_to_another_node(place: Corner) -> None:
    (bad,) = await place.add_nodes(1)
    place.nodes.starts = lambda pod: pod["spec"]["nodeName"] != bad
    place.start()
    await place.submit("turned", 1)
    (pod,) = await place.until("a bound pod", lambda: _bound(place, "turned"))
    await place.add_nodes(1)
    await place.nodes.reject(pod, "UnexpectedAdmissionError", "Allocate failed due to no healthy devices")
    job = await place.until_phase("turned", "Running")
    assert job["status"]["placement"]["nodes"][0]["node"] != bad
    assert job["status"]["placement"]["generation"] == 2


async def test_a_deleted_pod_of_a_running_gang_restarts_it_whole(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("gang", 3)
    await place.until_phase("gang", "Running")
    await place.api.delete(f"/api/v1/namespaces/{place.namespace}/pods/gang-g1-1-0", grace=0)
    await place.until_job("gang", "runs again", lambda job: _runs(job, 2))
    assert {pod["metadata"]["name"] for pod in await place.pods("gang")} == {f"gang-g2-{i}-0" for i in range(3)}


async def test_a_script_that_fails_twice_alike_is_not_tried_a_third_time(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("alike", 2, restart={"backoff": "1s"})
    told = "rank 1 exited with code 1: ValueError: x"
    facts = ExitFacts(Cause.USER, 1, told, rank=1, step=7, signature="ValueError: x at train.py:3")

    async def fail(name: str) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in await place.pods("alike")}
        await place.nodes.finish(pods[name], exit_code=1, message=encode(facts))

    await place.until_phase("alike", "Running")
    await fail("alike-g1-1-0")
    await place.until_job("alike", "runs again", lambda job: _runs(job, 2))
    await fail("alike-g2-1-0")
    job = await place.until_phase("alike", "Failed")
    failed = condition(job, "Failed")
    assert failed is not None
    assert failed["reason"] == "IdenticalFailures"
    assert "twice alike at step 7" in failed["message"]
    assert (job["status"]["failure"]["step"], job["status"]["failure"]["alike"]) == (7, 2)
    assert [past["step"] for past in job["status"]["recentFailures"]] == [7, 7]


async def test_suspend_stops_the_gang_and_queues_it_again(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    await place.submit("rests", 2)
    await place.until_phase("rests", "Running")
    await place.api.merge_patch(f"{place.jobs()}/rests", {"spec": {"suspend": True}})
    await place.until_phase("rests", "Suspended")
    assert not await place.pods("rests")
    await place.api.merge_patch(f"{place.jobs()}/rests", {"spec": {"suspend": False, "image": "example/train:2"}})
    await place.until_phase("rests", "Running")
    assert {pod["spec"]["containers"][0]["image"] for pod in await place.pods("rests")} == {"example/train:2"}


async def test_a_job_made_anew_under_its_name_takes_no_old_pods(place: Corner) -> None:
    await place.add_nodes(1)
    place.start()
    old = await place.submit("again", 2)
    await place.until_phase("again", "Running")
    await place.delete_job("again")
    new = await place.submit("again", 2)
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    await place.until_phase("again", "Running", 60)
    for pod in await place.pods("again"):
        assert pod["metadata"]["labels"]["muster.dev/job-uid"] == new["metadata"]["uid"]


def _waits_and_avoids(job: dict[str, Any], node: str) -> bool:
    found = condition(job, "Admitted")
    return found is not None and found["status"] == "False" and f"stays away from {node} until" in found["message"]


def _runs(job: dict[str, Any], generation: int) -> bool:
    status = job["status"]
    return bool(status["phase"] == "Running" and status["placement"]["generation"] == generation)


async def priority_class(place: Corner, value: int) -> None:
    body = {"metadata": {"name": place.name}, "value": value}
    await place.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)


async def _none(place: Corner, job: str) -> bool:
    return not await place.pods(job)


async def _bound(place: Corner, job: str) -> list[dict[str, Any]]:
    return [pod for pod in await place.pods(job) if pod["spec"].get("nodeName")]


async def _terminating(place: Corner, job: str) -> bool:
    pods = await place.pods(job)
    return bool(pods) and all("deletionTimestamp" in pod["metadata"] for pod in pods)


async def _counted(place: Corner, path: str) -> bool:
    return bool((await place.api.get(f"{path}/few")).get("status", {}).get("hard"))


async def _mutated(place: Corner) -> bool:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {"containers": [{"name": "trainer", "image": "x"}]},
    }
    made = await place.api.create(f"/api/v1/namespaces/{place.namespace}/pods", body, dry_run=True)
    return bool(made["spec"]["containers"][0].get("resources", {}).get("requests"))
