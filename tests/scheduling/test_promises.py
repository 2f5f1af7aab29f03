"""Room that is promised: nobody else gets it, its owner starts when it is there, and what cannot be kept is broken."""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from muster.scheduling.plan import Basis, Plan, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.promises import BrokenBy, broken_by
from muster.scheduling.reliance import counted_on
from muster.scheduling.snapshot import NONE, Shape

from .cases import Job, Node, Outcome, Queue, rack, snapshot
from .operating import Live, Operating, room_of

pytestmark = pytest.mark.unit


def planned(nodes: list[Node], *jobs: Job, queues: tuple[Queue, ...] = (Queue(),)) -> Outcome:
    shot = snapshot(nodes, jobs, queues)
    return Outcome(shot, plan(shot))


BUSY = Node("busy", used_gpus=8, used_cores=1)
IDLE = Node("idle")
VICTIM = Job("victim", on=("busy",), leaving=True, beneficiary="head")
HEAD = Job("head", workers=2, on=("busy", "idle"), reserved=True)


def test_room_is_kept_while_a_victim_still_runs() -> None:
    outcome = planned([BUSY, IDLE], VICTIM, HEAD, Job("urgent", priority=9))
    assert not outcome.admitted
    assert not outcome.plan.broken
    head = outcome.waiting["head"]
    assert (head.reason, head.position, head.basis) == (WaitReason.PREEMPTING, 1, Basis.PROMISED)
    assert head.message == "2 nodes are promised to this job; 1 job still to save and make room there"
    assert outcome.waiting["urgent"].position == 2


def test_job_starts_on_exactly_the_promised_nodes_as_soon_as_they_have_the_room() -> None:
    outcome = planned([IDLE, Node("busy"), Node("third")], HEAD, Job("urgent", priority=9))
    assert outcome.nodes("head") == ["busy", "idle"]
    assert outcome.nodes("urgent") == ["third"]


def test_pods_of_a_job_that_nobody_knows_any_more_keep_the_job_waiting_while_they_end() -> None:
    outcome = planned([BUSY, IDLE], Job("deleted", holding=True, leaving=True), HEAD)
    assert outcome.waiting["head"].message == (
        "2 nodes are promised to this job; jobs that are ending there still hold room"
    )


def test_who_has_its_room_and_waits_for_quota_is_told_so_and_when_that_is_back() -> None:
    """It starts again on nodes of its own, and meanwhile the quota was lowered for which another is asked to go."""
    lowered = Job("lowered", on=("busy",), leaving=True)
    again = Job("again", on=("idle",), reserved=True, beneficiary="again")
    shot = snapshot([BUSY, IDLE], [lowered, again], [Queue(gpus=8)])
    shot = replace(shot, now=1_000.0, jobs=replace(shot.jobs, runs=replace(shot.jobs.runs, grace=np.full(2, 30.0))))
    outcome = Outcome(shot, plan(shot))
    assert not outcome.plan.broken
    told = outcome.waiting["again"]
    assert told.message == (
        "1 node is promised to this job; jobs that are ending still hold 8 nvidia.com/gpu of H100 of what queue "
        "research may use"
    )
    assert (told.expected, told.basis) == (1_030.0, Basis.PROMISED)
    gone = planned([Node("busy"), IDLE], again, queues=(Queue(gpus=8),))
    assert gone.nodes("again") == ["idle"]


@pytest.mark.parametrize("there", [[IDLE], [IDLE, Node("busy", usable=False)]])
def test_promise_of_a_node_that_is_gone_or_cordoned_is_broken_and_its_room_is_free_then(there: list[Node]) -> None:
    outcome = planned(there, HEAD, Job("small"))
    assert outcome.plan.broken == ("head",)
    assert not outcome.admitted, "it is the head's as long as that is not written down as one that waits"
    after = planned(there, replace(HEAD, reserved=False, on=()), Job("small"))
    assert after.nodes("small") == ["idle"]


def test_nobody_behind_starts_on_what_is_left_of_a_promise_in_the_plan_that_breaks_it() -> None:
    nodes = [*rack(0, 2), *rack(0, 1, first=2, used_gpus=8, used_cores=1)]
    nodes[1] = replace(nodes[1], usable=False)
    gang = Job("gang", workers=2, priority=1, required="rack", reserved=True, on=("rack-0-host-0", "rack-0-host-1"))
    others = [Job("runs", on=("rack-0-host-2",)), Job("behind")]
    broken = planned(nodes, gang, *others)
    assert (broken.plan.broken, broken.admitted) == (("gang",), {})
    assert broken.waiting["behind"].reason is WaitReason.INSUFFICIENT_CAPACITY
    then = planned(nodes, replace(gang, reserved=False, on=()), *others)
    assert [(each.uid, each.beneficiary) for each in then.plan.evictions] == [("runs", "gang")]


def test_nobody_behind_gets_the_quota_of_a_promise_in_the_plan_that_breaks_it() -> None:
    nodes = [Node("a", usable=False), *(Node(name, used_gpus=8, used_cores=1) for name in "bc"), Node("d", gpus=4)]
    jobs = [
        Job("gang", priority=1, reserved=True, on=("a",)),
        Job("runs", workers=2, on=("b", "c"), priority=1),
        Job("small", gpus=4),
    ]
    assert not planned(nodes, *jobs, queues=(Queue(gpus=24),)).admitted
    assert planned(nodes, *jobs, queues=(Queue(gpus=28),)).nodes("small") == ["d"]
    closed = (Queue(gpus=24, open=False), Queue("other", gpus=4))
    in_other = planned(nodes, *jobs[:2], replace(jobs[2], queue="other"), queues=closed)
    assert (in_other.plan.broken, in_other.nodes("small")) == (("gang",), ["d"]), "it may not start again"


def test_promise_is_broken_when_others_took_its_room_and_nobody_is_still_to_leave() -> None:
    assert not planned([BUSY, IDLE], VICTIM, HEAD).plan.broken
    elsewhere = Job("victim", on=("third",), leaving=True, beneficiary="head")
    assert not planned([BUSY, IDLE, Node("third", used_gpus=8, used_cores=1)], elsewhere, HEAD).plan.broken
    assert planned([BUSY, IDLE], HEAD).plan.broken == ("head",)
    stays = Job("stays", on=("busy",))
    assert planned([BUSY, IDLE], stays, HEAD).plan.broken == ("head",)


def test_promise_is_broken_when_its_queue_closes_or_loses_its_quota() -> None:
    nodes = [Node("busy"), Node("idle")]
    assert planned(nodes, HEAD, queues=(Queue(open=False),)).plan.broken == ("head",)
    assert planned(nodes, HEAD, queues=(Queue(gpus=15),)).plan.broken == ("head",)
    assert planned(nodes, HEAD, queues=(Queue(gpus=16),)).nodes("head") == ["busy", "idle"]


def test_the_first_in_rank_keep_their_promises_as_far_as_a_lowered_quota_goes() -> None:
    nodes = [Node("a"), Node("b"), Node("c")]
    jobs = [Job(name, on=(name,), reserved=True, priority=rank) for rank, name in enumerate("abc")]
    outcome = planned(nodes, *jobs, queues=(Queue(gpus=16),))
    assert sorted(outcome.admitted) == ["b", "c"]
    assert outcome.plan.broken == ("a",)


@pytest.mark.parametrize(("rack", "broken"), [("rack-0", False), (None, False), ("rack-1", True)])
@pytest.mark.parametrize("asked", ["required", "slices"])
def test_promise_is_broken_when_one_of_its_nodes_has_moved_to_another_rack(
    asked: str, rack: str | None, broken: bool
) -> None:
    """One whose label is gone is where it was."""
    nodes = [Node("busy", rack="rack-0"), Node("idle", rack=rack), Node("third", rack="rack-0")]
    world = snapshot(nodes, [replace(HEAD, required="rack" if asked == "required" else None)])
    if asked == "slices":
        shape = Shape(slices=((2, world.levels.names.index("rack")),))
        world = replace(world, jobs=replace(world.jobs, terms=replace(world.jobs.terms, shapes=(shape,))))
    made = plan(world)
    assert made.broken == (("head",) if broken else ())
    if broken:
        assert broken_by(world, 0) is BrokenBy.MOVED


def test_promise_is_broken_when_the_jobs_window_has_closed() -> None:
    world = snapshot([Node("busy"), Node("idle")], [HEAD])
    terms = replace(world.jobs.terms, opens=np.array([200.0]))
    world = replace(world, jobs=replace(world.jobs, terms=terms))
    assert plan(replace(world, now=100.0)).broken == ("head",)
    assert not plan(replace(world, now=200.0)).broken


def test_why_a_promise_is_broken() -> None:
    nodes = [Node("busy"), Node("idle")]
    world = snapshot(nodes, [HEAD])
    terms = replace(world.jobs.terms, opens=np.array([world.now + 1]))
    found = {
        BrokenBy.CLOSED: snapshot(nodes, [HEAD], (Queue(open=False),)),
        BrokenBy.WINDOW: replace(world, jobs=replace(world.jobs, terms=terms)),
        BrokenBy.MOVED: snapshot([Node("busy"), Node("idle", rack="other")], [replace(HEAD, required="rack")]),
        BrokenBy.UNSUITED: replace(world, eligible=np.zeros_like(world.eligible)),
        BrokenBy.TAKEN: snapshot(nodes, [HEAD], (Queue(gpus=15),)),
        BrokenBy.NO_QUEUE: replace(world, jobs=replace(world.jobs, queues=np.array([NONE], dtype=np.int32))),
    }
    for why, broken in found.items():
        assert plan(broken).broken == ("head",), why
        assert broken_by(broken, 0) is why
    assert set(found) == set(BrokenBy)


def closed(*, drain: bool, preemptible: bool) -> Outcome:
    """A gang starts again in a queue that was held, or drained, meanwhile."""
    world = snapshot([Node("busy"), Node("idle")], [replace(HEAD, beneficiary="head")], [Queue(open=False)])
    jobs = replace(world.jobs, terms=replace(world.jobs.terms, preemptible=np.array([preemptible])))
    world = replace(world, jobs=jobs, queues=replace(world.queues, drain=np.array([drain])))
    return Outcome(world, plan(world))


def test_a_gang_that_starts_again_goes_on_in_a_queue_that_is_held() -> None:
    assert closed(drain=False, preemptible=True).nodes("head") == ["busy", "idle"]
    assert closed(drain=True, preemptible=False).nodes("head") == ["busy", "idle"]
    assert closed(drain=True, preemptible=True).plan.broken == ("head",)


@pytest.mark.parametrize("firm", [False, True])
def test_what_cannot_be_given_back_starts_though_its_queue_borrows_for_others(firm: bool) -> None:
    """Its queue's own 8 GPUs are for all that cannot be given back; only with more of these the promise is broken."""
    queues = {"research": Queue(gpus=8, cohort=0), "ops": Queue("ops", gpus=8, cohort=0)}
    world = Operating({"a": Node("a"), "b": Node("b")}, queues)
    world.submit(Live(Job("runs"), preemptible=not firm, on=("a",)))
    world.submit(Live(Job("firm"), preemptible=False, promised=("b",)))
    made = plan(world.snapshot())
    assert [each.uid for each in made.admissions] == ([] if firm else ["firm"])
    assert made.broken == (("firm",) if firm else ())


def test_what_cannot_be_given_back_and_grows_holds_its_queues_own_for_its_new_size() -> None:
    """The other would fit beside its old size, and in what the queue may borrow."""
    queues = {"research": Queue(gpus=16, cohort=0), "ops": Queue("ops", gpus=16, cohort=0)}
    world = Operating({name: Node(name) for name in "abc"}, queues)
    grows = Live(Job("grows"), most=2, preemptible=False, on=("a",), promised=("a", "b"), leaving=True)
    world.submit(replace(grows, beneficiary="grows"))
    world.submit(Live(Job("other"), preemptible=False))
    assert not plan(world.snapshot()).admissions
    world.gone("grows")
    made = plan(world.snapshot())
    assert ([each.uid for each in made.admissions], made.broken) == (["grows"], ())


def test_victims_quota_is_the_beneficiarys_but_only_once_the_victim_is_gone() -> None:
    """The victim's pods are on other nodes, so the room is there before the quota is."""
    victim = Job("victim", on=("elsewhere",), leaving=True, beneficiary="head")
    nodes = [Node("busy"), IDLE, Node("elsewhere", used_gpus=8, used_cores=1)]
    outcome = planned(nodes, victim, HEAD, queues=(Queue(gpus=16),))
    assert not outcome.plan.broken
    assert outcome.waiting["head"].reason is WaitReason.PREEMPTING
    assert planned(nodes, HEAD, queues=(Queue(gpus=16),)).nodes("head") == ["busy", "idle"]


def test_promised_quota_is_nobody_elses() -> None:
    outcome = planned([BUSY, IDLE, Node("third")], VICTIM, HEAD, Job("other"), queues=(Queue(gpus=16),))
    other = outcome.waiting["other"]
    assert (other.reason, other.blocker) == (WaitReason.BEHIND_OTHERS, "head")


def test_quota_of_a_promise_that_breaks_is_told_as_its_jobs_and_not_as_used() -> None:
    outcome = planned([IDLE], HEAD, Job("other"), queues=(Queue(gpus=16),))
    assert outcome.plan.broken == ("head",)
    other = outcome.waiting["other"]
    assert (other.reason, other.blocker) == (WaitReason.BEHIND_OTHERS, "head"), other.message


@pytest.mark.parametrize("ending", [True, False])
def test_two_promises_on_one_node_are_kept_one_after_the_other(ending: bool) -> None:
    first = Job("first", on=("busy",), gpus=4, reserved=True, submitted=1)
    second = Job("second", on=("busy",), gpus=4, reserved=True, submitted=2)
    half = Node("busy", used_gpus=4)
    victim = Job("victim", on=("busy",), gpus=4, leaving=True, beneficiary="second")
    outcome = planned([half], second, first, *([victim] if ending else []))
    assert list(outcome.admitted) == ["first"]
    assert list(outcome.waiting) == (["second"] if ending else [])
    assert outcome.plan.broken == (() if ending else ("second",)), "the room that is left is the first's"


def test_job_that_moves_keeps_its_new_nodes_while_it_still_runs_on_its_old_ones() -> None:
    moving = Job("moving", on=("busy",), leaving=True, beneficiary="moving", then=("idle",))
    outcome = planned([BUSY, IDLE], moving, Job("small"))
    assert not outcome.admitted
    assert list(outcome.waiting) == ["small"]


def test_job_that_grows_holds_the_quota_that_it_grows_to() -> None:
    growing = Job("growing", on=("busy",), leaving=True, beneficiary="growing", then=("busy", "idle"))
    nodes = [BUSY, IDLE, Node("third")]
    assert planned(nodes, growing, Job("small"), queues=(Queue(gpus=16),)).waiting["small"].missing == 8
    assert planned(nodes, growing, Job("small"), queues=(Queue(gpus=24),)).nodes("small") == ["third"]


def test_jobs_on_other_nodes_are_not_disturbed() -> None:
    outcome = planned([BUSY, IDLE, *rack(1, 2)], VICTIM, HEAD, Job("pair", workers=2))
    assert sorted(outcome.nodes("pair")) == ["rack-1-host-0", "rack-1-host-1"]


def _written(made: Plan, counts_on: dict[str, tuple[str, ...]], failed: Collection[str]) -> Plan:
    """What is left of a plan where these writes fail: of all others those that count on none of them."""
    written = set[str]()
    for uid, others in counts_on.items():
        if uid not in failed and written.issuperset(others):
            written.add(uid)
    evictions = tuple(each for each in made.evictions if (each.beneficiary or each.uid) in written)
    going = written | {each.uid for each in evictions}
    return replace(made, evictions=evictions, promises=tuple(each for each in made.promises if each.uid in going))


def test_what_is_left_of_a_plan_whose_writes_fail_gives_no_room_twice() -> None:
    """Each write of each plan fails once: of what its victims leave over nothing is promised to others."""
    counted = 0
    for number in range(40):
        draw = Random(number)
        nodes = {name: Node(name, rack=f"r{name < 'c'}", gpus=draw.choice([2, 4, 8]), cores=16) for name in "abcd"}
        queues = {name: Queue(name, draw.choice([None, 4, 8]), cohort=number % 2 - 1) for name in ("x", "y")}
        world = Operating(nodes, queues)
        for count in range(24):
            workers, gpus = draw.randint(1, 4), draw.choice([0, 1, 1, 2, 4])
            job = Job(f"job-{count}", workers, gpus, 1, queue=draw.choice("xy"), priority=draw.choice([0, 0, 1, 2, 3]))
            world.now += 1.0
            world.submit(Live(job, least=draw.randint(1, workers), preemptible=draw.random() < 0.85))
            made = plan(world.snapshot(), Policy(explain=False))
            counts_on = counted_on(world.snapshot(), made)
            for failed in counts_on:
                after = deepcopy(world)
                after.carry_out(_written(made, counts_on, [failed]))
                for name, node in nodes.items():
                    assert all(np.less_equal(after.booked(name), room_of(node))), (number, count, failed)
            counted += sum(1 for others in counts_on.values() if others)
            world.carry_out(made)
            for uid in [uid for uid, live in world.jobs.items() if live.leaving and draw.random() < 0.5]:
                world.gone(uid)
    assert counted > 20, "hardly any write counts on another"
