from __future__ import annotations

import copy
from datetime import datetime, timezone
from typing import Any

import pytest

from muster.cluster.eligibility import pinned_node
from muster.cluster.views import NamespaceView, NodeView, PodView, PriorityClassView, Taint, Waiting

pytestmark = pytest.mark.unit

POD: dict[str, Any] = {
    "metadata": {
        "name": "train-g2-3-1",
        "namespace": "research",
        "uid": "u1",
        "creationTimestamp": "2026-01-02T03:04:05Z",
        "labels": {
            "muster.dev/job": "train",
            "muster.dev/generation": "2",
            "muster.dev/index": "3",
            "muster.dev/attempt": "1",
        },
        "ownerReferences": [
            {"kind": "Other", "uid": "no"},
            {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "uid": "job-uid", "controller": True},
        ],
    },
    "spec": {
        "nodeName": "node-1",
        "priority": 7,
        "containers": [{"name": "trainer", "resources": {"requests": {"cpu": "1"}}}],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "trainer", "restartCount": 2, "state": {"running": {}}}],
    },
}


def pod(**status: Any) -> PodView:
    raw = copy.deepcopy(POD)
    raw["status"] |= status
    return PodView.from_raw(raw)


def pinned(*names: str) -> dict[str, Any]:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}, "containers": []}


def test_a_running_pod_of_ours() -> None:
    view = pod()
    assert (view.key, view.uid, view.node, view.bound) == ("research/train-g2-3-1", "u1", "node-1", True)
    assert (view.job, view.generation, view.index, view.attempt) == ("train", 2, 3, 1)
    assert view.owner_uid == "job-uid"
    assert view.requests == (("cpu", 1000), ("pods", 1))
    assert (view.phase, view.ready, view.ip, view.priority, view.restarts) == ("Running", True, "10.1.2.3", 7, 2)
    assert view.created == datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    assert not view.terminating
    assert view.exit_code is None


def test_a_strangers_pod_without_labels_owner_or_status() -> None:
    view = PodView.from_raw({"metadata": {"name": "x"}, "spec": {"containers": []}})
    assert (view.job, view.owner_uid, view.index, view.phase, view.node) == ("", "", -1, "Pending", "")


@pytest.mark.parametrize("text", ["", "x", "-3", "1.5", "٣"])
def test_a_label_that_is_no_number_counts_as_none(text: str) -> None:
    raw = copy.deepcopy(POD)
    raw["metadata"]["labels"]["muster.dev/index"] = text
    assert PodView.from_raw(raw).index == -1


def test_a_pod_that_is_not_bound_yet_holds_room_where_it_is_pinned() -> None:
    view = PodView.from_raw({"metadata": {"name": "x"}, "spec": pinned("node-9")})
    assert (view.node, view.bound) == ("node-9", False)


@pytest.mark.parametrize(
    ("spec", "node"),
    [
        (pinned("a", "a"), "a"),
        (pinned("a", "b"), ""),
        ({"containers": []}, ""),
        ({"affinity": {"nodeAffinity": {}}}, ""),
    ],
)
def test_terms_are_alternatives_so_all_must_name_the_same_node(spec: dict[str, Any], node: str) -> None:
    assert pinned_node(spec) == node


def test_a_term_without_a_name_leaves_the_pod_unpinned() -> None:
    spec = pinned("a")
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    terms.append({"matchExpressions": [{"key": "zone", "operator": "Exists"}]})
    assert pinned_node(spec) == ""


def test_an_unschedulable_pod_has_the_schedulers_words() -> None:
    view = pod(
        phase="Pending",
        conditions=[
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/3 nodes are available",
                "lastTransitionTime": "2026-01-02T03:04:06Z",
            }
        ],
    )
    assert view.unschedulable == "0/3 nodes are available"
    assert view.unschedulable_since == datetime(2026, 1, 2, 3, 4, 6, tzinfo=timezone.utc)


def test_a_gated_pod_is_not_unschedulable() -> None:
    gated = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    assert pod(conditions=gated).unschedulable == ""


def test_waiting_containers_of_both_sorts_are_told() -> None:
    view = pod(
        initContainerStatuses=[{"name": "init", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}],
        containerStatuses=[{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    )
    assert view.waiting == (Waiting("init", "ErrImagePull", "no"), Waiting("trainer", "PodInitializing", ""))


def test_the_trainers_end_is_told_before_another_containers() -> None:
    side = {"name": "side", "state": {"terminated": {"exitCode": 9, "reason": "Error"}}}
    trainer = {"name": "trainer", "state": {"terminated": {"exitCode": 0, "reason": "Completed", "message": "{}"}}}
    view = pod(containerStatuses=[side, trainer])
    assert (view.exit_code, view.exit_reason, view.termination_message) == (0, "Completed", "{}")


@pytest.mark.parametrize(
    ("others", "outlived"),
    [
        ([], False),
        ([{"name": "proxy", "state": {"running": {}}}], True),
        ([{"name": "proxy", "state": {"waiting": {"reason": "ImagePullBackOff"}}}], True),
        ([{"name": "proxy", "state": {"terminated": {"exitCode": 1}}}], False),
    ],
)
def test_a_trainer_may_be_outlived_by_another_container(others: list[Any], outlived: bool) -> None:
    ended = {"exitCode": 0, "finishedAt": "2026-01-02T03:04:06Z"}
    statuses = [{"name": "trainer", "state": {"terminated": ended}}, *others]
    sidecar = [{"name": "sidecar", "state": {"running": {}}}]  # kubelet ends it when the others have ended
    view = pod(phase="Running", initContainerStatuses=sidecar, containerStatuses=statuses)
    when = datetime(2026, 1, 2, 3, 4, 6, tzinfo=timezone.utc)
    assert view.outlived_since == (when if outlived else None)
    assert pod(phase="Failed", containerStatuses=statuses).outlived_since is None


def test_an_init_container_that_failed_is_told_and_one_that_succeeded_is_not() -> None:
    good = {"name": "a", "state": {"terminated": {"exitCode": 0}}}
    bad = {"name": "b", "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}
    waiting = [{"name": "trainer", "state": {"waiting": {}}}]
    assert pod(initContainerStatuses=[good], containerStatuses=waiting).exit_code is None
    assert pod(initContainerStatuses=[good, bad], containerStatuses=waiting).exit_code == 3


def test_disruption_and_rejection() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}
    assert pod(conditions=[condition]).disruption_target == "EvictionByEvictionAPI: drain"
    assert pod(conditions=[{**condition, "status": "False"}]).disruption_target == ""
    view = pod(phase="Failed", reason="OutOfcpu", message="Node didn't have enough resource")
    assert (view.status_reason, view.status_message) == ("OutOfcpu", "Node didn't have enough resource")


def test_what_nobody_looks_at_leaves_the_view_equal() -> None:
    raw = copy.deepcopy(POD)
    raw["metadata"]["resourceVersion"] = "99"
    raw["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    raw["status"]["conditions"][0]["lastProbeTime"] = "2026-01-02T03:04:07Z"
    assert PodView.from_raw(raw) == PodView.from_raw(POD)


def test_a_node() -> None:
    view = NodeView.from_raw(
        {
            "metadata": {"name": "node-1", "uid": "n1", "labels": {"zone": "a"}},
            "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "3920m", "memory": "62Gi", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}],
            },
        }
    )
    assert view.allocatable == (("cpu", 3920), ("memory", 62 * 2**30), ("nvidia.com/gpu", 8))
    assert (view.ready, view.unschedulable, view.taints) == (True, True, (Taint("k", "", "NoSchedule"),))


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_whose_kubelet_is_silent_is_not_ready(status: str) -> None:
    assert not NodeView.from_raw(
        {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": status}]}}
    ).ready


def test_namespaces_and_priority_classes() -> None:
    view = NamespaceView.from_raw({"metadata": {"name": "a", "labels": {"t": "1"}}, "status": {"phase": "Terminating"}})
    assert (view.name, view.labels, view.terminating) == ("a", {"t": "1"}, True)
    assert PriorityClassView.from_raw({"metadata": {"name": "high"}, "value": 10}) == PriorityClassView("high", 10)


def test_of_index_0_alone_it_is_known_when_its_launcher_ends_the_run() -> None:
    def seen(index: str, *variables: dict[str, Any]) -> int | None:
        raw = copy.deepcopy(POD)
        raw["metadata"]["labels"]["muster.dev/index"] = index
        sidecar = {"name": "sidecar", "env": [{"name": "MUSTER_MAX_RUNTIME", "value": "1"}]}
        raw["spec"]["containers"] = [sidecar, {"name": "trainer", "env": list(variables)}]
        return PodView.from_raw(raw).max_runtime

    limit = {"name": "MUSTER_MAX_RUNTIME", "value": "3600"}
    assert seen("0", {"name": "OF_A_SECRET", "valueFrom": {}}, limit) == 3600
    assert seen("3", limit) is None
    assert seen("0") is None


@pytest.mark.parametrize(("restarts", "told"), [("Always", ("fetch", 3)), ("Never", ("proxy", 137))])
def test_where_an_init_container_failed_the_end_of_a_sidecar_is_not_told(restarts: str, told: tuple[str, int]) -> None:
    """kubelet kills a mesh's proxy, which stands before the container that has failed, when that has failed."""
    raw = copy.deepcopy(POD)
    raw["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": restarts}, {"name": "fetch"}]
    raw["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [
            {"name": "proxy", "state": {"terminated": {"exitCode": 137}}},
            {"name": "fetch", "state": {"terminated": {"exitCode": 3}}},
        ],
        "containerStatuses": [{"name": "trainer", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    view = PodView.from_raw(raw)
    assert (view.ended, view.exit_code) == told


def test_a_pods_scheduling_gates_are_kept() -> None:
    raw = copy.deepcopy(POD)
    assert PodView.from_raw(raw).gates == ()
    raw["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}, {"name": "b"}]
    assert PodView.from_raw(raw).gates == ("kueue.x-k8s.io/admission", "b")


def test_a_pod_of_another_scheduler_is_known_by_its_name() -> None:
    raw = copy.deepcopy(POD)
    assert PodView.from_raw(raw).scheduler == ""
    raw["spec"]["schedulerName"] = "default-scheduler"
    assert PodView.from_raw(raw).scheduler == ""
    raw["spec"]["schedulerName"] = "volcano"
    assert PodView.from_raw(raw).scheduler == "volcano"
