"""Queues in which the shortest come first: their order, whom a short job may ask, and that nothing starves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.scheduling.claims import LOST_AT_MOST
from muster.scheduling.order import Ordering
from muster.scheduling.plan import MoveReason, Plan
from muster.scheduling.planner import plan
from muster.scheduling.ranks import AGE_STEP, AGE_STEPS, STEP_AT_MOST
from muster.scheduling.snapshot import FOREVER, JobState, Preempts, Snapshot

from .cases import Job, Node, Queue, rack, snapshot
from .operating import Live, Operating
from .worlds import crowds

pytestmark = pytest.mark.unit

NOW, HOUR = 10_000_000.0, 3600.0
DAY, WEEK = AGE_STEP * AGE_STEPS, STEP_AT_MOST * AGE_STEPS
SHORTEST = Queue(shortest=True)


def order(*jobs: Job, queue: Queue = SHORTEST) -> list[str]:
    fresh = [replace(job, submitted=NOW + job.submitted) for job in jobs]
    shot = replace(snapshot(rack(0, 4), fresh, [queue]), now=NOW)
    return [shot.jobs.uids[job] for job in Ordering(shot)]


def test_the_least_gpu_seconds_come_first_and_the_unknown_last() -> None:
    jobs = [
        Job("unknown", submitted=-4),
        Job("long", length=3 * HOUR, submitted=-3),
        Job("wide", workers=4, length=HOUR, submitted=-2),
        Job("short", length=HOUR, submitted=-1),
    ]
    assert order(*jobs) == ["short", "long", "wide", "unknown"]
    assert order(*jobs, queue=Queue()) == ["unknown", "long", "wide", "short"]


def test_priority_and_a_deadline_go_before_length() -> None:
    jobs = [Job("short", length=1.0), Job("urgent", length=HOUR, priority=1), Job("late", length=HOUR)]
    shot = replace(snapshot(rack(0, 1), jobs, [SHORTEST]), now=NOW)
    shot.jobs.submitted[:] = NOW
    shot.jobs.terms.deadlines[2] = NOW + 2 * HOUR
    assert [shot.jobs.uids[job] for job in Ordering(shot)] == ["urgent", "late", "short"]


@pytest.mark.parametrize(("length", "bound"), [(HOUR, DAY), (3 * DAY, 3 * DAY), (50 * DAY, WEEK), (FOREVER, DAY)])
def test_nobody_waits_behind_shorter_ones_for_longer_than_it_runs_or_a_day_and_a_week_at_most(
    length: float, bound: float
) -> None:
    short = Job("short", length=1.0)
    assert order(Job("old", length=length, submitted=-bound), short) == ["old", "short"]
    assert order(Job("old", length=length, submitted=-bound / AGE_STEPS + 1), short) == ["short", "old"]


def long_and_short(*, ran: float = HOUR, long: float = 10 * HOUR, queue: Queue = SHORTEST) -> Operating:
    """A job that fills the one node, and a shorter one of the same queue that waits."""
    world = Operating({"a": Node("a")}, {queue.name: queue}, now=NOW)
    world.submit(Live(Job("long", length=long)))
    world.jobs["long"].on, world.jobs["long"].started = ("a",), NOW
    world.now += ran
    world.submit(Live(Job("short", length=HOUR)))
    return world


def evicted(made: Plan) -> list[tuple[str, MoveReason, str]]:
    return [(each.uid, each.reason, each.beneficiary) for each in made.evictions]


def test_a_much_shorter_job_gets_the_room_of_a_longer_one_and_keeps_it() -> None:
    world = long_and_short()
    made = plan(world.snapshot())
    assert evicted(made) == [("long", MoveReason.PREEMPTED, "short")]
    world.carry_out(made)
    world.gone("long")
    world.carry_out(plan(world.snapshot()))
    assert world.jobs["short"].on == ("a",)
    for _ in range(3):
        world.now += 1000.0
        made = plan(world.snapshot())
        assert not made.evictions, "the long one does not take its room back"
        assert not made.admissions
    world.finish("short")
    assert [each.uid for each in plan(world.snapshot()).admissions] == ["long"]


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(long_and_short(queue=Queue()), id="first submitted first"),
        pytest.param(long_and_short(long=2.9 * HOUR), id="less than twice as much left"),
        pytest.param(long_and_short(long=FOREVER), id="nobody knows how long"),
        pytest.param(
            long_and_short(ran=(10.0 + 30.0) / LOST_AT_MOST - 1), id="stopping it costs more than a twentieth"
        ),
        pytest.param(long_and_short(ran=WEEK, long=2 * WEEK), id="it is as old as counts"),
    ],
)
def test_nobody_else_is_asked(world: Operating) -> None:
    assert not plan(world.snapshot()).evictions


def test_a_stream_of_short_jobs_costs_a_long_one_a_small_part_of_its_time() -> None:
    """Short jobs come every five minutes and run for one; each is let in as soon as the long one may be asked."""
    world = long_and_short(ran=0.0, long=50 * HOUR)
    step, stops, holding = 60.0, 0, 0.0
    for minute in range(12 * 60):
        if minute % 5 == 0:
            world.submit(Live(Job(f"short-{minute}", length=HOUR)))
        made = plan(world.snapshot())
        world.carry_out(made)
        for uid, _, _ in evicted(made):
            assert uid == "long"
            world.gone(uid)
            stops += 1
            world.carry_out(plan(world.snapshot()))
        holding += step if world.jobs["long"].on else 0.0
        world.now += step
        for uid in [uid for uid, live in world.jobs.items() if uid != "long" and live.on]:
            world.finish(uid)
    assert stops > 3
    assert stops * (10.0 + 30.0) <= LOST_AT_MOST * holding


def test_a_queue_that_asks_nobody_and_jobs_that_cannot_stop_are_left_alone() -> None:
    world = long_and_short()
    shot = world.snapshot()
    shot.queues.within[:] = Preempts.NEVER
    assert not plan(shot).evictions
    world.jobs["long"].preemptible = False
    assert not plan(world.snapshot()).evictions


def test_jobs_of_other_queues_are_not_asked_for_their_length() -> None:
    world = long_and_short()
    world.queues["other"] = Queue("other", shortest=True)
    world.jobs["short"].job = replace(world.jobs["short"].job, queue="other")
    assert not plan(world.snapshot()).evictions


@st.composite
def mixed(draw: st.DrawFn) -> Snapshot:
    """Queues of both orders, and jobs of any length and age."""
    shot = draw(crowds())
    count = len(shot.jobs.uids)
    shot.queues.shortest[:] = draw(
        st.lists(st.booleans(), min_size=len(shot.queues.names), max_size=len(shot.queues.names))
    )
    lengths = st.sampled_from([60.0, HOUR, 3 * DAY, FOREVER])
    shot.jobs.terms.length[:] = draw(st.lists(lengths, min_size=count, max_size=count))
    waited = draw(st.lists(st.sampled_from([0.0, AGE_STEP, DAY, 4 * DAY]), min_size=count, max_size=count))
    return replace(shot, now=NOW, jobs=replace(shot.jobs, submitted=NOW - np.array(waited)))


@settings(max_examples=200, deadline=None)
@given(mixed(), st.data())
def test_those_that_still_wait_keep_their_order_when_the_others_have_started(
    shot: Snapshot, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(st.booleans(), min_size=len(shot.jobs.uids), max_size=len(shot.jobs.uids)))
    waits = [job for job in walked(shot, starts) if not starts[job]]
    started = np.array(starts) & (shot.jobs.states == JobState.PENDING)
    held = np.where(started[:, None], shot.jobs.requests * shot.jobs.workers[:, None], shot.jobs.held)
    states = np.where(started, JobState.HOLDING, shot.jobs.states).astype(np.int32)
    after = replace(shot, jobs=replace(shot.jobs, states=states, held=held))
    assert walked(after, [False] * len(starts)) == waits


def test_one_that_starts_and_has_no_share_leaves_two_queues_of_the_same_share_in_their_order() -> None:
    """The first of a queue in which the shortest come first need not be its first submitted. When it starts and counts
    for nothing, the next must not be compared with the other queue's in its stead."""
    jobs = [
        Job("free", gpus=0, cores=0, queue="short", length=60.0, submitted=NOW),
        Job("early", queue="short", length=HOUR, submitted=NOW - 20),
        Job("between", queue="other", submitted=NOW - 10),
    ]
    shot = replace(snapshot(rack(0, 4), jobs, [Queue("short", shortest=True), Queue("other")]), now=NOW)
    assert walked(shot, [True, False, False]) == [2, 0, 1]
    states = np.array([JobState.HOLDING, JobState.PENDING, JobState.PENDING], dtype=np.int32)
    assert walked(replace(shot, jobs=replace(shot.jobs, states=states)), [False] * 3) == [2, 1]


def walked(shot: Snapshot, starts: list[bool]) -> list[int]:
    ordering, found = Ordering(shot), []
    for job in ordering:
        found.append(job)
        if starts[job]:
            ordering.charged(job)
    return found
