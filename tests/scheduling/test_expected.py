"""Expected starts: exact for reservations, and for the others what draining pools in order gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from muster.scheduling.expected import Expected, Lacking, expected_starts
from muster.scheduling.plan import Basis, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import FOREVER, NONE, Alternative, JobState, Shape, Snapshot
from muster.scheduling.timeline import Timeline

from .cases import Job, Node, Outcome, Queue, rack, snapshot
from .futures import GRACE, NOW, Desk, Run, world, worlds
from .operating import Live, Operating
from .standing import standing, world_of

pytestmark = pytest.mark.unit
thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def on(*hosts: int) -> tuple[str, ...]:
    return tuple(f"rack-0-host-{host}" for host in hosts)


def expect(
    world: Snapshot, quota: tuple[int, ...] = (), reserved: dict[int, tuple[float, Basis]] | None = None
) -> Expected:
    desk = Desk.of(world)
    lacking = Lacking(
        jobs=desk.waiting,
        workers=world.jobs.workers[desk.waiting].astype(np.int64),
        quota=np.isin(desk.waiting, quota),
        pools=np.arange(len(world.queues.names), dtype=np.int64),
        spare=Ledger(world.queues, world.jobs).left_by_queue(),
        own=Ledger(world.queues, world.jobs).left_by_queue(),
    )
    timeline = Timeline(world, desk.tree)
    return expected_starts(world, timeline, desk.tree, desk.room, lacking, reserved or {})


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


def test_one_that_is_promised_room_is_as_long_as_it_says_and_not_as_the_time_since_1970() -> None:
    jobs = [Job("victim", on=on(0), leaving=True, beneficiary="promised"), Job("promised", reserved=True, on=on(0))]
    base = snapshot(rack(0, 2, used_gpus=8), [*jobs, Job("silent", on=on(1)), Job("c"), Job("d")])
    runs = replace(base.jobs.runs, grace=np.full(5, GRACE), started=np.array([NOW - 100.0, 0.0, NOW - 100.0, 0.0, 0.0]))
    base.jobs.terms.estimate[1] = 1000.0
    world_ = replace(base, now=NOW, jobs=replace(base.jobs, runs=runs))
    # The typical job takes 1,000 s: so long the silent one has to go.
    waiting = Outcome(world_, plan(world_)).waiting
    assert [waiting[uid].expected - NOW for uid in ("promised", "c", "d")] == [GRACE, 1000.0 + GRACE, 1000.0 + GRACE]
    assert waiting["d"].basis is Basis.QUEUE


def test_the_clock_was_set_back_and_nobody_is_expected_in_the_past() -> None:
    runs = [Run(Job("a"), on(0), bound=500.0), Run(Job("silent"), on(1))]
    base = world(rack(0, 2), runs, [Job("c"), Job("d")])
    base.jobs.runs.started[:2] = NOW + 3_600.0
    assert starts(expect(base), 2, 3) == [500.0 + GRACE, FOREVER]


def test_where_nothing_is_known_nothing_is_told() -> None:
    found = expect(world(rack(0, 1), [Run(Job("silent"), on(0))], [Job("c")]))
    assert found.of(1) == (FOREVER, Basis.UNKNOWN)


def test_a_job_larger_than_all_that_will_come_back_keeps_nobody_else_waiting() -> None:
    base = world(rack(0, 1), [Run(Job("a"), on(0), ends=100.0)], [Job("huge", workers=2), Job("c")])
    assert starts(expect(base), 1, 2) == [FOREVER, 100.0]


def test_reservations_and_promises_are_told_as_they_are() -> None:
    base = world(rack(0, 2), [Run(Job("a"), on(0), ends=100.0), Run(Job("b"), on(1))], [Job("c"), Job("d")])
    known = NOW + 77.0, Basis.PROGRESS
    assert expect(base, reserved={2: known}).of(2) == (NOW + 77.0, Basis.PROGRESS)
    jobs = base.jobs
    states = jobs.states.copy()
    states[3] = JobState.RESERVED
    runs = replace(jobs.runs, leaving=jobs.runs.leaving.copy(), beneficiary=jobs.runs.beneficiary.copy())
    runs.leaving[1], runs.beneficiary[1] = True, 3
    promised = replace(base, jobs=replace(jobs, states=states, runs=runs))
    assert expect(promised).of(3) == (NOW + GRACE, Basis.PROMISED)


@pytest.mark.parametrize("beneficiary", [NONE, 1, 2, 3], ids=["nobody", "another", "its own sake", "the job"])
def test_who_is_promised_what_those_leave_who_were_asked_for_another_waits_for_them(beneficiary: int) -> None:
    """The node of the one that leaves is promised to two others, half each."""
    halves = [Job("another", gpus=4, reserved=True, on=on(0)), Job("job", gpus=4, reserved=True, on=on(0))]
    base = snapshot(rack(0, 2, used_gpus=8), [Job("stays", on=on(1)), halves[0], Job("leaves", on=on(0)), halves[1]])
    runs = replace(base.jobs.runs, grace=np.full(4, GRACE))
    runs.leaving[2], runs.beneficiary[2] = True, beneficiary
    world_ = replace(base, now=NOW, jobs=replace(base.jobs, runs=runs))
    waiting = Outcome(world_, plan(world_)).waiting["job"]
    assert (waiting.expected - NOW, waiting.basis) == (GRACE, Basis.PROMISED)
    world_.jobs.terms.limit[3] = 500.0
    timeline = Timeline(world_, Desk.of(world_).tree)
    assert timeline.sure[3] == NOW + GRACE + 500.0 + GRACE


def test_who_is_promised_also_what_others_leave_since_an_earlier_plan_waits_for_them() -> None:
    jobs = [Job("leaves", on=on(0)), Job("victim", on=on(1)), Job("job", workers=2, priority=1)]
    base = snapshot(rack(0, 2, used_gpus=8), jobs)
    runs = replace(base.jobs.runs, grace=np.array([300.0, GRACE, GRACE]))
    runs.leaving[0] = True
    made = plan(replace(base, now=NOW, jobs=replace(base.jobs, runs=runs)))
    assert [each.uid for each in made.evictions] == ["victim"]
    assert (made.waiting[0].expected - NOW, made.waiting[0].basis) == (300.0, Basis.PROMISED)


def test_who_is_promised_room_does_not_wait_for_those_who_grow_for_their_own_good() -> None:
    there = [Node("shared"), Node("idle", gpus=4)]
    grows = Job("grows", gpus=4, queue="beside", only_on=("shared", "idle"), on=("shared",))
    jobs = [grows, Job("victim", gpus=4, only_on=("shared",), on=("shared",))]
    jobs.append(Job("job", gpus=4, only_on=("shared",), priority=1))
    base = snapshot([replace(there[0], used_gpus=8), there[1]], jobs, [Queue(), Queue("beside")])
    runs = replace(base.jobs.runs, grace=np.array([300.0, GRACE, GRACE]), started=np.array([NOW - 9_000.0] * 2 + [0.0]))
    runs = replace(runs, saved=np.array([NOW, NOW, 0.0]))
    sizes = replace(base.jobs.sizes, most=np.array([2, 1, 1], dtype=np.int32))
    terms = replace(base.jobs.terms, preemptible=np.array([False, True, True]))
    made = plan(replace(base, now=NOW, jobs=replace(base.jobs, runs=runs, sizes=sizes, terms=terms)))
    assert {each.uid: each.beneficiary for each in made.evictions} == {"victim": "job", "grows": "grows"}
    assert (made.waiting[0].expected - NOW, made.waiting[0].basis) == (GRACE, Basis.PROMISED)


def test_a_window_that_opens_later_keeps_no_room_from_others() -> None:
    base = world(rack(0, 1), [Run(Job("a"), on(0), ends=100.0)], [Job("night"), Job("c")])
    base.jobs.terms.opens[1] = NOW + 5_000.0
    base.jobs.terms.estimate[1:] = 60.0
    assert starts(expect(base), 1, 2) == [5_000.0, 100.0]


@pytest.mark.parametrize(("closes", "start"), [(FOREVER, 130.0), (131.0, 130.0), (130.0, 9_000.0), (50.0, 9_000.0)])
@pytest.mark.parametrize("reserved", [True, False])
def test_whose_window_is_shut_when_room_comes_back_is_expected_when_it_opens_again(
    closes: float, start: float, reserved: bool
) -> None:
    """Nothing is kept for it while it is shut: that is no matter of enforced ends."""
    base = world(rack(0, 1), [Run(Job("a"), on(0), bound=100.0)], [Job("night")])
    base.jobs.terms.closes[1], base.jobs.terms.reopens[1] = NOW + closes, NOW + 9_000.0
    known = {1: (NOW + 130.0, Basis.LIMITS)} if reserved else {}
    basis = Basis.LIMITS if reserved and start == 130.0 else Basis.QUEUE
    assert expect(base, reserved=known).of(1) == (NOW + start, basis)


def test_an_enforced_end_is_no_proof_for_a_start_in_the_next_window() -> None:
    """While it is shut another takes the room, and need not give it back."""
    base = world(rack(0, 1), [Run(Job("a"), on(0), bound=100.0)], [Job("night"), Job("long", submitted=1.0)])
    base.jobs.terms.closes[1], base.jobs.terms.reopens[1] = NOW + 50.0, NOW + 9_000.0
    told = Outcome(base, plan(base)).waiting["night"]
    assert (told.expected - NOW, told.basis) == (9_000.0, Basis.QUEUE)
    shut = replace(world(rack(0, 1), [], [Job("night"), Job("long", submitted=1.0)]), now=NOW + 100.0 + GRACE)
    shut.jobs.terms.opens[0] = NOW + 9_000.0
    assert [each.uid for each in plan(shut).admissions] == ["long"]


@pytest.mark.parametrize(("closes", "start"), [(541.0, 540.0), (540.0, 9_000.0)])
@pytest.mark.parametrize("head", [True, False])
def test_who_would_take_the_next_kind_of_nodes_when_its_window_is_shut_does_when_it_opens_again(
    closes: float, start: float, head: bool
) -> None:
    """One that has a reservation on its first kind, and one for which there is none of it."""
    nodes = [Node("first", used_gpus=8, usable=head), Node("next", gpus=8)]
    jobs = [Job("a", only_on=("first",)), Job("b", gpus=0, only_on=("next",), submitted=1.0)]
    shot = snapshot(nodes, [*jobs, Job("runs", only_on=("first",), on=("first",))], [Queue()])
    other = Alternative(filter=1, flavour=1, since=NOW + 540.0)
    terms = replace(shot.jobs.terms, alternatives=((other,), (), ()))
    terms.closes[0], terms.reopens[0] = NOW + closes, NOW + 9_000.0
    told = Outcome(shot, plan(replace(shot, now=NOW, jobs=replace(shot.jobs, terms=terms)))).waiting["a"]
    assert (told.expected - NOW, told.basis) == (start, Basis.QUEUE)


def test_who_lacks_quota_waits_for_jobs_of_its_own_queue() -> None:
    runs = [Run(Job("a"), on(0), ends=500.0), Run(Job("other", queue=None), on(1), ends=100.0)]
    assert starts(expect(_limited(world(rack(0, 3), runs, [Job("c")]), 8), quota=(2,)), 2) == [500.0]


def test_who_was_not_started_waits_for_an_end_though_its_pool_has_enough() -> None:
    """Two halves of nodes are free, no whole one: the pool of the flavour has 8 GPUs, and nobody can start on it."""
    halves = [Run(Job("a", gpus=4), on(0), ends=100.0), Run(Job("b", gpus=4), on(1), ends=500.0)]
    known = world(rack(0, 2), halves, [Job("c"), Job("d")])
    known.jobs.terms.estimate[2:] = 50.0
    assert starts(expect(known), 2, 3) == [100.0, 150.0]
    silent = world(rack(0, 2), [replace(run, ends=FOREVER) for run in halves], [Job("c")])
    assert expect(silent).of(2) == (FOREVER, Basis.UNKNOWN)


def test_quota_that_comes_back_where_room_is_free_is_enough() -> None:
    runs = [Run(Job("a"), on(0), ends=100.0), Run(Job("other", queue=None), on(1), ends=500.0)]
    assert starts(expect(_limited(world(rack(0, 3), runs, [Job("c")]), 8), quota=(2,)), 2) == [100.0]


def test_who_cannot_give_back_waits_for_one_of_its_queue_that_cannot_either() -> None:
    runs = [Run(Job("borrower"), on(0), ends=100.0), Run(Job("firm"), on(1), ends=500.0)]
    base = _limited(world(rack(0, 3), runs, [Job("c"), Job("d")]), 8)
    base.jobs.terms.preemptible[1:3] = False
    found = Outcome(base, plan(base)).waiting
    assert found["c"].reason is WaitReason.QUOTA_EXCEEDED
    assert found["c"].expected - NOW == 500.0
    silent = replace(base, jobs=replace(base.jobs, runs=replace(base.jobs.runs, ends=np.full(4, FOREVER))))
    assert Outcome(silent, plan(silent)).waiting["c"].basis is Basis.UNKNOWN


@pytest.mark.parametrize(
    ("ahead", "basis"),
    [
        ([], Basis.LIMITS),
        ([Job("ahead", workers=2, priority=1)], Basis.QUEUE),
        ([Job("ahead", workers=2, priority=1, only_on=on(1, 2))], Basis.QUEUE),
        ([Job("behind", workers=2, submitted=1.0)], Basis.LIMITS),
    ],
)
def test_a_reserved_start_is_no_proof_where_a_job_ahead_waits_for_quota_and_takes_what_it_wants_then(
    ahead: list[Job], basis: Basis
) -> None:
    runs, waits = [Run(Job("a", priority=1), on(0), bound=100.0)], [*ahead, Job("head", only_on=on(0))]
    base = _limited(world(rack(0, 3), runs, waits), 16)
    waiting = Outcome(base, plan(base)).waiting
    assert [each.reason for uid, each in waiting.items() if uid != "head"] == [WaitReason.QUOTA_EXCEEDED] * len(ahead)
    assert (waiting["head"].expected - NOW, waiting["head"].basis) == (100.0 + GRACE, basis)
    then = _limited(world(rack(0, 3), [], waits), 16)
    assert ("head" in Outcome(then, plan(then)).admitted) is (basis is Basis.LIMITS), "it may start when a has ended"


@pytest.mark.parametrize(
    ("victim", "basis"),
    [
        (Job("victim"), Basis.QUEUE),
        (Job("victim", submitted=2.0), Basis.LIMITS),
        (Job("victim", submitted=2.0, priority=1), Basis.QUEUE),
        (Job("victim", only_on=on(1)), Basis.LIMITS),
    ],
)
@pytest.mark.parametrize("asked", ["by this plan", "before"])
def test_a_reserved_start_is_no_proof_where_a_victim_waits_again_ahead_and_takes_that_room(
    victim: Job, basis: Basis, asked: str
) -> None:
    runs = [Run(Job("ends", priority=3), on(0), bound=100.0), Run(victim, on(1))]
    waits = [Job("taker", priority=2, only_on=on(1)), Job("head", only_on=on(0), submitted=1.0)]
    base = world(rack(0, 2), runs, waits)
    made = plan(base)
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("victim", "taker")]
    if asked == "before":
        base = _promised(base, "taker", made.promises[0].nodes.tolist(), "victim")
        made = plan(base)
        assert not made.evictions
    told = Outcome(base, made).waiting["head"]
    assert (told.expected - NOW, told.basis) == (100.0 + GRACE, basis)
    then = world(rack(0, 2), [Run(Job("taker", priority=2), on(1))], [victim, waits[1]])
    assert ("head" in Outcome(then, plan(then)).admitted) is (basis is Basis.LIMITS), "it may start when both have gone"


@pytest.mark.parametrize(("there", "basis"), [("a", Basis.QUEUE), ("b", Basis.LIMITS)])
def test_a_reserved_start_is_no_proof_where_a_job_behind_gets_that_room_from_one_that_the_head_may_not_ask(
    there: str, basis: Basis
) -> None:
    queues = [Queue(gpus=8), Queue("beside", gpus=16)]
    operating = Operating({name: Node(name) for name in ("a", "b")}, {queue.name: queue for queue in queues})
    operating.submit(Live(Job("ends", queue="beside"), on=("a",)))
    operating.submit(Live(Job("other", queue="beside", priority=0 if there == "b" else 3), on=("b",)))
    operating.submit(Live(Job("head", priority=2, only_on=("a",))))
    operating.submit(Live(Job("behind", queue="beside", priority=1, only_on=(there,))))
    base = operating.snapshot()
    bound = np.where(np.array(base.jobs.uids) == "ends", base.now + 100.0, FOREVER)
    base = replace(base, jobs=replace(base.jobs, runs=replace(base.jobs.runs, bound=bound)))
    made = plan(base)
    assert [each.beneficiary for each in made.evictions] == ["behind"]
    assert Outcome(base, made).waiting["head"].basis is basis


@pytest.mark.parametrize(("workers", "basis"), [(2, Basis.QUEUE), (1, Basis.LIMITS)])
def test_a_reserved_start_is_no_proof_where_a_head_before_it_may_start_with_more_workers(
    workers: int, basis: Basis
) -> None:
    waits = [Job("ahead", workers=workers, priority=1), Job("head")]
    runs = [Run(Job(f"ends-{host}", priority=2), on(host), bound=100.0) for host in (0, 1)]
    base, then = world(rack(0, 2), runs, waits), world(rack(0, 2), [], waits)
    for each in (base, then):
        ahead = each.jobs.uids.index("ahead")
        each.jobs.sizes.least[ahead], each.jobs.sizes.partial[ahead] = 1, True
    told = Outcome(base, plan(base)).waiting["head"]
    assert (told.expected - NOW, told.basis) == (100.0 + GRACE, basis)
    assert ("head" in Outcome(then, plan(then)).admitted) is (basis is Basis.LIMITS), (
        "it may start when both have ended"
    )


@pytest.mark.parametrize(
    ("since", "opens", "basis", "sooner"),
    [
        (50.0, 0.0, Basis.QUEUE, 100.0 + GRACE),
        (0.0, 50.0, Basis.QUEUE, FOREVER),
        (500.0, 0.0, Basis.LIMITS, FOREVER),
        (0.0, 500.0, Basis.LIMITS, FOREVER),
    ],
)
def test_a_reserved_start_is_no_proof_where_a_job_ahead_takes_those_nodes_by_then_as_well(
    since: float, opens: float, basis: Basis, sooner: float
) -> None:
    """The one ahead would rather have the first node, of which nobody knows when it is free."""
    runs = [Run(Job("stays", priority=2), on(0)), Run(Job("ends", priority=2), on(1), bound=100.0)]
    waits = [Job("ahead", priority=1, only_on=on(0)), Job("head", only_on=on(1))]

    def at(base: Snapshot, seconds: float) -> Snapshot:
        other = Alternative(int(base.jobs.filters[base.jobs.uids.index("head")]), 1, NOW + since)
        ahead = base.jobs.uids.index("ahead")
        base.jobs.terms.opens[ahead] = NOW + opens
        later = tuple((other,) if row == ahead else () for row in range(len(base.jobs.uids)))
        terms = replace(base.jobs.terms, alternatives=later)
        return replace(base, now=NOW + seconds, jobs=replace(base.jobs, terms=terms))

    base = at(world(rack(0, 2), runs, waits), 0.0)
    told = Outcome(base, plan(base)).waiting
    assert (told["head"].expected - NOW, told["head"].basis) == (100.0 + GRACE, basis)
    if sooner < FOREVER:
        assert (told["ahead"].expected - NOW, told["ahead"].basis) == (sooner, Basis.QUEUE)
    then = at(world(rack(0, 2), runs[:1], waits), 100.0 + GRACE)
    assert ("head" in Outcome(then, plan(then)).admitted) is (basis is Basis.LIMITS), "it may start when one has ended"


def test_a_reserved_start_is_no_proof_where_one_ahead_that_is_lent_its_quota_has_no_reservation() -> None:
    queues = [Queue(gpus=16), Queue("borrows", gpus=0, cohort=0), Queue("lends", gpus=8, cohort=0)]
    operating = Operating({"a": Node("a")}, {queue.name: queue for queue in queues})
    operating.submit(Live(Job("ends", priority=2, queue="research"), on=("a",), preemptible=False))
    operating.submit(Live(Job("ahead", priority=1, queue="borrows")))
    operating.submit(Live(Job("head")))
    base = operating.snapshot()
    bound = np.where(base.jobs.holding, base.now + 100.0, FOREVER)
    base = replace(base, jobs=replace(base.jobs, runs=replace(base.jobs.runs, bound=bound)))
    told = Outcome(base, plan(base)).waiting["head"]
    operating.finish("ends")
    assert "ahead" in Outcome(operating.snapshot(), plan(operating.snapshot())).admitted
    assert told.basis is Basis.QUEUE


@pytest.mark.parametrize(("since", "basis"), [(50.0, Basis.QUEUE), (500.0, Basis.LIMITS)])
def test_a_reserved_start_is_no_proof_where_one_ahead_can_start_on_its_second_kind_of_nodes_alone(
    since: float, basis: Basis
) -> None:
    runs = [Run(Job("ends", priority=2), on(0), bound=100.0)]
    base = world(rack(0, 1), runs, [Job("ahead", priority=1, only_on=()), Job("head", only_on=on(0))])
    ahead = base.jobs.uids.index("ahead")
    other = Alternative(int(base.jobs.filters[base.jobs.uids.index("head")]), 1, NOW + since)
    later = tuple((other,) if row == ahead else () for row in range(len(base.jobs.uids)))
    base = replace(base, jobs=replace(base.jobs, terms=replace(base.jobs.terms, alternatives=later)))
    told = Outcome(base, plan(base)).waiting
    assert told["ahead"].reason is WaitReason.NO_ELIGIBLE_NODES
    assert (told["head"].expected - NOW, told["head"].basis) == (100.0 + GRACE, basis)


@pytest.mark.parametrize(
    ("opens", "reopens", "bound", "priority", "basis"),
    [
        (0.0, 90.0, 60.0, 1, Basis.QUEUE),  # it is stopped at the end of its window, and goes on in the next
        (90.0, 0.0, 60.0, 1, Basis.QUEUE),  # in the last minutes of its window
        (0.0, 400.0, 60.0, 1, Basis.LIMITS),
        (0.0, 90.0, 40.0, 1, Basis.LIMITS),  # its maxRuntime ends it for good before
        (0.0, 90.0, 60.0, 0, Basis.LIMITS),  # it ranks behind
    ],
)
def test_a_reserved_start_is_no_proof_where_a_running_job_has_its_next_window_before(
    opens: float, reopens: float, bound: float, priority: int, basis: Basis
) -> None:
    nightly = Job("nightly", priority=priority, submitted=1.0)
    runs = [Run(nightly, on(0), bound=bound), Run(Job("ends", priority=2), on(1), bound=300.0)]
    base = world(rack(0, 2), runs, [Job("head", workers=2)])
    terms = base.jobs.terms
    if opens:
        terms.opens[0] = NOW + opens
    else:
        terms.closes[0], terms.reopens[0] = NOW + 50.0, NOW + reopens
    told = Outcome(base, plan(base)).waiting["head"]
    assert (told.expected - NOW, told.basis) == (300.0 + GRACE, basis)


@pytest.mark.parametrize(
    ("nominal", "lent", "basis"), [(8, True, Basis.QUEUE), (0, True, Basis.LIMITS), (8, False, Basis.LIMITS)]
)
def test_a_reserved_start_is_no_proof_for_a_head_that_borrows_where_an_owner_behind_it_takes_that_room(
    nominal: int, lent: bool, basis: Basis
) -> None:
    queues = [
        Queue("above", gpus=24),
        Queue("borrows", gpus=0 if lent else 16, parent="above"),
        Queue("owns", gpus=nominal, parent="above"),
    ]
    operating = Operating({name: Node(name) for name in ("a", "b")}, {queue.name: queue for queue in queues})
    operating.submit(Live(Job("ends", priority=3, queue="above"), on=("a",)))
    operating.submit(Live(Job("head", workers=2, priority=2, queue="borrows")))
    operating.submit(Live(Job("behind", priority=1, queue="owns", only_on=("a",))))
    base = operating.snapshot()
    bound = np.where(base.jobs.holding, base.now + 100.0, FOREVER)
    base = replace(base, jobs=replace(base.jobs, runs=replace(base.jobs.runs, bound=bound)))
    told = Outcome(base, plan(base)).waiting
    assert (told["head"].expected - base.now, told["head"].basis) == (100.0 + 30.0, basis)
    operating.finish("ends")
    then = operating.snapshot()
    assert ("head" in Outcome(then, plan(then)).admitted) is (basis is Basis.LIMITS)


def _promised(base: Snapshot, uid: str, nodes: list[int], victim: str) -> Snapshot:
    """When a plan that promises nodes to a waiting job was carried out, and its victim has not gone yet."""
    jobs, row, gone = base.jobs, base.jobs.uids.index(uid), base.jobs.uids.index(victim)
    placed = [nodes if at == row else jobs.runs.nodes_of(at).tolist() for at in range(len(jobs.uids))]
    runs = replace(
        jobs.runs,
        first=np.append(0, np.cumsum([len(each) for each in placed])).astype(np.int64),
        placed=np.array([node for each in placed for node in each], dtype=np.int32),
        leaving=jobs.runs.leaving | (np.arange(len(placed)) == gone),
        beneficiary=np.where(np.arange(len(placed)) == gone, row, NONE).astype(np.int32),
    )
    states, held = jobs.states.copy(), jobs.held.copy()
    states[row], held[row] = JobState.RESERVED, jobs.requests[row] * len(nodes)
    return replace(base, jobs=replace(jobs, states=states, held=held, runs=runs))


def _limited(base: Snapshot, gpus: int) -> Snapshot:
    """With that much quota for the one queue."""
    nominal = base.queues.nominal.copy()
    nominal[0, 1, 2] = gpus
    return replace(base, queues=replace(base.queues, nominal=nominal))


@pytest.mark.parametrize(("least", "spares", "start"), [(1, 0, 100.0), (2, 0, 200.0), (1, 1, 200.0), (3, 0, FOREVER)])
def test_a_gang_that_may_start_with_fewer_workers_waits_for_those_and_its_spares(
    least: int, spares: int, start: float
) -> None:
    runs = [Run(Job("a"), on(0), ends=100.0), Run(Job("b"), on(1), ends=200.0)]
    base = _limited(world(rack(0, 4), runs, [Job("c", workers=4)]), 16)
    sizes = replace(base.jobs.sizes, least=np.array([1, 1, least], np.int32), partial=np.array([False, False, True]))
    terms = replace(base.jobs.terms, shapes=(*base.jobs.terms.shapes[:2], Shape(spares=spares)))
    base = replace(base, jobs=replace(base.jobs, sizes=sizes, terms=terms))
    assert Outcome(base, plan(base)).waiting["c"].expected - NOW == start


@pytest.mark.parametrize(("firm", "start"), [((False, False), 540.0), ((True, False), 540.0), ((True, True), FOREVER)])
def test_who_may_not_be_stopped_is_expected_on_the_next_kind_of_nodes_where_its_like_leave_it_quota(
    firm: tuple[bool, bool], start: float
) -> None:
    nodes = [Node("large", gpus=16, used_gpus=8), Node("spot", gpus=0)]
    jobs = [Job("a", only_on=("spot",)), Job("holds", only_on=("large",), holding=True)]
    shot = snapshot(nodes, jobs, [Queue(gpus=8, cohort=0), Queue("beside", gpus=8, cohort=0)])
    alternatives = ((Alternative(filter=1, flavour=1, since=NOW + 540.0),), ())
    terms = replace(shot.jobs.terms, alternatives=alternatives, preemptible=~np.array(firm))
    (waiting,) = plan(replace(shot, now=NOW, jobs=replace(shot.jobs, terms=terms))).waiting
    assert waiting.expected - NOW == start


@thorough
@example(world_of(15098), 0)  # a lowered quota comes back after a grace
@example(world_of(1000891, elastic=True, slices=True), 1000892)  # so does one that somebody leaves already
@given(standing(), st.integers(0, 2**32 - 1))
def test_nobody_who_waits_is_expected_to_start_before_anything_ends(world: Snapshot, seed: int) -> None:
    """A plan applied to its own snapshot changes nothing, so whoever it leaves waiting can only start later: "now" and
    "before the first end of all" are wrong. Whom room is promised to waits for those who leave it, one grace."""
    draw, count = np.random.default_rng(seed), len(world.jobs.uids)
    ends = world.now + draw.choice([10.0, 50.0, 100.0, FOREVER, FOREVER], count)
    runs = replace(world.jobs.runs, ends=ends, grace=np.full(count, 5.0))
    world = replace(world, jobs=replace(world.jobs, runs=runs))
    holds = world.jobs.states == JobState.HOLDING
    planned = plan(world)
    leaves = planned.evictions or runs.leaving[holds].any()
    first = min(ends[holds].min(initial=FOREVER), world.now + 5.0 if leaves else FOREVER)
    for waiting in planned.waiting:
        if waiting.basis is not Basis.PROMISED:
            assert waiting.expected >= first


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


@pytest.mark.parametrize(
    ("free", "quota", "start", "basis"),
    [
        (True, 8, 540.0, Basis.QUEUE),
        (False, 8, FOREVER, Basis.UNKNOWN),
        (True, 0, FOREVER, Basis.UNKNOWN),
    ],
)
def test_who_waits_for_its_first_kind_of_nodes_is_expected_when_it_takes_the_next(
    free: bool, quota: int, start: float, basis: Basis
) -> None:
    jobs = [Job("a", only_on=("spot",)), Job("taker", gpus=0, only_on=("large",), submitted=1.0)]
    shot = snapshot([Node("large", used_gpus=0 if free else 8)], jobs, [Queue(gpus=quota)])
    other = Alternative(filter=1, flavour=1, since=NOW + 540.0)
    terms = replace(shot.jobs.terms, alternatives=((other,), ()))
    (waiting,) = plan(replace(shot, now=NOW, jobs=replace(shot.jobs, terms=terms))).waiting
    assert waiting.reason is WaitReason.NO_ELIGIBLE_NODES
    assert (waiting.expected - NOW, waiting.basis) == (start, basis)
