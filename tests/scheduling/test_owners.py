"""Owners have their turn before those who would borrow what is theirs, so that nobody starts only to give it back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from muster.scheduling.plan import MoveReason, Plan, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import NONE, Alternative

from .cases import GPU, Job, Node, Outcome, Queue, snapshot
from .operating import Live, Operating

pytestmark = pytest.mark.unit

OWNER = Queue("owner", gpus=8, cohort=0)
BORROWER = Queue("borrower", gpus=2, cohort=0)


def cluster(owner: Queue = OWNER, borrower: Queue = BORROWER) -> Operating:
    """One node of 8 GPUs, which is less than the queues have together."""
    return Operating({"a": Node("a")}, {queue.name: queue for queue in (owner, borrower)})


def started(world: Operating) -> list[str]:
    """Plan and carry out until nobody starts any more; nobody is asked to go meanwhile."""
    names: list[str] = []
    while (made := plan(world.snapshot())).admissions:
        assert not made.evictions
        names += [each.uid for each in made.admissions]
        world.carry_out(made)
    assert not made.evictions
    return names


def test_an_owner_of_lower_priority_starts_before_a_borrower_that_would_have_to_give_its_nodes_back() -> None:
    world = cluster()
    world.submit(Live(Job("borrows", gpus=6, queue="borrower", priority=2)))
    world.submit(Live(Job("owns", gpus=4, queue="owner")))
    assert started(world) == ["owns"]


def test_both_start_where_there_is_room_for_both() -> None:
    world = cluster()
    world.submit(Live(Job("borrows", gpus=4, queue="borrower", priority=2)))
    world.submit(Live(Job("owns", gpus=4, queue="owner")))
    assert sorted(started(world)) == ["borrows", "owns"]


def test_an_owner_that_is_served_after_its_place_in_the_order_is_promised_room_once() -> None:
    """It lacks quota at its own place. Then another queue takes back what its queue has borrowed, and there is a
    borrower's turn, so the owner has one more before that."""
    queues = (Queue("late", gpus=4, cohort=0), Queue("taker", gpus=4, cohort=0), Queue("spare", gpus=2, cohort=0))
    world = Operating(
        {"a": Node("a"), "b": Node("b", gpus=2)},
        {queue.name: queue for queue in (*queues, Queue("borrower", gpus=0, cohort=0))},
    )
    world.submit(Live(Job("lent", gpus=8, queue="late", priority=2)))
    world.jobs["lent"].on = ("a",)
    for name, priority, gpus in (("late", 2, 4), ("taker", 1, 4), ("borrower", 0, 2)):
        world.submit(Live(Job(f"of-{name}", gpus=gpus, queue=name, priority=priority)))
    made = plan(world.snapshot())
    assert [(each.uid, each.beneficiary) for each in made.evictions] == [("lent", "of-taker")]
    assert [each.uid for each in made.promises] == ["of-taker", "of-late"]
    assert [each.uid for each in made.admissions] == ["of-borrower"]
    assert {each.uid: each.reason for each in made.waiting} == dict.fromkeys(
        ("of-late", "of-taker"), WaitReason.PREEMPTING
    )


@pytest.mark.parametrize("asks_before", [True, False], ids=["a borrower asks before it is a head", "nobody does"])
def test_an_owner_behind_a_head_of_its_queue_has_its_turn_before_a_borrower(asks_before: bool) -> None:
    queues = (Queue("owner", gpus=99, cohort=0), Queue("borrower", gpus=0, cohort=0), Queue("other"))
    world = Operating({name: Node(name) for name in ("a", "full")}, {queue.name: queue for queue in queues})
    world.submit(Live(Job("stays", queue="other", priority=9), on=("full",)))
    if asks_before:
        world.submit(Live(Job("asks", queue="borrower", priority=3, only_on=("full",))))
    world.submit(Live(Job("head", workers=2, queue="owner", priority=2)))
    world.submit(Live(Job("borrows", queue="borrower", priority=1)))
    world.submit(Live(Job("owns", queue="owner")))
    assert started(world) == ["owns"]


def test_priority_decides_among_owners_and_among_borrowers() -> None:
    world = cluster()
    for queue in ("owner", "borrower"):
        for priority in (0, 1):
            world.submit(Live(Job(f"{queue}-{priority}", gpus=4, queue=queue, priority=priority)))
    assert started(world) == ["owner-1", "owner-0"]
    world.finish("owner-1")
    assert started(world) == ["borrower-1"]


def test_a_job_within_what_its_queue_has_goes_by_its_priority() -> None:
    world = cluster(borrower=Queue("borrower", gpus=6, cohort=0))
    world.submit(Live(Job("urgent", gpus=6, queue="borrower", priority=2)))
    world.submit(Live(Job("owns", gpus=4, queue="owner")))
    assert started(world) == ["urgent"]


def test_an_owner_asks_for_its_own_before_somebody_borrows_the_rest_of_it() -> None:
    """It needs what is lent and what is free. Had the borrower taken that first, it would be asked as well."""
    world = cluster()
    world.submit(Live(Job("lent", gpus=4, queue="borrower")))
    assert started(world) == ["lent"]
    world.submit(Live(Job("borrows", gpus=4, queue="borrower", priority=2)))
    world.submit(Live(Job("owns", gpus=8, queue="owner")))
    made = plan(world.snapshot())
    assert [each.uid for each in made.promises] == ["owns"]
    assert [(each.uid, each.reason) for each in made.evictions] == [("lent", MoveReason.RECLAIMED)]
    assert not made.admissions


def test_an_owner_does_not_pass_its_own_queues_line_to_be_before_a_borrower() -> None:
    """The first in line waits for room: those behind it keep their place behind it."""
    world = cluster(owner=Queue("owner", gpus=20, cohort=0))
    world.submit(Live(Job("runs", gpus=4, queue="owner", priority=9)))
    assert started(world) == ["runs"]
    world.submit(Live(Job("borrows", gpus=4, queue="borrower", priority=2)))
    world.submit(Live(Job("first", gpus=8, queue="owner", priority=1)))
    world.submit(Live(Job("second", gpus=2, queue="owner")))
    made = plan(world.snapshot())
    assert [each.uid for each in made.admissions] == ["borrows"]


def test_a_small_borrower_puts_nobody_at_risk_that_was_within_its_queues_quota() -> None:
    """The owner has a right to one GPU since then, and that is no reason to stop who holds eight of its own."""
    queues = (OWNER, Queue("borrower", gpus=8, cohort=0))
    world = Operating({"a": Node("a"), "b": Node("b", gpus=1)}, {queue.name: queue for queue in queues})
    world.submit(Live(Job("within", gpus=8, queue="borrower", priority=2)))
    assert started(world) == ["within"]
    world.submit(Live(Job("owns", gpus=6, queue="owner")))
    assert started(world) == []
    world.submit(Live(Job("borrows", gpus=1, queue="borrower")))
    assert started(world) == ["borrows"]


def test_who_came_last_gives_back_what_its_queue_borrowed_though_another_would_cost_less() -> None:
    world = cluster()
    world.submit(Live(Job("own", gpus=2, queue="borrower")))
    assert started(world) == ["own"]
    world.now += 10
    world.submit(Live(Job("lent", gpus=6, queue="borrower")))
    assert started(world) == ["lent"]
    world.submit(Live(Job("owns", gpus=2, queue="owner")))
    made = plan(world.snapshot())
    assert [(each.uid, each.reason) for each in made.evictions] == [("lent", MoveReason.RECLAIMED)]


def test_a_firm_job_that_would_make_its_queues_others_borrow_comes_after_owners() -> None:
    """It keeps to its queue's nominal, which another of the queue has just been given: that one would be asked next."""
    world = cluster()
    world.submit(Live(Job("takes", gpus=2, queue="borrower", priority=2)))
    world.submit(Live(Job("firm", gpus=2, queue="borrower", priority=1), preemptible=False))
    world.submit(Live(Job("owns", gpus=6, queue="owner")))
    assert sorted(started(world)) == ["owns", "takes"]
    world.finish("takes")
    assert started(world) == ["firm"]


def test_trees_that_do_not_lend_to_each_other_keep_to_priority() -> None:
    world = cluster(owner=Queue("owner", gpus=8, cohort=NONE))
    world.queues["borrower"] = Queue("borrower", gpus=6, cohort=NONE)
    world.submit(Live(Job("urgent", gpus=6, queue="borrower", priority=2)))
    world.submit(Live(Job("other", gpus=4, queue="owner")))
    assert started(world) == ["urgent"]


@pytest.mark.parametrize("large", [16, 1])
def test_nobody_passes_an_owner_that_waits_for_room_while_a_borrower_is_ahead(large: int) -> None:
    """The owner waits for two whole nodes. Those of another queue come one after the other, each for a while."""
    queues = [Queue("borrower", gpus=0, cohort=0), Queue("owner", gpus=16, cohort=0)]
    queues += [Queue("others", gpus=16, cohort=0), Queue("idle", gpus=16, cohort=0)]
    world = Operating({name: Node(name) for name in ("a", "b")}, {queue.name: queue for queue in queues})
    for uid, node in (("runs-a", "a"), ("runs-b", "b")):
        world.submit(Live(Job(uid, gpus=7, queue="others"), on=(node,), preemptible=False))
    world.submit(Live(Job("first-other", gpus=1, queue="others"), on=("a",), started=world.now))
    world.submit(Live(Job("second-other", gpus=1, queue="others"), on=("b",), started=world.now))
    for job in (
        Job("borrows", workers=large, gpus=1, queue="borrower"),
        Job("owns", workers=2, queue="owner"),
        Job("third-other", gpus=1, queue="others"),
    ):
        world.now += 1
        world.submit(Live(job))
    world.finish("first-other")
    made = plan(world.snapshot())
    assert [(each.uid, each.yields) for each in made.admissions] == [("third-other", True)], "as without the borrower"
    waiting = {each.uid: each.reason for each in made.waiting}
    assert waiting == {"borrows": WaitReason.INSUFFICIENT_CAPACITY, "owns": WaitReason.INSUFFICIENT_CAPACITY}
    assert not plan_after(world).admissions


def plan_after(world: Operating) -> Plan:
    """The next plan, when the last one was carried out."""
    world.carry_out(plan(world.snapshot()))
    return plan(world.snapshot())


def test_a_borrower_that_was_put_off_for_an_owner_starts_where_there_is_room_besides() -> None:
    """Of the two owners one has room, which the other waits for; the borrower fits beside both."""
    queues = [Queue("borrower", gpus=0, cohort=0), Queue("owner", gpus=16, cohort=0)]
    queues += [Queue("others", gpus=8, cohort=0), Queue("idle", gpus=16, cohort=0)]
    nodes = [Node("a"), Node("b"), Node("apart", rack="rack-1", gpus=4)]
    world = Operating({node.name: node for node in nodes}, {queue.name: queue for queue in queues})
    world.submit(Live(Job("runs", gpus=4, queue="others"), on=("a",), preemptible=False))
    world.submit(Live(Job("borrows", gpus=4, queue="borrower")))
    world.now += 1
    world.submit(Live(Job("owns", workers=2, queue="owner")))
    world.now += 1
    world.submit(Live(Job("other", gpus=4, queue="others")))
    made = plan(world.snapshot())
    assert {each.uid: each.yields for each in made.admissions} == {"other": False, "borrows": True}


@pytest.mark.parametrize(
    ("gpus", "owns", "starts"),
    [(8, 1, {"first": 1}), (16, 1, {"first": 1, "later": 1}), (16, 2, {"first": 1}), (16, 3, {"first": 2})],
)
def test_a_gang_that_need_not_borrow_starts_before_owners_that_rank_behind_it(
    gpus: int, owns: int, starts: dict[str, int]
) -> None:
    """It would like two workers, for which its queue would borrow, and may start with one. It has both only where the
    other job has no room."""
    queues = [Queue("mine", gpus=8, cohort=0), Queue("owner", gpus=24, cohort=0), Queue("idle", gpus=16, cohort=0)]
    world = Operating({"a": Node("a", gpus=gpus), "b": Node("b", gpus=4)}, {queue.name: queue for queue in queues})
    world.submit(Live(Job("first", workers=2, queue="mine", priority=1), least=1))
    world.submit(Live(Job("later", workers=owns, queue="owner")))
    made = plan(world.snapshot())
    assert {each.uid: len(each.nodes) for each in made.admissions} == starts


@pytest.mark.parametrize("spot_first", [False, True])
def test_who_need_not_borrow_on_its_first_kind_of_nodes_is_passed_by_no_owner_of_its_second(spot_first: bool) -> None:
    """The owner's first kind is spot, which is full: it starts on the free node where the other would borrow first."""
    nodes = [Node("on-demand"), Node("spot", used_gpus=8)]
    jobs = [
        Job("first", queue="mine", priority=1, only_on=("on-demand",)),
        Job("owner", queue="other", only_on=("spot",)),
    ]
    world = snapshot(nodes, jobs, [Queue("mine", gpus=8, cohort=0), Queue("other", gpus=8, cohort=0)])
    queues, (sure, spot) = world.queues, world.jobs.filters.tolist()
    wide = [np.concatenate([each, each[:, 1:]], axis=1) for each in (queues.nominal, queues.borrowing, queues.lending)]
    wide[0][:2, 2, GPU] = 0, 16
    later = Alternative(sure, 1), Alternative(spot, 2)
    terms = replace(world.jobs.terms, alternatives=((later[0 if spot_first else 1],), (later[0],)))
    kinds = np.array([[spot, spot], [2, 2]] if spot_first else [[sure, spot], [1, 2]], dtype=np.int32)
    shot = replace(
        world,
        flavours=("", "H100/on-demand", "H100/spot"),
        nodes=replace(world.nodes, flavours=np.array([1, 2], dtype=np.int32)),
        queues=replace(queues, nominal=wide[0], borrowing=wide[1], lending=wide[2]),
        jobs=replace(world.jobs, filters=kinds[0], flavours=kinds[1], terms=terms),
    )
    assert [each.uid for each in plan(shot).admissions] == (["owner"] if spot_first else ["first"])


def test_who_lacks_what_owners_wait_for_keeps_it_from_none_of_them_while_others_leave() -> None:
    """Nothing of that quota is in use, so nothing of it comes back with the one that leaves."""
    queues = [Queue("lab", gpus=16), Queue("team", gpus=0, parent="lab")]
    jobs = [Job("borrows", workers=2, queue="team", priority=2), Job("owner", queue="lab")]
    leaves = Job("leaves", gpus=0, queue="team", on=("a",), leaving=True)
    for running in ([], [leaves]):
        shot = snapshot([Node("a", used_cores=1), Node("b", used_gpus=8)], [*jobs, *running], queues)
        made = Outcome(shot, plan(shot))
        assert list(made.admitted) == ["owner"], "before whoever borrows"
        assert made.waiting["borrows"].reason is WaitReason.QUOTA_EXCEEDED


@pytest.mark.parametrize("ahead", [False, True])
def test_an_owner_asks_who_yields_to_it_also_when_it_had_its_turn_before_a_borrower(ahead: bool) -> None:
    """Whom it ranks before is known at its own place alone: there it finds what it did not find before."""
    nodes = [Node("a", used_gpus=8), Node("b", used_gpus=8), Node("c", gpus=1, used_gpus=1)]
    jobs = [
        Job("let-in", queue="beside", only_on=("a",), on=("a",), submitted=5.0),
        Job("low", gpus=1, queue="owner", only_on=("c",), on=("c",), priority=-1),  # whom it may ask, in vain
        Job("firm", queue="beside", only_on=("b",), on=("b",)),
        Job("owner", queue="owner", only_on=("a",), submitted=1.0),
        *([Job("borrower", queue="poor", only_on=("b",), priority=1)] * ahead),
    ]
    queues = [Queue("owner", gpus=16, cohort=0), Queue("beside", gpus=32, cohort=0), Queue("poor", gpus=0, cohort=0)]
    shot = snapshot(nodes, jobs, queues)
    placed = shot.jobs.holding
    runs = replace(shot.jobs.runs, yields=np.arange(len(jobs)) == 0, started=np.where(placed, 1.0, 0.0))
    terms = replace(shot.jobs.terms, preemptible=np.arange(len(jobs)) != 2)
    made = plan(replace(shot, now=1_000.0, jobs=replace(shot.jobs, runs=runs, terms=terms)))
    told = [(each.uid, each.reason, each.beneficiary) for each in made.evictions]
    assert told == [("let-in", MoveReason.YIELDED, "owner")]
