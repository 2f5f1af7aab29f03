"""Reservations: the earliest moment at which a gang fits, by what is enforced and by what is expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduling.placement import fits
from muster.scheduling.plan import Basis
from muster.scheduling.slots import Taken
from muster.scheduling.snapshot import FOREVER, NONE, JobState, Snapshot
from muster.scheduling.timeline import Reservation, Timeline
from muster.scheduling.topology import prefix_sums

from .cases import Job, rack
from .futures import GRACE, NOW, Desk, Run, actual_ends, world, worlds

pytestmark = pytest.mark.unit
thorough = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def reserve(desk: Desk, index: int = 0) -> Reservation:
    return Timeline(desk.world, desk.tree).reserve(desk.room, *desk.gang(index))


def on(*hosts: int) -> tuple[str, ...]:
    return tuple(f"rack-0-host-{host}" for host in hosts)


def test_the_head_starts_when_enough_have_ended_and_not_later() -> None:
    runs = [
        Run(Job("a"), on(0), ends=100.0),
        Run(Job("b"), on(1), ends=300.0),
        Run(Job("c"), on(2), ends=200.0),
    ]
    desk = Desk.of(world(rack(0, 3), runs, [Job("head", workers=2)]))
    found = reserve(desk)
    assert (found.start, found.basis, found.latest) == (NOW + 200.0, Basis.PROGRESS, FOREVER)
    assert found.taken is not None
    assert {desk.world.nodes.names[desk.tree.order[place]] for place in np.flatnonzero(found.taken)} == set(on(0, 2))


def test_what_is_enforced_is_proof_and_what_progress_says_is_not() -> None:
    runs = [Run(Job("a"), on(0), bound=100.0), Run(Job("b"), on(1), bound=500.0, ends=50.0)]
    one = reserve(Desk.of(world(rack(0, 2), runs, [Job("head")])))
    assert (one.start, one.latest, one.basis) == (NOW + 50.0, NOW + 100.0 + GRACE, Basis.PROGRESS)
    both = reserve(Desk.of(world(rack(0, 2), runs, [Job("head", workers=2)])))
    assert (both.start, both.latest, both.basis) == (NOW + 100.0 + GRACE, NOW + 500.0 + GRACE, Basis.PROGRESS)
    bounded = reserve(Desk.of(world(rack(0, 1), runs[:1], [Job("head")])))
    assert (bounded.start, bounded.basis) == (NOW + 100.0 + GRACE, Basis.LIMITS)


def test_where_nothing_tells_when_jobs_end_there_is_no_start() -> None:
    found = reserve(Desk.of(world(rack(0, 1), [Run(Job("a"), on(0))], [Job("head")])))
    assert found == Reservation(FOREVER, FOREVER, Basis.UNKNOWN, None)


@pytest.mark.parametrize(
    ("late", "start", "basis"), [(GRACE, NOW, Basis.PROGRESS), (GRACE + 1, FOREVER, Basis.UNKNOWN)]
)
def test_an_expected_end_that_passed_longer_ago_than_a_save_takes_tells_nothing(
    late: float, start: float, basis: Basis
) -> None:
    found = reserve(Desk.of(world(rack(0, 1), [Run(Job("a"), on(0), ends=-late)], [Job("head")])))
    assert (found.start, found.basis) == (start, basis)


def test_jobs_that_the_plan_starts_are_part_of_the_future() -> None:
    desk = Desk.of(world(rack(0, 2), [Run(Job("a"), on(0), ends=900.0)], [Job("next"), Job("head", workers=2)]))
    desk.world.jobs.terms.limit[1] = 100.0
    timeline = Timeline(desk.world, desk.tree)
    gang, worker = desk.gang(0)
    first = timeline.reserve(desk.room, gang, worker)
    assert (first.start, first.taken is not None) == (NOW, True)
    assert first.taken is not None
    desk.room.take(gang.worker, Taken.of(first.taken))
    timeline.started(1, Taken.of(first.taken))
    assert timeline.likely[1] == NOW + 100.0 + GRACE
    assert timeline.reserve(desk.room, *desk.gang(1)).start == NOW + 900.0


def test_who_is_leaving_is_gone_one_grace_from_now_and_who_gets_its_room_runs_from_then_on() -> None:
    runs = [Run(Job("victim"), on(0), bound=9_000.0), Run(Job("promised"), on(1), bound=9_000.0)]
    base = world(rack(0, 2), runs, [Job("head")])
    states, leaving = base.jobs.states.copy(), np.array([True, False, False])
    states[1] = JobState.RESERVED
    beneficiary = np.array([1, NONE, NONE], dtype=np.int32)
    known = replace(base.jobs.runs, leaving=leaving, beneficiary=beneficiary, restart=np.full(3, 7.0))
    base.jobs.terms.limit[1], base.jobs.terms.estimate[1] = 500.0, 200.0
    desk = Desk.of(replace(base, jobs=replace(base.jobs, states=states, runs=known)))
    timeline = Timeline(desk.world, desk.tree)
    assert timeline.likely[:2].tolist() == [NOW + GRACE, NOW + GRACE + 7.0 + 200.0]
    assert timeline.sure[:2].tolist() == [NOW + GRACE, NOW + GRACE + 7.0 + 500.0 + GRACE]
    assert timeline.sure[2] == timeline.likely[2] == FOREVER


@thorough
@given(worlds())
def test_no_moment_before_the_reserved_one_would_do(world: Snapshot) -> None:
    desk = Desk.of(world)
    timeline = Timeline(world, desk.tree)
    for index in range(len(desk.waiting)):
        gang, worker = desk.gang(index)
        found = timeline.reserve(desk.room, gang, worker)
        for ends, moment in ((timeline.likely, found.start), (timeline.sure, found.latest)):
            fitting = []
            for time in sorted({NOW, *ends[np.isfinite(ends)].tolist()}):
                back = np.flatnonzero(ends <= time).tolist()
                slots = desk.slots(gang, desk.given_back(desk.room.free, back))
                fitting += [time] if fits(desk.tree, prefix_sums(slots), gang) else []
            assert moment == min(fitting, default=FOREVER)
        assert found.start <= found.latest
        if found.taken is not None:
            back = np.flatnonzero(timeline.likely <= found.start).tolist()
            assert found.taken.sum() == gang.size
            assert (found.taken <= desk.slots(gang, desk.given_back(desk.room.free, back))).all()


@thorough
@given(st.data())
def test_the_latest_start_holds_in_every_future(data: st.DataObject) -> None:
    desk = Desk.of(data.draw(worlds()))
    gang, worker = desk.gang(0)
    found = Timeline(desk.world, desk.tree).reserve(desk.room, gang, worker)
    if found.latest < FOREVER:
        ends = actual_ends(data.draw, desk.world)
        back = np.flatnonzero(ends <= found.latest).tolist()
        slots = desk.slots(gang, desk.given_back(desk.room.free, back))
        assert fits(desk.tree, prefix_sums(slots), gang)
