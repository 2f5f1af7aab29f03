"""Who goes first, and what a job that waits for room keeps from those behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.scheduling.plan import WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy

from .cases import Job, Node, Outcome, Queue, rack, snapshot

pytestmark = pytest.mark.unit


def planned(nodes: list[Node], *jobs: Job, queues: tuple[Queue, ...] = (Queue(),)) -> Outcome:
    """Strictly in order: with backfill these jobs start, and promise to yield."""
    shot = snapshot(nodes, jobs, queues)
    return Outcome(shot, plan(shot, Policy(backfill=False)))


def test_priority_goes_before_age_and_age_before_uid() -> None:
    outcome = planned(
        rack(0, 4),
        Job("b", submitted=5),
        Job("a", submitted=5),
        Job("old", submitted=1),
        Job("urgent", submitted=9, priority=1),
    )
    assert [admission.uid for admission in outcome.plan.admissions] == ["urgent", "old", "a", "b"]


def test_however_long_a_job_has_waited_it_never_comes_before_one_of_a_higher_priority() -> None:
    year = 365 * 86_400.0
    jobs = (Job("old", submitted=1), Job("new", submitted=year - 1, priority=1), Job("young", submitted=year - 2))
    shot = replace(snapshot(rack(0, 2), jobs, (Queue(),)), now=year)
    made = plan(shot, Policy(backfill=False))
    assert [admission.uid for admission in made.admissions] == ["new", "old"]
    assert [waiting.uid for waiting in made.waiting] == ["young"]


def test_position_counts_the_waiting_jobs_of_the_same_queue() -> None:
    jobs = [
        Job("a", workers=2, submitted=1),
        Job("b", workers=2, submitted=2, queue="ops"),
        Job("c", workers=2, submitted=3),
        Job("starts", priority=1),
    ]
    outcome = planned(rack(0, 2), *jobs, queues=(Queue("research"), Queue("ops")))
    assert {uid: waiting.position for uid, waiting in outcome.waiting.items()} == {"a": 1, "b": 1, "c": 2}


def test_who_could_not_start_alone_has_no_place_and_is_not_counted() -> None:
    jobs = [
        Job("large", workers=9, submitted=1),
        Job("a", workers=2, submitted=2),
        Job("nowhere", only_on=("elsewhere",), submitted=3),
        Job("b", workers=2, submitted=4),
        Job("starts", priority=1),
    ]
    outcome = planned(rack(0, 2), *jobs)
    places = {uid: (waiting.position, waiting.rank) for uid, waiting in outcome.waiting.items()}
    assert places == {"large": (0, 0), "a": (1, 1), "nowhere": (0, 2), "b": (2, 3)}


def test_small_job_does_not_overtake_the_head_that_waits_for_room() -> None:
    nodes = [*rack(0, 3), Node("busy", used_gpus=8)]
    outcome = planned(nodes, Job("head", workers=4), Job("small", submitted=1))
    assert not outcome.admitted
    assert outcome.waiting["head"].reason is WaitReason.INSUFFICIENT_CAPACITY
    behind = outcome.waiting["small"]
    assert (behind.reason, behind.blocker) == (WaitReason.BEHIND_OTHERS, "head")
    assert behind.message == (
        "there is room for 1 worker × 8 nvidia.com/gpu, but it is kept for a job ahead in the order, "
        "of queue research with priority 0"
    )


def test_smaller_job_of_the_same_shape_does_not_overtake_either() -> None:
    nodes = [*rack(0, 3), Node("busy", used_gpus=8)]
    outcome = planned(nodes, Job("head", workers=4), *[Job(f"{n}", workers=n, submitted=n) for n in (3, 2, 1)])
    assert not outcome.admitted


def test_job_that_can_never_fit_holds_nobody_back() -> None:
    outcome = planned(rack(0, 2), Job("monster", workers=3, priority=9), Job("small"))
    assert list(outcome.admitted) == ["small"]


def test_job_that_fits_only_with_a_cordoned_node_holds_nobody_back() -> None:
    outcome = planned([Node("a"), Node("b", usable=False)], Job("head", workers=2), Job("small", submitted=1))
    assert list(outcome.admitted) == ["small"]
    assert outcome.waiting["head"].reason is WaitReason.INSUFFICIENT_CAPACITY


def test_job_that_asks_for_what_daemons_hold_is_no_head() -> None:
    nodes = [Node("a", fixed_cores=1), Node("b", fixed_cores=1, used_gpus=8)]
    outcome = planned(nodes, Job("every-core", workers=2, cores=64), Job("small", submitted=1))
    assert outcome.waiting["every-core"].reason is WaitReason.EXCEEDS_CLUSTER
    assert list(outcome.admitted) == ["small"]


def test_nodes_that_do_not_suit_the_head_are_open() -> None:
    nodes = [Node("h100", used_gpus=4), Node("other")]
    outcome = planned(nodes, Job("head", only_on=("h100",)), Job("small", submitted=1))
    assert outcome.nodes("small") == ["other"]


def test_racks_that_could_never_hold_the_head_are_open() -> None:
    nodes = rack(0, 4, used_gpus=1) + rack(1, 2)
    outcome = planned(nodes, Job("head", workers=4, required="rack"), Job("small", workers=2, submitted=1))
    assert set(outcome.nodes("small")) == {"rack-1-host-0", "rack-1-host-1"}


def test_resources_that_the_head_leaves_over_are_open() -> None:
    nodes = [Node("a", used_gpus=8, cores=64)]
    outcome = planned(nodes, Job("head", cores=40), Job("cpu", gpus=0, cores=24, submitted=1))
    assert list(outcome.admitted) == ["cpu"]
    outcome = planned(nodes, Job("head", cores=40), Job("cpu", gpus=0, cores=25, submitted=1))
    assert outcome.waiting["cpu"].blocker == "head"


def test_quota_that_the_head_will_need_is_kept_for_it() -> None:
    nodes = [Node("a", used_gpus=8), Node("b")]
    outcome = planned(
        nodes,
        Job("head", only_on=("a",)),
        Job("small", gpus=1, only_on=("b",), submitted=1),
        queues=(Queue(gpus=8),),
    )
    small = outcome.waiting["small"]
    assert (small.reason, small.blocker) == (WaitReason.BEHIND_OTHERS, "head")
    assert small.message == (
        "queue research has quota for 1 nvidia.com/gpu of H100, but it is kept for a job ahead in the order, "
        "of queue research with priority 0"
    )


def test_second_head_keeps_room_beside_the_first() -> None:
    nodes = [Node("a", used_gpus=8, cores=64)]
    outcome = planned(
        nodes,
        Job("first", cores=10),
        Job("second", gpus=1, cores=3, submitted=1),
        Job("cpu", gpus=0, cores=31, submitted=2),
    )
    # 64 cores less 10 for the first and 8 × 3 for the second leave 30.
    assert outcome.waiting["cpu"].reason is WaitReason.BEHIND_OTHERS
