"""A young head keeps its reservation from plan to plan, whatever jobs behind it in its own queue borrow; and no head is
told a start at which its room is still kept for one ahead."""

from __future__ import annotations

import pytest

from muster.scheduling.plan import Basis, WaitReason
from muster.scheduling.planner import plan

from .cases import Job, Node, Outcome, Queue, rack
from .futures import NOW, Run, world
from .operating import Live, Operating

pytestmark = pytest.mark.unit

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


@pytest.mark.parametrize(("firm", "basis"), [(True, Basis.QUEUE), (False, Basis.LIMITS)])
def test_the_start_of_a_head_that_cannot_yield_is_a_guess_while_nobody_knows_that_of_one_ahead(
    firm: bool, basis: Basis
) -> None:
    """Room that is kept for the one ahead is only there for a job that gives it back."""
    world = Operating({name: Node(name) for name in "ab"}, {"research": Queue()})
    world.submit(Live(Job("endless"), preemptible=False, on=("a",)))
    world.submit(Live(Job("bounded"), preemptible=False, on=("b",)))
    world.submit(Live(Job("both", workers=2)))
    world.now += 1
    world.submit(Live(Job("single"), preemptible=not firm))
    shot = world.snapshot()
    shot.jobs.runs.bound[shot.jobs.uids.index("bounded")] = world.now + 100.0
    told = {each.uid: each.basis for each in plan(shot).waiting}
    assert told == {"both": Basis.UNKNOWN, "single": basis}


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
