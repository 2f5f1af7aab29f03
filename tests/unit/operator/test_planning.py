"""Between jobs and planner: flavours, quota lines, placements, and what keeps a job from the order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from muster.api.common import find_condition
from muster.api.effective import effective_spec
from muster.api.names import ConditionType
from muster.api.placement import AvoidedNode, Placement
from muster.api.topology import Topology
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import MAX_SIZES, CommittedCheckpoint, FixedSize, Progress, TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.eligibility import NodeFilter, filter_of_pod
from muster.cluster.pods import PodSettings, pin
from muster.cluster.snapshot import LevelInput, QueueInput, build, eligible
from muster.cluster.status import Draft
from muster.cluster.views import NamespaceView, NodeView, Taint
from muster.controllers import flavours, planning
from muster.controllers.admission import World, obstacle, products
from muster.controllers.books import topology_status
from muster.controllers.cache import Cache
from muster.controllers.claims import Claims
from muster.controllers.inputs import Inputs
from muster.controllers.progressed import progressed
from muster.controllers.records import Judgement, Record
from muster.controllers.sentences import avoiding
from muster.scheduling.plan import ChangeKind, Waiting, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import TopologyMode
from muster_protocol.launcher_status import Checkpoint as LauncherCheckpoint
from muster_protocol.launcher_status import Phase as LauncherPhase
from muster_protocol.launcher_status import Status as LauncherStatus

from .loops import Items

pytestmark = pytest.mark.unit

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
RACKS = (LevelInput("rack", "rack"), LevelInput("host", "kubernetes.io/hostname"))


def trainingjob(**spec: Any) -> TrainingJob:
    return TrainingJob.from_raw(
        {
            "metadata": {"name": "j", "namespace": "research", "uid": "u", "generation": 1},
            "spec": {
                "image": "x",
                "command": ["c"],
                "workers": {"replicas": 2, "gpusPerWorker": 8, **spec.pop("workers", {})},
                **spec,
            },
        }
    )


def trainingqueue(name: str = "q", **spec: Any) -> TrainingQueue:
    return TrainingQueue.from_raw({"metadata": {"name": name, "generation": 1}, "spec": spec})


def node(name: str, product: str = "NVIDIA-H100-80GB-HBM3", **labels: str) -> NodeView:
    return NodeView.from_raw(
        {
            "metadata": {
                "name": name,
                "labels": {**({"nvidia.com/gpu.product": product} if product else {}), **labels},
            },
            "status": {
                "allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def flavour(nodes: list[NodeView], **workers: Any) -> str:
    counts = flavours.flavour_counts(nodes)
    return flavours.choose_flavour(effective_spec(trainingjob(workers=workers).spec), counts)


SPOT = {"muster.dev/capacity": "spot"}
MIXED = [node("a"), node("b", "NVIDIA-H200"), node("c", "NVIDIA-H200"), node("d", "NVIDIA-A100-SXM4-80GB", **SPOT)]


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ({"gpuType": "H100"}, "H100/on-demand"),
        ({"gpuType": "NVIDIA-H100-80GB-HBM3"}, "H100/on-demand"),
        ({"gpuType": "a100"}, "A100/spot"),
        ({}, "H200/on-demand"),
        ({"gpusPerWorker": 0}, ""),
        ({"gpuType": "B200"}, "B200/on-demand"),
    ],
)
def test_the_flavour_that_a_job_draws_on(workers: dict[str, Any], expected: str) -> None:
    assert flavour(MIXED, **workers) == expected


def of_own_type(name: str, own: str, product: str = "NVIDIA-H100-80GB-HBM3", **labels: str) -> NodeView:
    return node(name, product, **{"muster.dev/gpu-type": own, **labels})


def drawn_on(quotas: list[list[str]], gpu_type: str) -> str:
    spec = effective_spec(trainingjob(workers={"gpuType": gpu_type}).spec)
    return flavours.choose_flavour(spec, flavours.flavour_counts([node("a")]), quotas)


def test_a_type_that_no_node_has_now_draws_on_its_own_quota() -> None:
    assert drawn_on([["H100", "H100-NVL"]], "H100-NVL") == "H100-NVL/on-demand"
    assert drawn_on([["H100", "H100-NVL"]], "h100-nvl") == "H100-NVL/on-demand", "as the quota has it"
    assert drawn_on([["A100"], ["H100-NVL", "H100"]], "H100-NVL") == "H100-NVL/on-demand", "of a queue above"
    assert drawn_on([["H100-NVL"]], "H100-NVL") == "H100/on-demand", "what the quota counts as"
    assert drawn_on([], "NVIDIA-B200") == "B200/on-demand"


def test_an_absent_type_is_looked_up_in_the_quotas_of_its_queue_and_again_when_these_change() -> None:
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    record = Record.of(trainingjob(queue="q", workers={"gpuType": "H100-NVL"}))
    resources = [{"name": "nvidia.com/gpu", "nominal": "8"}]

    def flavour_with(generation: int, *types: str) -> str:
        quotas = [{"gpuType": each, "resources": resources} for each in types]
        queue = trainingqueue(quotas=quotas)
        queue = queue.model_copy(update={"metadata": queue.metadata.model_copy(update={"generation": generation})})
        around = world(queues={"q": queue})
        inputs.look(around, [node("a")])
        return inputs.pending(record, around, NOW).flavour

    assert flavour_with(1, "H100", "H100-NVL") == "H100-NVL/on-demand"
    assert flavour_with(2, "H100") == "H100/on-demand"


def test_of_the_types_that_a_job_does_not_name_that_counts_which_its_labels_and_tolerations_allow() -> None:
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    nodes = [node("a"), node("b"), node("c", "NVIDIA-A100-SXM4-80GB"), node("d", **SPOT)]

    def flavour_with(nodes: list[NodeView], spec: dict[str, Any], **workers: Any) -> str:
        record = Record.of(trainingjob(workers=workers))
        record.judgement = Judgement("key", (("pods", 1),), filter_of_pod(spec))
        inputs.look(world(), nodes)
        return inputs.pending(record, world(), NOW).flavour

    a100 = {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}}
    assert flavour_with(nodes, {}) == "H100/on-demand"
    assert flavour_with(nodes, a100) == "A100/on-demand"
    assert flavour_with(nodes, {"nodeSelector": SPOT}) == "H100/spot"
    assert flavour_with(nodes, {"nodeSelector": SPOT}, gpuType="H100") == "H100/spot"
    assert flavour_with(nodes, a100, gpuType="H100") == "H100/on-demand", "what it asks for goes before"
    assert flavour_with(nodes, {"nodeSelector": {"no": "node"}}) == "H100/on-demand"
    tainted = [replace(each, taints=(Taint("t", "", "NoSchedule"),)) if each.name in "ab" else each for each in nodes]
    assert flavour_with(tainted, {}) == "A100/on-demand"


def test_a_new_taint_is_looked_at_where_it_changes_which_type_is_meant() -> None:
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    record = Record.of(trainingjob())
    record.judgement = Judgement("key", (("pods", 1),), NodeFilter())
    nodes = [node("a"), node("b"), node("c", "NVIDIA-A100-SXM4-80GB")]
    assert inputs.look(world(), nodes)
    assert inputs.pending(record, world(), NOW).flavour == "H100/on-demand"
    taint = (Taint("t", "", "NoSchedule"),)
    assert not inputs.look(world(), [replace(nodes[0], taints=taint), *nodes[1:]]), "the other one would do"
    assert inputs.look(world(), [replace(nodes[0], taints=taint), replace(nodes[1], taints=taint), nodes[2]])
    assert inputs.pending(record, world(), NOW).flavour == "A100/on-demand"


def test_nodes_that_change_their_names_are_looked_at_where_a_job_wants_one_by_name() -> None:
    cache = Cache(pods=Items(), nodes=Items(), namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    spec: dict[str, Any] = {}
    pin(spec, "c")
    record = Record.of(trainingjob())
    record.judgement = Judgement("key", (("pods", 1),), filter_of_pod(spec))
    inputs.look(world(), [node("a"), node("b"), node("c", "NVIDIA-A100-SXM4-80GB")])
    assert inputs.pending(record, world(), NOW).flavour == "A100/on-demand"
    inputs.look(world(), [node("c"), node("b"), node("a", "NVIDIA-A100-SXM4-80GB")])
    assert inputs.pending(record, world(), NOW).flavour == "H100/on-demand"


@pytest.mark.parametrize("runs", [True, False])
def test_a_gang_whose_nodes_get_a_name_of_the_sites_own_while_it_runs_finds_others_of_that_name(runs: bool) -> None:
    cache_nodes, nodes = Items(), [*(of_own_type(name, "H100-NVL") for name in "abc"), node("d")]
    cache_nodes.items.update({each.name: each for each in nodes})
    cache = Cache(pods=Items(), nodes=cache_nodes, namespaces=Items(), priority_classes=Items())
    inputs = Inputs(cache, PodSettings("runtime"), Claims(cache.mark))
    record = Record.of(trainingjob(workers={"gpuType": "H100", "replicas": 2}))
    record.judgement = Judgement("key", (("pods", 1),), NodeFilter())
    if runs:
        record.assumed = Placement.of(1, ("a", "b"), flavour="H100/on-demand")
    inputs.look(world(), nodes)
    found = inputs.pending(record, world(), NOW)
    assert found.flavour == ("H100-NVL/on-demand" if runs else "H100/on-demand")
    assert eligible(found.node_filter, nodes).tolist() == [runs, runs, runs, not runs]


def test_a_product_whose_nodes_are_all_spot_draws_on_spot_whoever_made_it() -> None:
    product = "AMD_Instinct_MI300X_OAM"
    amd = node("a", "", **{"amd.com/gpu.product-name": product}, **SPOT)
    assert flavour([amd], gpuType=product) == "MI300X/spot"


def test_a_type_of_a_sites_own_stays_what_it_is_on_a_kind_of_capacity_without_nodes() -> None:
    spec = effective_spec(trainingjob(workers={"gpuType": "H100-fast"}, capacity={"order": ["spot", "on-demand"]}).spec)
    choices = flavours.choose_flavours(spec, flavours.flavour_counts([of_own_type("a", "H100-fast")]))
    assert [choice.flavour for choice in choices] == ["H100-fast/spot", "H100-fast/on-demand"]


def test_a_gang_that_names_a_product_of_two_types_runs_on_that_whose_quota_it_draws_on() -> None:
    nodes = [of_own_type("a", "H100-fast"), node("b"), node("c")]
    job = trainingjob(workers={"gpuType": "NVIDIA-H100-80GB-HBM3"})
    spec = effective_spec(job.spec)
    found = planning.pending_input(
        job,
        spec,
        request={"nvidia.com/gpu": 8},
        node_filter=NodeFilter(),
        choices=flavours.choose_flavours(spec, flavours.flavour_counts(nodes)),
        priority=0,
        levels=RACKS,
    )
    shot = build(nodes=nodes, pods=[], jobs=[found], queues=[], levels=RACKS)
    assert found.flavour == "H100/on-demand"
    assert shot.eligible[shot.jobs.filters[0]].tolist() == [False, True, True]


def test_without_labels_there_is_no_flavour() -> None:
    assert flavour([node("a", "")]) == ""


def test_preferred_without_a_known_level_starts_at_the_narrowest_and_required_has_none() -> None:
    def chosen(**topology: Any) -> tuple[TopologyMode, str]:
        return planning.mode_and_level(effective_spec(trainingjob(topology=topology).spec), RACKS)

    assert chosen() == (TopologyMode.PREFERRED, "host")
    assert chosen(mode="required", level="rack") == (TopologyMode.REQUIRED, "rack")
    assert chosen(mode="unconstrained") == (TopologyMode.UNCONSTRAINED, "")
    assert chosen(mode="preferred", level="gone") == (TopologyMode.PREFERRED, "host")
    assert chosen(mode="required", level="gone") == (TopologyMode.REQUIRED, "")


def test_what_a_waiting_job_brings_to_the_planner() -> None:
    job = trainingjob(workers={"gpuType": "H100"})
    found = planning.pending_input(
        job,
        effective_spec(job.spec),
        request={"nvidia.com/gpu": 8, "pods": 1},
        node_filter=NodeFilter(selector=(("a", "1"),)),
        choices=(flavours.Choice("H100/on-demand", ("on-demand",)),),
        priority=7,
        levels=RACKS,
        avoided=["n1"],
    )
    assert found.node_filter == NodeFilter(
        selector=(("a", "1"),), gpu_type="H100", capacity=("on-demand",), avoided=frozenset({"n1"})
    )
    assert (found.workers, found.priority, found.queue) == (2, 7, "default")
    assert not found.holding


def test_the_planner_is_told_who_saves_checkpoints() -> None:
    """Who says where to, or has committed one: a script may know by itself where to save."""

    def saves(job: TrainingJob) -> bool:
        found = planning.pending_input(
            job,
            effective_spec(job.spec),
            request={"nvidia.com/gpu": 8, "pods": 1},
            node_filter=NodeFilter(),
            choices=(flavours.Choice("H100/on-demand", ("on-demand",)),),
            priority=0,
            levels=RACKS,
        )
        return bool(build(nodes=[], pods=[], jobs=[found], queues=[], levels=RACKS).jobs.terms.saves[0])

    silent = trainingjob()
    assert saves(trainingjob(checkpoint={"uri": "s3://bucket/run"}))
    assert not saves(silent)
    committed = silent.status.model_copy(update={"checkpoint": CommittedCheckpoint(step=3, committed_at=NOW)})
    assert saves(silent.model_copy(update={"status": committed}))


def test_a_placement_is_written_with_its_domain_and_told() -> None:
    nodes = [node("a", rack="r1"), node("b", rack="r1"), node("c", rack="r2")]
    shot = build(nodes=nodes, pods=[], jobs=[], queues=[], levels=RACKS)
    placement = planning.placement_of(shot, np.array([0, 0, 1], dtype=np.int32), 4, NOW)
    assert placement.node_of_index() == ("a", "a", "b")
    assert placement.domain == "rack r1"
    assert planning.placement_of(shot, np.array([0, 2], dtype=np.int32), 1, NOW).domain == ""
    assert planning.placement_of(shot, np.array([2, 2], dtype=np.int32), 1, NOW).domain == "host c"
    status = planning.admitted(trainingjob(), placement, NOW)
    told = find_condition(status.conditions, "Admitted")
    assert told is not None
    assert told.message == "3 workers on 2 nodes in rack r1: a, b"
    assert (status.placements, status.replicas, status.phase) == (4, 3, "Starting")


def test_names_of_many_nodes_are_cut() -> None:
    nodes = [node(f"node-with-a-long-name-{index:03}" + "x" * 200) for index in range(20)]
    shot = build(nodes=nodes, pods=[], jobs=[], queues=[], levels=RACKS)
    placement = planning.placement_of(shot, np.arange(20, dtype=np.int32), 1, NOW)
    status = planning.admitted(trainingjob(), placement, NOW)
    assert status.nodes is not None
    assert len(status.nodes) <= 1024
    assert len(planning.admitted(trainingjob(), placement, NOW).to_raw()) > 0


# -- what keeps a job from the order --


def world(**changes: Any) -> World:
    values: dict[str, Any] = {
        "queues": {"default": trainingqueue("default")},
        "namespaces": {"research": NamespaceView.from_raw({"metadata": {"name": "research", "labels": {"team": "x"}}})},
        "priorities": {"high": 10, "system-node-critical": 2_000_001_000},
        "levels": RACKS,
        "has_topology": True,
        "gpu_types": ["H100"],
        "products": products([node("a")]),
    }
    return World(**{**values, **changes})


def reason(around: World | None = None, **spec: Any) -> tuple[str, str]:
    found = obstacle("research", effective_spec(trainingjob(**spec).spec), around or world())
    return (found.reason.value, found.message) if found else ("", "")


def test_nothing_keeps_a_good_job() -> None:
    assert reason(workers={"gpuType": "H100"}, topology={"mode": "required", "level": "rack"}) == ("", "")


@pytest.mark.parametrize(
    ("spec", "expected", "words"),
    [
        ({"queue": "nope"}, "QueueNotFound", ["'nope'", "default"]),
        ({"priorityClassName": "top"}, "PriorityClassNotFound", ["'top'", "high"]),
        ({"workers": {"gpuType": "Z1"}}, "UnknownGpuType", ["'Z1'", "H100"]),
        ({"topology": {"mode": "required", "level": "zone"}}, "LevelNotFound", ["'zone'", "rack, host"]),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(spec: dict[str, Any], expected: str, words: list[str]) -> None:
    found, message = reason(**spec)
    assert found == expected
    assert all(word in message for word in words)
    assert "system-node-critical" not in message


def test_a_cluster_without_queues_offers_none() -> None:
    found, message = reason(world(queues={}))
    assert (found, message) == (
        "QueueNotFound",
        "there is no TrainingQueue 'default', nor any other: have one made; the job starts when it is there",
    )


def test_the_priority_of_all_gangs_pods_is_not_offered() -> None:
    around = world(priorities={"muster-gang": 0, "system-node-critical": 2_000_001_000}, gangs_priority="muster-gang")
    assert reason(around, priorityClassName="hihg")[1] == (
        "there is no PriorityClass 'hihg', nor any other for jobs: have one made "
        "(kubectl create priorityclass hihg --value=1000), or name none"
    )


def test_a_level_without_a_topology_says_so() -> None:
    around = world(has_topology=False, levels=planning.levels_of(None))
    found, message = reason(around, topology={"mode": "required", "level": "rack"})
    assert found == "TopologyNotFound"
    assert "host" in message
    assert reason(around, topology={"mode": "required", "level": "host"}) == ("", "")


def test_a_queue_may_be_closed_to_a_namespace() -> None:
    def closed_to_all_but(**selector: Any) -> World:
        return world(queues={"default": trainingqueue("default", namespaces=selector)})

    assert reason(closed_to_all_but(matchLabels={"team": "x"})) == ("", "")
    assert reason(closed_to_all_but(matchLabels={"team": "y"}))[0] == "NamespaceNotAllowed"
    assert reason(closed_to_all_but(matchLabels={"kubernetes.io/metadata.name": "research"})) == ("", "")
    exists = {"key": "team", "operator": "Exists"}
    assert reason(closed_to_all_but(matchExpressions=[exists])) == ("", "")


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        (
            {"matchLabels": {"team": "y", "floor": "2"}},
            "team=y, floor=2. Have it labelled (kubectl label namespace research team=y floor=2 --overwrite), or ask",
        ),
        (
            {"matchLabels": {"floor": "2"}},
            "floor=2. Have it labelled (kubectl label namespace research floor=2), or ask",
        ),
        (
            {"matchLabels": {"kubernetes.io/metadata.name": "ops"}},
            "kubernetes.io/metadata.name=ops. Have the queue opened to it, or ask for another queue in spec.queue",
        ),
        (
            {
                "matchExpressions": [
                    {"key": "team", "operator": "In", "values": ["y", "z"]},
                    {"key": "team", "operator": "NotIn", "values": ["x"]},
                    {"key": "team", "operator": "DoesNotExist"},
                    {"key": "floor", "operator": "Exists"},
                ]
            },
            "team in (y, z), team notin (x), !team, floor. Have the queue opened to it, or ask",
        ),
    ],
)
def test_a_namespace_is_told_which_labels_it_lacks(selector: dict[str, Any], told: str) -> None:
    around = world(queues={"default": trainingqueue("default", namespaces=selector)})
    found, message = reason(around)
    assert found == "NamespaceNotAllowed"
    assert told in message


# -- books --


def test_a_topology_names_nodes_without_labels() -> None:
    topology = Topology.from_raw(
        {"metadata": {"name": "default"}, "spec": {"levels": [{"name": "rack", "label": "rack"}]}}
    )
    status = topology_status(topology, [node("a", rack="1"), node("b")], NOW)
    assert status.nodes == 1
    assert status.conditions[0].reason == "NodesNotLabelled"
    assert "b lacks rack" in status.conditions[0].message
    assert topology_status(topology, [node("a", rack="1")], NOW).conditions[0].status == "True"


def test_counts_are_of_flavour_and_product() -> None:
    assert flavours.flavour_counts(MIXED) == Counter(
        {
            ("H100/on-demand", "NVIDIA-H100-80GB-HBM3"): 1,
            ("H200/on-demand", "NVIDIA-H200"): 2,
            ("A100/spot", "NVIDIA-A100-SXM4-80GB"): 1,
        }
    )


@pytest.mark.parametrize(
    ("topology", "reason", "words"),
    [
        ({"slices": [{"workers": 2, "level": "pod"}]}, "LevelNotFound", "topology.slices[0].level is 'pod'"),
        ({"balanced": "pod"}, "LevelNotFound", "topology.balanced is 'pod'"),
        (
            {"mode": "required", "level": "host", "slices": [{"workers": 2, "level": "rack"}]},
            "LevelsOutOfOrder",
            "which is not narrower than topology.level, 'host'; the levels, widest first, are: rack, host",
        ),
        (
            {"slices": [{"workers": 4, "level": "host"}, {"workers": 2, "level": "rack"}]},
            "LevelsOutOfOrder",
            "not narrower than topology.slices[0].level",
        ),
    ],
)
def test_slices_name_levels_of_the_cluster_from_wide_to_narrow(
    topology: dict[str, Any], reason: str, words: str
) -> None:
    spec = effective_spec(trainingjob(topology=topology).spec)
    found = obstacle("research", spec, world(levels=RACKS, has_topology=True))
    assert found is not None
    assert found.reason.value == reason
    assert words in found.message


def test_capacity_in_order_brings_alternatives_with_their_moments() -> None:
    capacity = {"order": ["spot", "on-demand"], "fallbackAfter": "5m"}
    job = trainingjob(workers={"gpuType": "H100"}, capacity=capacity)
    spec = effective_spec(job.spec)
    choices = flavours.choose_flavours(spec, flavours.flavour_counts(MIXED))
    assert [choice.flavour for choice in choices] == ["H100/spot", "H100/on-demand"]
    found = planning.pending_input(
        job, spec, request={}, node_filter=NodeFilter(), choices=choices, priority=0, levels=RACKS
    )
    assert (found.flavour, found.node_filter.capacity) == ("H100/spot", ("spot",))
    (other,) = found.terms.alternatives
    assert (other.flavour, other.node_filter.capacity, other.since) == ("H100/on-demand", ("on-demand",), 300.0)


KINDS = ["on-demand", "reserved", "spot"]


@pytest.mark.parametrize(
    ("prices", "order"),
    [
        ({"H100/on-demand": 3.0, "H100/reserved": 2.0, "H100/spot": 1.0}, ["spot", "reserved", "on-demand"]),
        ({"H100/on-demand": 3.0, "H100/reserved": 0.0, "H100/spot": 4.0}, ["reserved", "on-demand", "spot"]),
        ({"H100/spot": 4.0, "H200/reserved": 1.0}, ["spot", "on-demand", "reserved"]),
        ({"H100/on-demand": 2.0, "H100/spot": 2.0}, ["on-demand", "spot", "reserved"]),
        ({}, KINDS),
    ],
)
def test_who_prefers_the_cheapest_takes_kinds_by_their_prices(prices: dict[str, float], order: list[str]) -> None:
    capacity = {"order": KINDS, "prefer": "cheapest"}
    job = trainingjob(workers={"gpuType": "H100"}, capacity=capacity)
    spec = effective_spec(job.spec)
    choices = flavours.choose_flavours(spec, flavours.flavour_counts([node("a")]), (), prices)
    assert [choice.flavour for choice in choices] == [f"H100/{kind}" for kind in order]
    found = planning.pending_input(
        job, spec, request={}, node_filter=NodeFilter(), choices=choices, priority=0, levels=RACKS
    )
    assert [
        found.node_filter.capacity[0],
        *(each.node_filter.capacity[0] for each in found.terms.alternatives),
    ] == order
    assert [each.since for each in found.terms.alternatives] == [600.0, 1200.0], "each kind has its own wait"
    listed = effective_spec(trainingjob(workers={"gpuType": "H100"}, capacity={"order": KINDS}).spec)
    chosen = flavours.choose_flavours(listed, flavours.flavour_counts([node("a")]), (), prices)
    assert [choice.flavour for choice in chosen] == [f"H100/{kind}" for kind in KINDS]


def test_who_names_no_kind_takes_the_first_that_there_is() -> None:
    spec = effective_spec(trainingjob(workers={"gpuType": "H100"}).spec)
    kinds = [node("a"), node("b", **{"muster.dev/capacity": "reserved"}), node("c", **SPOT), node("d", **SPOT)]
    for first, kind in enumerate(KINDS):
        choices = flavours.choose_flavours(spec, flavours.flavour_counts(kinds[first:]))
        assert choices == (flavours.Choice(f"H100/{kind}", (kind,)),)


def test_a_job_that_has_nodes_takes_more_of_their_kind_only() -> None:
    one = effective_spec(trainingjob().spec)
    chosen = flavours.choose_flavours(one, flavours.flavour_counts(MIXED))
    assert flavours.standing_choices(one, chosen, "A100/spot") == (flavours.Choice("A100/spot", ("spot",)),)
    assert flavours.standing_choices(one, chosen, "") == chosen
    both = effective_spec(trainingjob(capacity={"order": ["on-demand", "spot"]}).spec)
    chosen = flavours.choose_flavours(both, flavours.flavour_counts(MIXED))
    stands = flavours.standing_choices(both, chosen, "H100/on-demand")
    assert stands == (flavours.Choice("H100/on-demand", ("on-demand",)), flavours.Choice("A100/spot", ("spot",)))


def test_a_kind_that_no_node_is_of_now_has_the_gpus_of_the_others() -> None:
    capacity = {"order": ["spot", "on-demand"]}
    spec = effective_spec(trainingjob(capacity=capacity).spec)
    nodes = [node("a"), node("cpu", "", **SPOT)]
    choices = flavours.choose_flavours(spec, flavours.flavour_counts(nodes))
    assert [choice.flavour for choice in choices] == ["H100/spot", "H100/on-demand"]
    found = planning.pending_input(
        trainingjob(capacity=capacity),
        spec,
        request={},
        node_filter=NodeFilter(),
        choices=choices,
        priority=0,
        levels=RACKS,
    )
    assert found.node_filter.gpu_type == "H100", "spot nodes without GPUs do not suit"


def test_an_elastic_gang_brings_its_sizes_and_may_start_small() -> None:
    job = trainingjob(workers={"replicas": 6, "min": 2, "max": 10, "step": 2}, preemptible=False)
    spec = effective_spec(job.spec)
    choices = flavours.choose_flavours(spec, flavours.flavour_counts(MIXED))
    found = planning.pending_input(
        job, spec, request={}, node_filter=NodeFilter(), choices=choices, priority=0, levels=RACKS
    )
    assert (found.workers, found.sizes, found.partial) == (6, (2, 10, 2), True)
    assert not found.terms.preemptible


@pytest.mark.parametrize(
    ("replica", "capacity", "told"),
    [(None, {}, "3"), (2, {}, "2"), (4, {}, None), (2, {"order": ["spot"], "base": "on-demand"}, "2")],
)
def test_a_gang_is_told_of_fewer_workers_in_whole_replicas_of_its_model(
    replica: int | None, capacity: dict[str, Any], told: str | None
) -> None:
    """Others the API server would refuse. There is room for three of its four; one with a base has these, and more."""
    nodes = [node(name) for name in "abc"]
    size = {"min": 4, "replicas": 8} if capacity else {"replicas": 4}
    replicas = {} if replica is None else {"parallelism": {"workersPerReplica": replica}}
    more = {"capacity": capacity} if capacity else {}
    job = trainingjob(workers={**size, "gpusPerWorker": 8}, **replicas, **more)
    spec = effective_spec(job.spec)
    choice = flavours.choose_flavour(spec, flavours.flavour_counts(nodes))
    found = planning.pending_input(
        job,
        spec,
        request={"nvidia.com/gpu": 8, "pods": 1},
        node_filter=NodeFilter(),
        choices=(flavours.Choice(choice, ("on-demand",)),),
        beyond=flavours.Choice("H100/spot", ("spot",)) if capacity else None,
        priority=0,
        levels=RACKS,
    )
    queue = QueueInput(spec.queue)
    (waiting,) = plan(build(nodes=nodes, pods=[], jobs=[found], queues=[queue], levels=RACKS)).waiting
    assert [each.value for each in waiting.changes if each.kind is ChangeKind.WORKERS] == [told] * (told is not None)


@pytest.mark.parametrize("workers", [{"replicas": 6, "min": 2, "max": 10, "step": 2}, {"replicas": 4}])
def test_a_gang_whose_training_fixes_its_size_keeps_it_and_is_told_no_other(workers: dict[str, int]) -> None:
    job = trainingjob(workers=workers)
    placed = Placement.of(1, ["n"] * 4, placed_at=NOW)
    job = job.model_copy(update={"status": job.status.model_copy(update={"placement": placed})})
    said = LauncherStatus(LauncherPhase.RUNNING, 1, 1, 0, step=3, fixed_size="'loader' is a StatefulDataLoader")
    status = progressed(job, said, NOW)
    assert status is not None
    assert status.fixed_size == FixedSize(workers=4, message="'loader' is a StatefulDataLoader")
    fixed = job.model_copy(update={"status": status.model_copy(update={"placement": None})})
    spec = effective_spec(job.spec)
    choices = flavours.choose_flavours(spec, flavours.flavour_counts(MIXED))
    found = planning.pending_input(
        fixed, spec, request={}, node_filter=NodeFilter(), choices=choices, priority=0, levels=RACKS
    )
    assert (found.workers, found.sizes) == (4, (4, 4, 4))
    running = job.model_copy(update={"status": status})
    starting = progressed(running, replace(said, step=None, fixed_size=""), NOW)
    assert (starting or status).fixed_size == status.fixed_size, "nothing is known before the first step"
    other = progressed(running, replace(said, fixed_size=""), NOW)
    assert other is not None
    assert other.fixed_size is None, "the script has changed since"


@pytest.mark.parametrize("uri", ["file:///tmp/x", f"s3://bucket/{'x' * 1024}"])
def test_progress_is_told_wherever_a_launcher_says_that_its_checkpoint_is(uri: str) -> None:
    said = LauncherStatus(LauncherPhase.RUNNING, 1, 1, 0, step=29, checkpoint=LauncherCheckpoint(20, uri, 0.0))
    told = progressed(trainingjob(), said, NOW)
    assert told is not None
    assert told.checkpoint is not None
    assert (told.checkpoint.step, told.checkpoint.uri) == (20, None)


@pytest.mark.parametrize(("pace", "total", "seconds"), [(5.0, 300, 60), (0.1, 300, 200), (5.0, None, 60)])
def test_a_gang_that_answers_and_does_no_step_stands_still(pace: float, total: int | None, seconds: int) -> None:
    said = LauncherStatus(LauncherPhase.RUNNING, 1, 1, 0, step=29, total_steps=total, steps_per_second=pace)
    told = progressed(trainingjob(), said, NOW)
    assert told is not None
    assert told.progress is not None
    job = trainingjob().model_copy(update={"status": told})
    late = NOW + timedelta(seconds=seconds)
    assert progressed(job, said, late - timedelta(seconds=1)) is None
    assert progressed(job, replace(said, step=None), late) is None, "its ranks start again"
    still = progressed(job, said, late)
    assert still is not None
    assert still.progress == told.progress.model_copy(update={"stands_still": True})
    job = job.model_copy(update={"status": still})
    assert progressed(job, said, late + timedelta(hours=1)) is None, "it is written once"
    moves = progressed(job, replace(said, step=30), late)
    assert moves is not None
    assert moves.progress is not None
    assert moves.progress.stands_still is None


def test_a_gang_that_has_done_all_its_steps_does_not_stand_still() -> None:
    said = LauncherStatus(LauncherPhase.RUNNING, 1, 1, 0, step=300, total_steps=300, steps_per_second=5.0)
    told = progressed(trainingjob(), said, NOW)
    assert told is not None
    assert progressed(trainingjob().model_copy(update={"status": told}), said, NOW + timedelta(hours=1)) is None


def test_a_job_that_is_applied_again_has_the_checkpoint_that_it_resumed_from() -> None:
    job = trainingjob(checkpoint={"uri": "s3://bucket/run/"})
    said = LauncherStatus(LauncherPhase.RUNNING, 1, 1, 0, step=563, resumed_from=550, resumed_uri="s3://bucket/run")
    status = progressed(job, said, NOW)
    assert status is not None
    assert status.checkpoint == CommittedCheckpoint(step=550, uri="s3://bucket/run/")
    known = job.model_copy(update={"status": status})
    later = progressed(known, replace(said, step=600, checkpoint=LauncherCheckpoint(600, "s3://bucket/run", 1e9)), NOW)
    assert later is not None
    assert later.checkpoint is not None
    assert later.checkpoint.step == 600
    for other in (
        replace(said, resumed_uri="s3://bucket/another@550"),  # checkpoint.from
        replace(said, resumed_uri="its workers' memory"),
        replace(said, step=550),  # a run that had finished trains nothing: its end says so
        replace(said, step=None),
    ):
        told = progressed(job, other, NOW) or job.status
        assert told.checkpoint is None


def test_progress_does_not_stay_behind_the_checkpoint_that_the_ranks_go_on_from() -> None:
    job, early = trainingjob(), NOW - timedelta(minutes=1)
    trained = Progress(step=95, total_steps=200, loss="2.7", updated_at=early)
    job = job.model_copy(update={"status": job.status.model_copy(update={"progress": trained})})
    saved = LauncherCheckpoint(100, "s3://bucket/run", NOW.timestamp())
    starts = LauncherStatus(LauncherPhase.RUNNING, 1, 2, 0, checkpoint=saved)
    status = progressed(job, starts, NOW)
    assert status is not None
    assert status.progress == Progress(step=100, total_steps=200, updated_at=early), "nothing was trained meanwhile"
    again = progressed(job, replace(starts, step=100, loss="2.5"), NOW)
    assert again is not None
    assert again.progress is not None
    assert (again.progress.step, again.progress.loss) == (100, "2.5")
    went_back = progressed(job, replace(starts, step=90, loss="2.8"), NOW)
    assert went_back is not None
    assert went_back.progress is not None
    assert went_back.progress.step == 90, "what the ranks say counts"


def test_a_message_names_who_is_in_the_way_and_the_largest_holders() -> None:
    names = {uid: f"research/{uid}" for uid in "abcdef"}
    waiting = Waiting("z", WaitReason.QUOTA_EXCEEDED, "nobody may be asked", 1, holders=tuple("abcde"))
    assert planning.blockers(waiting, names) == "nobody may be asked", "they come and go"
    waiting = waiting._replace(names_holders=True)
    assert planning.blockers(waiting, names) == "nobody may be asked: research/a, research/b, research/c and 2 more"
    assert planning.blockers(waiting._replace(holders=("f",)), names) == "nobody may be asked: research/f"
    assert planning.blockers(waiting._replace(holders=("x",)), names) == "nobody may be asked", "an orphan has no name"
    assert planning.blockers(waiting._replace(holders=(), names_holders=False, blocker="b"), names) == (
        "nobody may be asked (kept for research/b)"
    )


def test_who_lacks_nodes_is_told_which_it_stays_away_from_and_until_when() -> None:
    def avoided(name: str, minutes: int) -> AvoidedNode:
        return AvoidedNode(node=name, reason="the kubelet refused its pod", until=NOW + timedelta(minutes=minutes))

    status = TrainingJobStatus(avoided=(*(avoided(name, 5) for name in "abc"), avoided("past", -1)))
    told = avoiding(status, NOW)
    assert told == (
        "; the job stays away from a until 2026-03-01T12:05:00Z (the kubelet refused its pod); "
        "b until 2026-03-01T12:05:00Z (the kubelet refused its pod); and 1 more: "
        "suspend and resume it to try there at once"
    )
    assert avoiding(status, NOW + timedelta(hours=1)) == ""
    assert avoiding(status, NOW, {"a", "c"}).startswith("; the job stays away from b until")
    assert avoiding(status, NOW, {"a", "b", "c"}) == "", "in quarantine: to suspend and resume it helps nothing"


def placed_with(job: TrainingJob, workers: int, why: str) -> TrainingJob:
    """The job after another placement, for which it had waited with this reason."""
    draft = Draft(job, NOW)
    draft.condition(ConditionType.ADMITTED, False, why)
    waiting = job.model_copy(update={"status": draft.done()})
    placement = Placement.of((job.status.placements or 0) + 1, [f"n{index}" for index in range(workers)])
    status = planning.admitted(waiting, placement, NOW).to_raw()
    return TrainingJob.from_raw(job.to_raw() | {"status": status})


def test_the_sizes_of_an_elastic_gang_are_kept_with_their_reasons() -> None:
    job = trainingjob(workers={"replicas": 8, "min": 2})
    for workers, why in (
        (8, "InsufficientCapacity"),
        (8, "Restarting"),
        (7, "WorkersLost"),
        (6, "Restarting"),
        (8, "Grown"),
        (4, "Shrunk"),
        (6, "QuotaExceeded"),
    ):
        job = placed_with(job, workers, why)
    assert [(size.workers, size.reason) for size in job.status.sizes] == [
        (8, "Started"),
        (7, "WorkersLost"),
        (6, "WorkersLost"),
        (8, "Grown"),
        (4, "Shrunk"),
        (6, "Started"),
    ]
    assert job.status.workers == "6/8"
    for number in range(2 * MAX_SIZES):
        job = placed_with(job, 4 + number % 2, "Grown")
    assert [size.workers for size in job.status.sizes] == [4, 5] * (MAX_SIZES // 2)
    assert not placed_with(trainingjob(), 2, "Restarting").status.sizes, "it has one size"


@pytest.mark.parametrize("workers", [{"replicas": 2, "min": 1}, {"replicas": 2}], ids=["elastic", "fixed"])
def test_a_size_that_an_edit_has_brought_is_kept_and_no_nodes_are_said_to_have_gone(workers: dict[str, Any]) -> None:
    job = placed_with(trainingjob(workers={"replicas": 4, "min": 1}), 4, "InsufficientCapacity")
    smaller = trainingjob(workers=workers)
    edited = TrainingJob.from_raw(smaller.to_raw() | {"status": job.status.to_raw()})
    job = placed_with(edited, 2, "Restarting")
    assert [(size.workers, size.reason) for size in job.status.sizes] == [(4, "Started"), (2, "Started")]


def test_the_workers_that_a_job_has_are_written_with_other_things_alone() -> None:
    job = placed_with(trainingjob(workers={"replicas": 8, "min": 2}), 6, "QuotaExceeded")
    assert job.status.workers == "6/8"
    older = job.model_copy(update={"status": job.status.model_copy(update={"workers": ""})})
    assert Draft(older, NOW).done() == older.status, "nothing else is new"
    draft = Draft(older, NOW)
    draft.set(ready=6)
    assert draft.done().workers == "6/8"
    draft.set(placement=None)
    assert draft.done().workers == "8", "what it waits for"
    assert placed_with(trainingjob(), 2, "QuotaExceeded").status.workers == "2"


@pytest.mark.parametrize(
    ("domain", "told"),
    [
        ("host node-0", "2 workers on 1 node: node-0"),
        ("rack rack-0", "2 workers on 1 node in rack rack-0: node-0"),
        ("", "2 workers on 1 node: node-0"),
    ],
)
def test_a_node_that_is_the_whole_domain_is_named_once(domain: str, told: str) -> None:
    raw = {"generation": 1, "workers": 2, "nodes": [{"node": "node-0", "indexes": "0-1"}], "domain": domain}
    assert planning.where(Placement.model_validate(raw)) == told
