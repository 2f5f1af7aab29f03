"""A young head keeps its reservation from plan to plan, whatever jobs behind it in its own queue borrow; and no head is
told a start at which its room is still kept for one ahead."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduling.placement import fits
from muster.scheduling.plan import Basis, Plan, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import FOREVER, Alternative, Snapshot
from muster.scheduling.topology import prefix_sums

from .cases import Job, Node, Outcome, Queue, apply, rack
from .futures import GRACE, NOW, Desk, Run, world, worlds
from .operating import Live, Operating

pytestmark = pytest.mark.unit

HOUR = 3600.0
NODES = {node.name: node for node in (*rack(0, 2), *rack(1, 2))}


def waiting_for_a_rack() -> Operating:
    """One node of each rack is free. Research has 16 GPUs, and its first job needs a whole rack: both its nodes."""
    queues = {"research": Queue(gpus=16, cohort=0), "ops": Queue("ops", gpus=24, cohort=0)}
    world = Operating(dict(NODES), queues)
    for index in (0, 1):
        world.submit(Live(Job(f"runs-{index}", queue="ops"), preemptible=False, on=(f"rack-{index}-host-0",)))
    world.submit(Live(Job("head", workers=2, required="rack")))
    return world


def step(world: Operating) -> list[tuple[str, bool]]:
    """Carry out a plan: who starts, and whether it yields."""
    world.now += 1
    made = plan(world.snapshot())
    world.carry_out(made)
    return [(each.uid, each.yields) for each in made.admissions]


def test_room_is_kept_for_a_head_whose_queue_borrows_for_a_job_behind_it() -> None:
    world = waiting_for_a_rack()
    assert step(world) == []
    world.now += 1
    world.submit(Live(Job("behind")))
    assert step(world) == [("behind", True)]
    world.submit(Live(Job("later", queue="ops"), preemptible=False))
    assert step(world) == []
    told = {each.uid: each for each in plan(world.snapshot()).waiting}
    assert (told["later"].reason, told["later"].blocker) == (WaitReason.BEHIND_OTHERS, "head")


def test_the_head_starts_as_soon_as_its_rack_would_be_free_without_the_job_behind_it() -> None:
    world = waiting_for_a_rack()
    world.now += 1
    world.submit(Live(Job("behind")))
    step(world)
    taken = world.jobs["behind"].on[0]
    world.finish("runs-0" if taken.startswith("rack-0") else "runs-1")
    world.now += 1
    world.submit(Live(Job("later", queue="ops"), preemptible=False))
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("behind", "head")]
    assert [each.uid for each in made.promises] == ["head"]


def test_who_was_let_in_still_yields_when_it_has_started_again_on_its_nodes() -> None:
    """Its script failed, say: the planner finds it as a job with a promise, for whom nobody leaves."""
    world = waiting_for_a_rack()
    world.now += 1
    world.submit(Live(Job("behind")))
    assert step(world) == [("behind", True)]
    behind = world.jobs["behind"]
    behind.promised, behind.beneficiary, behind.leaving = behind.on, "behind", True
    world.gone("behind")
    assert step(world) == [("behind", True)]
    world.finish("runs-0" if behind.on[0].startswith("rack-0") else "runs-1")
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("behind", "head")]


def test_a_head_whose_quota_the_job_behind_it_holds_has_it_as_soon_as_there_is_room() -> None:
    """What had lent that quota has taken its own since."""
    world = waiting_for_a_rack()
    world.now += 1
    world.submit(Live(Job("behind")))
    step(world)
    world.queues["ops"] = Queue("ops", gpus=16, cohort=0)
    made = plan(world.snapshot())
    assert made.waiting[0].reason is WaitReason.QUOTA_EXCEEDED
    assert not made.evictions
    world.finish("runs-0" if world.jobs["behind"].on[0].startswith("rack-0") else "runs-1")
    world.submit(Live(Job("later", queue="ops")))
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("behind", "head")]


def beside_the_racks(research: int) -> Operating:
    """Two more nodes are in no rack, so that they are of no use to the head."""
    world = waiting_for_a_rack()
    world.nodes = {**world.nodes, "apart": Node("apart", rack=None), "third": Node("third", rack=None)}
    world.queues["research"] = Queue(gpus=research, cohort=0)
    world.now += 1
    return world


@pytest.mark.parametrize(("research", "borrows"), [(16, True), (24, False)])
def test_who_borrows_behind_a_head_of_its_own_queue_yields_wherever_it_runs(research: int, borrows: bool) -> None:
    world = beside_the_racks(research)
    world.submit(Live(Job("behind")))
    assert step(world) == [("behind", borrows)]
    assert world.jobs["behind"].on in (("apart",), ("third",))
    assert step(world) == []
    world.queues["lab"] = Queue("lab")
    for uid in ("first", "second"):
        world.submit(Live(Job(uid, queue="lab"), preemptible=False))
    assert step(world) == [("first", False)], "the room of the racks is kept"


@pytest.mark.parametrize(("research", "grows"), [(24, False), (32, True)])
def test_nobody_grows_by_what_is_borrowed_while_a_head_of_its_queue_waits(research: int, grows: bool) -> None:
    world = beside_the_racks(research)
    elastic = Job("elastic", only_on=("apart", "third"))
    world.submit(Live(elastic, least=1, most=2, on=("apart",), started=world.now))
    world.now += 7_200.0
    world.jobs["elastic"].saved = world.now
    assert [each.uid for each in plan(world.snapshot()).promises] == ["elastic"] * grows


@pytest.mark.parametrize("firm", [True, False])
def test_the_start_of_a_head_is_a_guess_while_nobody_knows_that_of_one_ahead(firm: bool) -> None:
    """Room that is kept for the one ahead is only there for a job that gives it back; and if the endless one ends
    first, there is none to give back."""
    world = Operating({name: Node(name) for name in "ab"}, {"research": Queue()})
    world.submit(Live(Job("endless"), preemptible=False, on=("a",)))
    world.submit(Live(Job("bounded"), preemptible=False, on=("b",)))
    world.submit(Live(Job("both", workers=2)))
    world.now += 1
    world.submit(Live(Job("single"), preemptible=not firm))
    shot = world.snapshot()
    shot.jobs.runs.bound[shot.jobs.uids.index("bounded")] = world.now + 100.0
    told = {each.uid: each.basis for each in plan(shot).waiting}
    assert told == {"both": Basis.UNKNOWN, "single": Basis.QUEUE}
    for ended in ("endless", "bounded"):
        world.finish(ended)
    assert [each.uid for each in plan(world.snapshot()).admissions] == ["both"]


@pytest.mark.parametrize(("hosts", "basis"), [(2, Basis.QUEUE), (4, Basis.LIMITS)])
def test_a_reserved_start_is_proven_where_those_ahead_may_start_on_any_nodes(hosts: int, basis: Basis) -> None:
    """They start on what is free then, which need not be what is reserved for them."""
    nodes = [*rack(0, 2), *rack(1, hosts)]
    world = Operating({node.name: node for node in nodes}, {"research": Queue()})
    whole = tuple(node.name for node in nodes[2:])
    world.submit(Live(Job("near"), preemptible=False, on=("rack-0-host-1",)))
    world.submit(Live(Job("far", workers=hosts), preemptible=False, on=whole))
    world.submit(Live(Job("first", workers=2), preemptible=False))
    world.now += 1
    world.submit(Live(Job("second", workers=2, required="rack"), preemptible=False))
    shot = world.snapshot()
    for uid, seconds in (("near", 100.0), ("far", 200.0)):
        shot.jobs.runs.bound[shot.jobs.uids.index(uid)] = world.now + seconds
    told = {each.uid: each for each in plan(shot).waiting}
    assert (told["first"].expected, told["first"].basis) == (world.now + 100.0 + GRACE, Basis.LIMITS)
    assert (told["second"].expected, told["second"].basis) == (world.now + 200.0 + GRACE, basis)
    world.finish("far")  # before its time
    assert {each.uid for each in plan(world.snapshot()).admissions} == {"first", *(["second"] * (hosts == 4))}
    world.carry_out(plan(world.snapshot()))
    world.finish("near")
    assert ("second" in {each.uid for each in plan(world.snapshot()).waiting}) is (basis is Basis.QUEUE)


def test_a_head_that_cannot_yield_starts_after_the_one_ahead_for_whom_free_room_is_kept() -> None:
    world = waiting_for_a_rack()
    world.now += 1
    world.submit(Live(Job("small", queue="ops"), preemptible=False))
    shot = world.snapshot()
    shot.jobs.runs.bound[shot.jobs.uids.index("runs-0")] = world.now + 100.0
    told = {each.uid: each for each in plan(shot).waiting}
    assert told["small"].reason is WaitReason.BEHIND_OTHERS
    for uid in ("head", "small"):
        assert (told[uid].expected, told[uid].basis) == (world.now + 130.0, Basis.LIMITS)


@pytest.mark.parametrize("firm", [True, False])
def test_nobody_waits_for_a_head_that_only_seems_to_start_now(firm: bool) -> None:
    """Three nodes of each rack are free and kept for the first, which wants four. The second would fit, but is not let
    in: that nobody gets anything done before it is no reason to leave the nodes idle."""
    runs = [Run(Job(f"runs-{index}"), (f"rack-{index}-host-0",), ends=end) for index, end in ((0, 1e4), (1, 2e4))]
    waiting = [
        Job("first", workers=4, required="rack"),
        Job("second", workers=3, required="rack", submitted=1.0),
        Job("third", submitted=2.0),
    ]
    shot = world(rack(0, 4) + rack(1, 4), runs, waiting)
    row = shot.jobs.uids.index("second")
    if firm:
        shot.jobs.terms.preemptible[row] = False
    else:
        shot.jobs.runs.restart[row] = 1e4  # it would get nothing done before the first starts
    outcome = Outcome(shot, plan(shot))
    told = outcome.waiting["second"]
    assert (told.expected, told.basis) == (NOW + 1e4, Basis.PROGRESS)
    if firm:
        assert list(outcome.admitted) == ["third"]


@pytest.mark.parametrize("closes", [GRACE + 100.0, GRACE + 101.0])
@pytest.mark.parametrize("alike", [False, True], ids=["alone", "before one without a window"])
def test_nothing_is_kept_for_a_job_whose_window_is_shut_when_it_could_start(closes: float, alike: bool) -> None:
    """What cannot give back the room beside it takes that, unless another like it waits for as long as it takes."""
    others = [Job("other", workers=2, submitted=1.0)] if alike else []
    jobs = [Job("night", workers=2), *others, Job("stays", submitted=2.0)]
    base = world(rack(0, 2), [Run(Job("runs"), ("rack-0-host-0",), bound=100.0)], jobs)
    terms = base.jobs.terms
    terms.closes[base.jobs.uids.index("night")] = NOW + closes
    terms.preemptible[base.jobs.uids.index("stays")] = False
    shut = closes == GRACE + 100.0
    assert [each.uid for each in plan(base).admissions] == (["stays"] if shut and not alike else [])


def carried_out(before: Snapshot, made: Plan) -> Snapshot:
    """The next snapshot: who starts has nodes, and nothing else happened."""
    runs, started = before.jobs.runs, {each.uid: each.nodes for each in made.admissions}
    placed = [started.get(uid, runs.nodes_of(row)) for row, uid in enumerate(before.jobs.uids)]
    after = apply(before, made)
    runs = replace(
        after.jobs.runs,
        first=np.append(0, np.cumsum([len(nodes) for nodes in placed])).astype(np.int64),
        placed=np.concatenate(placed).astype(np.int32),
        started=np.where(after.jobs.holding & (runs.started == 0), before.now, runs.started),
    )
    return replace(after, jobs=replace(after.jobs, runs=runs))


def let_in_before_it(*others: Job) -> Snapshot:
    """The head wants three of four nodes: one is free, one has a job that ends, one the job that was let in."""
    runs = [
        Run(Job("ends"), ("rack-0-host-0",), bound=1_000.0),
        Run(Job("stays"), ("rack-0-host-3",), bound=50_000.0),
        Run(Job("let-in", submitted=1.0), ("rack-0-host-1",)),
    ]
    shot = world(rack(0, 4), runs, [Job("head", workers=3), *others])
    shot.jobs.runs.yields[2] = True
    return shot


def test_who_yields_does_not_move_the_reserved_start_of_the_head() -> None:
    shot = let_in_before_it()
    told = Outcome(shot, plan(shot)).waiting["head"]
    assert (told.expected - NOW, told.basis) == (1_000.0 + 2 * GRACE, Basis.LIMITS)


def test_nobody_who_stays_is_let_in_for_longer_because_another_was_let_in_who_yields() -> None:
    shot = let_in_before_it(Job("firm", submitted=2.0))
    shot.jobs.terms.preemptible[4], shot.jobs.terms.limit[4] = False, 40_000.0
    assert not plan(shot).admissions, "the head would wait for it"
    shot.jobs.terms.limit[4] = 900.0
    assert [each.uid for each in plan(shot).admissions] == ["firm"]


def test_nobody_is_let_in_who_would_have_to_yield_at_once_with_another_who_yields() -> None:
    shot = let_in_before_it(Job("late", submitted=2.0))
    shot.jobs.runs.restart[4] = 60.0
    assert [(each.uid, each.yields) for each in plan(shot).admissions] == [("late", True)]
    assert not plan(replace(shot, now=NOW + 1_000.0)).admissions, "it would not get anything done"


def test_one_that_yields_to_others_only_moves_the_start_of_the_head() -> None:
    shot = let_in_before_it()
    shot.jobs.priorities[2] = 1
    told = Outcome(shot, plan(shot)).waiting["head"]
    assert told.expected - NOW == 50_000.0 + GRACE


def two_heads(*behind: Job, ends: float = 9_000.0) -> tuple[Snapshot, Plan]:
    """Half of node 1 is free until its job ends at 500 s; the others are busy. The first head wants the three other
    nodes, which are in one rack, the second wants node 1 before that."""
    nodes = [Node(f"n{index}", rack="r1" if index == 1 else "r0") for index in range(4)]
    runs = [
        Run(Job("long"), ("n2", "n3"), bound=ends),
        Run(Job("busy"), ("n0",), bound=ends - 20.0),
        Run(Job("half", gpus=4), ("n1",), bound=500.0),
    ]
    shot = world(nodes, runs, [Job("first", workers=3, submitted=1.0), Job("second", submitted=2.0), *behind])
    return shot, plan(shot)


def test_who_was_let_in_behind_two_heads_does_not_delay_the_second_on_room_that_is_kept_for_the_first() -> None:
    shot, made = two_heads(Job("behind", gpus=4, submitted=3.0))
    assert [(each.uid, each.yields) for each in made.admissions] == [("behind", True)]
    told = Outcome(shot, made).waiting["second"]
    assert (told.expected - NOW, told.basis) == (500.0 + GRACE, Basis.QUEUE)
    after = carried_out(shot, made)
    told = Outcome(after, plan(after)).waiting["second"]
    assert (told.expected - NOW, told.basis) == (500.0 + 2 * GRACE, Basis.QUEUE), "if long ends first, so does its room"


def operating_two_heads() -> Operating:
    world = Operating({f"n{index}": Node(f"n{index}") for index in range(4)}, {"research": Queue()})
    for uid, on in (("long", ("n2", "n3")), ("busy", ("n0",))):
        world.submit(Live(Job(uid, workers=len(on)), preemptible=False, on=on))
    world.submit(Live(Job("half", gpus=4), preemptible=False, on=("n1",)))
    for job in (Job("first", workers=3), Job("second"), Job("behind", gpus=4)):
        world.now += 1
        world.submit(Live(job))
    assert step(world) == [("behind", True)]
    return world


def test_it_yields_to_the_second_head_which_yields_to_the_first_in_turn() -> None:
    world = operating_two_heads()
    world.finish("half")
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("behind", "second")]
    assert [(each.uid, each.yields) for each in made.promises] == [("second", True)]
    told = {each.uid: each for each in made.waiting}
    world.carry_out(made)
    assert {each.uid: each.expected for each in plan(world.snapshot()).waiting}["first"] == told["first"].expected
    world.gone("behind")
    assert step(world) == [("second", True)]
    world.finish("long")
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("second", "first")]


def test_a_second_head_that_cannot_yield_asks_nobody_before_the_first_has_started() -> None:
    world = operating_two_heads()
    world.jobs["second"].preemptible = False
    world.finish("half")
    assert not plan(world.snapshot()).evictions


def test_a_second_head_asks_nobody_to_yield_when_it_would_have_to_yield_itself_at_once() -> None:
    shot, made = two_heads(ends=560.0)
    told = Outcome(shot, made).waiting
    assert told["first"].expected - NOW == 560.0 + GRACE
    assert told["second"].expected - NOW == 500.0 + GRACE, "60 s are enough"
    shot.jobs.runs.restart[shot.jobs.uids.index("second")] = 40.0
    told = Outcome(shot, plan(shot)).waiting
    assert told["second"].expected == told["first"].expected


@pytest.mark.parametrize(("ends", "asks"), [(49.0, False), (50.0, True)])
def test_a_second_head_asks_nobody_to_yield_who_goes_so_late_that_it_would_get_nothing_done(
    ends: float, asks: bool
) -> None:
    """The first starts one grace after the end. The second starts one grace from now, loses 10 s, and has 40 s left."""
    nodes = [Node(f"n{index}", rack="r1" if index == 1 else "r0") for index in range(4)]
    runs = [Run(Job("long"), ("n0", "n2", "n3"), bound=ends), Run(Job("behind", gpus=4, submitted=3.0), ("n1",))]
    shot = world(nodes, runs, [Job("first", workers=3, submitted=1.0), Job("second", submitted=2.0)])
    shot.jobs.runs.yields[1], shot.jobs.runs.restart[3] = True, 10.0
    made = plan(shot)
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("behind", "second")] * asks
    told = Outcome(shot, made).waiting["first"]
    assert told.expected - NOW == ends + GRACE


def test_two_queues_take_long_turns_on_room_that_is_kept_for_a_third() -> None:
    """Who runs there uses more than the other then, so that the other ranks first. Who was never stopped has its turn
    at once, and each after that when stopping and starting the one that runs, 40 s, is a twentieth of what that has
    run. Higher priority waits for no turn."""
    world = Operating({name: Node(name) for name in ("n0", "n1")}, {name: Queue(name) for name in ("long", "x", "y")})
    world.submit(Live(Job("runs", queue="long"), preemptible=False, on=("n1",)))
    for job in (Job("first", workers=2, queue="long", priority=1), Job("x", queue="x"), Job("y", queue="y")):
        world.now += 1
        world.submit(Live(job))
    assert step(world) == [("x", True)]
    for used, other, turn in (("x", "y", 1.0), ("y", "x", 800.0), ("x", "y", 800.0)):
        started = world.now
        world.queues[used] = replace(world.queues[used], used=world.queues[used].used + 0.002)
        world.queues[other] = replace(world.queues[other], used=0.001)
        if turn > 1.0:
            world.now = started + turn - 1.0
            made = plan(world.snapshot())
            assert not made.evictions, "its turn has just begun"
            told = {each.uid: each for each in made.waiting}
            assert told[other].expected >= told["first"].expected
        world.now = started + turn
        made = plan(world.snapshot())
        assert [(each.uid, each.beneficiary) for each in made.evictions] == [(used, other)]
        world.carry_out(made)
        world.gone(used)
        assert step(world) == [(other, True)]
    world.submit(Live(Job("higher", queue="x", priority=1)))
    assert [(each.uid, each.beneficiary) for each in plan(world.snapshot()).evictions] == [("y", "higher")]


@pytest.mark.parametrize(
    ("runs", "waits", "asks"), [(HOUR, HOUR, False), (3 * HOUR, HOUR, True), (FOREVER, HOUR, False)]
)
def test_a_job_waits_for_no_turn_of_one_that_is_much_longer(runs: float, waits: float, asks: bool) -> None:
    """On room that is kept for a third: the longer one waits for the turn of this one."""
    world = Operating({name: Node(name) for name in ("n0", "n1")}, {"long": Queue("long")})
    world.queues |= {"x": Queue("x", used=0.002), "y": Queue("y", used=0.001)}
    world.submit(Live(Job("runs", queue="long"), preemptible=False, on=("n1",)))
    world.submit(Live(Job("first", workers=2, queue="long", priority=1)))
    world.submit(Live(Job("x", queue="x", length=runs), on=("n0",), yields=True, started=world.now))
    world.submit(Live(Job("y", queue="y", length=waits), stops=1))
    world.now += 10.0
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("x", "y")] * asks


def test_what_victims_leave_over_is_kept_for_the_head_that_waits_for_it() -> None:
    """It needs more than they leave. Who is behind it gets none of that for good."""
    world = Operating({f"n{index}": Node(f"n{index}") for index in range(5)}, {"research": Queue()})
    for job in (Job("first", workers=3), Job("second", workers=3), Job("behind", gpus=4)):
        world.submit(Live(job))
        world.now += 1
    world.submit(Live(Job("stays"), preemptible=False, on=("n4",)))
    world.submit(Live(Job("yields", workers=4), yields=True, on=("n0", "n1", "n2", "n3")))
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("yields", "first")]
    assert [each.uid for each in made.promises] == ["first"]
    world.carry_out(made)
    world.gone("yields")
    assert step(world) == [("first", False), ("behind", True)]


def test_what_is_let_in_for_good_by_one_plan_adds_up() -> None:
    """A gang takes what the end of the job that runs would add to on one node; then two more whole nodes are not in
    excess, though as many slots are free as before."""
    nodes = [Node(f"n{index}", gpus=4) for index in range(6)]
    runs = [Run(Job("run", gpus=2), ("n3", "n5", "n0", "n0"))]
    small = Job("small", workers=2, gpus=1, submitted=1.0)
    large = [Job(f"large-{index}", gpus=4, submitted=2.0 + index) for index in range(2)]
    shot = world(nodes, runs, [Job("head", workers=4, gpus=4), small, *large])
    made = plan(shot)
    assert [(each.uid, each.yields) for each in made.admissions] == [
        ("small", False),
        ("large-0", False),
        ("large-1", True),
    ]


def test_what_is_in_excess_beside_one_head_is_not_beside_two() -> None:
    """Twelve halves of nodes when the job ends: five for the first head, six for the second, and one is left over."""
    nodes = [Node(f"n{index}") for index in range(6)]
    runs = [Run(Job("run"), ("n1", "n2", "n3", "n4", "n5"), bound=700.0)]
    heads = [Job("first", workers=5, gpus=4, submitted=1.0), Job("second", workers=6, gpus=4, submitted=2.0)]
    shot = world(nodes, runs, [*heads, Job("small", gpus=4, submitted=3.0), Job("late", gpus=4, submitted=4.0)])
    made = plan(shot)
    assert [(each.uid, each.yields) for each in made.admissions] == [("small", False), ("late", True)]


@st.composite
def half_nodes(draw: st.DrawFn) -> Snapshot:
    """Jobs on halves of nodes, of which the first waiting gang wants whole ones."""
    count = draw(st.integers(5, 8))
    nodes = [Node(f"node-{index}", rack=f"r{index % 2}", gpus=4) for index in range(count)]
    halves = draw(st.permutations([node.name for node in nodes] * 2))
    cuts = sorted(draw(st.lists(st.integers(0, count), min_size=1, max_size=3)))
    parts = [halves[a:b] for a, b in zip([0, *cuts], cuts, strict=False) if a < b]
    runs = [Run(Job(f"run-{index}", gpus=2), tuple(part)) for index, part in enumerate(parts)]
    others = [
        Job(f"wait-{index}", workers=draw(st.integers(1, 2)), gpus=draw(st.sampled_from([1, 2, 4])))
        for index in range(1, 5)
    ]
    return world(nodes, runs, [Job("wait-0", workers=draw(st.integers(2, count)), gpus=4), *others])


@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(half_nodes(), worlds()))
def test_the_first_fits_beside_all_whom_a_plan_lets_in_for_good_whenever_it_would_fit_without(before: Snapshot) -> None:
    desk, made = Desk.of(before), plan(before)
    gang, free = desk.gang(0)[0], desk.room.free
    if "wait-0" in {each.uid for each in made.admissions} or made.promises:
        return
    took = np.zeros_like(free)
    for each in made.admissions:
        if not each.yields:
            request = before.jobs.requests[before.jobs.uids.index(each.uid)]
            np.add.at(took.T, desk.tree.place_of[each.nodes], request)
    running = np.flatnonzero(before.jobs.holding).tolist()
    for ended in (some for size in range(1, len(running) + 1) for some in combinations(running, size)):
        room = desk.given_back(free, ended)
        without, beside = (prefix_sums(desk.slots(gang, left)) for left in (room, room - took))
        assert fits(desk.tree, without, gang) == fits(desk.tree, beside, gang)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_what_a_plan_lets_in_moves_the_start_of_the_first_by_no_more_than_one_grace(before: Snapshot) -> None:
    made = plan(before)
    told, behind = Outcome(before, made).waiting.get("wait-0"), list(made.admissions)
    if told is None or told.expected == FOREVER or made.promises or not behind:
        return
    then = Outcome(after := carried_out(before, made), plan(after)).waiting["wait-0"]
    assert then.expected <= told.expected + GRACE


@pytest.mark.parametrize(
    ("first", "other", "by_progress", "told", "passed"),
    [
        (FOREVER, 100.0, False, (100.0 + GRACE, Basis.LIMITS), False),
        (500.0, 100.0, False, (100.0 + GRACE, Basis.LIMITS), False),
        (50.0, 100.0, False, (50.0 + GRACE, Basis.LIMITS), True),
        (FOREVER, 100.0, True, (100.0, Basis.PROGRESS), False),
        (500.0, 100.0, True, (500.0 + GRACE, Basis.LIMITS), True),
        (FOREVER, FOREVER, False, None, False),
    ],
)
def test_who_takes_two_kinds_of_node_keeps_room_where_it_starts_first_for_sure_as_far_as_that_is_known(
    first: float, other: float, by_progress: bool, told: tuple[float, Basis] | None, passed: bool
) -> None:
    """Of the other kind one node is free: small jobs would take that for ever, one after the other."""
    hosts = [node.name for node in rack(0, 4)]
    runs = [Run(Job(f"first-{host}", priority=2), (hosts[host],), bound=first) for host in (0, 1)]
    runs.append(Run(Job("other", priority=2), (hosts[3],), **{"ends" if by_progress else "bound": other}))
    waits = [Job("large", workers=2, only_on=tuple(hosts[:2])), Job("small", only_on=tuple(hosts[2:]), submitted=1.0)]
    base = world(rack(0, 4), runs, waits)
    base.jobs.terms.preemptible[4] = False
    later = ((), (), (), (Alternative(int(base.jobs.filters[4]), 1),), ())
    made = plan(replace(base, jobs=replace(base.jobs, terms=replace(base.jobs.terms, alternatives=later))))
    assert ("small" in {each.uid for each in made.admissions}) is passed
    (large,) = (each for each in made.waiting if each.uid == "large")
    assert told is None or (large.expected - NOW, large.basis) == told
