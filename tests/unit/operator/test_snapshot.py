"""What the planner sees, and above all: what a node has given away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.api.jobparts import MAX_WORKERS
from muster.api.placement import MAX_SPARES
from muster.cluster.eligibility import NodeFilter
from muster.cluster.jobs import LARGEST, AlternativeInput, JobInput, RunInput, TermsInput
from muster.cluster.pods import pod_name
from muster.cluster.snapshot import LevelInput, Masks, QueueInput, QuotaInput, build, eligible
from muster.cluster.views import NodeView, PodView, Taint
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import FOREVER, NONE, PLAIN, UNLIMITED, JobState, Mask, Snapshot, TopologyMode

pytestmark = pytest.mark.unit

REQUEST = {"nvidia.com/gpu": 1, "cpu": 1000, "pods": 1}


def node(name: str, *, gpus: int = 8, ready: bool = True, cordoned: bool = False, **labels: str) -> NodeView:
    allocatable = {"cpu": "64", "memory": "1Ti", "pods": "110"}
    if gpus:
        allocatable["nvidia.com/gpu"] = str(gpus)
        labels.setdefault("product", "NVIDIA-H100-80GB-HBM3")
    product = labels.pop("product", None)
    return NodeView.from_raw(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {
                    "kubernetes.io/hostname": name,
                    **({"nvidia.com/gpu.product": product} if product else {}),
                    **labels,
                },
            },
            "spec": {"unschedulable": cordoned},
            "status": {
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        }
    )


def pod(name: str, *, bound: str = "", pinned: str = "", owner: str = "", **fields: Any) -> PodView:
    labels = {}
    if "index" in fields:
        labels = {"muster.dev/job": "j", "muster.dev/generation": str(fields.get("generation", 1))}
        labels |= {"muster.dev/index": str(fields["index"]), "muster.dev/attempt": str(fields.get("attempt", 0))}
    metadata: dict[str, Any] = {"name": name, "namespace": "ns", "uid": fields.get("uid", name), "labels": labels}
    if owner:
        metadata["name"] = pod_name("j", fields.get("generation", 1), fields["index"], fields.get("attempt", 0))
        ours = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}
        metadata["ownerReferences"] = [{**ours, "uid": owner, "controller": True}]
    if fields.get("terminating"):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: dict[str, Any] = {
        "containers": [{"name": "trainer", "resources": {"requests": {"nvidia.com/gpu": "1", "cpu": "1"}}}]
    }
    if bound:
        spec["nodeName"] = bound
    if pinned:
        demand = {"key": "metadata.name", "operator": "In", "values": [pinned]}
        required = {"nodeSelectorTerms": [{"matchFields": [demand]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return PodView.from_raw({"metadata": metadata, "spec": spec, "status": {"phase": fields.get("phase", "Running")}})


def job(uid: str = "j", **fields: Any) -> JobInput:
    values: dict[str, Any] = {"namespace": "ns", "queue": "q", "workers": 2, "request": REQUEST}
    return JobInput(uid=uid, **{**values, "flavour": "H100/on-demand", **fields})


def snapshot(
    nodes: list[NodeView],
    pods: list[PodView] | None = None,
    jobs: list[JobInput] | None = None,
    queues: list[QueueInput] | None = None,
    levels: list[LevelInput] | None = None,
) -> Snapshot:
    return build(
        nodes=nodes,
        pods=pods or [],
        jobs=jobs if jobs is not None else [job()],
        queues=queues if queues is not None else [QueueInput("q")],
        levels=levels if levels is not None else [LevelInput("host", "kubernetes.io/hostname")],
    )


def free(shot: Snapshot, name: str, resource: str = "nvidia.com/gpu") -> int:
    return int(shot.nodes.free[shot.nodes.names.index(name), shot.resources.index(resource)])


def held(shot: Snapshot, uid: str, resource: str = "nvidia.com/gpu") -> int:
    return int(shot.jobs.held[shot.jobs.uids.index(uid), shot.resources.index(resource)])


def test_bound_and_pinned_pods_take_room_whoever_made_them() -> None:
    shot = snapshot([node("a"), node("b")], [pod("x", bound="a"), pod("y", pinned="a"), pod("z")])
    assert free(shot, "a") == 6
    assert free(shot, "a", "pods") == 108
    assert free(shot, "b") == 8


def test_a_pod_of_another_namespace_takes_room_and_no_jobs_quota_whatever_owner_it_names() -> None:
    forged = replace(pod("x", bound="a", owner="j", index=0), namespace="elsewhere")
    shot = snapshot([node("a")], [pod("j-g1-0-0", bound="a", owner="j", index=0), forged], [job(holding=True)])
    assert (free(shot, "a"), held(shot, "j")) == (6, 1)


def test_pods_being_deleted_count_until_they_are_gone() -> None:
    shot = snapshot([node("a")], [pod("x", bound="a", terminating=True)])
    assert free(shot, "a") == 7


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_ended_pods_take_no_room(phase: str) -> None:
    assert free(snapshot([node("a")], [pod("x", bound="a", phase=phase)]), "a") == 8


def test_a_pod_seen_twice_counts_once() -> None:
    one = pod("x", bound="a", uid="same")
    assert free(snapshot([node("a")], [one, one]), "a") == 7


def test_a_placement_holds_its_room_before_any_pod_is_made() -> None:
    placed = job(placed=("a", "a", "b"), workers=3, generation=4, holding=True)
    shot = snapshot([node("a"), node("b")], jobs=[placed])
    assert (free(shot, "a"), free(shot, "b")) == (6, 7)
    assert held(shot, "j") == 3


@pytest.mark.parametrize("made", range(4))
def test_a_placement_holds_the_same_room_at_any_moment_of_its_making(made: int) -> None:
    placed = job(placed=("a", "a", "b"), workers=3, generation=4, holding=True)
    pods = [
        pod(f"j-{index}", pinned=placed.placed[index], owner="j", index=index, generation=4) for index in range(made)
    ]
    shot = snapshot([node("a"), node("b")], pods, [placed])
    assert (free(shot, "a"), free(shot, "b")) == (6, 7)
    assert held(shot, "j") == 3


@pytest.mark.parametrize("index", [0, 7, -1])
def test_a_pod_with_a_workers_labels_that_lies_elsewhere_does_not_take_that_workers_room_away(index: int) -> None:
    placed = job(placed=("a", "a"), workers=2, generation=4, holding=True)
    copied = pod("copy", bound="b", owner="j", index=index, generation=4)
    shot = snapshot([node("a"), node("b")], [copied], [placed])
    assert (free(shot, "a"), free(shot, "b")) == (6, 7)


def test_pods_of_an_older_placement_count_beside_the_new_one() -> None:
    """On a dead node they may stay for long: their room there is not given away."""
    placed = job(placed=("b",), workers=1, generation=5, holding=True)
    old = pod("old", bound="a", owner="j", index=0, generation=4, terminating=True)
    shot = snapshot([node("a"), node("b")], [old], [placed])
    assert (free(shot, "a"), free(shot, "b")) == (7, 7)


@pytest.mark.parametrize("ready", [False, True])
def test_a_gang_that_has_left_a_pod_on_a_dead_node_keeps_all_of_its_queues_quota(ready: bool) -> None:
    """Also when the node comes back and the pod takes its grace to end."""
    placed = job(placed=("b", "b"), generation=5, holding=True)
    pods = [pod(f"new-{index}", bound="b", owner="j", index=index, generation=5) for index in range(2)]
    pods.append(pod("old", bound="a", owner="j", index=0, generation=4, terminating=True))
    quota = QueueInput("q", quotas=(QuotaInput("H100/on-demand", "nvidia.com/gpu", 2),))
    shot = snapshot([node("a", ready=ready), node("b")], pods, [placed], [quota])
    assert held(shot, "j") == 2
    assert plan(shot).evictions == (), "it would be stopped for a lowered quota and start again, for ever"


def test_a_placement_being_taken_down_holds_what_its_pods_hold() -> None:
    placed = job(placed=("a", "b"), generation=1, holding=True, reserving=False)
    shot = snapshot([node("a"), node("b")], [pod("p", bound="a", owner="j", index=0)], [placed])
    assert (free(shot, "a"), free(shot, "b")) == (7, 8)
    assert held(shot, "j") == 1


@pytest.mark.parametrize("workers", [2, 1], ids=["pod", "spare"])
def test_room_that_a_pod_of_a_gang_that_stops_has_left_does_not_come_back_once_more(workers: int) -> None:
    """Pods go one by one, and what is kept spare has none."""
    of_one = {"gpus": 1}
    nodes = [node("a", **of_one), *(node(name, product="NVIDIA-A100-SXM4-80GB", **of_one) for name in "bc")]
    old = job("old", placed=("b", "a"), workers=workers, generation=1, holding=True, reserving=False)
    old = replace(old, run=RunInput(leaving=True, grace=60.0), terms=TermsInput(spares=2 - workers))
    low = job("low", placed=("c",), workers=1, generation=1, holding=True)
    wants = {"workers": 1, "priority": 1, "node_filter": NodeFilter(gpu_type="H100")}
    waiting = [job("x", submitted=1.0, **wants), job("y", submitted=2.0, **wants)]
    pods = [pod("old-0", bound="b", owner="old", index=0), pod("low-0", bound="c", owner="low", index=0)]
    made = plan(snapshot(nodes, pods, [old, low, *waiting]))
    assert [each.uid for each in made.admissions] == ["x"]
    assert made.promises == (), "x is there"


def test_an_ended_worker_of_a_living_gang_frees_its_node_but_not_its_quota() -> None:
    placed = job(placed=("a", "b"), generation=1, holding=True)
    pods = [pod("p0", bound="a", owner="j", index=0, phase="Succeeded"), pod("p1", bound="b", owner="j", index=1)]
    shot = snapshot([node("a"), node("b")], pods, [placed])
    assert (free(shot, "a"), free(shot, "b")) == (8, 7)
    assert held(shot, "j") == 2


def test_nobody_is_stopped_for_room_that_a_worker_which_has_ended_had() -> None:
    """Another has it by now."""
    nodes = [node("a", gpus=1), node("b", product="NVIDIA-A100-SXM4-80GB", gpus=1)]
    ends = job("ends", placed=("a", "b"), generation=1, holding=True)
    runs = job("runs", placed=("a",), workers=1, generation=1, holding=True, priority=5)
    waits = job("waits", workers=1, priority=1, node_filter=NodeFilter(gpu_type="H100"))
    pods = [pod("ends-0", bound="a", owner="ends", index=0, phase="Succeeded")]
    pods += [pod("ends-1", bound="b", owner="ends", index=1), pod("runs-0", bound="a", owner="runs", index=0)]
    made = plan(snapshot(nodes, pods, [ends, runs, waits]))
    assert (made.evictions, made.promises) == ((), ())


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("old", ["gone", "Running", "Failed"])
def test_a_replaced_worker_holds_its_new_room_at_any_moment_and_its_quota_once(old: str, made: bool) -> None:
    """Index 1 moves from a to b. Its old pod takes room on its node until it is over."""
    pods = [pod("j-g1-0-0", bound="a", owner="j", index=0)]
    if old != "gone":
        pods.append(pod("j-g1-1-0", bound="a", owner="j", index=1, phase=old, terminating=True))
    if made:
        pods.append(pod("j-g1-1-1", pinned="b", owner="j", index=1, attempt=1, phase="Pending"))
    placed = job(placed=("a", "b"), generation=1, holding=True, attempts=((1, 1),))
    shot = snapshot(nodes=[node("a"), node("b")], pods=pods, jobs=[placed])
    assert (free(shot, "a"), free(shot, "b")) == (6 if old == "Running" else 7, 7)
    assert held(shot, "j") == 2


def test_pending_jobs_hold_nothing() -> None:
    shot = snapshot([node("a")], [pod("p", bound="a", owner="j", index=0)], [job()])
    assert shot.jobs.states[0] == JobState.PENDING
    assert held(shot, "j") == 0


def test_room_on_a_node_that_is_not_there_is_nobodys() -> None:
    shot = snapshot([node("a")], [pod("x", bound="gone")], [job(placed=("gone",), workers=1, holding=True)])
    assert free(shot, "a") == 8


def test_free_may_be_negative() -> None:
    shot = snapshot([node("a", gpus=1)], [pod("x", bound="a"), pod("y", bound="a")])
    assert free(shot, "a") == -1


def test_a_gang_that_wants_one_worker_a_node_is_planned_so_beside_others_and_what_runs_of_it() -> None:
    apart = {**REQUEST, "nvidia.com/gpu": 1, "apart/research/llama": 1}
    there = [node("a"), node("b"), node("c")]
    running = replace(pod("x", bound="a", gpus=1), requests=tuple(sorted(apart.items())))
    fits = snapshot(there, [running], [job(request=apart, workers=2)])
    assert free(fits, "a", "apart/research/llama") == 0
    (admission,) = plan(fits).admissions
    assert sorted(fits.nodes.names[index] for index in admission.nodes) == ["b", "c"]
    (waiting,) = plan(snapshot(there, [running], [job(request=apart, workers=3)])).waiting
    assert "needs 3 workers × (a node of its own + 1 nvidia.com/gpu)" in waiting.message
    assert "a node of its own is missing" in waiting.message
    (other,) = plan(snapshot(there, [running], [job(request=REQUEST, workers=3)])).admissions
    assert len(other.nodes) == 3, "another gang shares the nodes"


def test_a_host_port_is_a_resource_that_a_node_has_once() -> None:
    shot = snapshot([node("a")], jobs=[job(request={**REQUEST, "hostport/TCP/8080": 1})])
    assert free(shot, "a", "hostport/TCP/8080") == 1


def test_usable_nodes_are_ready_and_not_cordoned() -> None:
    shot = snapshot([node("a"), node("b", ready=False), node("c", cordoned=True)])
    assert shot.nodes.usable.tolist() == [True, False, False]


@pytest.mark.parametrize("state", ["not-ready", "unreachable", "unschedulable"])
@pytest.mark.parametrize(
    ("effect", "usable"), [("NoSchedule", False), ("NoExecute", False), ("PreferNoSchedule", True)]
)
def test_a_node_that_is_ready_again_is_usable_when_its_taint_is_gone(state: str, effect: str, usable: bool) -> None:
    """kube-scheduler looks at the taint."""
    again = replace(node("a"), taints=(Taint(f"node.kubernetes.io/{state}", "", effect),))
    assert snapshot([again, node("b")]).nodes.usable.tolist() == [usable, True]


def test_a_pod_takes_room_on_the_node_that_kube_scheduler_holds_for_it() -> None:
    """It has evicted others there, and no pod of the same priority is bound before this one is."""
    raw = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}
    held = PodView.from_raw({**raw, "status": {"phase": "Pending", "nominatedNodeName": "a"}})
    assert free(snapshot([node("a")], [held]), "a", "cpu") == 62_000
    bound = PodView.from_raw({**raw, "spec": {**raw["spec"], "nodeName": "b"}, "status": {"nominatedNodeName": "a"}})
    assert bound.node == "b"


def test_a_node_that_claims_more_than_anyone_has_stops_nobodys_planning() -> None:
    claims = replace(
        node("a"), allocatable=(("cpu", 10**21), ("memory", 2**63), ("nvidia.com/gpu", 2), ("pods", 10**30))
    )
    huge = job("huge", workers=1, request={"cpu": 10**20, "pods": 1})
    shot = snapshot(
        [claims, replace(claims, name="b")], jobs=[huge, job(workers=4, request={**REQUEST, "memory": 2**40})]
    )
    with np.errstate(all="raise"):
        decided = plan(shot)
    assert [(admission.uid, len(admission.nodes)) for admission in decided.admissions] == [("j", 4)]
    assert [waiting.uid for waiting in decided.waiting] == ["huge"], "it counts as less than it asks for"


def test_eligibility_by_type_capacity_selector_and_avoidance() -> None:
    nodes = [
        node("a"),
        node("b", product="NVIDIA-H200"),
        node("c", **{"muster.dev/capacity": "spot"}),
        node("d", gpus=0),
        node("e"),
    ]
    wanted = NodeFilter(gpu_type="H100", capacity=("on-demand",), avoided=frozenset({"e"}))
    shot = snapshot(nodes, jobs=[job(node_filter=wanted), job("k", node_filter=NodeFilter())])
    rows = {uid: shot.eligible[shot.jobs.filters[index]].tolist() for index, uid in enumerate(shot.jobs.uids)}
    assert rows == {"j": [True, False, False, False, False], "k": [True] * 5}


def test_equal_filters_share_a_row() -> None:
    shot = snapshot([node("a")], jobs=[job("a"), job("b"), job("c", node_filter=NodeFilter(gpu_type="H100"))])
    assert shot.eligible.shape == (2, 1)


def test_domains_follow_labels_and_a_missing_one_hides_the_narrower() -> None:
    levels = [LevelInput("block", "b"), LevelInput("rack", "r"), LevelInput("host", "kubernetes.io/hostname")]
    shot = snapshot([node("a", b="1", r="x"), node("b", b="2", r="x"), node("c", r="x")], levels=levels)
    assert shot.levels.domain_names == (("1", "2"), ("1/x", "2/x"), ("a", "b"))
    assert shot.nodes.domains.tolist() == [[0, 0, 0], [1, 1, 1], [NONE, NONE, NONE]]


def test_nodes_whose_gpus_reach_no_other_by_nvlink_are_no_neighbours() -> None:
    levels = [LevelInput("nvlink", "nvidia.com/gpu.clique"), LevelInput("host", "kubernetes.io/hostname")]
    alone = {"nvidia.com/gpu.clique": "00000000-0000-0000-0000-000000000000.0"}
    nodes = [
        node("a", **alone),
        node("b", **alone),
        *(node(name, **{"nvidia.com/gpu.clique": "0a.0"}) for name in "cd"),
    ]
    shot = snapshot(nodes, levels=levels)
    assert shot.levels.domain_names == (("0a.0", "a", "b"), ("c", "d", "a", "b"))


def test_flavours_start_with_the_one_without_accelerators() -> None:
    shot = snapshot([node("a"), node("b", gpus=0)], jobs=[job(), job("c", flavour="")])
    assert shot.flavours == ("", "H100/on-demand")
    assert shot.nodes.flavours.tolist() == [1, NONE]
    assert shot.jobs.flavours.tolist() == [0, 1]


def test_quota_lines_bind_and_what_no_line_names_does_not() -> None:
    lines = (
        QuotaInput("H100/on-demand", "nvidia.com/gpu", 8, borrowing=4, lending=2),
        QuotaInput("H200/on-demand", "cpu", 1000),
    )
    shot = snapshot([node("a")], queues=[QueueInput("q", "cohort", lines), QueueInput("r")])
    gpu, cpu, memory = (shot.resources.index(name) for name in ("nvidia.com/gpu", "cpu", "memory"))
    h100, h200 = shot.flavours.index("H100/on-demand"), shot.flavours.index("H200/on-demand")
    q, r = 0, 1
    assert shot.queues.nominal[q, h100, gpu] == 8
    assert shot.queues.borrowing[q, h100, gpu] == 4
    assert shot.queues.lending[q, h100, gpu] == 2
    assert shot.queues.nominal[q, h200, gpu] == 0, "named by another flavour's entry"
    assert shot.queues.nominal[q, h100, cpu] == 0
    assert shot.queues.nominal[q, h100, memory] == UNLIMITED
    assert shot.queues.nominal[r].min() == UNLIMITED
    assert shot.queues.names == ("q", "r", "cohort cohort")
    assert shot.queues.parents.tolist() == [2, NONE, NONE]


def test_a_deleted_queue_stays_closed_while_its_jobs_hold() -> None:
    shot = snapshot([node("a")], jobs=[job(queue="gone", placed=("a",), workers=1, holding=True)])
    assert shot.queues.names == ("q", "gone")
    assert shot.queues.open.tolist() == [True, False]
    assert shot.jobs.queues.tolist() == [1]


def test_modes_and_levels() -> None:
    levels = [LevelInput("rack", "r"), LevelInput("host", "kubernetes.io/hostname")]
    jobs = [job("a", mode=TopologyMode.REQUIRED, level="rack"), job("b")]
    shot = snapshot([node("n", r="x")], jobs=jobs, levels=levels)
    assert shot.jobs.modes.tolist() == [TopologyMode.REQUIRED, TopologyMode.UNCONSTRAINED]
    assert shot.jobs.levels.tolist() == [0, NONE]


def test_nothing_at_all_is_a_snapshot_too() -> None:
    shot = build(nodes=[], pods=[], jobs=[], queues=[], levels=[])
    assert shot.nodes.free.shape == (0, 3)
    assert shot.eligible.shape == (0, 0)


def test_the_same_inputs_in_any_order_give_the_same_arrays() -> None:
    nodes, jobs = [node("a"), node("b")], [job("x"), job("y")]
    one, two = snapshot(nodes, jobs=jobs), snapshot(nodes[::-1], jobs=jobs[::-1])
    assert one.nodes.names == two.nodes.names
    assert one.jobs.uids == two.jobs.uids
    assert np.array_equal(one.nodes.free, two.nodes.free)


def test_masks_are_kept_while_nodes_are_the_same_and_forgotten_when_not() -> None:
    masks, wanted = Masks(), NodeFilter(gpu_type="H100")
    nodes = [node("a")]
    masks.renew(nodes, [wanted])
    first = masks.mask(wanted)
    masks.renew([node("a")], [wanted])
    assert masks.mask(wanted) is first
    changed = [node("a", product="NVIDIA-H200")]
    masks.renew(changed, [wanted])
    assert masks.mask(wanted).tolist() == [False]
    masks.renew(changed, [])
    assert not masks._masks


def test_only_nodes_that_have_come_or_changed_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def counted(node_filter: NodeFilter, nodes: Sequence[NodeView]) -> Mask:
        looks.extend(node.name for node in nodes)
        return eligible(node_filter, nodes)

    monkeypatch.setattr("muster.cluster.snapshot.eligible", counted)
    masks, wanted = Masks(), NodeFilter(gpu_type="H100")
    spread = [wanted, *(replace(wanted, avoided=frozenset({name})) for name in "abc")]

    def shown(nodes: list[NodeView]) -> list[list[bool]]:
        looks.clear()
        masks.renew(nodes, spread)
        return [masks.mask(one).tolist() for one in spread]

    assert shown([node("a"), node("b")]) == [[True, True], [False, True], [True, False], [True, True]]
    assert looks == ["a", "b"], "who stays away from a node is asked of no other"
    assert shown([node("a"), node("b"), node("c", product="NVIDIA-H200")])[0] == [True, True, False]
    assert looks == ["c"]
    assert shown([node("a"), node("b", product="NVIDIA-H200"), node("c")])[0] == [True, False, True]
    assert looks == ["b", "c"]
    assert shown([node("b", product="NVIDIA-H200"), node("c")]) == [[False, True]] * 3 + [[False, False]]
    assert not looks, "one is gone, and the others are what they were"
    assert shown([]) == [[]] * 4
    assert shown([node("c")])[0] == [True]


def test_an_absurd_request_of_a_stranger_stops_nobodys_planning() -> None:
    """Anyone may write `cpu: "1e16"` into a pod, and a platform team such a quota."""
    absurd = 10**19
    strangers = [replace(pod(f"s{number}", bound="a"), requests=(("cpu", absurd), ("pods", 1))) for number in range(3)]
    queue = QueueInput("q", quotas=(QuotaInput("", "cpu", absurd, absurd, absurd),))
    shot = snapshot([node("a")], strangers, queues=[queue])
    assert free(shot, "a", "cpu") < 0
    assert free(shot, "a", "pods") == 107


def test_an_absurd_gang_stops_nobodys_planning_and_does_not_go_first() -> None:
    assert LARGEST * (MAX_WORKERS + MAX_SPARES) < UNLIMITED
    amounts = {"cpu": 10**19, "nvidia.com/gpu": 10**19, "pods": 1}
    huge = [job(f"huge-{number}", workers=MAX_WORKERS, request=amounts, submitted=1.0) for number in range(4)]
    queues = [QueueInput("q", quotas=(QuotaInput("H100/on-demand", "nvidia.com/gpu", 10**19),)), QueueInput("other")]
    modest = [job("beside", queue="other", submitted=2.0), job("behind", submitted=3.0)]
    shot = snapshot([node("a")], jobs=[*huge, *modest], queues=queues)
    with np.errstate(all="raise"):
        decided = plan(shot)
    assert [admission.uid for admission in decided.admissions] == ["beside", "behind"]
    assert {waiting.uid for waiting in decided.waiting} == {each.uid for each in huge}


def test_room_of_daemons_and_static_pods_is_told_apart() -> None:
    daemon = replace(pod("d", bound="a"), fixed=True)
    shot = snapshot([node("a")], [daemon, pod("x", bound="a")])
    assert shot.nodes.fixed is not None
    gpu = shot.resources.index("nvidia.com/gpu")
    assert (shot.nodes.fixed[0, gpu], free(shot, "a")) == (1, 6)


def test_promises_and_moves_are_nodes_by_rank() -> None:
    jobs = [
        job("big", promised=("b", "gone")),
        job("low", placed=("b", "a"), holding=True, run=RunInput(leaving=True, beneficiary="big")),
        job("move", placed=("a",), promised=("b", "a"), holding=True, run=RunInput(leaving=True, beneficiary="move")),
    ]
    shot = snapshot([node("a"), node("b")], jobs=jobs)
    runs = shot.jobs.runs
    assert shot.jobs.states.tolist() == [JobState.RESERVED, JobState.HOLDING, JobState.HOLDING]
    assert runs.nodes_of(0).tolist() == [1, NONE]
    assert runs.nodes_of(1).tolist() == [1, 0]
    assert runs.promised_to(0).tolist() == []
    assert runs.promised_to(2).tolist() == [1, 0]
    assert runs.beneficiary.tolist() == [NONE, 0, 2]
    assert held(shot, "big") == 2, "quota for the whole gang, from the promise on"


def test_what_jobs_say_of_themselves_becomes_arrays_and_the_plain_ones_stay_plain() -> None:
    terms = TermsInput(
        preemptible=False,
        slices=((2, "rack"),),
        balanced="host",
        alternatives=(AlternativeInput(NodeFilter(capacity=("spot",)), "H100/spot", 5.0),),
        opens=30.0,
        closes=40.0,
        limit=60.0,
    )
    levels = [LevelInput("rack", "r"), LevelInput("host", "kubernetes.io/hostname")]
    run = RunInput(started=1.0, saved=2.0, restart=3.0, grace=4.0, ends=5.0, bound=6.0, budget=1, stops=7, yields=True)
    jobs = [job("a", terms=terms, sizes=(1, 4, 1), partial=True), job("b", placed=("n",), holding=True, run=run)]
    shot = snapshot([node("n", r="x")], jobs=jobs, levels=levels)
    said, runs, sizes = shot.jobs.terms, shot.jobs.runs, shot.jobs.sizes
    assert said.preemptible.tolist() == [False, True]
    assert (said.shapes[0].slices, said.shapes[0].balanced) == (((2, 0),), 1)
    assert said.shapes[1] == PLAIN
    (other,) = said.alternatives[0]
    assert shot.flavours[other.flavour] == "H100/spot"
    assert not shot.eligible[other.filter].any()
    assert (said.opens.tolist(), said.closes.tolist()) == ([30.0, 0.0], [40.0, FOREVER])
    assert said.limit.tolist() == [60.0, FOREVER]
    assert (sizes.least.tolist(), sizes.most.tolist(), sizes.partial.tolist()) == ([1, 2], [4, 2], [True, False])
    assert [
        float(array[1]) for array in (runs.started, runs.saved, runs.restart, runs.grace, runs.ends, runs.bound)
    ] == [
        1.0,
        2.0,
        3.0,
        4.0,
        5.0,
        6.0,
    ]
    assert (int(runs.budget[1]), int(runs.stops[1]), bool(runs.yields[1])) == (1, 7, True)
