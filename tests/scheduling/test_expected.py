"""Expected starts: exact for reservations, and for the others what draining pools in order gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from muster.scheduling.expected import Expected, Lacking, expected_starts
from muster.scheduling.plan import Basis
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import FOREVER, NONE, JobState, Snapshot
from muster.scheduling.timeline import Reservation, Timeline

from .cases import Job, rack
from .futures import GRACE, NOW, Desk, Run, world, worlds

pytestmark = pytest.mark.unit
thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def on(*hosts: int) -> tuple[str, ...]:
    return tuple(f"rack-0-host-{host}" for host in hosts)


def expect(
    world: Snapshot, quota: tuple[int, ...] = (), reservations: dict[int, Reservation] | None = None
) -> Expected:
    desk = Desk.of(world)
    lacking = Lacking(
        jobs=desk.waiting,
        quota=np.isin(desk.waiting, quota),
        pools=np.arange(len(world.queues.names), dtype=np.int64),
        spare=Ledger(world.queues, world.jobs).available,
    )
    timeline = Timeline(world, desk.tree)
    return expected_starts(world, timeline, desk.tree, desk.room, lacking, reservations or {})


def starts(found: Expected, *rows: int) -> list[float]:
    """Seconds from now."""
    return [float(found.starts[row]) - NOW for row in rows]


def test_jobs_start_in_order_as_room_comes_back_and_give_it_back_when_they_are_done() -> None:
    runs = [Run(Job("a"), on(0), ends=100.0), Run(Job("b"), on(1), ends=300.0)]
    base = world(rack(0, 2), runs, [Job("c"), Job("d"), Job("e"), Job("f", workers=2)])
    base.jobs.terms.estimate[2:] = (50.0, 1000.0, 10.0, 10.0)
    # c from 100 to 150, d from 150 to 1150, e from 300 to 310, f when d is done.
    assert starts(expect(base), 2, 3, 4, 5) == [100.0, 150.0, 300.0, 1150.0]
    assert expect(base).of(2) == (NOW + 100.0, Basis.QUEUE)


def test_a_job_that_tells_nothing_lasts_as_long_as_the_typical_one() -> None:
    runs = [Run(Job("a"), on(0), ends=100.0), Run(Job("silent"), on(1))]
    base = world(rack(0, 2), runs, [Job("c"), Job("d"), Job("e")])
    # a ran for 100 s and has 100 s to go: the typical job takes 200 s.
    assert starts(expect(base), 2, 3, 4) == [100.0, 200.0, 300.0]


def test_where_nothing_is_known_nothing_is_told() -> None:
    found = expect(world(rack(0, 1), [Run(Job("silent"), on(0))], [Job("c")]))
    assert found.of(1) == (FOREVER, Basis.UNKNOWN)


def test_a_job_larger_than_all_that_will_come_back_keeps_nobody_else_waiting() -> None:
    base = world(rack(0, 1), [Run(Job("a"), on(0), ends=100.0)], [Job("huge", workers=2), Job("c")])
    assert starts(expect(base), 1, 2) == [FOREVER, 100.0]


def test_reservations_and_promises_are_told_as_they_are() -> None:
    base = world(rack(0, 2), [Run(Job("a"), on(0), ends=100.0), Run(Job("b"), on(1))], [Job("c"), Job("d")])
    known = Reservation(NOW + 77.0, FOREVER, Basis.PROGRESS, None)
    assert expect(base, reservations={2: known}).of(2) == (NOW + 77.0, Basis.PROGRESS)
    jobs = base.jobs
    states = jobs.states.copy()
    states[3] = JobState.RESERVED
    runs = replace(jobs.runs, leaving=jobs.runs.leaving.copy(), beneficiary=jobs.runs.beneficiary.copy())
    runs.leaving[1], runs.beneficiary[1] = True, 3
    promised = replace(base, jobs=replace(jobs, states=states, runs=runs))
    assert expect(promised).of(3) == (NOW + GRACE, Basis.PROMISED)


def test_a_window_that_opens_later_keeps_no_room_from_others() -> None:
    base = world(rack(0, 1), [Run(Job("a"), on(0), ends=100.0)], [Job("night"), Job("c")])
    base.jobs.terms.opens[1] = NOW + 5_000.0
    base.jobs.terms.estimate[1:] = 60.0
    assert starts(expect(base), 1, 2) == [5_000.0, 100.0]


def test_who_lacks_quota_waits_for_jobs_of_its_own_queue() -> None:
    runs = [Run(Job("a"), on(0), ends=500.0), Run(Job("other", queue=None), on(1), ends=100.0)]
    base = world(rack(0, 3), runs, [Job("c")])
    nominal = base.queues.nominal.copy()
    nominal[0, 1, 2] = 8
    base = replace(base, queues=replace(base.queues, nominal=nominal))
    assert starts(expect(base, quota=(2,)), 2) == [500.0]


@thorough
@given(worlds())
def test_no_expected_start_is_past_and_every_one_says_what_it_rests_on(world: Snapshot) -> None:
    found = expect(world)
    assert (found.starts >= NOW).all()
    pending = world.jobs.states == JobState.PENDING
    assert (found.starts[~pending] == FOREVER).all()
    for row in range(len(pending)):
        start, basis = found.of(row)
        assert (basis is Basis.UNKNOWN) == (start == FOREVER)
    assert NONE not in found.bases
