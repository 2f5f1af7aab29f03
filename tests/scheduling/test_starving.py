"""A large job is not passed for ever by small ones of its queue that do not give way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.scheduling.plan import MoveReason, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.ranks import AGE_STEP, AGE_STEPS
from muster.scheduling.snapshot import Snapshot

from . import oracle
from .cases import Job, Node, Outcome, Queue, apply, rack, snapshot
from .operating import Live, Operating
from .worlds import trees

pytestmark = pytest.mark.unit

NOW = 1_000_000.0
DAY = AGE_STEP * AGE_STEPS


def planned(queues: list[Queue], *jobs: Job, policy: Policy | None = None) -> Outcome:
    moved = [replace(job, submitted=NOW + job.submitted) for job in jobs]
    shot = replace(snapshot(rack(0, 12), moved, queues), now=NOW)
    return Outcome(shot, plan(shot, policy) if policy else plan(shot))


RUNNING = Job("running", holding=True, submitted=-DAY * 3)
SMALL = Job("small", submitted=-1)


def old_and_small(*, firm: bool = False) -> Operating:
    """One of two nodes is in use; a job that needs both has waited for a day, and a small one came just now."""
    world = Operating({"a": Node("a"), "b": Node("b")}, {"research": Queue(gpus=16)}, now=NOW - DAY)
    world.submit(Live(Job("running"), on=("a",), started=NOW - DAY))
    world.submit(Live(Job("large", workers=2)))
    world.now = NOW
    world.submit(Live(Job("small"), preemptible=not firm))
    return world


def test_a_job_that_waited_for_a_day_is_passed_by_nobody_who_cannot_give_way() -> None:
    outcome = plan(old_and_small(firm=True).snapshot())
    assert not outcome.admissions
    waiting = {each.uid: each for each in outcome.waiting}
    assert waiting["large"].reason is WaitReason.QUOTA_EXCEEDED
    small = waiting["small"]
    assert (small.reason, small.blocker) == (WaitReason.BEHIND_OTHERS, "large")
    assert small.message == (
        "queue research has quota for 8 nvidia.com/gpu of H100, but it is kept for a job ahead in the order, "
        "of queue research with priority 0"
    )


def test_one_that_passes_it_gives_way_as_soon_as_it_could_start() -> None:
    world = old_and_small()
    made = plan(world.snapshot())
    assert [(each.uid, each.yields) for each in made.admissions] == [("small", True)]
    world.carry_out(made)
    for _ in range(2):
        world.now += 600.0
        made = plan(world.snapshot())
        assert not made.evictions, "as long as the large one cannot start, nobody is asked for it"
        world.carry_out(made)
    world.finish("running")
    made = plan(world.snapshot())
    assert [(each.uid, each.reason, each.beneficiary) for each in made.evictions] == [
        ("small", MoveReason.YIELDED, "large")
    ]
    world.carry_out(made)
    world.gone("small")
    assert [each.uid for each in plan(world.snapshot()).admissions] == ["large"]


def test_without_backfill_nobody_passes_it() -> None:
    assert not plan(old_and_small().snapshot(), Policy(backfill=False)).admissions


def test_one_that_waits_for_jobs_like_it_to_give_quota_back_does_not_hold_back_the_others() -> None:
    """What is not preemptible shares the queue's own quota with its like alone."""
    queues = {"research": Queue(gpus=16, cohort=0), "ops": Queue("ops", gpus=16, cohort=0)}
    world = Operating({name: Node(name) for name in "abcd"}, queues, now=NOW - DAY)
    world.submit(Live(Job("firm", workers=2), preemptible=False, on=("a", "b"), started=NOW - DAY))
    world.submit(Live(Job("old"), preemptible=False))
    world.now = NOW
    world.submit(Live(Job("like it"), preemptible=False))
    world.submit(Live(Job("borrows")))
    made = plan(world.snapshot())
    assert [(each.uid, each.yields) for each in made.admissions] == [("borrows", False)]
    assert {each.uid: each.reason for each in made.waiting} == {
        "old": WaitReason.QUOTA_EXCEEDED,
        "like it": WaitReason.QUOTA_EXCEEDED,
    }


def test_before_that_a_smaller_one_may_go_first() -> None:
    jobs = (RUNNING, Job("large", workers=2, submitted=-DAY + 1), SMALL)
    assert list(planned([Queue(gpus=16)], *jobs).admitted) == ["small"]


def test_without_fairness_age_does_not_count() -> None:
    jobs = (RUNNING, Job("large", workers=2, submitted=-DAY), SMALL)
    assert list(planned([Queue(gpus=16)], *jobs, policy=Policy(fairness=False)).admitted) == ["small"]


def test_a_job_that_would_have_to_borrow_holds_nobody_back() -> None:
    queues = [Queue(gpus=16, cohort=0), Queue("ops", gpus=16, cohort=0)]
    lent = Job("lent", workers=2, queue="ops", holding=True, submitted=-DAY * 3)
    outcome = planned(queues, lent, RUNNING, Job("large", workers=3, submitted=-DAY), SMALL)
    assert list(outcome.admitted) == ["small"]


def test_other_queues_and_jobs_without_gpus_are_not_held_back() -> None:
    queues = [Queue(gpus=16, cohort=0), Queue("ops", gpus=16, cohort=0)]
    outcome = planned(
        queues,
        replace(RUNNING, workers=2),
        Job("lent", workers=1, queue="ops", holding=True, submitted=-DAY * 3),
        Job("large", workers=2, submitted=-DAY),
        Job("other", queue="ops", submitted=-1),
        Job("cpu", gpus=0, submitted=-1),
    )
    assert sorted(outcome.admitted) == ["cpu", "other"]
    assert not plan(apply(outcome.snapshot, outcome.plan)).admissions


def fragmented(*, waited: float) -> Operating:
    """Half of each of two nodes is free, and half of all quota: one job would have to borrow it for a whole node."""
    queues = {"research": Queue(gpus=4, cohort=0), "ops": Queue("ops", gpus=12, cohort=0)}
    world = Operating({"a": Node("a"), "b": Node("b")}, queues, now=NOW - waited)
    for name in "ab":
        world.submit(Live(Job(f"on {name}", gpus=4, queue="ops"), preemptible=False, on=(name,), started=world.now))
    world.submit(Live(Job("whole node")))
    world.now = NOW
    world.submit(Live(Job("small", gpus=2)))
    return world


def test_no_quota_stands_idle_for_a_job_to_which_others_would_lend_it() -> None:
    made = plan(fragmented(waited=DAY - 1).snapshot())
    assert [(each.uid, each.yields) for each in made.admissions] == [("small", False)]


def test_but_for_an_old_one_it_is_kept() -> None:
    made = plan(fragmented(waited=DAY).snapshot())
    assert not made.admissions
    waiting = {each.uid: each for each in made.waiting}
    assert (waiting["small"].reason, waiting["small"].blocker) == (WaitReason.BEHIND_OTHERS, "whole node")


def test_quota_of_a_department_is_kept_for_its_teams_jobs_at_once() -> None:
    world = fragmented(waited=1.0)
    world.queues = {
        "department": Queue("department", gpus=16),
        "research": Queue(parent="department"),
        "ops": Queue("ops", parent="department"),
    }
    assert not plan(world.snapshot()).admissions


@st.composite
def aged(draw: st.DrawFn) -> Snapshot:
    """Any tree of queues in which some of the jobs have waited for long."""
    shot = draw(trees())
    count = len(shot.jobs.uids)
    waited = draw(st.lists(st.sampled_from([0.0, AGE_STEP, DAY]), min_size=count, max_size=count))
    return replace(shot, now=NOW, jobs=replace(shot.jobs, submitted=NOW - np.array(waited)))


@settings(max_examples=300, deadline=None)
@given(aged())
def test_with_age_limits_hold_and_then_only_those_start_from_whom_quota_was_kept(world: Snapshot) -> None:
    decided, use = plan(world), oracle.usage(world)
    for job, _ in oracle.admitted(world, decided):
        assert oracle.quota_allows(world, use, job)
        oracle.add(world, use, job)
    again = plan(apply(world, decided))
    assert {each.uid for each in again.admissions} == oracle.starts_later(world, decided, again)


def test_a_borrower_starts_a_plan_later_when_the_owners_want_less() -> None:
    """The old job is counted on with 6 of the lender's 8 GPUs. It lacks quota, two small ones start instead, and beside
    these it would have to borrow itself: its claim is gone when the borrowers had their turn."""
    queues = [Queue("borrows", gpus=0), Queue("lends", gpus=8, parent="borrows")]
    outcome = planned(
        queues,
        Job("old", workers=2, gpus=3, queue="lends", submitted=-AGE_STEP),
        Job("two", gpus=2, queue="lends", submitted=-9),
        *(Job(name, gpus=1, queue="borrows", submitted=-8) for name in ("x", "y", "z")),
        Job("running", gpus=3, queue="borrows", submitted=-7, holding=True),
        Job("one", gpus=1, queue="lends", submitted=-6),
    )
    assert list(outcome.admitted) == ["two", "one"]
    assert outcome.waiting["x"].reason is WaitReason.QUOTA_EXCEEDED
    after = apply(outcome.snapshot, outcome.plan)
    again = plan(after)
    assert [each.uid for each in again.admissions] == ["x", "y"]
    assert not plan(apply(after, again)).admissions
