"""Moves of jobs that stand: growth, promotion, defragmentation, and placements that end because a limit was lowered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings

from muster.scheduling.defrag import Rearrangement, defragment
from muster.scheduling.demand import coming_back
from muster.scheduling.elastic import grow
from muster.scheduling.kinds import Kinds
from muster.scheduling.lowered import give_up
from muster.scheduling.moves import Move, Pace
from muster.scheduling.offers import lost_seconds
from muster.scheduling.plan import MoveReason, Stay, StayReason, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.promotion import promote
from muster.scheduling.quota import Ledger
from muster.scheduling.room import Room
from muster.scheduling.snapshot import (
    FOREVER,
    NONE,
    UNLIMITED,
    Alternative,
    Index,
    Int,
    Preempts,
    Shape,
    Sizes,
    Snapshot,
    TopologyMode,
)
from muster.scheduling.topology import Tree

from .cases import GPU, RESOURCES, Job, Node, Queue, rack, snapshot
from .operating import Live, Operating
from .standing import NOW, standing

pytestmark = pytest.mark.unit
thorough = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
EAGER = Pace(settle=0.0, gain=1e-9)
"""Every move pays, at once."""


def tree_of(world: Snapshot) -> Tree:
    return Tree(world.nodes.domains, world.levels)


def open_room(world: Snapshot, tree: Tree) -> Int:
    return np.ascontiguousarray(world.nodes.free[tree.order].T)


def free_after(world: Snapshot, moves: Iterable[Move]) -> Int:
    """N x R, when all who move are on their new nodes."""
    free = world.nodes.free.copy()
    for move in moves:
        np.add.at(free, world.jobs.runs.nodes_of(move.row), world.jobs.requests[move.row])
        np.subtract.at(free, move.nodes, world.jobs.requests[move.row])
    return free


def never_overdrawn(world: Snapshot, free: Int) -> bool:
    """Nothing is below zero that was not before."""
    return bool((free >= np.minimum(world.nodes.free, 0)).all())


def share_a_domain(world: Snapshot, nodes: Index, level: int) -> bool:
    domains = world.nodes.domains[nodes, level]
    return bool(len(domains) and domains[0] != NONE and (domains == domains[0]).all())


def with_jobs(world: Snapshot, **rows: object) -> Snapshot:
    """The same with other arrays of `Jobs`."""
    return replace(world, jobs=replace(world.jobs, **rows))  # type: ignore[arg-type]


def elastic(world: Snapshot, least: int, most: int, step: int = 1) -> Snapshot:
    """All jobs may have from `least` to `most` workers."""
    full = np.ones_like(world.jobs.workers)
    return with_jobs(world, sizes=replace(world.jobs.sizes, least=full * least, most=full * most, step=full * step))


def run_for(world: Snapshot, seconds: float, *, unsaved: float = 0.0, restart: float = 10.0) -> Snapshot:
    """All placements stand for that long, and lose `unsaved` seconds and a restart when they move."""
    ones = np.ones(len(world.jobs.uids))
    runs = replace(
        world.jobs.runs,
        started=ones * (NOW - seconds),
        saved=ones * (NOW - unsaved),
        restart=ones * restart,
    )
    return replace(with_jobs(world, runs=runs), now=NOW)


def test_an_elastic_job_grows_into_idle_room_by_whole_steps() -> None:
    there = snapshot(rack(0, 5), [Job("job", workers=1, holding=True, on=("rack-0-host-1",))])
    used = 8 * np.outer(np.arange(5) == 1, np.arange(len(there.resources)) == GPU)
    there = replace(there, nodes=replace(there.nodes, free=there.nodes.free - used))
    there = run_for(elastic(there, 1, 9, step=2), 1_000)
    tree = tree_of(there)
    room, ledger = open_room(there, tree), Ledger(there.queues, there.jobs)
    (move,) = grow(there, tree, room, ledger)
    assert move.nodes.tolist() == [0, 1, 2, 3, 4], "ranks follow the tree"
    assert room[GPU].sum() == 0
    assert ledger.used(0, 1, GPU) in (0, 5 * 8), "an unlimited queue counts nothing"


@pytest.mark.parametrize(
    ("has", "least", "most", "free", "grown"),
    [
        (6, 4, 16, 10, 16),
        (6, 4, 16, 9, 12),
        (6, 4, 16, 2, 8),
        (6, 4, 16, 1, None),
        (2, 8, 16, 6, 8),  # `min` was raised
        (2, 8, 16, 5, None),
        (4, 4, 16, 4, 8),
        (6, 2, 4, 10, None),  # `max` was lowered
    ],
)
def test_a_gang_whose_sizes_were_edited_grows_to_one_that_it_may_have(
    has: int, least: int, most: int, free: int, grown: int | None
) -> None:
    """Steps of 4 workers. It is never made another size that it may not have, not even a smaller one."""
    on = tuple(f"rack-0-host-{index}" for index in range(has))
    nodes = [replace(node, used_gpus=8 if node.name in on else 0) for node in rack(0, has + free)]
    world = snapshot(nodes, [Job("job", workers=has, on=on)], [Queue(gpus=8 * (has + free))])
    world = run_for(elastic(world, least, most, step=4), 1_000)
    tree = tree_of(world)
    moves = grow(world, tree, open_room(world, tree), Ledger(world.queues, world.jobs))
    assert [len(move.nodes) for move in moves] == [grown] * (grown is not None)
    lowered = replace(world, queues=replace(world.queues, nominal=np.minimum(world.queues.nominal, 8 * (has - 1))))
    _, shrunk = give_up(lowered, Ledger(lowered.queues, lowered.jobs), frozenset())
    assert all((len(each.nodes) - least) % 4 == 0 for each in shrunk)


def test_a_gang_whose_required_level_is_gone_does_not_grow() -> None:
    """Not even on its worker's own node."""
    for mode, grown in ((TopologyMode.UNCONSTRAINED, 1), (TopologyMode.REQUIRED, 0)):
        world = snapshot([Node("a", used_gpus=4)], [Job("job", gpus=4, holding=True, on=("a",))])
        world = with_jobs(run_for(elastic(world, 1, 2), 1_000), modes=np.array([mode], dtype=np.int32))
        assert world.jobs.levels.tolist() == [NONE]
        tree = tree_of(world)
        assert len(grow(world, tree, open_room(world, tree), Ledger(world.queues, world.jobs))) == grown


def test_growth_must_pay_and_a_young_placement_stays() -> None:
    world = elastic(snapshot(rack(0, 3), [Job("job", gpus=4, holding=True, on=("rack-0-host-0",))]), 1, 4)
    tree = tree_of(world)

    def moves(there: Snapshot) -> tuple[Move, ...]:
        return grow(there, tree, open_room(there, tree), Ledger(there.queues, there.jobs))

    assert moves(run_for(world, 1_000))
    assert not moves(run_for(world, 500)), "it was placed a moment ago"
    assert not moves(run_for(world, 50_000, unsaved=20_000)), "it would lose more than it wins"
    ends = np.full(1, NOW + 5.0)
    soon = run_for(world, 1_000)
    assert not moves(with_jobs(soon, runs=replace(soon.jobs.runs, ends=ends))), "it is about to end"


@pytest.mark.parametrize(
    ("preemptible", "gpus", "beside", "size"),
    [
        (False, 24, False, 3),
        (False, 8, False, 1),  # beyond is borrowed, which it could not give back
        (False, 24, True, 2),  # what others of its queue hold counts
        (True, 8, False, 3),
    ],
)
def test_a_gang_that_is_not_preemptible_grows_within_its_queues_own_quota(
    preemptible: bool, gpus: int, beside: bool, size: int
) -> None:
    nodes = [replace(node, used_gpus=8 if index < 2 else 0) for index, node in enumerate(rack(0, 4))]
    jobs = [
        Job("job", holding=True, on=("rack-0-host-0",)),
        Job("other", queue="research" if beside else "lender", holding=True, on=("rack-0-host-1",)),
    ]
    world = snapshot(nodes, jobs, [Queue(gpus=gpus, cohort=0), Queue("lender", gpus=32, cohort=0)])
    sizes = replace(Sizes.fixed(world.jobs.workers), most=np.array([3, 1], dtype=np.int32))
    terms = replace(world.jobs.terms, preemptible=np.array([preemptible, True]))
    world = run_for(with_jobs(world, sizes=sizes, terms=terms), 1_000)
    unsaved = with_jobs(world, runs=replace(world.jobs.runs, saved=world.jobs.runs.started))
    assert preemptible or not plan(unsaved).evictions, "it may be a script that saves nothing"
    made = plan(world)
    assert [(each.uid, each.reason) for each in made.evictions] == [("job", MoveReason.GROWN)] * (size > 1)
    assert [len(each.nodes) for each in made.promises] == [size] * (size > 1)


@thorough
@given(standing(elastic=True, claimant=False))
def test_growth_keeps_room_quota_sizes_and_topology(world: Snapshot) -> None:
    jobs, tree = world.jobs, tree_of(world)
    required = np.where(np.arange(len(jobs.uids)) % 2 == 0, TopologyMode.REQUIRED, TopologyMode.UNCONSTRAINED)
    inside = [share_a_domain(world, jobs.runs.nodes_of(row), 1) for row in range(len(jobs.uids))]
    modes = np.where(inside, required, TopologyMode.UNCONSTRAINED).astype(np.int32)
    world = with_jobs(world, modes=modes, levels=np.where(modes == TopologyMode.REQUIRED, 1, NONE).astype(np.int32))
    room, ledger, before = open_room(world, tree), Ledger(world.queues, world.jobs), Ledger(world.queues, world.jobs)
    moves = grow(world, tree, room, ledger, EAGER)
    event(f"{len(moves)} grow")
    for move in moves:
        old, sizes = jobs.runs.nodes_of(move.row).tolist(), jobs.sizes
        assert not jobs.runs.leaving[move.row]
        assert all(old.count(node) <= move.nodes.tolist().count(node) for node in old), "who stands stays"
        assert len(old) < len(move.nodes) <= sizes.most[move.row]
        assert (len(move.nodes) - len(old)) % sizes.step[move.row] == 0
        assert world.nodes.usable[np.setdiff1d(move.nodes, old)].all()
        if modes[move.row] == TopologyMode.REQUIRED:
            assert share_a_domain(world, move.nodes, 1)
        need = [(index, int(amount)) for index, amount in enumerate(_more(world, move)) if amount]
        queue, flavour = int(jobs.queues[move.row]), int(jobs.flavours[move.row])
        assert before.shortage(queue, flavour, need, borrowing=bool(jobs.terms.preemptible[move.row])) is None
        before.charge(queue, flavour, need)
    assert never_overdrawn(world, free_after(world, moves))
    after = replace(world, nodes=replace(world.nodes, free=free_after(world, moves)))
    assert np.array_equal(room, open_room(after, tree))
    assert before._used == ledger._used
    again = grow(world, tree, room, ledger, EAGER)
    assert not {move.row for move in again} - {move.row for move in moves}, "each takes all that it can use"


def _more(world: Snapshot, move: Move) -> Int:
    more: Int = world.jobs.requests[move.row] * (len(move.nodes) - len(world.jobs.runs.nodes_of(move.row)))
    return more


RUNS = Job("job", workers=2, holding=True, on=("rack-0-host-0", "rack-0-host-1"))


def beside(*others: Job, hosts: int = 4, away: int = 4, gpus: int = 80, lent: int = 0, **jobs: object) -> Snapshot:
    """`RUNS` may have 2, 4 or 6 workers, and has run for a while; the others are of one size. Its rack has `hosts`."""
    nodes = [replace(node, used_gpus=8 if index < 2 else 0) for index, node in enumerate(rack(0, hosts))]
    queues = [Queue(gpus=gpus, cohort=0), Queue("lender", gpus=lent, cohort=0)]
    world = run_for(snapshot([*nodes, *rack(1, away)], [RUNS, *others], queues), 1_000)
    most, step = world.jobs.sizes.most.copy(), world.jobs.sizes.step.copy()
    most[0], step[0] = 6, 2
    ones = np.ones(1 + len(others), dtype=np.int32)
    bound = {"modes": ones * TopologyMode.REQUIRED, "levels": ones}
    return with_jobs(world, **bound | {"sizes": replace(world.jobs.sizes, most=most, step=step)} | jobs)


def stays(world: Snapshot) -> Stay:
    found = plan(world).stays
    assert found is not None
    stay = found("job")
    assert stay is not None
    return stay


def test_what_the_next_size_of_a_gang_lacks_is_told() -> None:
    for_4 = "for its next size, 4 workers"
    assert stays(beside(hosts=3)) == Stay(
        StayReason.INSUFFICIENT_CAPACITY,
        f"{for_4} in rack rack-0, it needs 2 workers × 8 nvidia.com/gpu; the 3 H100 nodes that suit have room for 1; "
        "8 nvidia.com/gpu are missing",
        4,
        resource=RESOURCES[GPU],
        missing=8,
        level="rack",
        domain="rack-0",
        placeable=1,
    )
    short = stays(beside(gpus=24))
    assert (short.reason, short.missing) == (StayReason.QUOTA_EXCEEDED, 8)
    assert short.message.startswith(f"{for_4}, it needs 16 nvidia.com/gpu of H100; queue research uses 16 nvidia.com")
    own = beside(gpus=24, lent=80)
    own = with_jobs(own, terms=replace(own.jobs.terms, preemptible=np.zeros(1, dtype=np.bool_)))
    assert "queue research has 8 nvidia.com/gpu left of its own, and it may not borrow" in stays(own).message


def test_a_gang_is_told_for_whom_the_room_that_it_could_grow_into_is_kept() -> None:
    kept = stays(beside(Job("big", workers=3), away=0))
    assert (kept.reason, kept.blocker) == (StayReason.BEHIND_OTHERS, "big")
    assert kept.message.startswith("there is room for 2 workers × 8 nvidia.com/gpu, but it is kept for a job ahead")
    quota = stays(beside(Job("big", workers=3), gpus=32))
    assert (quota.reason, quota.blocker) == (StayReason.QUOTA_AWAITED, "big")


def test_what_one_leaves_over_that_gives_way_is_not_grown_into() -> None:
    """It queues again in a moment, and would find that less is left to borrow."""
    taken = Job("owner", holding=True, on=("rack-1-host-0",))
    gives = Job("gives", holding=True, on=("rack-1-host-1",), leaving=True, beneficiary="owner")
    world = beside(taken, gives)
    assert not plan(world).evictions
    waits = stays(world)
    assert (waits.reason, waits.blocker) == (StayReason.QUOTA_AWAITED, "gives")
    runs = world.jobs.runs
    for own in (runs.beneficiary[2] * 0 + 2, runs.beneficiary[2] * 0 + NONE):  # it is resized, or is suspended
        other = runs.beneficiary.copy()
        other[2] = own
        found = plan(with_jobs(world, runs=replace(runs, beneficiary=other)))
        assert [(each.uid, each.reason) for each in found.evictions] == [("job", MoveReason.GROWN)]


def test_nobody_grows_in_a_plan_that_asks_one_of_its_tree_to_go_for_another() -> None:
    """Beside the room that is being cleared there is some for a size more, and quota when the victim is gone."""
    low = Job("low", workers=2, priority=-5, holding=True, on=("rack-1-host-0", "rack-1-host-1"))
    high = Job("high", workers=1, priority=5, only_on=("rack-1-host-0",))
    world = beside(low, high, gpus=40)
    free = world.nodes.free.copy()
    free[4:6, GPU] = 0
    found = plan(replace(world, nodes=replace(world.nodes, free=free)))
    assert [(each.uid, each.beneficiary) for each in found.evictions] == [("low", "high")]


def test_a_gang_that_has_room_to_grow_is_told_what_it_waits_for() -> None:
    young = stays(run_for(beside(), 100))
    assert (young.reason, young.not_before) == (StayReason.SETTLING, NOW + 500)
    assert stays(run_for(beside(hosts=3), 100)).not_before == NOW + 500, "it lacks room, too"
    assert stays(run_for(beside(), 50_000, unsaved=20_000)).reason is StayReason.DOES_NOT_PAY
    world = beside()
    terms, closed = world.jobs.terms, np.zeros_like(world.queues.open)
    no, soon = np.zeros(1, dtype=np.bool_), np.full(1, NOW)
    unsaved = with_jobs(
        world, terms=replace(terms, preemptible=no), runs=replace(world.jobs.runs, saved=world.jobs.runs.started)
    )
    nodes = replace(world.nodes, usable=np.array([False] + [True] * 7))
    for reason, other in (
        (StayReason.AWAITS_CHECKPOINT, unsaved),
        (StayReason.NO_CHECKPOINTS, with_jobs(world, terms=replace(terms, saves=no))),
        (StayReason.EDIT_REFUSED, with_jobs(world, terms=replace(terms, opens=np.full(1, FOREVER)))),
        (StayReason.WINDOW_CLOSED, with_jobs(world, terms=replace(terms, closes=soon))),
        (StayReason.SHAPE_FIXED, with_jobs(world, terms=replace(terms, shapes=(Shape(balanced=1),)))),
        (StayReason.SHAPE_FIXED, with_jobs(world, terms=replace(terms, shapes=(Shape(slices=((4, 1),)),)))),
        (StayReason.QUEUE_CLOSED, replace(world, queues=replace(world.queues, open=closed))),
        (StayReason.NODES_AWAY, replace(world, nodes=nodes)),
    ):
        assert stays(other).reason is reason
    assert "ended" not in stays(replace(world, nodes=nodes)).message
    placed = world.jobs.runs.placed.copy()
    placed[-1] = NONE
    over = stays(with_jobs(world, runs=replace(world.jobs.runs, placed=placed)))
    assert (over.reason, "or some of its workers have ended" in over.message) == (StayReason.NODES_AWAY, True)


@thorough
@given(standing(elastic=True, slices=True))
def test_each_gang_that_could_be_larger_and_is_left_as_it_is_knows_why(world: Snapshot) -> None:
    made = plan(world)
    jobs, moved = world.jobs, {each.uid for each in made.evictions}
    if made.stays is None:
        assert moved or not ((jobs.sizes.least < jobs.sizes.most) & jobs.holding).any()
        return
    for row, uid in enumerate(jobs.uids):
        has, stay = len(jobs.runs.nodes_of(row)) - jobs.terms.shapes[row].spares, made.stays(uid)
        if not has or not jobs.holding[row] or jobs.runs.leaving[row] or uid in moved:
            assert stay is None
        elif jobs.sizes.least[row] < jobs.sizes.most[row] and has < jobs.sizes.least[row]:
            assert stay is not None, "it has none of its sizes now"
        elif jobs.sizes.least[row] == jobs.sizes.most[row] or has + jobs.sizes.step[row] > jobs.sizes.most[row]:
            assert stay is None
        else:
            assert stay is not None
            assert has < stay.workers <= jobs.sizes.most[row]
            event(stay.reason.value)


def test_a_gang_with_slices_grows_by_whole_slices_inside_their_domains() -> None:
    nodes = [*rack(0, 3), *rack(1, 2)]
    on = ("rack-0-host-0", "rack-0-host-1")
    world = snapshot(
        [replace(node, used_gpus=8 if node.name in on else 0) for node in nodes],
        [Job("job", workers=2, holding=True, on=on)],
    )
    world = run_for(elastic(world, 2, 6, step=2), 1_000)
    world = with_jobs(world, terms=replace(world.jobs.terms, shapes=(Shape(slices=((2, 1),)),)))
    tree = tree_of(world)
    (move,) = grow(world, tree, open_room(world, tree), Ledger(world.queues, world.jobs))
    assert [world.nodes.names[node] for node in move.nodes] == [*on, "rack-1-host-0", "rack-1-host-1"]


def on_spot(*, free: int = 2, unsaved: float = 0.0) -> Snapshot:
    """A job of 2 workers on spot nodes that would rather have reserved ones, of which `free` are free."""
    nodes = [Node(f"spot-{index}", rack="r0", used_gpus=8) for index in range(2)]
    nodes += [Node(f"kept-{index}", rack="r1", used_gpus=0 if index < free else 8) for index in range(2)]
    kept = tuple(node.name for node in nodes if node.name.startswith("kept"))
    jobs = [Job("job", workers=2, holding=True, on=("spot-0", "spot-1"), only_on=kept)]
    world = run_for(snapshot(nodes, jobs), 1_000, unsaved=unsaved)
    spot = np.array([[not eligible for eligible in world.eligible[0]]])
    shape = (len(world.queues.names), 1, world.queues.nominal.shape[2])
    another = [
        np.concatenate([table, np.broadcast_to(table[:, :1], shape)], axis=1)
        for table in (world.queues.nominal, world.queues.borrowing, world.queues.lending)
    ]
    return replace(
        world,
        flavours=("", "H100/reserved", "H100/spot"),
        eligible=np.concatenate([world.eligible, spot]),
        nodes=replace(world.nodes, flavours=np.where(world.eligible[0], 1, 2).astype(np.int32)),
        queues=replace(world.queues, nominal=another[0], borrowing=another[1], lending=another[2]),
        jobs=replace(
            world.jobs,
            flavours=np.array([2], dtype=np.int32),
            terms=replace(world.jobs.terms, alternatives=((Alternative(1, 2),),)),
        ),
    )


def promoted(world: Snapshot) -> tuple[Move, ...]:
    tree = tree_of(world)
    return promote(world, tree, open_room(world, tree), Ledger(world.queues, world.jobs))


def test_a_job_on_its_second_choice_moves_back_when_the_first_has_room() -> None:
    world = on_spot()
    (move,) = promoted(world)
    assert [world.nodes.names[node] for node in move.nodes] == ["kept-0", "kept-1"]
    assert move.flavour == 1
    assert move.taken[GPU].tolist() == [8, 8]


def test_promotion_needs_room_for_the_whole_gang_and_must_pay() -> None:
    assert not promoted(on_spot(free=1))
    assert not promoted(on_spot(unsaved=600.0)), "ten times what it loses is more than an hour"
    world = on_spot()
    assert not promoted(with_jobs(world, flavours=np.array([1], dtype=np.int32))), "it is on its first choice"
    held = replace(world, queues=replace(world.queues, nominal=np.zeros_like(world.queues.nominal)))
    assert not promoted(held), "no quota there"


@pytest.mark.parametrize("lost", [False, True])
def test_a_gang_of_which_a_worker_has_ended_well_is_not_moved(lost: bool) -> None:
    """All its workers would begin again. One whose worker is lost gets its nodes by that."""
    world = on_spot()
    runs = replace(world.jobs.runs, placed=np.array([world.jobs.runs.placed[0], NONE], dtype=np.int32))
    world = with_jobs(world, runs=replace(runs, lost={0: np.array([1])} if lost else {}))
    assert bool(promoted(world)) is lost


def beside_spot(nodes: list[Node], queues: list[Queue], jobs: list[Job], reclaim: Preempts) -> Snapshot:
    """The last node is a spot node. The job `moves` runs there and would rather be on the others; `firm` is not
    preemptible."""
    world = snapshot(nodes, jobs, queues)
    uids, spot = world.jobs.uids, np.arange(len(nodes)) == len(nodes) - 1
    moves, holding = np.array([uid == "moves" for uid in uids]), world.jobs.holding
    wide = [
        np.concatenate([table, np.full_like(table[:, :1], UNLIMITED)], axis=1)
        for table in (world.queues.nominal, world.queues.borrowing, world.queues.lending)
    ]
    taken_back = np.full(len(world.queues.names), reclaim, dtype=np.int32)
    terms = replace(
        world.jobs.terms,
        alternatives=tuple((Alternative(len(world.eligible), 2),) if each else () for each in moves),
        preemptible=np.array([uid != "firm" for uid in uids]),
    )
    started, saved = np.where(holding, NOW - 9_000.0, 0.0), np.where(holding, NOW - 10.0, 0.0)
    return replace(
        world,
        now=NOW,
        flavours=("", "H100/reserved", "H100/spot"),
        eligible=np.concatenate([world.eligible & ~spot, spot[None]]),
        nodes=replace(world.nodes, flavours=np.where(spot, 2, 1).astype(np.int32)),
        queues=replace(world.queues, nominal=wide[0], borrowing=wide[1], lending=wide[2], reclaim=taken_back),
        jobs=replace(
            world.jobs,
            flavours=np.where(moves, 2, 1).astype(np.int32),
            terms=terms,
            runs=replace(world.jobs.runs, started=started, saved=saved),
        ),
    )


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("reclaim", [Preempts.NEVER, Preempts.LOWER_PRIORITY])
def test_nobody_moves_to_where_it_would_use_quota_that_others_wait_for(reclaim: Preempts, waits: bool) -> None:
    """An owner waits for quota of two kept nodes, half of which is lent: what is left is not for a borrower on spot."""
    nodes = [Node("kept-0", used_gpus=8), Node("kept-1"), Node("spot", used_gpus=8)]
    queues = [Queue("owner", gpus=16, cohort=0), Queue("borrower", gpus=0, cohort=0)]
    jobs = [Job("lent", queue="borrower", holding=True, on=("kept-0",))]
    jobs += [Job("moves", queue="borrower", holding=True, on=("spot",))]
    jobs += [Job("waits", workers=2, queue="owner", submitted=NOW)] if waits else []
    found = plan(beside_spot(nodes, queues, jobs, reclaim))
    assert [each.reason for each in found.evictions] == ([] if waits else [MoveReason.PROMOTED])


@pytest.mark.parametrize(("borrowing", "moves"), [(0, True), (None, False)])
def test_who_waits_for_what_its_own_queue_uses_up_keeps_nobody_of_other_queues_from_moving(
    borrowing: int | None, moves: bool
) -> None:
    """One that may not borrow gets none of what the other queue has left, whether anybody moves there or not."""
    nodes = [Node("kept-0", used_gpus=8), Node("kept-1"), Node("kept-2"), Node("spot", used_gpus=8)]
    queues = [Queue("full", gpus=8, borrowing=borrowing, cohort=0), Queue("other", gpus=8, cohort=0)]
    jobs = [Job("runs", queue="full", holding=True, on=("kept-0",))]
    jobs += [Job("moves", queue="other", holding=True, on=("spot",))]
    jobs += [Job("waits", workers=1 if borrowing == 0 else 2, queue="full", submitted=NOW)]
    found = plan(beside_spot(nodes, queues, jobs, Preempts.NEVER))
    assert [each.uid for each in found.admissions] == []
    assert [each.reason for each in found.evictions] == ([MoveReason.PROMOTED] if moves else [])


@pytest.mark.parametrize("nominal", [8, 16])
def test_nobody_moves_to_where_it_would_borrow_while_one_of_its_queue_has_a_reservation(nominal: int) -> None:
    """The one that waits would be the last of its queue to start, and borrowed use is what came last."""
    nodes = [Node("full", used_gpus=4), Node("kept"), Node("spot", used_gpus=8)]
    queues = [Queue("mine", gpus=nominal, cohort=0), Queue("lender", gpus=32, cohort=0)]
    jobs = [Job("firm", gpus=4, queue="lender", holding=True, on=("full",))]
    jobs += [Job("moves", queue="mine", holding=True, on=("spot",))]
    jobs += [Job("waits", queue="mine", submitted=NOW, only_on=("full",))]
    found = plan(beside_spot(nodes, queues, jobs, Preempts.ANY))
    assert [each.reason for each in found.evictions] == ([] if nominal == 8 else [MoveReason.PROMOTED])


def test_a_gang_without_gpus_is_on_the_choice_whose_filter_its_nodes_pass() -> None:
    world = on_spot()
    terms = replace(world.jobs.terms, alternatives=((Alternative(1, 0),),))
    world = with_jobs(world, flavours=np.array([0], dtype=np.int32), terms=terms)
    (move,) = promoted(world)
    assert [world.nodes.names[node] for node in move.nodes] == ["kept-0", "kept-1"]
    assert move.flavour == 0
    assert not promoted(replace(world, eligible=world.eligible[::-1])), "it is on its first choice"
    full = np.maximum(world.queues.nominal * 0, world.jobs.held[0])
    limited = replace(world, queues=replace(world.queues, nominal=full, borrowing=full * 0))
    assert promoted(limited), "it needs no more quota than it has"


def rearranged(world: Snapshot, *, wait: float = 10_000.0, pace: Pace | None = None) -> Rearrangement | None:
    kinds, tree = Kinds(world, np.array([0]), elastic=False), tree_of(world)
    room, ledger = Room(world, tree, kinds.workers), Ledger(world.queues, world.jobs)
    gang, coming = kinds.gang(kinds.of[0]), coming_back(world, tree)
    return defragment(world, tree, room, ledger, kinds.workers, gang, 0, coming, wait, pace=pace)


def fragmented() -> Snapshot:
    """Two racks of two nodes, half of each taken by a job of one node; a gang of two nodes wants one rack."""
    nodes = [*rack(0, 2), *rack(1, 2)]
    nodes = [replace(node, used_gpus=8 if node.name.endswith("host-0") else 0) for node in nodes]
    jobs = [
        Job("gang", workers=2, required="rack"),
        Job("dear", holding=True, on=("rack-0-host-0",)),
        Job("cheap", holding=True, on=("rack-1-host-0",)),
    ]
    world = run_for(snapshot(nodes, jobs), 1_000)
    saved = np.array([0.0, NOW - 100, NOW - 20])
    return with_jobs(world, runs=replace(world.jobs.runs, saved=saved))


def test_the_cheapest_job_moves_aside_for_a_gang_that_fragmentation_keeps_out() -> None:
    world = fragmented()
    found = rearranged(world)
    assert found is not None
    assert [world.nodes.names[node] for node in found.nodes] == ["rack-1-host-0", "rack-1-host-1"]
    (move,) = found.moves
    assert (move.row, [world.nodes.names[node] for node in move.nodes]) == (2, ["rack-0-host-1"])
    assert found.lost == pytest.approx(8 * 30.0)


@pytest.mark.parametrize("suits", [True, False])
def test_a_gang_on_a_node_where_it_could_not_start_again_neither_grows_nor_shrinks(suits: bool) -> None:
    """A taint has come, as quarantine sets it, or the job stays away from there: what stays has to start again."""
    nodes = [replace(node, used_gpus=8 if index < 3 else 0) for index, node in enumerate(rack(0, 5))]
    names = tuple(node.name for node in nodes)
    gang = Job("gang", workers=3, on=names[:3], only_on=names if suits else (names[0], *names[2:]))
    world = run_for(elastic(snapshot(nodes, [gang], [Queue(gpus=40)]), 2, 5), 1_000)
    tree = tree_of(world)
    assert bool(grow(world, tree, open_room(world, tree), Ledger(world.queues, world.jobs))) is suits
    full = run_for(elastic(snapshot(nodes[:3], [gang], [Queue(gpus=16)]), 2, 5), 1_000)
    evicted, shrunk = give_up(full, Ledger(full.queues, full.jobs), frozenset())
    assert (len(evicted), len(shrunk)) == ((0, 1) if suits else (1, 0))


def unsaving(world: Snapshot, row: int) -> Snapshot:
    """One job saves no checkpoints."""
    saves = np.arange(len(world.jobs.uids)) != row
    return with_jobs(world, terms=replace(world.jobs.terms, saves=saves))


def test_a_job_that_saves_no_checkpoints_is_never_moved_though_it_is_the_cheapest() -> None:
    found = rearranged(unsaving(fragmented(), 2))
    assert found is not None
    assert [move.row for move in found.moves] == [1], "the dearer one goes back to its checkpoint, no further"
    both = with_jobs(fragmented(), terms=replace(fragmented().jobs.terms, saves=np.zeros(3, dtype=np.bool_)))
    assert rearranged(both) is None
    assert promoted(on_spot())
    assert not promoted(unsaving(on_spot(), 0))
    world = run_for(elastic(snapshot(rack(0, 3), [Job("job", gpus=4, holding=True, on=("rack-0-host-0",))]), 1, 4), 1e3)
    tree = tree_of(world)
    for there, grown in ((world, 1), (unsaving(world, 0), 0)):
        assert len(grow(there, tree, open_room(there, tree), Ledger(there.queues, there.jobs))) == grown


def closed(world: Snapshot, *, opens: float = 0.0, closes: float = FOREVER) -> Snapshot:
    """Who stops may start again from and until these moments."""
    ones = np.ones(len(world.jobs.uids))
    return with_jobs(world, terms=replace(world.jobs.terms, opens=ones * opens, closes=ones * closes))


@pytest.mark.parametrize(("opens", "closes"), [(NOW + 60, FOREVER), (0.0, NOW + 20), (0.0, NOW + 60)])
def test_a_gang_that_could_not_start_again_for_its_window_is_neither_moved_nor_resized(
    opens: float, closes: float
) -> None:
    """It runs to its end beyond its window, or the window would have closed when it has stopped: that takes 30 s."""
    idle = run_for(elastic(snapshot(rack(0, 3), [Job("job", on=("rack-0-host-0",))]), 1, 3), 1_000)
    over = snapshot([Node("a")], [Job("job", workers=4, gpus=1, on=("a",) * 4)], [Queue(gpus=3)])
    over = run_for(elastic(over, 1, 4), 1_000)

    def changed(world: Snapshot) -> Snapshot:
        grace = np.ones(len(world.jobs.uids)) * 30.0
        return closed(with_jobs(world, runs=replace(world.jobs.runs, grace=grace)), opens=opens, closes=closes)

    goes_on = closes == NOW + 60
    tree, idle, over = tree_of(idle), changed(idle), changed(over)
    assert bool(grow(idle, tree, open_room(idle, tree), Ledger(idle.queues, idle.jobs))) is goes_on
    evicted, shrunk = give_up(over, Ledger(over.queues, over.jobs), frozenset())
    assert (len(evicted), len(shrunk)) == ((0, 1) if goes_on else (1, 0)), "it goes whole where it has to"
    assert bool(promoted(changed(on_spot()))) is goes_on
    assert (rearranged(changed(fragmented())) is not None) is goes_on


def test_nobody_moves_for_little_gain_for_lower_priority_or_beyond_the_budget() -> None:
    world = fragmented()
    assert rearranged(world, wait=20.0) is None, "2 x 8 x 20 s is less than twice the loss"
    runs = world.jobs.runs
    assert rearranged(with_jobs(world, priorities=np.array([0, 1, 1], dtype=np.int32))) is None
    assert rearranged(with_jobs(world, runs=replace(runs, budget=np.zeros(3, dtype=np.int32)))) is None
    found = rearranged(with_jobs(world, priorities=np.array([0, 0, 1], dtype=np.int32)))
    assert found is not None
    assert [move.row for move in found.moves] == [1], "who is left to move"


def in_pieces(*waiting: Live, queues: tuple[Queue, ...] = (Queue(gpus=16),)) -> Operating:
    """Half of each of two nodes is free; the jobs on the other halves have run for two hours and saved just now."""
    world = Operating({"a": Node("a"), "b": Node("b")}, {queue.name: queue for queue in queues})
    for name in "ab":
        world.submit(Live(Job(f"half of {name}", gpus=4), on=(name,), started=world.now))
    world.now += 7_200.0
    for live in world.jobs.values():
        live.saved = world.now
    for live in waiting:
        world.submit(live)
    return world


def test_free_pieces_of_nodes_are_put_together_for_a_job_that_needs_a_whole_one() -> None:
    world = in_pieces(Live(Job("whole")))
    made = plan(world.snapshot())
    (mover,) = made.evictions
    assert (mover.uid, mover.reason, mover.beneficiary) == ("half of a", MoveReason.DEFRAGMENTED, "whole")
    world.carry_out(made)
    assert (world.jobs["whole"].promised, world.jobs["half of a"].promised) == (("a",), ("b",))
    again = plan(world.snapshot())
    assert not again.admissions
    assert not again.evictions, "nobody moves twice for it"
    world.gone("half of a")
    assert {each.uid for each in plan(world.snapshot()).admissions} == {"whole", "half of a"}


def test_jobs_that_would_only_swap_places_with_the_gang_are_not_asked_however_cheap() -> None:
    """More of them than searches are made."""
    world = in_pieces(queues=(Queue(gpus=200),))
    world.nodes["open"] = Node("open")
    for index in range(6):
        name = f"whole-{index}"
        world.nodes[name] = Node(name)
        world.submit(Live(Job(f"on {name}"), on=(name,), started=NOW - 20_000.0, saved=world.now))
    for name in "ab":
        world.jobs[f"half of {name}"].saved = world.now - 60.0
    world.submit(Live(Job("gang", workers=2)))
    assert [each.uid for each in plan(world.snapshot()).evictions] == ["half of a"]


def test_they_are_asked_where_they_go_to_nodes_that_the_gang_cannot_use() -> None:
    world = in_pieces(queues=(Queue(gpus=200),))
    for name in "ab":
        world.jobs[f"half of {name}"].preemptible = False
    world.nodes["c"] = Node("c")
    world.nodes["d"] = Node("d")
    world.submit(Live(Job("swaps"), on=("c",), started=world.now - 7_200.0, saved=world.now))
    world.submit(Live(Job("gang", only_on=("a", "b", "c"))))
    made = plan(world.snapshot())
    assert [(each.uid, each.reason) for each in made.evictions] == [("swaps", MoveReason.DEFRAGMENTED)]


LENT = (Queue(gpus=8, cohort=0), Queue("lends", gpus=8, cohort=0))
"""Of these a job of a whole node holds no reservation."""


def test_they_are_also_for_a_job_that_is_lent_its_quota_and_so_holds_no_reservation() -> None:
    world = in_pieces(Live(Job("whole")), queues=LENT)
    assert [each.uid for each in plan(world.snapshot()).promises] == ["half of a", "whole"]
    world.submit(Live(Job("of the owner", gpus=6, queue="lends")))
    made = plan(world.snapshot())
    assert [each.uid for each in made.promises] == ["half of a", "of the owner"], "or it would be asked to give it back"


@pytest.mark.parametrize("queues", [(Queue(gpus=16),), LENT], ids=["own", "lent"])
@pytest.mark.parametrize(("ends", "moves"), [(5.0, False), (35.0, False), (60.0, True), (FOREVER, True)])
def test_nobody_moves_where_waiting_for_those_who_end_anyway_costs_less(
    queues: tuple[Queue, ...], ends: float, moves: bool
) -> None:
    """They save at once and leave within 30 s; a restart loses 10 s of 4 GPUs, and waiting that of 8."""
    world = in_pieces(Live(Job("whole")), queues=queues).snapshot()
    world = with_jobs(world, runs=replace(world.jobs.runs, ends=np.array([world.now + ends] * 2 + [FOREVER])))
    assert bool(plan(world).evictions) is moves


@pytest.mark.parametrize(("seconds", "moves"), [(35.0, False), (60.0, True)])
def test_nobody_moves_for_a_job_that_takes_other_nodes_in_a_moment(seconds: float, moves: bool) -> None:
    operating = in_pieces(Live(Job("whole", only_on=("a", "b"))), queues=(Queue(gpus=24),))
    operating.nodes["other"] = Node("other")
    world = operating.snapshot()
    every, kind = int(world.jobs.filters[0]), int(world.jobs.flavours[0])
    later = ((), (), (Alternative(every, kind, world.now + seconds),))
    world = with_jobs(world, terms=replace(world.jobs.terms, alternatives=later))
    assert bool(plan(world).evictions) is moves


def test_nobody_moves_for_a_job_behind_one_for_whom_the_room_is_kept() -> None:
    world = in_pieces(Live(Job("two nodes", workers=2)), queues=(Queue(gpus=32),))
    world.now += 1.0
    world.submit(Live(Job("whole")))
    made = plan(world.snapshot())
    assert {each.uid: each.reason for each in made.waiting}["two nodes"] is WaitReason.INSUFFICIENT_CAPACITY
    assert not made.promises


@pytest.mark.parametrize("ahead", [False, True])
def test_nobody_leaves_a_node_that_a_job_ahead_waits_for_to_one_behind_it(ahead: bool) -> None:
    queues = {"research": Queue(gpus=40, cohort=0), "lends": Queue("lends", gpus=24, cohort=0)}
    world = Operating({name: Node(name) for name in "abcd"}, queues)
    world.submit(Live(Job("moves", workers=2, gpus=4), on=("b", "b"), started=world.now))
    for name, gpus in (("a", 8), ("c", 4), ("d", 4)):
        world.submit(Live(Job(f"stays on {name}", gpus=gpus), preemptible=False, on=(name,), started=world.now))
    world.now += 7_200.0
    world.jobs["moves"].saved = world.now
    if ahead:
        world.submit(Live(Job("two nodes", workers=2, only_on=("a", "b"))))
    world.now += 1.0
    world.submit(Live(Job("whole")))
    assert ("whole" in {each.uid for each in plan(world.snapshot()).promises}) is not ahead


@thorough
@given(standing(quota=False))
def test_everybody_who_moves_aside_starts_again_beside_the_gang(world: Snapshot) -> None:
    jobs = world.jobs
    runs = replace(jobs.runs, budget=np.full_like(jobs.runs.budget, 9), yields=np.zeros_like(jobs.runs.yields))
    first = np.where(np.arange(len(jobs.uids)) == 0, 2, jobs.priorities).astype(np.int32)
    world = with_jobs(world, runs=runs, priorities=first)
    found = rearranged(world, pace=EAGER)
    if found is None:
        return
    event(f"{len(found.moves)} move")
    jobs, leaving = world.jobs, np.flatnonzero(world.jobs.runs.leaving).tolist()
    free = free_after(world, found.moves)
    for row in leaving:
        np.add.at(free, jobs.runs.nodes_of(row), jobs.requests[row])
    np.subtract.at(free, found.nodes, jobs.requests[0])
    asked = np.zeros(len(world.resources), dtype=np.bool_)
    for row in (0, *(move.row for move in found.moves)):
        asked |= jobs.requests[row] > 0
    assert (free[:, asked] >= np.minimum(world.nodes.free[:, asked], 0)).all()
    for move in found.moves:
        assert len(move.nodes) == len(jobs.runs.nodes_of(move.row))
        assert world.nodes.usable[move.nodes].all()
        assert jobs.priorities[move.row] <= jobs.priorities[0]
        assert jobs.terms.preemptible[move.row]
        assert jobs.runs.budget[move.row] > 0
    assert found.lost == pytest.approx(lost_seconds(world, np.array([move.row for move in found.moves])).sum())
    if jobs.modes[0] == TopologyMode.REQUIRED:
        assert share_a_domain(world, found.nodes, int(jobs.levels[0]))


@thorough
@given(standing(elastic=True, claimant=False))
def test_what_is_beyond_a_lowered_limit_ends_and_nothing_that_need_not(world: Snapshot) -> None:
    ledger, jobs = Ledger(world.queues, world.jobs), world.jobs
    over = [
        (queue, flavour, resource)
        for queue in range(len(world.queues.names))
        for flavour in range(len(world.flavours))
        for resource in range(len(world.resources))
        if ledger.excess(queue, flavour, resource) > 0
    ]
    evicted, shrunk = give_up(world, ledger, frozenset())
    event(f"over {bool(over)}, evicted {len(evicted)}, shrunk {len(shrunk)}")
    assert bool(over) or not (evicted or shrunk)
    rows = {each.row for each in evicted} | {each.row for each in shrunk}
    assert len(rows) == len(evicted) + len(shrunk)
    for row in rows:
        assert jobs.terms.preemptible[row]
        assert not jobs.runs.leaving[row]
    for queue, flavour, resource in over:
        if ledger.excess(queue, flavour, resource) > 0:
            below = {queue, *(row for row in range(len(world.queues.names)) if world.queues.parents[row] == queue)}
            left = [
                row
                for row in range(len(jobs.uids))
                if jobs.queues[row] in below and jobs.held[row, resource] and row not in rows
                if jobs.flavours[row] == flavour and jobs.terms.preemptible[row] and not jobs.runs.leaving[row]
            ]
            for row in left:
                before = ledger.excess(queue, flavour, resource)
                need = [(resource, int(jobs.held[row, resource]))]
                ledger.discharge(int(jobs.queues[row]), flavour, need)
                assert ledger.excess(queue, flavour, resource) == before, "somebody could have given some back"
                ledger.charge(int(jobs.queues[row]), flavour, need)


def test_all_preemptible_jobs_of_a_drained_queue_end() -> None:
    jobs = [Job(f"job-{index}", queue=f"queue-{index % 2}", holding=True, on=("a",)) for index in range(4)]
    world = snapshot([Node("a", gpus=64)], jobs, [Queue("queue-0"), Queue("queue-1")])
    world = replace(world, queues=replace(world.queues, drain=np.array([True, False])))
    fixed = replace(world.jobs.terms, preemptible=np.array([True, True, False, True]))
    evicted, shrunk = give_up(with_jobs(world, terms=fixed), Ledger(world.queues, world.jobs), frozenset())
    assert [each.row for each in evicted] == [0]
    assert not shrunk


def test_a_queue_keeps_its_own_when_its_neighbours_quota_is_lowered() -> None:
    """The one that borrows since then goes, though the other is elastic and would lose less."""
    jobs = [
        Job("own", workers=2, gpus=4, queue="a", holding=True, on=("x", "x")),
        Job("beyond", queue="b", holding=True, on=("y",)),
    ]
    queues = [Queue("above", gpus=0), Queue("a", gpus=8, parent="above"), Queue("b", gpus=0, parent="above")]
    world = elastic(snapshot([Node("x"), Node("y")], jobs, queues), 1, 2)
    world = with_jobs(world, runs=replace(world.jobs.runs, saved=np.array([90.0, 10.0]), started=np.array([10.0, 5.0])))
    evicted, shrunk = give_up(replace(world, now=100.0), Ledger(world.queues, world.jobs), frozenset())
    assert [(each.row, each.reason) for each in evicted] == [(1, MoveReason.QUOTA_LOWERED)]
    assert not shrunk


@pytest.mark.parametrize("above", [{"cohort": 0}, {"parent": "names no quota"}])
def test_what_queues_use_together_beyond_what_they_have_together_ends(above: dict[str, Any]) -> None:
    """The lender's quota was lowered: the borrower is within its own limit, and its cohort has no quota of its own."""
    jobs = [Job(name, queue="a", holding=True, on=(name,)) for name in ("own", "lent")]
    queues = [Queue("a", gpus=8, **above), Queue("lender", gpus=8, **above), Queue("names no quota")]

    def ended() -> list[int]:
        world = snapshot([Node("own"), Node("lent")], jobs, queues)
        runs = replace(world.jobs.runs, started=np.array([10.0, 50.0]), saved=np.array([90.0, 50.0]))
        world = replace(with_jobs(world, runs=runs), now=100.0)
        evicted, _ = give_up(world, Ledger(world.queues, world.jobs), frozenset())
        return [each.row for each in evicted]

    assert not ended()
    queues[1] = Queue("lender", gpus=7, **above)
    assert ended() == [1]


def test_nobody_goes_whom_another_s_end_has_made_needless() -> None:
    """What goes beyond is not enough by itself; what has to go within is enough alone."""
    jobs = [
        Job("firm", gpus=8, queue="a", holding=True, on=("x",)),
        Job("beyond", gpus=2, queue="a", holding=True, on=("y",)),
        Job("own", gpus=8, queue="b", holding=True, on=("z",)),
    ]
    queues = [
        Queue("above", gpus=0, borrowing=0),
        Queue("a", gpus=4, parent="above"),
        Queue("b", gpus=8, parent="above"),
    ]
    world = snapshot([Node("x"), Node("y"), Node("z")], jobs, queues)
    preemptible = world.jobs.terms.preemptible.copy()
    preemptible[0] = False
    runs = replace(world.jobs.runs, started=np.array([1.0, 50.0, 10.0]))
    world = with_jobs(world, terms=replace(world.jobs.terms, preemptible=preemptible), runs=runs)
    evicted, _ = give_up(replace(world, now=100.0), Ledger(world.queues, world.jobs), frozenset())
    assert [each.row for each in evicted] == [2]


def test_elastic_jobs_shrink_to_a_lowered_limit_before_anybody_ends() -> None:
    jobs = [
        Job("elastic", workers=4, gpus=1, holding=True, on=("a",) * 4),
        Job("other", workers=1, gpus=1, holding=True, on=("a",)),
    ]
    world = elastic(snapshot([Node("a")], jobs, [Queue(gpus=3)]), 1, 4)
    evicted, shrunk = give_up(world, Ledger(world.queues, world.jobs), frozenset())
    assert not evicted
    assert [(each.row, len(each.nodes)) for each in shrunk] == [(0, 2)]


@pytest.mark.parametrize("lent", [0, 2, 4])
def test_an_elastic_job_shrinks_for_a_lowered_limit_by_no_more_than_its_queue_lends(lent: int) -> None:
    """Whose quota was lowered may not be stopped. What the other queue has and does not lend is no use to it: given
    back, the gang grows into it, and is asked for it again."""
    jobs = [
        Job("elastic", workers=8, gpus=1, queue="a", holding=True, on=("x",) * 8),
        Job("firm", queue="b", holding=True, on=("y",)),
    ]
    queues = [
        Queue("above", gpus=0, borrowing=0),
        Queue("a", gpus=8, lending=lent, parent="above"),
        Queue("b", gpus=0, parent="above"),
    ]
    world = elastic(snapshot([Node("x"), Node("y")], jobs, queues), 2, 8)
    world = with_jobs(world, terms=replace(world.jobs.terms, preemptible=np.array([True, False])))
    evicted, shrunk = give_up(world, Ledger(world.queues, world.jobs), frozenset())
    assert not evicted
    assert [(each.row, len(each.nodes)) for each in shrunk] == ([(0, 8 - lent)] if lent else [])
