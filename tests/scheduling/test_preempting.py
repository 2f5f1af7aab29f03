"""Preemption, reclaim and yielding, from the plan that asks for room to the one that uses it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from muster.scheduling.claims import Right, Standing
from muster.scheduling.plan import Basis, MoveReason, Plan, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import FOREVER, Alternative, Preempts, Shape

from .cases import GPU, Job, Node, Queue, snapshot
from .operating import Live, Operating

pytestmark = pytest.mark.unit
BACKFILL = Policy(backfill=True)


def cluster(*nodes: Node, queues: tuple[Queue, ...] = (Queue(),)) -> Operating:
    return Operating({node.name: node for node in nodes}, {queue.name: queue for queue in queues})


def running(world: Operating, job: Job, *on: str, **details: object) -> None:
    world.submit(Live(job, **details))  # type: ignore[arg-type]
    world.jobs[job.uid].on = on
    world.jobs[job.uid].started = world.now


def planned(world: Operating, policy: Policy | None = None) -> Plan:
    """Plan, carry it out, and see that nothing more is to be done until something changes."""
    made = plan(world.snapshot(), policy or Policy())
    world.carry_out(made)
    again = plan(world.snapshot(), policy or Policy())
    assert (again.admissions, again.promises, again.evictions, again.broken) == ((), (), (), ())
    return made


def test_higher_priority_gets_a_promise_and_starts_when_its_victim_is_gone() -> None:
    world = cluster(Node("a"), Node("b"))
    running(world, Job("low"), "a")
    running(world, Job("other"), "b")
    world.now += 100
    world.submit(Live(Job("high", priority=5)))
    world.jobs["other"].preemptible = False
    made = planned(world)
    assert [(each.uid, each.reason, each.beneficiary) for each in made.evictions] == [
        ("low", MoveReason.PREEMPTED, "high")
    ]
    waiting = made.waiting[0]
    assert (waiting.uid, waiting.reason, waiting.basis) == ("high", WaitReason.PREEMPTING, Basis.PROMISED)
    assert waiting.message == "1 node is promised to this job; 1 job still to save and make room there"
    world.submit(Live(Job("thief", priority=9)))
    world.gone("low")
    made = plan(world.snapshot())
    assert {each.uid: each.nodes.tolist() for each in made.admissions} == {"high": [0]}


@pytest.mark.parametrize("waited", [True, False])
def test_a_job_that_takes_its_second_choice_asks_for_room_there_too(waited: bool) -> None:
    """Of its first kind of node it may ask nobody."""
    world = cluster(Node("a"), Node("b"))
    running(world, Job("equal", priority=5, only_on=("a",)), "a")
    running(world, Job("low", only_on=("b",)), "b")
    world.now += 100
    world.submit(Live(Job("high", priority=5, only_on=("a",))))
    shot = world.snapshot()
    assert shot.jobs.uids == ("equal", "high", "low")
    second = Alternative(int(shot.jobs.filters[2]), 1, since=world.now + (0 if waited else 60))
    terms = replace(shot.jobs.terms, alternatives=((), (second,), ()))
    made = plan(replace(shot, jobs=replace(shot.jobs, terms=terms)))
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("low", "high")] * waited
    assert [(each.uid, each.nodes.tolist()) for each in made.promises] == [("high", [1])] * waited


@pytest.mark.parametrize("leaves", [False, True])
def test_a_job_asks_on_its_first_kind_of_node_before_it_asks_on_one_that_came_closer(leaves: bool) -> None:
    """Of its first kind it lacks quota too, of its second only room. Nobody goes for what is coming back anyway."""
    world = cluster(Node("a"), Node("b"))
    running(world, Job("first", only_on=("a",), priority=5 if leaves else 0), "a")
    running(world, Job("second", only_on=("b",)), "b")
    world.jobs["first"].leaving = leaves
    world.now += 100
    world.submit(Live(Job("high", priority=5, only_on=("a",))))
    shot = world.snapshot()
    assert shot.jobs.uids == ("first", "high", "second")
    other = Alternative(int(shot.jobs.filters[2]), 1, since=world.now)
    terms = replace(shot.jobs.terms, alternatives=((), (other,), ()))
    jobs = replace(shot.jobs, terms=terms, flavours=np.array([0, 0, 1], dtype=np.int32))
    nominal = shot.queues.nominal.copy()
    nominal[0, :, GPU] = 8, 16
    made = plan(replace(shot, jobs=jobs, queues=replace(shot.queues, nominal=nominal)))
    assert [each.uid for each in made.evictions] == ([] if leaves else ["first"])
    assert [(each.uid, each.nodes.tolist()) for each in made.promises] == [("high", [0])]


def test_who_may_ask_nobody_on_any_kind_of_node_uses_up_no_search_while_somebody_leaves() -> None:
    """The searches of a plan are few, and in a large cluster there is always somebody who leaves."""
    world = cluster(Node("a"), Node("b"), Node("c"), Node("d"))
    world.queues = {"research": Queue(gpus=99), "other": Queue("other", gpus=99)}
    running(world, Job("on-a", only_on=("a",), priority=9), "a")
    running(world, Job("on-b", only_on=("b",), priority=9), "b")
    running(world, Job("on-c", only_on=("c",), queue="other"), "c")
    running(world, Job("on-d", priority=9), "d")
    world.jobs["on-d"].leaving = True
    for cores in range(1, 20):
        world.submit(Live(Job(f"spot-{cores}", cores=cores, only_on=("a",), priority=5)))
    world.now += 1
    world.submit(Live(Job("last", only_on=("c",), queue="other", priority=1)))
    shot = world.snapshot()
    filters = dict(zip(shot.jobs.uids, shot.jobs.filters.tolist(), strict=True))
    others = (Alternative(filters["on-b"], 1, since=world.now),)
    alternatives = tuple(others if uid.startswith("spot") else () for uid in shot.jobs.uids)
    shot = replace(shot, jobs=replace(shot.jobs, terms=replace(shot.jobs.terms, alternatives=alternatives)))
    assert [(each.uid, each.beneficiary) for each in plan(shot).evictions] == [("on-c", "last")]


@pytest.mark.parametrize("closes", [31.0, 30.0])
def test_nobody_is_stopped_for_a_job_whose_window_closes_meanwhile(closes: float) -> None:
    """It could be gone within its grace, of 30 s; later the promise would be broken, and it had stopped in vain."""
    world = cluster(Node("a"))
    running(world, Job("low"), "a")
    world.submit(Live(Job("high", priority=5)))
    shot = world.snapshot()
    assert shot.jobs.uids == ("high", "low")
    terms = replace(shot.jobs.terms, closes=np.array([world.now + closes, FOREVER]))
    made = plan(replace(shot, jobs=replace(shot.jobs, terms=terms)))
    assert [each.uid for each in made.evictions] == (["low"] if closes > 30 else [])
    assert len(made.promises) == len(made.evictions)


@pytest.mark.parametrize("closes", [301.0, 300.0])
@pytest.mark.parametrize("same_plan", [False, True])
def test_nobody_is_stopped_for_a_job_whose_window_closes_before_others_are_gone(closes: float, same_plan: bool) -> None:
    """It needs a part of two nodes, one of which somebody else may take 300 s to leave: before, or for another."""
    jobs = [
        Job("leaves", on=("a",), leaving=not same_plan),
        Job("low", on=("b",)),
        Job("night", workers=2, gpus=5, priority=5),
        *([Job("first", gpus=3, only_on=("a",), priority=6)] * same_plan),
    ]
    shot = snapshot([Node("a", used_gpus=8), Node("b", used_gpus=8)], jobs)
    runs = replace(shot.jobs.runs, grace=np.array([300.0, 5.0, 5.0, 5.0])[: len(jobs)])
    limits = np.full(len(jobs), FOREVER)
    limits[2] = 1_000.0 + closes
    terms = replace(shot.jobs.terms, closes=limits)
    made = plan(replace(shot, now=1_000.0, jobs=replace(shot.jobs, runs=runs, terms=terms)))
    assert ("low" in [each.uid for each in made.evictions]) == (closes > 300)


@pytest.mark.parametrize("closes", [301.0, 300.0])
def test_nor_before_others_have_given_their_quota_back(closes: float) -> None:
    jobs = [Job("leaves", on=("a",), leaving=True), Job("low", on=("b",)), Job("night", workers=2, priority=5)]
    jobs[2] = replace(jobs[2], only_on=("b", "c"))
    shot = snapshot([Node("a", used_gpus=8), Node("b", used_gpus=8), Node("c")], jobs, [Queue(gpus=16)])
    runs = replace(shot.jobs.runs, grace=np.array([300.0, 5.0, 5.0]))
    terms = replace(shot.jobs.terms, closes=np.array([FOREVER, FOREVER, 1_000.0 + closes]))
    made = plan(replace(shot, now=1_000.0, jobs=replace(shot.jobs, runs=runs, terms=terms)))
    assert [each.uid for each in made.evictions] == (["low"] if closes > 300 else [])


def test_a_job_that_is_alike_asks_though_the_window_of_the_one_before_it_is_about_to_close() -> None:
    world = cluster(Node("a"))
    running(world, Job("low"), "a")
    world.submit(Live(Job("high", priority=5)))
    world.submit(Live(Job("higher", priority=5)))
    shot = world.snapshot()
    assert shot.jobs.uids == ("high", "higher", "low")
    terms = replace(shot.jobs.terms, closes=np.array([world.now + 30.0, FOREVER, FOREVER]))
    made = plan(replace(shot, jobs=replace(shot.jobs, terms=terms)))
    assert [(each.uid, each.nodes.tolist()) for each in made.promises] == [("higher", [0])]


def test_a_kind_of_node_that_can_never_hold_a_job_is_not_searched_for_it() -> None:
    """The searches of a plan are few, and those behind would starve."""
    world = cluster(Node("a"), Node("b", gpus=4))
    running(world, Job("firm", only_on=("a",)), "a")
    world.jobs["firm"].preemptible = False
    running(world, Job("low", gpus=4, only_on=("b",)), "b")
    for number in range(Policy().searches - 1):
        world.submit(Live(Job(f"high{number:02}", priority=100 - number, only_on=("a",))))
    world.submit(Live(Job("last", gpus=4, priority=5)))
    shot = world.snapshot()
    small = Alternative(int(shot.jobs.filters[shot.jobs.uids.index("low")]), 1, since=world.now)
    alternatives = tuple((small,) if uid.startswith("high") else () for uid in shot.jobs.uids)
    terms = replace(shot.jobs.terms, alternatives=alternatives)
    made = plan(replace(shot, jobs=replace(shot.jobs, terms=terms)))
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("low", "last")]


def test_who_gets_a_part_of_what_one_victim_leaves_is_told_of_that_victim() -> None:
    world = cluster(Node("a"), Node("b"))
    running(world, Job("low", workers=2), "a", "b")
    for uid in ("first", "second"):
        world.submit(Live(Job(uid, priority=5)))
    made = planned(world)
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("low", "first")]
    for told in (made.waiting, plan(world.snapshot()).waiting):
        assert [each.uid for each in told] == ["first", "second"]
        assert {each.message for each in told} == {
            "1 node is promised to this job; 1 job still to save and make room there"
        }


def test_a_gang_with_a_worker_on_a_cordoned_node_goes_as_a_whole() -> None:
    """A smaller gang would be promised its own node, on which nothing starts any more."""
    for cordoned, reason in ((False, MoveReason.SHRUNK), (True, MoveReason.PREEMPTED)):
        world = cluster(Node("a"), Node("b"))
        running(world, Job("low", workers=2), "a", "b", least=1)
        world.nodes["b"] = Node("b", usable=not cordoned)
        world.submit(Live(Job("high", priority=5, only_on=("a",))))
        made = planned(world)
        assert [(each.uid, each.reason) for each in made.evictions] == [("low", reason)]
        assert {each.uid for each in made.promises} == {"high"} | (set() if cordoned else {"low"})


@pytest.mark.parametrize("on", ["aaaaabbb", "bbbaaaaa", "abababaa"])
def test_a_gang_of_small_workers_gives_back_those_that_make_room_on_one_node(on: str) -> None:
    """The workers of the highest ranks lie on both nodes, and make no room for a large one: it would be evicted."""
    world = cluster(Node("a", gpus=5), Node("b", gpus=3))
    running(world, Job("low", workers=8, gpus=1), *on, least=4)
    world.submit(Live(Job("high", gpus=4, priority=5)))
    made = planned(world)
    assert [(each.uid, each.reason) for each in made.evictions] == [("low", MoveReason.SHRUNK)]
    assert sorted(world.jobs["low"].promised) == ["a", "b", "b", "b"]
    assert world.jobs["high"].promised == ("a",)


def test_who_makes_room_together_is_counted_without_the_spares_that_stay() -> None:
    """The first worker's spare is on its node: the two together would make room there, but spares do not go."""
    world = cluster(Node("a", gpus=2), Node("b", gpus=2))
    running(world, Job("low", workers=3, gpus=1), *"abba", least=1)
    world.submit(Live(Job("high", gpus=2, priority=5)))
    shot = world.snapshot()
    assert shot.jobs.uids == ("high", "low")
    terms = replace(shot.jobs.terms, shapes=(Shape(), Shape(spares=1)))
    made = plan(replace(shot, jobs=replace(shot.jobs, terms=terms)))
    assert [(each.uid, each.reason) for each in made.evictions] == [("low", MoveReason.SHRUNK)]
    assert {each.uid: each.nodes.tolist() for each in made.promises} == {"low": [0, 0], "high": [1]}


@pytest.mark.parametrize(("wants", "left"), [(2, "aab"), (4, "b")])
def test_no_more_workers_go_than_make_the_room(wants: int, left: str) -> None:
    world = cluster(Node("a", gpus=4), Node("b", gpus=1))
    running(world, Job("low", workers=5, gpus=1), *"aaaab", least=1)
    world.submit(Live(Job("high", gpus=wants, priority=5)))
    planned(world)
    assert sorted(world.jobs["low"].promised) == list(left)


def test_equal_priority_asks_nobody() -> None:
    world = cluster(Node("a"))
    running(world, Job("first"), "a")
    world.submit(Live(Job("second")))
    assert not planned(world).evictions


def test_nobody_is_evicted_for_a_job_that_could_not_start() -> None:
    world = cluster(Node("a", rack="r0"), Node("b", rack="r1"))
    running(world, Job("low"), "a")
    running(world, Job("firm"), "b", preemptible=False)
    world.submit(Live(Job("high", priority=5, workers=2)))
    assert not planned(world).evictions


def test_a_queue_takes_back_what_it_lent_at_any_priority() -> None:
    queues = (Queue("lender", gpus=8, cohort=0), Queue("borrower", gpus=8, cohort=0))
    world = cluster(Node("a"), Node("b"), queues=queues)
    running(world, Job("within", queue="borrower", priority=9), "a")
    running(world, Job("beyond", queue="borrower", priority=9), "b")
    world.submit(Live(Job("own", queue="lender")))
    made = planned(world)
    assert [(each.reason, each.beneficiary) for each in made.evictions] == [(MoveReason.RECLAIMED, "own")]
    victim = made.evictions[0].uid
    world.gone(victim)
    made = planned(world)
    assert [each.uid for each in made.admissions] == ["own"]
    assert not made.evictions, "the victim must not take back what was taken back"


@pytest.mark.parametrize("priority", [0, 5])
def test_a_queue_takes_back_what_it_lent_to_one_that_yields_only_to_others(priority: int) -> None:
    """It ranks before the claimant, by its priority or its queue's share, so it was not let in before that one."""
    queues = (Queue("lender", gpus=8, cohort=0, used=0.5), Queue("borrower", gpus=8, cohort=0))
    world = cluster(Node("a"), Node("b"), queues=queues)
    running(world, Job("within", queue="borrower"), "a", preemptible=False)
    running(world, Job("beyond", queue="borrower", priority=priority), "b", yields=True)
    world.submit(Live(Job("own", queue="lender")))
    made = planned(world)
    assert [(each.uid, each.reason) for each in made.evictions] == [("beyond", MoveReason.RECLAIMED)]


def test_what_a_victim_leaves_over_is_promised_to_the_next_who_has_nobody_left_to_ask() -> None:
    """The one that borrows could ask for more, and would have been promised what its owner waits for."""
    queues = (Queue("lender", gpus=8, cohort=0), Queue("borrower", gpus=0, cohort=0), Queue("other"))
    world = cluster(Node("a"), Node("b", gpus=4), queues=queues)
    running(world, Job("beyond", queue="borrower"), "a")
    running(world, Job("low", gpus=4, queue="other"), "b")
    world.submit(Live(Job("first", gpus=4, queue="lender")))
    world.now += 1
    world.submit(Live(Job("second", gpus=4, queue="lender")))
    made = planned(world)
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("beyond", "first")]
    assert [each.uid for each in made.promises] == ["first", "second"]
    assert {each.uid: (each.reason, each.basis) for each in made.waiting} == dict.fromkeys(
        ("first", "second"), (WaitReason.PREEMPTING, Basis.PROMISED)
    )


def test_a_queue_within_its_own_that_takes_nothing_back_does_not_ask_as_one_that_borrows() -> None:
    queues = (Queue("lender", gpus=8, cohort=0), Queue("borrower", gpus=0, cohort=0))
    jobs = [Job("own", queue="lender", priority=5), Job("beyond", queue="borrower", holding=True, on=("a",))]
    world = snapshot([Node("a", used_gpus=8)], jobs, queues)
    world.queues.reclaim[:] = Preempts.NEVER
    world.queues.borrower[:] = Preempts.LOWER_PRIORITY
    rights = Standing(world).rights(Ledger(world.queues, world.jobs), 0, 1, [(GPU, 8)])
    assert rights.tolist() == [Right.NONE, Right.NONE]


def test_a_gang_without_gpus_leaves_idle_gpus_alone_also_where_others_make_room_for_it() -> None:
    world = cluster(Node("gpus", cores=8), Node("plain", gpus=0, cores=16))
    running(world, Job("low", workers=2, gpus=0, cores=8), "plain", "plain")
    world.submit(Live(Job("high", workers=2, gpus=0, cores=8, priority=5)))
    made = planned(world)
    assert [(each.uid, each.nodes.tolist()) for each in made.promises] == [("high", [1, 1])]


def test_parts_of_a_slot_that_add_up_to_a_whole_but_for_rounding_are_enough() -> None:
    """On node x the two give back two thirds and one third of what a worker lacks. The larger alone gives back all that
    its queue has borrowed, so the smaller has to be asked before it."""
    queues = (Queue("lender", gpus=8, cohort=0), Queue("borrower", gpus=4, cohort=0))
    nodes = (Node("x", cores=3), Node("y", cores=5, gpus=2), Node("z", cores=1))
    world = cluster(*nodes, queues=queues)
    running(world, Job("within", gpus=1, queue="borrower"), "z")
    world.now += 1
    running(world, Job("large", workers=2, gpus=2, cores=2, queue="borrower"), "x", "y")
    world.now += 1
    running(world, Job("small", gpus=1, queue="borrower"), "x")
    world.submit(Live(Job("own", workers=2, gpus=1, cores=3, queue="lender")))
    made = planned(world)
    assert sorted(each.uid for each in made.evictions) == ["large", "small"]


def test_one_job_shrinks_where_a_queue_has_borrowed_too_little_for_two_of_its_jobs_to_do_so() -> None:
    queues = (Queue("mine"), Queue("theirs", gpus=4, cohort=0), Queue("idle", gpus=4, cohort=0), Queue("low"))
    world = cluster(Node("a", gpus=7), queues=queues)
    running(world, Job("small", workers=2, gpus=1, queue="theirs"), "a", "a", least=1)
    running(world, Job("large", workers=2, gpus=2, queue="theirs"), "a", "a", least=1)
    running(world, Job("goes", gpus=1, queue="low"), "a")
    world.submit(Live(Job("high", workers=3, gpus=1, queue="mine", priority=5)))
    made = planned(world)
    assert [(each.uid, each.reason) for each in made.evictions] == [
        ("goes", MoveReason.PREEMPTED),
        ("large", MoveReason.SHRUNK),
    ]


def test_elastic_job_shrinks_before_anybody_is_evicted() -> None:
    world = cluster(Node("a"), Node("b"))
    running(world, Job("elastic", workers=2), "a", "b", least=1)
    world.submit(Live(Job("high", priority=5)))
    made = planned(world)
    assert [(each.uid, each.reason, each.beneficiary) for each in made.evictions] == [
        ("elastic", MoveReason.SHRUNK, "high")
    ]
    assert {each.uid: len(each.nodes) for each in made.promises} == {"elastic": 1, "high": 1}
    for told in (made, plan(world.snapshot())):
        high = next(each for each in told.waiting if each.uid == "high")
        assert high.message == "1 node is promised to this job; 1 job still to save and make room there"
        assert high.expected == world.now + 30.0, "its grace"
    world.gone("elastic")
    assert sorted(each.uid for each in planned(world).admissions) == ["elastic", "high"]
    assert len(world.jobs["elastic"].on) == 1


def test_job_let_in_before_its_turn_yields_when_the_one_ahead_could_start() -> None:
    world = cluster(Node("a"), Node("b"))
    running(world, Job("long"), "a", preemptible=False)
    world.submit(Live(Job("head", workers=2)))
    world.now += 10
    world.submit(Live(Job("small")))
    made = planned(world, BACKFILL)
    assert [(each.uid, each.yields) for each in made.admissions] == [("small", True)]
    world.finish("long")
    made = planned(world, BACKFILL)
    assert [(each.uid, each.reason) for each in made.evictions] == [("small", MoveReason.YIELDED)]
    world.gone("small")
    assert [each.uid for each in planned(world, BACKFILL).admissions] == ["head"]


def test_job_that_may_not_be_preempted_is_not_let_in_before_its_turn() -> None:
    world = cluster(Node("a"), Node("b"))
    running(world, Job("long"), "a", preemptible=False)
    world.submit(Live(Job("head", workers=2)))
    world.now += 10
    world.submit(Live(Job("firm"), preemptible=False))
    assert not planned(world, BACKFILL).admissions


def test_job_that_cannot_give_back_starts_on_its_queues_nominal_beside_borrowers_of_the_queue() -> None:
    """What the queue's other jobs use beside it is what is borrowed: the lender can take that back."""
    queues = (Queue("lender", gpus=16, cohort=0), Queue("mine", gpus=8, cohort=0))
    world = cluster(Node("a"), Node("b"), Node("c"), queues=queues)
    running(world, Job("soft", queue="mine"), "a")
    world.submit(Live(Job("firm", queue="mine"), preemptible=False))
    assert [each.uid for each in planned(world).admissions] == ["firm"]
    world.submit(Live(Job("firmer", queue="mine"), preemptible=False))
    waiting = planned(world).waiting[0]
    assert (waiting.uid, waiting.reason) == ("firmer", WaitReason.QUOTA_EXCEEDED)
    world.submit(Live(Job("own", queue="lender", workers=2)))
    assert [(each.uid, each.reason) for each in planned(world).evictions] == [("soft", MoveReason.RECLAIMED)]


def test_without_the_policy_nobody_is_asked() -> None:
    world = cluster(Node("a"))
    running(world, Job("low"), "a")
    world.submit(Live(Job("high", priority=5)))
    assert not planned(world, Policy(preemption=False)).evictions


def test_elastic_job_grows_into_idle_room_but_not_while_somebody_waits_for_it() -> None:
    world = cluster(Node("a"), Node("b"))
    running(world, Job("elastic"), "a", least=1, most=2)
    assert not planned(world).evictions, "it was placed a moment ago"
    world.now += 3_600
    world.jobs["elastic"].saved = world.now
    made = planned(world)
    assert [(each.uid, each.reason) for each in made.evictions] == [("elastic", MoveReason.GROWN)]
    world.gone("elastic")
    assert len(planned(world).admissions[0].nodes) == 2


@pytest.mark.parametrize("lent", [8, 16])
def test_nobody_grows_into_room_for_which_a_borrower_waits(lent: int) -> None:
    """Nothing is kept for a young borrower, but jobs that run leave it what becomes free."""
    queues = (Queue(gpus=24), Queue("mine", gpus=8, cohort=0), Queue("lender", gpus=lent, cohort=0))
    world = cluster(Node("a"), Node("b"), Node("c"), queues=queues)
    running(world, Job("elastic", queue="mine"), "a", least=1, most=2)
    running(world, Job("firm"), "b", preemptible=False)
    world.now += 3_600
    world.jobs["elastic"].saved = world.now
    world.submit(Live(Job("wants two nodes", workers=2, queue="mine")))
    made = planned(world)
    lacks = WaitReason.QUOTA_EXCEEDED if lent == 8 else WaitReason.INSUFFICIENT_CAPACITY
    assert [each.reason for each in made.waiting] == [lacks]
    assert not made.evictions


def test_nobody_grows_into_room_that_is_kept() -> None:
    world = cluster(Node("a"), Node("b"), Node("c"))
    running(world, Job("elastic"), "a", least=1, most=2)
    running(world, Job("firm"), "b", preemptible=False)
    world.now += 3_600
    world.jobs["elastic"].saved = world.now
    world.submit(Live(Job("head", workers=3)))
    assert not planned(world).evictions


def test_jobs_move_aside_for_a_gang_that_fragmentation_alone_keeps_out() -> None:
    world = cluster(*(Node(f"{rack}{host}", rack=rack) for rack in "ab" for host in "01"))
    running(world, Job("left"), "a0")
    running(world, Job("right"), "b0")
    world.now += 3_600
    for name in ("left", "right"):
        world.jobs[name].saved = world.now
    world.submit(Live(Job("wide", workers=2, required="rack")))
    made = planned(world)
    assert [(each.reason, each.beneficiary) for each in made.evictions] == [(MoveReason.DEFRAGMENTED, "wide")]
    world.gone(made.evictions[0].uid)
    assert sorted(each.uid for each in planned(world).admissions) == sorted(["wide", made.evictions[0].uid])


def test_quota_that_is_lowered_is_given_up_once() -> None:
    world = cluster(Node("a"), Node("b"), queues=(Queue(gpus=16),))
    running(world, Job("first"), "a")
    running(world, Job("second"), "b")
    world.queues["research"] = Queue(gpus=8)
    made = planned(world)
    assert [each.reason for each in made.evictions] == [MoveReason.QUOTA_LOWERED]
    world.gone(made.evictions[0].uid)
    assert not planned(world).admissions


@pytest.mark.parametrize("explain", [True, False])
def test_what_is_left_of_quota_waits_for_the_job_that_starts_when_those_who_leave_are_gone(explain: bool) -> None:
    world = cluster(Node("a"), Node("b"), queues=(Queue(gpus=8),))
    running(world, Job("goes", gpus=6), "a", leaving=True)
    world.submit(Live(Job("next", gpus=8, priority=1)))
    world.submit(Live(Job("small", gpus=2)))
    policy = Policy(explain=explain)
    assert not planned(world, policy).admissions, "the small one would be asked for its quota at once"
    world.gone("goes")
    assert [each.uid for each in planned(world, policy).admissions] == ["next"]


def test_quota_that_is_not_enough_with_all_that_comes_back_waits_for_nobody() -> None:
    world = cluster(Node("a"), Node("b"), queues=(Queue(gpus=8),))
    running(world, Job("stays", gpus=4), "b")
    running(world, Job("goes", gpus=2), "a", leaving=True)
    world.submit(Live(Job("next", gpus=8)))
    world.submit(Live(Job("small", gpus=2)))
    assert [each.uid for each in planned(world).admissions] == ["small"]


def test_of_those_who_borrow_who_was_stopped_less_often_gives_back_and_what_is_told_is_what_is_lost() -> None:
    queues = (Queue("lender", gpus=8, cohort=0), Queue("borrower", gpus=8, cohort=0))
    world = Operating({name: Node(name) for name in "ab"}, {queue.name: queue for queue in queues})
    for uid, node, stops, unsaved in (("often", "a", 3, 10.0), ("seldom", "b", 1, 25.0)):
        world.submit(Live(Job(uid, queue="borrower"), on=(node,), stops=stops))
        world.jobs[uid].saved = world.now - unsaved
    world.submit(Live(Job("owns", queue="lender")))
    made = plan(world.snapshot())
    assert [(each.uid, each.lost) for each in made.evictions] == [("seldom", (25.0 + 10.0) * 8)]


@pytest.mark.parametrize(("partial", "starts"), [(True, [("elastic", 1)]), (False, [])])
def test_an_elastic_gang_starts_with_fewer_workers_only_if_it_says_so(
    partial: bool, starts: list[tuple[str, int]]
) -> None:
    world = cluster(Node("a"), Node("b"))
    running(world, Job("firm"), "a", preemptible=False)
    world.submit(Live(Job("elastic", workers=2), least=1, most=2, partial=partial))
    made = planned(world)
    assert [(each.uid, len(each.nodes)) for each in made.admissions] == starts
    world.finish("firm")
    assert [(each.uid, len(each.nodes)) for each in planned(world).admissions] == ([] if partial else [("elastic", 2)])
