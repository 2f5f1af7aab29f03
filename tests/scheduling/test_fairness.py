"""Fair shares: who comes first among queues, by what they hold, what they have had and what they weigh."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.scheduling.fairness import decayed, dominant_shares
from muster.scheduling.order import Ordering
from muster.scheduling.ranks import AGE_STEP, AGE_STEPS
from muster.scheduling.snapshot import NONE, JobState, Snapshot

from .cases import Job, Node, Queue, snapshot

pytestmark = pytest.mark.unit
thorough = settings(max_examples=300, deadline=None)

NOW = 1_000_000.0
CLUSTER = [Node("large", gpus=1024, cores=1024, gib=1024)]
"""Powers of two, so that parts of it are exact and ties are ties."""


def world(queues: list[Queue], *jobs: Job) -> Snapshot:
    fresh = [replace(job, submitted=NOW + job.submitted) for job in jobs]
    return replace(snapshot(CLUSTER, fresh, queues), now=NOW)


def order(shot: Snapshot, *, starting: bool = True) -> list[str]:
    """The pending jobs in their order when each of them starts, or when none does."""
    ordering, found = Ordering(shot), []
    for job in ordering:
        found.append(shot.jobs.uids[job])
        if starting:
            ordering.charged(job)
    return found


def jobs_of(queue: str, count: int, **each: int) -> list[Job]:
    return [Job(f"{queue}-{index}", queue=queue, submitted=float(index), **each) for index in range(count)]


A, B = Queue("a"), Queue("b")


def test_queues_take_turns_when_they_ask_for_the_same() -> None:
    assert order(world([A, B], *jobs_of("a", 3), *jobs_of("b", 2))) == ["a-0", "b-0", "a-1", "b-1", "a-2"]


def test_jobs_that_get_nothing_do_not_cost_their_queue_its_turn() -> None:
    found = order(world([A, B], *jobs_of("a", 2), *jobs_of("b", 2)), starting=False)
    assert found == ["a-0", "b-0", "a-1", "b-1"], "by first submit alone"


def test_a_queue_of_weight_two_gets_twice_as_much() -> None:
    queues = [replace(A, weight=2.0), B]
    found = order(world(queues, *jobs_of("a", 4), *jobs_of("b", 2)))
    assert found == ["a-0", "b-0", "a-1", "b-1", "a-2", "a-3"]


def test_what_runs_counts() -> None:
    running = Job("running", queue="a", workers=2, submitted=-1, holding=True)
    assert order(world([A, B], running, *jobs_of("a", 2), *jobs_of("b", 3))) == ["b-0", "b-1", "a-0", "b-2", "a-1"]


def test_yesterdays_heavy_user_yields_today() -> None:
    queues = [replace(A, used=16 / 1024), B]
    assert order(world(queues, *jobs_of("a", 2), *jobs_of("b", 3))) == ["b-0", "b-1", "a-0", "b-2", "a-1"]


def test_the_dominant_resource_decides() -> None:
    """The jobs of a take 1/128 of the GPUs; those of b take 1/32 of the cores."""
    jobs = [*jobs_of("a", 4), *jobs_of("b", 2, gpus=0, cores=32)]
    assert order(world([A, B], *jobs)) == ["a-0", "b-0", "a-1", "a-2", "a-3", "b-1"]


def test_shares_are_compared_at_each_branch() -> None:
    """Team x has two queues and y has one: y's one gets as much as both of x."""
    queues = [Queue("x"), Queue("y"), Queue("a", parent="x"), Queue("b", parent="x"), Queue("c", parent="y")]
    jobs = [*jobs_of("a", 2), *jobs_of("b", 2), *jobs_of("c", 4)]
    assert order(world(queues, *jobs)) == ["a-0", "c-0", "b-0", "c-1", "a-1", "c-2", "b-1", "c-3"]


def test_a_cohort_changes_nothing_between_its_queues_and_others() -> None:
    queues = [replace(A, cohort=0), replace(B, cohort=0), Queue("c")]
    shot = world(queues, *jobs_of("a", 2), *jobs_of("b", 2), *jobs_of("c", 2))
    shot.queues.weights[3] = 2.0
    assert order(shot) == ["a-0", "c-0", "b-0", "a-1", "c-1", "b-1"]


def test_priority_goes_before_shares() -> None:
    running = Job("running", queue="a", workers=9, holding=True)
    assert order(world([A, B], running, Job("urgent", queue="a", priority=1), *jobs_of("b", 2)))[0] == "urgent"


def test_age_goes_before_shares_but_not_before_priority() -> None:
    """However much its queue has used: what has waited for a day is ahead of what has not."""
    old = Job("old", queue="a", submitted=-AGE_STEP * AGE_STEPS)
    jobs = [old, *jobs_of("a", 1), *jobs_of("b", 1), Job("urgent", queue="b", priority=1)]
    assert order(world([replace(A, used=0.9), B], *jobs)) == ["urgent", "old", "b-0", "a-0"]


def test_age_is_capped_so_that_shares_decide_among_the_old() -> None:
    jobs = [
        Job("oldest", queue="a", submitted=-AGE_STEP * 100),
        Job("old", queue="b", submitted=-AGE_STEP * (AGE_STEPS + 1)),
    ]
    assert order(world([replace(A, used=0.5), B], *jobs)) == ["old", "oldest"]


def test_a_near_deadline_goes_first_in_its_queue_and_a_far_or_lost_one_does_not() -> None:
    shot = world([A], *(Job(name, queue="a", submitted=float(n)) for n, name in enumerate(["plain", "far", "lost"])))
    deadlines = np.full(3, np.inf)
    deadlines[shot.jobs.uids.index("far")] = NOW + 30 * 86400
    deadlines[shot.jobs.uids.index("lost")] = NOW - 1
    far = replace(shot, jobs=replace(shot.jobs, terms=replace(shot.jobs.terms, deadlines=deadlines)))
    assert order(far) == ["plain", "far", "lost"]
    near = deadlines.copy()
    near[shot.jobs.uids.index("lost")] = NOW + 7200
    near[shot.jobs.uids.index("far")] = NOW + 3600
    soon = replace(shot, jobs=replace(shot.jobs, terms=replace(shot.jobs.terms, deadlines=near)))
    assert order(soon) == ["far", "lost", "plain"]


def test_who_cannot_meet_its_deadline_any_more_makes_nobody_late_who_can() -> None:
    names = ["plain", "lost", "tight"]
    shot = world([A], *(Job(name, queue="a", submitted=float(n)) for n, name in enumerate(names)))
    terms = replace(
        shot.jobs.terms,
        deadlines=np.array([np.inf, NOW + 3600, NOW + 7200]),
        estimate=np.array([60.0, 3601.0, 7199.0]),
    )
    assert order(replace(shot, jobs=replace(shot.jobs, terms=terms))) == ["tight", "lost", "plain"]


def test_jobs_without_a_queue_come_last() -> None:
    assert order(world([A], Job("stray", queue=None, priority=9), *jobs_of("a", 1))) == ["a-0", "stray"]


def test_more_or_less_than_a_job_asks_for_can_be_charged() -> None:
    shot = world([A, B], *jobs_of("a", 2, workers=2), *jobs_of("b", 2))
    ordering, found = Ordering(shot), []
    for job in ordering:
        found.append(shot.jobs.uids[job])
        ordering.charged(job, workers=1)
    assert found == ["a-0", "b-0", "a-1", "b-1"]


def test_dominant_shares_of_a_tree() -> None:
    queues = [Queue("x"), Queue("a", parent="x"), Queue("b", parent="x")]
    shot = world(
        queues,
        Job("gpu", queue="a", workers=32, holding=True),
        Job("cpu", queue="b", gpus=0, cores=512, holding=True),
        Job("waits", queue="b"),
    )
    # Cores beside GPUs are a part of the cores of H100 nodes; without GPUs they are a part of all cores.
    assert dominant_shares(shot).tolist() == [0.5, 0.25, 0.5]


def test_past_use_counts_half_after_each_half_life() -> None:
    assert decayed(0.4, 0.0, 3600, 3600) == pytest.approx(0.2)
    assert decayed(0.0, 0.4, 3600, 3600) == pytest.approx(0.2)
    assert decayed(0.0, 0.4, 1e9, 3600) == pytest.approx(0.4)
    in_steps = 0.1
    for _ in range(10):
        in_steps = decayed(in_steps, 0.7, 60, 3600)
    assert in_steps == pytest.approx(decayed(0.1, 0.7, 600, 3600)), "however often it is taken"


@st.composite
def crowds(draw: st.DrawFn) -> Snapshot:
    queues = [
        Queue(
            f"queue-{index}",
            parent=draw(st.sampled_from([None, *(f"queue-{above}" for above in range(index))])),
            weight=draw(st.sampled_from([1.0, 2.0, 4.0])),
            used=draw(st.sampled_from([0.0, 0.25])),
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    jobs = [
        Job(
            f"job-{index:02}",
            workers=draw(st.sampled_from([1, 8, 64])),
            gpus=draw(st.sampled_from([0, 1, 4])),
            cores=draw(st.sampled_from([1, 4])),
            queue=draw(st.sampled_from([queue.name for queue in queues])),
            priority=draw(st.integers(0, 1)),
            submitted=draw(st.sampled_from([0.0, 1.0, -AGE_STEP])),
            holding=draw(st.booleans()),
        )
        for index in range(draw(st.integers(1, 12)))
    ]
    return world(queues, *jobs)


def slow_order(shot: Snapshot, starts: list[bool]) -> list[int]:
    """The same order by plain loops and fractions: at each turn everything is worked out afresh."""
    left = list(range(len(shot.jobs.uids)))
    charged: list[int] = []
    found = []
    while left:
        job = _next(shot, left, charged, NONE)
        left.remove(job)
        pending = shot.jobs.states[job] == JobState.PENDING
        if pending:
            found.append(job)
        if not pending or starts[job]:
            charged.append(job)
    return found


def _next(shot: Snapshot, left: list[int], charged: list[int], queue: int) -> int:
    """The first job of a queue and those below it; NONE: of all queues."""
    offers = []
    for child in range(len(shot.queues.names)):
        if shot.queues.parents[child] == queue and any(_below(shot, child, job) for job in left):
            job = _next(shot, left, charged, child)
            weighed = Fraction(float(shot.queues.shares_used[child])) + _share(shot, charged, child, own=False)
            offers.append(
                (_class(shot, job), weighed / Fraction(float(shot.queues.weights[child])), _age(shot, job), job)
            )
    own = [job for job in left if queue != NONE and shot.jobs.queues[job] == queue]
    if own:
        job = min(own, key=lambda job: (_class(shot, job), _age(shot, job)))
        has_children = (shot.queues.parents == queue).any()
        share = _share(shot, charged, queue, own=True) if has_children else Fraction(0)
        offers.append((_class(shot, job), share, _age(shot, job), job))
    return min(offers)[3]


def _class(shot: Snapshot, job: int) -> tuple[int, float]:
    return -int(shot.jobs.priorities[job]), -min(AGE_STEPS, max(0.0, shot.now - shot.jobs.submitted[job]) // AGE_STEP)


def _age(shot: Snapshot, job: int) -> tuple[float, str]:
    return float(shot.jobs.submitted[job]), shot.jobs.uids[job]


def _below(shot: Snapshot, queue: int, job: int) -> bool:
    at = int(shot.jobs.queues[job])
    while at not in (queue, NONE):
        at = int(shot.queues.parents[at])
    return at == queue


def _share(shot: Snapshot, charged: list[int], queue: int, *, own: bool) -> Fraction:
    totals: dict[tuple[int, int], int] = {}
    for job in charged:
        if shot.jobs.queues[job] == queue if own else _below(shot, queue, job):
            for resource in range(3):
                key = (int(shot.jobs.flavours[job]), resource)
                amount = int(shot.jobs.requests[job, resource]) * int(shot.jobs.workers[job])
                totals[key] = totals.get(key, 0) + amount
    whole = shot.nodes.allocatable[0]
    return max((Fraction(amount, int(whole[key[1]])) for key, amount in totals.items()), default=Fraction(0))


@thorough
@given(crowds(), st.data())
def test_order_is_that_of_plain_loops(shot: Snapshot, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.booleans(), min_size=len(shot.jobs.uids), max_size=len(shot.jobs.uids)))
    assert _ordered(shot, starts) == slow_order(shot, starts)


@thorough
@given(crowds(), st.data())
def test_those_that_still_wait_keep_their_order_when_the_others_have_started(
    shot: Snapshot, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(st.booleans(), min_size=len(shot.jobs.uids), max_size=len(shot.jobs.uids)))
    waits = [job for job in _ordered(shot, starts) if not starts[job]]
    started = np.array(starts) & (shot.jobs.states == JobState.PENDING)
    held = shot.jobs.requests * shot.jobs.workers[:, None]
    jobs = replace(
        shot.jobs,
        states=np.where(started, JobState.HOLDING, shot.jobs.states).astype(np.int32),
        held=np.where(started[:, None], held, shot.jobs.held),
    )
    assert _ordered(replace(shot, jobs=jobs), [False] * len(starts)) == waits


def _ordered(shot: Snapshot, starts: list[bool]) -> list[int]:
    ordering, found = Ordering(shot), []
    for job in ordering:
        found.append(job)
        if starts[job]:
            ordering.charged(job)
    return found
