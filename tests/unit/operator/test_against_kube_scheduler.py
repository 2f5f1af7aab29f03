"""What the planner is told of a cluster, beside what kube-scheduler makes of the same objects (`kube_scheduler.py`).

A gang is placed only where each of its pods will be bound, and one that waits could not have been bound as a whole,
but for what docs/nodes.md says: Muster is stricter than kube-scheduler in a few things, named in `_kept_away`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pprint import pformat
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from muster.cluster.eligibility import filter_of_pod, pinned_node
from muster.cluster.jobs import JobInput
from muster.cluster.pods import pin
from muster.cluster.queues import QueueInput
from muster.cluster.requests import requests_of
from muster.cluster.snapshot import LevelInput, Masks, build
from muster.cluster.views import NodeView, PodView
from muster.cluster.volumes import claims, reach, reach_of_class
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import ONE_A_NODE, Snapshot

from .kube_scheduler import OLD_REGION, OLD_ZONE, REGION, UNSCHEDULABLE, ZONE, Cluster, admitted, matches, requests

pytestmark = pytest.mark.unit

Object = dict[str, Any]

EXAMPLES = 10_000 if os.environ.get("MUSTER_THOROUGH") else 300
often = settings(max_examples=EXAMPLES, deadline=None)
seeds = st.integers(0, 2**32)

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
NAMES = ["n0", "n1", "n2", "n3"]
EFFECTS = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
KEYS = ["zone", "gen", "kubernetes.io/hostname"]
VALUES = ["a", "b", "", "0", "5", "-3", "007", "+5", str(2**63 - 1), str(2**63), "1_0"]
QUANTITIES = {
    "cpu": ["0", "1", "500m", "0.5", "1500m", "0.1m", "2", "3", "1e1", "7.5"],
    "memory": ["0", "1Gi", "1.5Gi", "1e9", "1G", "128974848", "100m", "2Gi", "0.5Ti"],
    "ephemeral-storage": ["1Gi", "10G", "3e9"],
    "hugepages-2Mi": ["2Mi", "4Mi"],
    "nvidia.com/gpu": ["1", "2", "4", "8", "1e1", "3000m"],
    "nvidia.com/mig-1g.10gb": ["1", "3", "7"],
}
WHOLE = {key: QUANTITIES[key] for key in ("cpu", "memory", "hugepages-2Mi")}
USUAL = {
    "cpu": "32",
    "memory": "2Ti",
    "ephemeral-storage": "100Gi",
    "hugepages-2Mi": "32Mi",
    "nvidia.com/gpu": "16",
    "nvidia.com/mig-1g.10gb": "14",
    "pods": "110",
}
ODD = {
    "cpu": ["0", "500m", "9e15"],
    "memory": ["1Gi", "1Ei", "7Ei"],
    "nvidia.com/gpu": ["0", "1"],
    "pods": ["0", "2", "9"],
    "example.com/vram": ["1k"],
}


class World:
    """Draws objects as odd as the API server lets them be. From a seed: drawn one by one by hypothesis, each cluster
    would take a hundred times as long."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def once_in(self, times: int) -> bool:
        return self.random.randrange(times) == 0

    def one(self, among: Sequence[Any]) -> Any:
        return self.random.choice(among)

    def some(self, made: Callable[[], Any], least: int, most: int) -> list[Any]:
        return [made() for _ in range(self.random.randint(least, most))]

    def amounts(self, among: Mapping[str, Sequence[str]]) -> Object:
        return {name: self.one(values) for name, values in among.items() if self.once_in(4)}

    def cluster(self) -> Cluster:
        nodes = [self.node(name) for name in NAMES[: self.random.randint(1, 4)]]
        strangers = [self.stranger(number) for number in range(self.one(range(6)))]
        volumes = {claim: self.volume() for claim in ("here", "there")}
        return Cluster(nodes, strangers, volumes=volumes, classes={"unbound": self.storage_class()})

    def change(self, cluster: Cluster) -> set[str]:
        """Nodes come, go and change under the names that they had. The names of these."""
        changed = {self.one(NAMES) for _ in range(self.one([0, 0, 0, 1, 2]))}
        cluster.nodes[:] = [node for node in cluster.nodes if node["metadata"]["name"] not in changed]
        cluster.nodes += [self.node(name) for name in sorted(changed) if not self.once_in(3)]
        return changed

    # -- nodes -----------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Object:
        labels = {key: self.one(VALUES) for key in KEYS[:2] if self.once_in(2)}
        if not self.once_in(6):
            labels["kubernetes.io/hostname"] = name
        made: Object = {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}, "spec": {}, "status": {}}
        labels |= {key: self.one(["a", "b"]) for key in (ZONE, REGION, OLD_ZONE, OLD_REGION) if self.once_in(4)}
        if self.once_in(4):
            made["spec"]["taints"] = self.some(self.taint, 1, 2)
        if self.once_in(10):
            made["spec"]["unschedulable"] = True
        if not self.once_in(10):
            made["status"]["allocatable"] = {**USUAL, **{key: self.one(ODD[key]) for key in ODD if self.once_in(8)}}
        if not self.once_in(15):
            made["status"]["conditions"] = [{"type": "Ready", "status": self.one(["True"] * 8 + ["False", "Unknown"])}]
        return made

    def taint(self) -> Object:
        made: Object = {
            "key": self.one(["own", "gen", NOT_READY, UNREACHABLE, UNSCHEDULABLE]),
            "effect": self.one(EFFECTS),
        }
        return made | ({"value": self.one(VALUES)} if not self.once_in(4) else {})

    # -- volumes ---------------------------------------------------------------------------------------------------

    def volume(self) -> Object:
        places = ["a", "b", "a__b", "b__", ""]
        labels = {key: self.one(places) for key in (ZONE, REGION, OLD_ZONE, OLD_REGION) if self.once_in(5)}
        affinity = {"required": {"nodeSelectorTerms": self.some(self.term, 0, 2)}}
        return {"metadata": {"labels": labels}, "spec": {"nodeAffinity": affinity} if self.once_in(2) else {}}

    def storage_class(self) -> Object:
        def topology() -> Object:
            keys = self.some(lambda: self.one([ZONE, "zone"]), 1, 2)
            demands = [{"key": key, "values": self.some(lambda: self.one("ab"), 1, 2)} for key in keys]
            return {"matchLabelExpressions": demands} if not self.once_in(6) else {}

        return {"allowedTopologies": self.some(topology, 1, 2)} if self.once_in(2) else {}

    # -- pods ------------------------------------------------------------------------------------------------------

    def pod_spec(self) -> Object:
        spec: Object = {"containers": [self.container(f"c{number}") for number in range(self.one([1, 1, 2]))]}
        if self.once_in(2):
            spec["initContainers"] = [self.container(f"i{number}") for number in range(self.one([1, 2, 3]))]
            for one in spec["initContainers"]:
                one |= {"restartPolicy": "Always"} if self.once_in(2) else {}
        if self.once_in(8):
            spec["hostNetwork"] = True
        if self.once_in(5):
            spec["overhead"] = self.amounts({key: QUANTITIES[key] for key in ("cpu", "memory")})
        if self.once_in(5):
            spec["resources"] = {kind: self.amounts(WHOLE) for kind in ("requests", "limits") if self.once_in(2)}
        return spec

    def container(self, name: str) -> Object:
        made: Object = {"name": name}
        if not self.once_in(4):
            made["resources"] = {
                kind: self.amounts(QUANTITIES) for kind in ("requests", "limits") if not self.once_in(3)
            }
        if self.once_in(4):
            made["ports"] = [self.port()]
        return made

    def port(self) -> Object:
        made: Object = {"containerPort": self.one([80, 9100]), "protocol": self.one(["TCP", "TCP", "UDP"])}
        if self.once_in(2):
            made |= {"hostPort": made["containerPort"], "hostIP": self.one(["", "", "0.0.0.0", "10.0.0.1"])}
        return made

    def stranger(self, number: int) -> Object:
        """A pod of somebody else, in any state."""
        spec, name = self.pod_spec(), self.one(NAMES)
        status: Object = {"phase": self.one(["Running", "Running", "Pending", "Succeeded", "Failed", "Unknown"])}
        where = self.one(["bound", "bound", "bound", "gone", "pinned", "nominated", "nowhere"])
        if where in ("bound", "gone"):
            spec["nodeName"] = name if where == "bound" else "gone"
            if self.once_in(3):
                self.resize(spec, status)
        else:
            status["phase"] = self.one(["Pending", "Pending", "Failed"])
        if where == "pinned":
            pin(spec, name)
        if where == "nominated":
            status["nominatedNodeName"], spec["priority"] = name, self.one([-1, 0, 1000])
        metadata: Object = {"name": f"p{number}", "namespace": self.one(["x", "y"]), "uid": f"uid-p{number}"}
        if self.once_in(3):
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if self.once_in(2):
            metadata["ownerReferences"] = [{"kind": self.one(["DaemonSet", "Job"]), "uid": "o", "controller": True}]
        return admitted({"metadata": metadata, "spec": spec, "status": status})

    def resize(self, spec: Object, status: Object) -> None:
        few = {key: QUANTITIES[key] for key in ("cpu", "memory")}
        for kind, of_status in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
            status[of_status] = [{"name": one["name"]} for one in spec.get(kind, [])]
            for told in status[of_status]:
                if not self.once_in(3):
                    told |= {"resources": {"requests": self.amounts(few)}, "allocatedResources": self.amounts(few)}
        if self.once_in(2):
            reason = self.one(["Infeasible", "Deferred"])
            status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
        if self.once_in(2):
            status |= {"resources": {"requests": self.amounts(few)}, "allocatedResources": self.amounts(few)}

    def worker(self, name: str) -> Object:
        """A worker's pod of a job, as the API server would take it."""
        spec = self.pod_spec()
        if self.once_in(2):
            spec["tolerations"] = self.some(self.toleration, 1, 3)
        if self.once_in(3):
            terms = {"nodeSelectorTerms": self.some(self.term, 1, 3)}
            spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        if self.once_in(6):
            mounted = self.some(lambda: self.one(["here", "there", "unbound", "anywhere"]), 1, 2)
            spec["volumes"] = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in mounted]
        if self.once_in(6):
            spec["nodeSelector"] = {self.one(KEYS[:2]): self.one(VALUES[:4])}
        labels = {"muster.dev/job": name}
        if self.once_in(4):
            apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
            spec.setdefault("affinity", {})["podAntiAffinity"] = {
                "requiredDuringSchedulingIgnoredDuringExecution": [apart]
            }
        return admitted({"metadata": {"name": name, "namespace": "x", "labels": labels}, "spec": spec, "status": {}})

    def toleration(self) -> Object:
        operator = self.one(["Exists", "Equal", "", "Gt", "Lt"])
        made: Object = {"operator": operator} if operator else {}
        made["key"] = self.one(["own", "gen", "gen", NOT_READY, UNSCHEDULABLE, *[""] * (operator == "Exists")])
        made |= {"value": self.one(VALUES)} if operator != "Exists" else {}
        made |= {"effect": self.one(EFFECTS)} if self.once_in(2) else {}
        return made | ({"tolerationSeconds": 30} if made.get("effect") == "NoExecute" and self.once_in(2) else {})

    def term(self) -> Object:
        made: Object = {"matchExpressions": self.some(self.demand, 0, 2)} if not self.once_in(4) else {}
        if self.once_in(3):
            made["matchFields"] = self.some(self.field, 1, 2)
        return made

    def demand(self) -> Object:
        operator = self.one(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
        made: Object = {"key": self.one(KEYS), "operator": operator}
        if operator in ("In", "NotIn"):
            made["values"] = self.some(lambda: self.one([*VALUES, *NAMES]), 1, 3)
        elif operator in ("Gt", "Lt"):
            made["values"] = [self.one(["0", "5", "-3", "007", "x", str(2**63 - 1), str(2**63)])]
        return made

    def field(self) -> Object:
        return {"key": "metadata.name", "operator": self.one(["In", "NotIn"]), "values": [self.one(NAMES)]}


def job(cluster: Cluster, name: str, worker: Object, size: int, **more: Any) -> JobInput:
    view = PodView.from_raw(worker)
    reaches = [
        reach(claim, cluster.volumes[claim])
        if claim in cluster.volumes
        else reach_of_class(claim, cluster.classes.get(claim, {}))
        for claim in claims(worker["spec"])
    ]
    node_filter = filter_of_pod(worker["spec"], volumes=tuple(filter(None, reaches)))
    return JobInput(uid=name, queue="q", workers=size, request=dict(view.requests), node_filter=node_filter, **more)


def snapshot(
    cluster: Cluster, jobs: list[JobInput], pods: list[Object] | None = None, masks: Masks | None = None
) -> Snapshot:
    return build(
        nodes=[NodeView.from_raw(node) for node in cluster.nodes],
        pods=[PodView.from_raw(pod) for pod in [*cluster.pods, *(pods or [])]],
        jobs=jobs,
        queues=[QueueInput("q")],
        levels=[LevelInput("host", "kubernetes.io/hostname")],
        masks=masks,
    )


def made(worker: Object, index: int, node: str, *, owner: str = "") -> Object:
    """The pod that is created, pinned to its node as the operator does it."""
    pod = copy.deepcopy(worker)
    pod["metadata"] |= {
        "name": f"{worker['metadata']['name']}-g1-{index}-0",
        "uid": f"{worker['metadata']['name']}-{index}",
    }
    pod["metadata"]["labels"] |= {
        "muster.dev/generation": "1",
        "muster.dev/index": str(index),
        "muster.dev/attempt": "0",
    }
    if owner:
        ours = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}
        pod["metadata"]["ownerReferences"] = [{**ours, "uid": owner, "controller": True}]
    pin(pod["spec"], node)
    return pod


def _kept_away(worker: Object, node: Object) -> bool:
    """In what Muster is stricter than kube-scheduler, from docs/nodes.md."""
    spec = node["spec"]
    ready = [one["status"] for one in node["status"].get("conditions", [])] == ["True"]
    if not ready or spec.get("unschedulable"):
        return True
    for taint in spec.get("taints", []):
        if taint["key"] in (NOT_READY, UNREACHABLE, UNSCHEDULABLE) and taint["effect"] != "PreferNoSchedule":
            return True  # it was not ready, or cordoned, a moment ago
        first = next((one for one in worker["spec"].get("tolerations", []) if matches(one, taint)), {})
        if taint["effect"] == "NoExecute" and "tolerationSeconds" in first:
            return True  # it would be evicted
    return False


def _as_muster_sees_it(cluster: Cluster) -> Cluster:
    """Pods that are for one node count there already, a host port is taken for all addresses, and a node without the
    label of its host is one."""
    pods = copy.deepcopy(cluster.pods)
    for pod in pods:
        expected = pinned_node(pod["spec"]) or pod["status"].get("nominatedNodeName", "")
        if not pod["spec"].get("nodeName") and expected:
            pod["spec"]["nodeName"] = expected
        _any_address(pod)
    return Cluster(cluster.nodes, pods, every_node_a_host=True, volumes=cluster.volumes, classes=cluster.classes)


def _any_address(pod: Object) -> Object:
    for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
        for port in container.get("ports", []):
            port.pop("hostIP", None)
    return pod


def _most(cluster: Cluster, worker: Object, size: int) -> int:
    """How many of `size` workers could be bound where Muster may place them."""
    seen, worker, bound = _as_muster_sees_it(cluster), _any_address(copy.deepcopy(worker)), 0
    for node in cluster.nodes:
        while bound < size and not _kept_away(worker, node) and not seen.refuses(worker, node):
            seen.bind(worker, node)
            bound += 1
    return bound


@often
@given(seeds)
def test_a_gang_is_placed_where_each_pod_will_be_bound_and_waits_where_not_all_would_be(seed: int) -> None:
    world = World(seed)
    cluster, worker, size = world.cluster(), world.worker("j"), world.one(range(1, 6))
    note(pformat((size, worker, cluster), width=160))
    shot = snapshot(cluster, [job(cluster, "j", worker, size)])
    decided = plan(shot)
    event(f"{len(decided.admissions)} placed")
    if not decided.admissions:
        assert _most(cluster, worker, size) < size
        return
    by_name = {node["metadata"]["name"]: node for node in cluster.nodes}
    for index, row in enumerate(decided.admissions[0].nodes):
        name = shot.nodes.names[row]
        pod = made(worker, index, name)
        assert {node for node in by_name if not cluster.refuses(pod, by_name[node])} == {name}
        cluster.bind(pod, by_name[name])


@often
@given(seeds)
def test_room_is_not_given_twice_however_far_the_first_gang_is(seed: int) -> None:
    """Its pods may be made or not, and bound or not, when the second gang is placed; all are bound in the end. Nodes
    may come, go and change in between: what was placed on these may not be bound any more."""
    world = World(seed)
    cluster, one, two = world.cluster(), world.worker("first"), world.worker("second")
    size, other = world.one(range(1, 5)), world.one(range(1, 5))
    note(pformat((size, one, other, two, cluster), width=160))
    masks = Masks()
    shot = snapshot(cluster, [job(cluster, "first", one, size)], masks=masks)
    admissions = plan(shot).admissions
    if not admissions:
        return
    by_name = {node["metadata"]["name"]: node for node in cluster.nodes}
    placed = tuple(shot.nodes.names[row] for row in admissions[0].nodes)
    pods = [made(one, index, name, owner="first") for index, name in enumerate(placed)]
    there = [pod for pod in pods if world.once_in(2)]
    unbound = []
    for pod in pods:
        if pod in there and world.once_in(2):
            bound = cluster.bind(pod, by_name[pinned_node(pod["spec"])])
            there[there.index(pod)] = bound
        else:
            unbound.append(pod)
    shown = [pod for pod in there if not pod["spec"].get("nodeName")]
    changed = world.change(cluster)
    by_name = {node["metadata"]["name"]: node for node in cluster.nodes}
    standing = job(cluster, "first", one, size, placed=placed, generation=1, holding=True)
    shot = snapshot(cluster, [standing, job(cluster, "second", two, other)], shown, masks=masks)
    for admission in plan(shot).admissions:
        event("the second is placed, too")
        unbound += [made(two, index, shot.nodes.names[row]) for index, row in enumerate(admission.nodes)]
    world.random.shuffle(unbound)
    for pod in unbound:
        name = pinned_node(pod["spec"])
        if pod["metadata"]["labels"]["muster.dev/job"] == "second" or name not in changed:
            assert not cluster.refuses(pod, by_name[name])
        if name in by_name and not cluster.refuses(pod, by_name[name]):
            cluster.bind(pod, by_name[name])


@often
@given(seeds)
def test_a_template_asks_for_as_much_as_the_pod_that_the_api_server_makes_of_it(seed: int) -> None:
    spec = World(seed).pod_spec()
    taken = admitted({"metadata": {}, "spec": spec, "status": {}})
    assert requests_of(spec) == requests_of(taken["spec"])
    assert {
        name: amount for name, amount in requests_of(spec) if not name.startswith((*ONE_A_NODE, "pods"))
    } == requests(taken)
