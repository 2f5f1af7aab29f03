"""What a person reads when a job waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from muster.scheduling.amounts import amount
from muster.scheduling.plan import Waiting, WaitReason, Wanted
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import NONE, Alternative, Shape, Sizes, Snapshot

from .cases import RESOURCES, Job, Node, Outcome, Queue, rack, snapshot

pytestmark = pytest.mark.unit


def why(nodes: list[Node], job: Job) -> Waiting:
    shot = snapshot(nodes, [job])
    return Outcome(shot, plan(shot)).waiting[job.uid]


def test_best_rack_and_what_is_missing_there_are_named() -> None:
    nodes = rack(1, 8, used_gpus=2) + rack(3, 7) + rack(3, 1, first=7, used_gpus=8)
    waiting = why(nodes, Job("a", workers=8, required="rack"))
    assert waiting.message == (
        "needs 8 workers × 8 nvidia.com/gpu in one rack; the best rack, rack-3, has room for 7; "
        "8 nvidia.com/gpu are missing there"
    )
    assert (waiting.reason, waiting.resource, waiting.missing) == (
        WaitReason.INSUFFICIENT_CAPACITY,
        "nvidia.com/gpu",
        8,
    )
    assert (waiting.level, waiting.domain, waiting.placeable) == ("rack", "rack-3", 7)


def test_free_pieces_that_are_too_small_are_told() -> None:
    waiting = why(rack(0, 4, used_gpus=3), Job("a", workers=2))
    assert waiting.message == (
        "needs 2 workers × 8 nvidia.com/gpu; the 4 H100 nodes that suit have room for 0; 16 nvidia.com/gpu are "
        "missing, where 20 nvidia.com/gpu are free in pieces too small for a worker"
    )


def test_a_worker_that_no_node_could_hold_is_told_what_the_largest_has() -> None:
    waiting = why(rack(0, 2), Job("a", workers=2, gpus=9))
    assert waiting.reason is WaitReason.EXCEEDS_CLUSTER
    assert waiting.message == (
        "needs 2 workers × 9 nvidia.com/gpu; the 2 H100 nodes that suit have room for 0 even when empty; "
        "a worker asks for 9 nvidia.com/gpu, and the largest node has 8 nvidia.com/gpu"
    )


def test_scarce_memory_is_told_in_gib_beside_the_gpus() -> None:
    waiting = why([Node("a", gib=64), Node("b", gib=16)], Job("a", workers=2, gib=64))
    assert waiting.reason is WaitReason.EXCEEDS_CLUSTER
    assert waiting.message == (
        "needs 2 workers × (64 GiB memory + 8 nvidia.com/gpu); the 2 H100 nodes that suit have room for 1 even when "
        "empty; 64 GiB memory is missing, where 16 GiB memory is free in pieces too small for a worker"
    )


def test_scarce_cores_are_told_as_cores() -> None:
    waiting = why([Node("a", used_cores=63)], Job("a", gpus=0, cores=2))
    assert waiting.message == (
        "needs 1 worker × 2 cores; the one H100 node that suits has room for 0; 2 cores are missing, "
        "where 1 core is free in pieces too small for a worker"
    )


def test_nodes_without_accelerators_are_told_as_no_kind() -> None:
    nodes = [Node("cpu", gpus=0, cores=4), *rack(0, 1)]
    waiting = why(nodes, Job("a", workers=2, gpus=0, cores=3, only_on=("cpu",)))
    assert waiting.message.startswith(
        "needs 2 workers × 3 cores; the one node that suits has room for 1 even when empty"
    )


def test_no_single_resource_is_blamed_when_they_lie_apart() -> None:
    waiting = why([Node("gpus", used_cores=64), Node("cores", used_gpus=8)], Job("a"))
    assert (waiting.resource, waiting.missing) == ("", 0)
    assert waiting.message == (
        "needs 1 worker × 8 nvidia.com/gpu; the 2 H100 nodes that suit have room for 0; "
        "each resource alone would do, but not together on the same nodes"
    )


def test_host_port_in_use_is_named() -> None:
    waiting = why([Node("a", used_port=True)], Job("a", port=True))
    assert waiting.message.endswith("; host port TCP/8080 is missing")


def test_gang_larger_than_every_rack_is_told_the_largest() -> None:
    waiting = why(rack(0, 2) + rack(1, 3, used_gpus=8), Job("a", workers=4, required="rack"))
    assert waiting.reason is WaitReason.EXCEEDS_CLUSTER
    assert waiting.message == (
        "needs 4 workers × 8 nvidia.com/gpu in one rack; the best rack, rack-1, has room for 3 even when empty; "
        "8 nvidia.com/gpu are missing there"
    )


def test_level_whose_label_no_node_carries_is_told() -> None:
    waiting = why([Node("a", rack=None)], Job("a", required="rack"))
    assert waiting.message == "needs 1 worker × 8 nvidia.com/gpu in one rack; no node carries the label of such a rack"


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (Shape(balanced=1), "as many in each rack as in any other"),
        (Shape(slices=((2, 1),)), "each 2 of them in one rack"),
    ],
)
def test_level_of_balance_or_slices_whose_label_no_node_carries_is_told(shape: Shape, told: str) -> None:
    shot = snapshot([Node("a", rack=None), Node("b", rack=None)], [Job("a", workers=2)])
    shot = replace(shot, jobs=replace(shot.jobs, terms=replace(shot.jobs.terms, shapes=(shape,))))
    waiting = Outcome(shot, plan(shot)).waiting["a"]
    assert waiting.reason is WaitReason.EXCEEDS_CLUSTER
    assert waiting.message == f"needs 2 workers × 8 nvidia.com/gpu, {told}; no node carries the label of such a rack"


def test_level_that_the_cluster_does_not_know_is_told() -> None:
    assert why([Node("a")], Job("a", required="aisle")).reason is WaitReason.EXCEEDS_CLUSTER


def test_job_that_suits_no_node_is_told_what_was_looked_at() -> None:
    nowhere = {"only_on": ("c",)}
    waiting = why([Node("a"), Node("b", gpus=0)], Job("a", **nowhere))
    assert waiting.reason is WaitReason.NO_ELIGIBLE_NODES
    assert waiting.message == "the cluster's only H100 node does not pass the job's node labels and tolerations"
    assert why([Node("b", gpus=0)], Job("a", **nowhere)).message == "the cluster's only node is not of H100"
    told = "the cluster's only node does not pass the job's kind of capacity, node labels and tolerations"
    assert why([Node("a")], Job("a", gpus=0, **nowhere)).message == told


def test_nodes_that_are_away_are_counted_and_a_few_are_named() -> None:
    for away, told in ((3, "3 suitable nodes are cordoned or not ready: n0, n1, n2"), (5, "n0, n1, n2 and 2 more")):
        nodes = [Node(f"n{index}", usable=index >= away) for index in range(away + 1)]
        assert why(nodes, Job("a", workers=2)).message.endswith(told)


def test_a_node_that_is_away_is_told() -> None:
    waiting = why([Node("a"), Node("b", usable=False)], Job("a", workers=2))
    assert waiting.reason is WaitReason.INSUFFICIENT_CAPACITY
    assert waiting.message == (
        "needs 2 workers × 8 nvidia.com/gpu; the one H100 node that suits has room for 1 even when empty; "
        "8 nvidia.com/gpu are missing; 1 suitable node is cordoned or not ready: b"
    )


def test_room_on_nodes_that_are_away_is_told_beside_full_ones() -> None:
    """Or nobody could tell a maintenance from a full cluster."""
    nodes = [Node("a", used_gpus=8), Node("b", usable=False), Node("c", used_gpus=4, usable=False)]
    told = (
        "needs 1 worker × 4 nvidia.com/gpu; the one H100 node that suits has room for 0; 4 nvidia.com/gpu are missing"
    )
    for there, away in (
        (nodes, "; 2 suitable nodes with room for 3 are cordoned or not ready: b, c"),
        (nodes[:2], "; 1 suitable node with room for 2 is cordoned or not ready: b"),
        ([nodes[0], Node("b", used_gpus=6, usable=False)], ""),
    ):
        assert why(there, Job("a", gpus=4)).message == told + away


def test_of_full_racks_one_that_could_hold_the_gang_is_named() -> None:
    nodes = rack(0, 4, gpus=0) + rack(1, 2, used_gpus=8) + rack(2, 4, used_gpus=8)
    waiting = why(nodes, Job("a", workers=4, required="rack"))
    assert (waiting.domain, waiting.placeable, waiting.missing) == ("rack-2", 0, 32)


def test_what_the_quota_never_allows_is_told_also_while_nodes_are_away() -> None:
    for usable in (True, False):
        shot = snapshot([Node("a", usable=usable), Node("b")], [Job("a", workers=2)], [Queue(gpus=8)])
        (waiting,) = plan(shot).waiting
        assert (waiting.reason, waiting.position) == (WaitReason.EXCEEDS_QUOTA, 0)


def test_job_whose_only_nodes_are_cordoned_is_told_so() -> None:
    waiting = why([Node("a", usable=False)], Job("a"))
    assert waiting.message == (
        "needs 1 worker × 8 nvidia.com/gpu; no suitable node can take pods now; 8 nvidia.com/gpu are missing; "
        "1 suitable node is cordoned or not ready: a"
    )


@pytest.mark.parametrize(
    ("resource", "quantity", "text"),
    [
        ("cpu", 1000, "1 core"),
        ("cpu", 1500, "1.5 cores"),
        ("cpu", 128_000, "128 cores"),
        ("cpu", 63_998, "63.998 cores"),
        ("cpu", 999, "0.999 cores"),
        ("cpu", 3, "0.003 cores"),
        ("cpu", 0, "0 cores"),
        ("memory", 2**31, "2 GiB memory"),
        ("memory", 100 * 2**20, "100 MiB memory"),
        ("memory", 3 * 2**29, "1.5 GiB memory"),
        ("memory", 64 * 2**30 - 3 * 2**20, "65533 MiB memory"),
        ("memory", 0, "0 GiB memory"),
        ("ephemeral-storage", 10, "10 B ephemeral-storage"),
        ("hugepages-2Mi", 2**30, "1 GiB hugepages-2Mi"),
        ("pods", 1, "1 pod"),
        ("nvidia.com/gpu", 8, "8 nvidia.com/gpu"),
        ("hostport/UDP/53", 1, "host port UDP/53"),
        ("apart/research/llama", 1, "a node of its own"),
        ("apart/research/llama", 3, "3 nodes of their own"),
    ],
)
def test_amounts_are_written_as_people_do(resource: str, quantity: int, text: str) -> None:
    assert amount(resource, quantity) == text


def test_who_may_not_borrow_is_told_who_holds_its_queues_quota_and_that_nobody_may_be_asked() -> None:
    quota = Queue(gpus=16)
    jobs = [Job("small", holding=True), Job("soft", holding=True), Job("firm")]
    shot = snapshot(rack(0, 4), jobs, [quota])
    mixed = Outcome(_firm(shot, "firm"), plan(_firm(shot, "firm"))).waiting["firm"]
    assert mixed.holders == ("small", "soft")
    assert mixed.message.endswith(
        "uses 16 nvidia.com/gpu of its quota of 16 nvidia.com/gpu and can use 0 nvidia.com/gpu more now, borrowing "
        "included; 2 jobs of its queue hold it, and asking those of lower priority, if any, would not let it start"
    )
    shot = _firm(replace(shot, queues=replace(shot.queues, within=np.zeros_like(shot.queues.within))), "firm")
    never = Outcome(shot, plan(shot)).waiting["firm"]
    assert never.message.endswith("hold it, and preemption.withinQueue of the queue is never, so nobody may be asked")
    lender = Queue("lender", gpus=64, cohort=0)
    shot = snapshot(rack(0, 4), jobs, [replace(quota, gpus=8, cohort=0), lender])
    shot = _firm(shot, "small", "firm")
    alone = Outcome(shot, plan(shot)).waiting["firm"]
    assert alone.holders == ("small",)
    assert alone.message.endswith(
        "uses 8 nvidia.com/gpu of its quota of 8 nvidia.com/gpu for jobs that are not preemptible and can use "
        "0 nvidia.com/gpu more now, without borrowing, for it is not preemptible; 1 job of its queue holds it, "
        "not preemptible either, so nobody may be asked"
    )


def test_who_holds_quota_back_from_those_behind_it_is_not_told_to_wait_for_itself() -> None:
    """It is old, so that nobody of its queue passes it, but what it would have to borrow is wanted by its owner."""
    queues = [Queue("mine", gpus=8, cohort=0), Queue("owner", gpus=16, cohort=0)]
    full = [Node(name, used_gpus=8, used_cores=1) for name in "ab"]
    jobs = [Job(f"runs-{name}", queue="mine", on=(name,)) for name in "ab"]
    jobs += [Job("old", queue="mine"), Job("alike", queue="mine", submitted=1.0)]
    jobs += [Job("owner", workers=2, queue="owner", submitted=200_000.0)]
    shot = replace(snapshot([*full, Node("c"), Node("d")], jobs, queues), now=200_000.0)
    waiting = Outcome(shot, plan(shot)).waiting
    assert (waiting["old"].reason, waiting["old"].blocker) == (WaitReason.QUOTA_EXCEEDED, "")
    assert waiting["old"].message == (
        "needs 8 nvidia.com/gpu of H100; queue mine would have to borrow it from queues whose own jobs wait for it"
    )
    assert (waiting["alike"].reason, waiting["alike"].blocker) == (WaitReason.BEHIND_OTHERS, "old")


def test_who_would_borrow_is_not_told_that_an_owner_behind_it_is_ahead_in_the_order() -> None:
    """Quota for the borrower is there, but the owner waits for room and has its own reserved."""
    queues = [Queue("mine", gpus=0, cohort=0), Queue("owner", gpus=16, cohort=0)]
    jobs = [Job("borrows", queue="mine", priority=2), Job("owner", workers=2, queue="owner")]
    jobs.append(Job("runs", gpus=0, queue=None, on=("full",)))
    shot = snapshot([Node("free"), Node("full", used_gpus=8, used_cores=1)], jobs, queues)
    waiting = Outcome(shot, plan(shot)).waiting
    assert waiting["owner"].rank > waiting["borrows"].rank
    assert (waiting["borrows"].reason, waiting["borrows"].blocker) == (WaitReason.QUOTA_EXCEEDED, "")
    assert waiting["borrows"].message == (
        "needs 8 nvidia.com/gpu of H100; queue mine would have to borrow it from queues whose own jobs wait for it"
    )


def test_who_is_passed_by_owners_is_told_that_their_turn_came_before() -> None:
    """There is quota for all. The borrower is first in the order, and room for one owner is kept for the other."""
    quotas = {"mine": 0, "large": 16, "small": 8, "lender": 64}
    queues = [Queue(name, gpus=gpus, cohort=0) for name, gpus in quotas.items()]
    jobs = [Job("borrows", queue="mine", priority=2), Job("waits", workers=2, queue="large")]
    jobs += [Job("owner", queue="small", submitted=1.0), Job("runs", queue="lender", on=("full",))]
    shot = snapshot([Node("free"), Node("full", used_gpus=8, used_cores=1)], jobs, queues)
    shot = _firm(shot, "owner", "runs")
    runs = replace(shot.jobs.runs, bound=np.full(4, 100.0), grace=np.full(4, 30.0), restart=np.full(4, 60.0))
    waiting = Outcome(shot, plan(replace(shot, now=50.0, jobs=replace(shot.jobs, runs=runs)))).waiting
    told = "there is room for 1 worker × 8 nvidia.com/gpu, but it is kept for a job "
    assert waiting["owner"].message == f"{told}ahead in the order, of queue large with priority 0"
    assert (waiting["borrows"].rank, waiting["waits"].rank, waiting["borrows"].blocker) == (0, 1, "waits")
    assert waiting["borrows"].message == (
        f"{told}of queue large with priority 0, whose turn came before: this one would borrow, and owners of quota "
        "come first"
    )


def test_who_waits_for_borrowers_elsewhere_is_told_no_holders_of_its_own() -> None:
    queues = [Queue("mine", gpus=8, cohort=0), Queue("beside", gpus=0, cohort=0)]
    jobs = [Job("borrower", queue="beside", holding=True), Job("firm", queue="mine")]
    shot = _firm(snapshot(rack(0, 4), jobs, queues), "firm")
    waiting = Outcome(shot, plan(shot)).waiting["firm"]
    assert (waiting.reason, waiting.holders) == (WaitReason.QUOTA_EXCEEDED, ())


def _firm(shot: Snapshot, *uids: str) -> Snapshot:
    """The snapshot in which these jobs are not preemptible."""
    preemptible = np.array([uid not in uids for uid in shot.jobs.uids], dtype=np.bool_)
    return replace(shot, jobs=replace(shot.jobs, terms=replace(shot.jobs.terms, preemptible=preemptible)))


def _beside_spot(quota: int, on_spot: Sequence[Job] = (), others: Sequence[Queue] = ()) -> Snapshot:
    """A job that suits a full on-demand node alone, a spot node with room, and so much quota for spot.

    Args:
        on_spot: jobs that draw on spot quota.
        others: queues that have as much of it.
    """
    nodes = [Node("reserved", used_gpus=8), Node("spot")]
    jobs = [Job("a", only_on=("reserved",)), *on_spot]
    shot = snapshot(nodes, jobs, [Queue(gpus=8, cohort=0 if others else NONE), *others])
    queues = shot.queues
    wide = [np.concatenate([each, each[:, 1:]], axis=1) for each in (queues.nominal, queues.borrowing, queues.lending)]
    wide[0][: 1 + len(others), 2, RESOURCES.index("nvidia.com/gpu")] = quota
    return replace(
        shot,
        flavours=("", "H100/on-demand", "H100/spot"),
        jobs=replace(shot.jobs, flavours=np.array([1, *(2 for _ in on_spot)], dtype=np.int32)),
        nodes=replace(shot.nodes, flavours=np.array([1, 2], dtype=np.int32)),
        queues=replace(queues, nominal=wide[0], borrowing=wide[1], lending=wide[2]),
    )


@pytest.mark.parametrize("quota", [0, 8])
def test_another_kind_of_capacity_is_told_only_where_the_queue_has_quota_for_it(quota: int) -> None:
    (waiting,) = plan(_beside_spot(quota)).waiting
    assert waiting.elsewhere == ("H100/spot" if quota else "")


@pytest.mark.parametrize(("firm", "told"), [((), "H100/spot"), (("a",), "H100/spot"), (("a", "holds"), "")])
def test_another_kind_of_capacity_is_told_only_where_the_queue_has_quota_for_such_a_job(
    firm: tuple[str, ...], told: str
) -> None:
    """Others would lend what the queue's own jobs hold, but not to one that cannot give it back: it gets what of its
    queue's own only jobs hold that can."""
    spot = [Job("holds", only_on=("reserved",), holding=True)]
    shot = _firm(_beside_spot(8, spot, [Queue("beside", cohort=0)]), *firm)
    (waiting,) = plan(shot).waiting
    assert waiting.elsewhere == told


@pytest.mark.parametrize(("lent", "told"), [(32, "H100/spot"), (16, "")])
def test_another_kind_of_capacity_is_not_told_where_an_owner_would_take_its_quota_back(lent: int, told: str) -> None:
    """The owner wants 16 GPUs, and is of too low a priority to ask who has borrowed 8 already."""
    gpu = RESOURCES.index("nvidia.com/gpu")
    on_spot = [
        Job("borrows", holding=True, priority=1),
        Job("owner", gpus=16, queue="beside", only_on=("reserved",), submitted=1.0),
    ]
    shot = _beside_spot(16, on_spot, [Queue("beside", cohort=0)])
    shot.queues.nominal[:2, 2, gpu] = 0, lent
    shot.queues.reclaim[:] = 1
    shot.nodes.allocatable[0, gpu] = 16
    assert Outcome(shot, plan(shot)).waiting["a"].elsewhere == told


def test_a_kind_of_capacity_that_a_job_takes_already_is_not_told_to_help() -> None:
    shot = _beside_spot(quota=8)
    its_labels_keep_it_away = ((Alternative(filter=0, flavour=2),),)
    terms = replace(shot.jobs.terms, alternatives=its_labels_keep_it_away)
    (waiting,) = plan(replace(shot, jobs=replace(shot.jobs, terms=terms))).waiting
    assert (waiting.changes, waiting.elsewhere) == ((), "")


@pytest.mark.parametrize(
    ("quota", "waited", "wanted"),
    [
        ((8, 8), False, [("H100/on-demand", 1)]),
        ((8, 8), True, [("H100/on-demand", 1), ("H100/spot", 1)]),
        ((0, 8), True, [("H100/spot", 1)]),
        ((0, 8), False, []),
    ],
)
def test_nodes_are_wanted_of_the_kinds_that_a_job_takes_by_now_and_has_quota_for(
    quota: tuple[int, int], waited: bool, wanted: list[tuple[str, int]]
) -> None:
    """There are no such nodes at all, as before an autoscaler brings the first."""
    shot = _beside_spot(quota[1])
    shot.queues.nominal[0, 1, RESOURCES.index("nvidia.com/gpu")] = quota[0]
    terms = replace(shot.jobs.terms, alternatives=((Alternative(0, 2, since=0.0 if waited else 60.0),),))
    none = np.zeros_like(shot.eligible)
    (waiting,) = plan(replace(shot, jobs=replace(shot.jobs, terms=terms), eligible=none)).waiting
    assert [tuple(each) for each in waiting.wanted] == wanted


@pytest.mark.parametrize("quota", [None, 4])
@pytest.mark.parametrize("opens", [False, True])
def test_whose_window_opens_later_is_told_no_help_for_now_and_no_nodes_are_wanted_for_it(
    opens: bool, quota: int | None
) -> None:
    nodes = [Node("large"), Node("small", gpus=4)]
    shot = snapshot(nodes, [Job("a", workers=2, gpus=4, required="host", only_on=("small",))], [Queue(gpus=quota)])
    shot = replace(shot, jobs=replace(shot.jobs, terms=replace(shot.jobs.terms, opens=np.array([60.0 * (not opens)]))))
    made = plan(shot)
    (waiting,) = made.waiting
    assert waiting.reason is WaitReason.EXCEEDS_CLUSTER
    assert bool(made.helped(waiting).changes) is opens, "it says now"
    assert bool(waiting.wanted) is (opens and quota is None), "they would stand idle until then"


@pytest.mark.parametrize("nodes", [rack(0, 1), rack(0, 4, used_gpus=8)], ids=["too few", "full"])
@pytest.mark.parametrize(("gpus", "wanted"), [(32, [4, 2]), (24, [2]), (8, [])])
def test_nodes_are_wanted_for_all_workers_of_an_elastic_job_and_for_the_fewest(
    nodes: list[Node], gpus: int, wanted: list[int]
) -> None:
    """Beside what is reserved for it already."""
    shot = snapshot(nodes, [Job("a", workers=4)], [Queue(gpus=gpus)])
    two, yes = np.array([2], dtype=np.int32), np.ones(1, dtype=np.bool_)
    shot = replace(shot, jobs=replace(shot.jobs, sizes=Sizes(two, two * 2, two, yes)))
    (waiting,) = plan(shot).waiting
    assert waiting.wanted == tuple(Wanted("H100", each) for each in wanted)


def test_a_job_that_may_not_be_stopped_is_told_that_its_like_hold_all_of_its_queues_quota() -> None:
    jobs = [Job("holds", holding=True), Job("a", submitted=1.0)]
    shot = snapshot(rack(0, 2), jobs, [Queue(gpus=8)])
    firm = np.zeros(2, dtype=np.bool_)
    (waiting,) = plan(replace(shot, jobs=replace(shot.jobs, terms=replace(shot.jobs.terms, preemptible=firm)))).waiting
    assert waiting.message == (
        "needs 8 nvidia.com/gpu of H100; queue research uses 8 nvidia.com/gpu of its quota of 8 nvidia.com/gpu for "
        "jobs that are not preemptible and can use 0 nvidia.com/gpu more now, without borrowing, for it is not "
        "preemptible; 1 job of its queue holds it, not preemptible either, so nobody may be asked"
    )
    assert waiting.holders == ("holds",)


@pytest.mark.parametrize(("lent", "way_out"), [(8, "; with preemptible: true it could borrow what it lacks"), (0, "")])
def test_a_job_that_may_not_be_stopped_is_told_when_it_is_only_borrowing_that_it_lacks(lent: int, way_out: str) -> None:
    shot = snapshot(rack(0, 2), [Job("a")], [Queue(gpus=0, cohort=0), Queue("beside", gpus=lent, cohort=0)])
    shot = _firm(shot, "a")
    (waiting,) = plan(shot).waiting
    assert waiting.reason is WaitReason.EXCEEDS_QUOTA
    assert waiting.message == (
        "needs 8 nvidia.com/gpu of H100; queue research can never use more than 0 nvidia.com/gpu, without borrowing, "
        f"for it is not preemptible{way_out}"
    )


@pytest.mark.parametrize(
    ("needs", "lines", "told"),
    [
        (
            Job("a", gpus=0, cores=4),
            {1: 8},
            "needs 4 cores; queue research can never use more than 0 cores, borrowing "
            "included; its quota of cpu is for H100",
        ),
        (
            Job("a", gpus=1, cores=4),
            {0: 8},
            "needs 4 cores of H100; queue research can never use more than 0 cores, "
            "borrowing included; its quota of cpu is for gangs without GPUs",
        ),
        (
            Job("a", gpus=1, cores=4),
            {},
            "needs 4 cores of H100; queue research can never use more than 0 cores, borrowing included",
        ),
    ],
)
def test_a_queue_whose_quota_is_for_other_kinds_says_for_which(needs: Job, lines: dict[int, int], told: str) -> None:
    shot = snapshot(rack(0, 2), [needs])
    nominal = shot.queues.nominal.copy()
    nominal[0, :, RESOURCES.index("cpu")] = [lines.get(flavour, 0) * 1000 for flavour in range(2)]
    (waiting,) = plan(replace(shot, queues=replace(shot.queues, nominal=nominal))).waiting
    assert (waiting.reason, waiting.message) == (WaitReason.EXCEEDS_QUOTA, told)


def _with_a_spare(shot: Snapshot) -> Waiting:
    """What the only job is told when it asks for a spare besides."""
    terms = replace(shot.jobs.terms, shapes=(Shape(spares=1),))
    (waiting,) = plan(replace(shot, jobs=replace(shot.jobs, terms=terms))).waiting
    return waiting


def test_quota_for_a_spare_is_told() -> None:
    waiting = _with_a_spare(snapshot(rack(0, 4), [Job("a", workers=2)], [Queue(gpus=16)]))
    assert waiting.message == (
        "with 1 spare it needs 24 nvidia.com/gpu of H100; queue research can never use more than 16 nvidia.com/gpu, "
        "borrowing included"
    )


@pytest.mark.parametrize(("nodes", "help_"), [(2, "there is room now without its spare"), (1, "")])
def test_who_finds_room_without_its_spares_is_told_so(nodes: int, help_: str) -> None:
    changes = tuple(each.text for each in _with_a_spare(snapshot(rack(0, nodes), [Job("a", workers=2)])).changes)
    assert changes == ((help_,) if help_ else ())


def test_who_lacks_what_others_have_borrowed_of_its_queue_and_keep_is_told_so() -> None:
    queues = [Queue("mine", gpus=8, cohort=0), Queue("beside", gpus=0, cohort=0)]
    jobs = [Job("borrower", queue="beside", holding=True), Job("a", queue="mine")]
    waiting = Outcome(shot := _firm(snapshot(rack(0, 4), jobs, queues), "borrower"), plan(shot)).waiting["a"]
    assert waiting.message.endswith(
        "queue mine uses 0 nvidia.com/gpu of its quota of 8 nvidia.com/gpu and can use 0 nvidia.com/gpu more now, "
        "borrowing included; others have borrowed the rest of its own: `muster queues` shows who"
    )


def test_who_lacks_quota_and_may_borrow_knows_who_holds_it_and_its_sentence_stays() -> None:
    """They come and go: were they in the sentence, it would be written anew each time."""
    jobs = [Job("large", gpus=12, holding=True), Job("small", gpus=4, holding=True), Job("a"), Job("b", submitted=1.0)]
    shot = snapshot(rack(0, 4), jobs, [Queue(gpus=16)])
    waiting = Outcome(shot, plan(shot)).waiting["a"]
    assert (waiting.holders, waiting.names_holders) == (("large", "small"), False)
    assert waiting.message.endswith("can use 0 nvidia.com/gpu more now, borrowing included")
    assert (waiting.resource, waiting.missing) == ("nvidia.com/gpu", 8)
    assert (waiting.before, Outcome(shot, plan(shot)).waiting["b"].before) == ((), ("a",))


def test_who_lacks_quota_that_others_have_borrowed_knows_who_they_are() -> None:
    queues = [Queue("mine", gpus=0, cohort=0), Queue("beside", gpus=8, cohort=0)]
    shot = snapshot(rack(0, 4), [Job("borrower", queue="beside", holding=True), Job("a", queue="mine")], queues)
    assert Outcome(shot, plan(shot)).waiting["a"].holders == ("borrower",)


def test_the_first_of_a_queue_are_ahead_of_all_behind_them() -> None:
    jobs = [Job(uid, submitted=float(at)) for at, uid in enumerate("abcde")]
    other = Job("other", queue="else", submitted=9.0)
    shot = snapshot([Node("full", used_gpus=8)], [*jobs, other], [Queue(), Queue("else")])
    waiting = Outcome(shot, plan(shot)).waiting
    assert [waiting[uid].before for uid in "abcde"] == [(), ("a",), ("a", "b"), ("a", "b", "c"), ("a", "b", "c")]
    assert waiting["other"].before == ()


@pytest.mark.parametrize("firm", [(), ("a",)])
def test_who_lacks_quota_is_told_of_another_kind_of_capacity_that_has_quota_and_room(firm: tuple[str, ...]) -> None:
    shot = _beside_spot(quota=8)
    shot.queues.nominal[0, 1, RESOURCES.index("nvidia.com/gpu")] = 0
    made = plan(_firm(shot, *firm))
    waiting = made.helped(made.waiting[0])
    assert (waiting.reason, waiting.elsewhere) == (WaitReason.EXCEEDS_QUOTA, "H100/spot")
    there = replace(shot.jobs, flavours=np.array([2], dtype=np.int32), filters=np.array([0], dtype=np.int32))
    moved = replace(shot, jobs=there, eligible=np.array([[False, True]]))
    assert [each.uid for each in plan(_firm(moved, *firm)).admissions] == ["a"], "it does start there"
