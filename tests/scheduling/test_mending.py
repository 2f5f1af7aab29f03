"""Broken nodes of promises and of spares: only what broke moves, inside the same domain, into room that nobody has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from muster.scheduling.mending import mend_gangs, mend_promises
from muster.scheduling.plan import Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import DEFAULT, Policy
from muster.scheduling.snapshot import NONE, Alternative, JobState, Preempts, Shape, Snapshot, TopologyMode
from muster.scheduling.topology import Tree

from .cases import GPU, LEVELS, Job, Node, Queue, rack, snapshot

pytestmark = pytest.mark.unit
thorough = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

RACK = LEVELS.index("rack")


def with_spares(world: Snapshot, **spares: int) -> Snapshot:
    """The jobs of these uids have that many spares; `on` names their places behind the workers."""
    shapes = tuple(Shape(spares=spares.get(uid, 0)) for uid in world.jobs.uids)
    return replace(world, jobs=replace(world.jobs, terms=replace(world.jobs.terms, shapes=shapes)))


def moved(world: Snapshot, decided: Plan, uid: str) -> dict[int, str]:
    """New node by index; "" for a spare without one."""
    found = next((each for each in decided.replacements if each.uid == uid), None)
    if found is None:
        return {}
    names = [world.nodes.names[node] if node != NONE else "" for node in found.nodes]
    return dict(zip(found.indexes.tolist(), names, strict=True))


GANG = Job("gang", workers=3, required="rack", reserved=True, on=("rack-0-host-0", "rack-0-host-1", "rack-0-host-2"))


def test_gang_that_starts_again_keeps_every_node_but_the_broken_one() -> None:
    nodes = [*rack(0, 5), *rack(1, 5)]
    nodes[1] = replace(nodes[1], usable=False)
    world = snapshot(nodes, [GANG, Job("urgent", workers=4, priority=9, required="rack")])
    decided = plan(world)
    assert moved(world, decided, "gang") == {1: "rack-0-host-3"}
    assert not decided.broken
    started = {each.uid: [world.nodes.names[node] for node in each.nodes] for each in decided.admissions}
    assert started["gang"] == ["rack-0-host-0", "rack-0-host-3", "rack-0-host-2"]
    assert all(node.startswith("rack-1") for node in started["urgent"])


def test_no_node_is_looked_for_in_the_plan_that_stops_the_gang_for_others() -> None:
    nodes = [replace(node, used_gpus=8, used_cores=1) for node in rack(0, 2)] + rack(0, 1, first=2)
    nodes[0] = replace(nodes[0], usable=False)
    gang = replace(GANG, workers=2, reserved=False, on=GANG.on[:2])
    world = snapshot(nodes, [gang, Job("urgent", workers=2, priority=9)])
    lost = replace(world.jobs.runs, lost={0: np.array([0])})
    decided = plan(replace(world, jobs=replace(world.jobs, runs=lost)))
    assert [(each.uid, each.beneficiary) for each in decided.evictions] == [("gang", "urgent")]
    assert not decided.replacements


def test_several_nodes_and_one_that_is_gone_are_replaced_at_once() -> None:
    nodes = [node for node in rack(0, 5) if node.name != "rack-0-host-0"]
    nodes[1] = replace(nodes[1], usable=False)
    world = snapshot(nodes, [GANG])
    assert sorted(moved(world, plan(world), "gang")) == [0, 2]
    assert set(moved(world, plan(world), "gang").values()) == {"rack-0-host-3", "rack-0-host-4"}


def test_promise_is_broken_when_the_required_rack_has_no_other_node() -> None:
    nodes = [*rack(0, 3), *rack(1, 5)]
    nodes[2] = replace(nodes[2], usable=False)
    decided = plan(snapshot(nodes, [GANG]))
    assert decided.broken == ("gang",)
    assert not decided.replacements


def test_gang_without_gpus_stays_on_nodes_of_one_kind() -> None:
    """Its kinds are told apart by their filters alone: here each rack is a kind, and the second choice counts later."""
    nodes = [replace(node, gpus=0, cores=2) for node in (*rack(0, 3), *rack(1, 4))]
    nodes[0] = replace(nodes[0], usable=False)
    kinds = [tuple(node.name for node in nodes if node.rack == name) for name in ("rack-0", "rack-1")]
    gang = Job("gang", workers=2, gpus=0, cores=2, only_on=kinds[0], reserved=True, on=kinds[0][:2])
    other = Job("other", gpus=0, only_on=kinds[1])
    world = snapshot(nodes, [gang, other])
    terms = replace(world.jobs.terms, alternatives=((Alternative(1, 0, since=9e9),), ()))
    world = replace(world, jobs=replace(world.jobs, terms=terms))
    assert moved(world, plan(world), "gang") == {0: kinds[0][2]}
    full_ = replace(world, nodes=replace(world.nodes, usable=world.nodes.usable & (np.arange(7) != 2)))
    assert plan(full_).broken == ("gang",)


def test_promise_that_is_broken_for_want_of_quota_gets_no_other_node() -> None:
    nodes = rack(0, 5)
    nodes[1] = replace(nodes[1], usable=False)
    decided = plan(snapshot(nodes, [GANG], [Queue(gpus=23)]))
    assert decided.broken == ("gang",)
    assert not decided.replacements


def test_gang_still_stopping_gets_its_new_node_at_once_and_nobody_else_does() -> None:
    stopping = replace(GANG, reserved=False, leaving=True, beneficiary="gang", then=GANG.on)
    nodes = [replace(node, used_gpus=8, used_cores=1) for node in rack(0, 3)] + rack(0, 1, first=3)
    nodes[1] = replace(nodes[1], usable=False)
    world = snapshot(nodes, [stopping, Job("urgent", priority=9)])
    decided = plan(world)
    assert moved(world, decided, "gang") == {1: "rack-0-host-3"}
    assert not decided.admissions


def test_spare_takes_the_place_and_is_told_to_be_lacking() -> None:
    nodes = rack(0, 4)
    nodes[0] = replace(nodes[0], usable=False)
    world = with_spares(snapshot(nodes, [replace(GANG, on=(*GANG.on, "rack-0-host-3"))]), gang=1)
    decided = plan(world)
    assert moved(world, decided, "gang") == {0: "rack-0-host-3", 3: ""}
    assert [world.nodes.names[node] for node in decided.admissions[0].nodes] == [
        "rack-0-host-3",
        "rack-0-host-1",
        "rack-0-host-2",
    ]


def test_gang_of_which_only_the_spare_stands_starts_there_before_those_who_wait() -> None:
    nodes = rack(0, 3)
    nodes[0] = replace(nodes[0], usable=False)
    alone = replace(GANG, workers=1, on=("rack-0-host-0", "rack-0-host-1"), beneficiary="gang")
    world = with_spares(snapshot(nodes, [alone, Job("urgent", workers=2, priority=9)]), gang=1)
    decided = plan(world)
    assert moved(world, decided, "gang") == {0: "rack-0-host-1", 1: "rack-0-host-2"}
    assert [(each.uid, [world.nodes.names[node] for node in each.nodes]) for each in decided.admissions] == [
        ("gang", ["rack-0-host-1", "rack-0-host-2"])
    ]


def test_room_that_strangers_took_is_left_to_them() -> None:
    nodes = rack(0, 5)
    nodes[2] = replace(nodes[2], used_gpus=8)
    world = snapshot(nodes, [GANG])
    assert moved(world, plan(world), "gang") == {2: "rack-0-host-3"}


def test_gang_waits_in_the_queue_when_strangers_took_its_only_room() -> None:
    nodes = rack(0, 3)
    nodes[2] = replace(nodes[2], used_gpus=8)
    again, victim = replace(GANG, beneficiary="gang"), Job("victim", on=("rack-1-host-0",), leaving=True)
    assert plan(snapshot(nodes, [again])).broken == ("gang",)
    assert plan(snapshot(nodes, [GANG])).broken == ("gang",)
    nodes += rack(1, 1, used_gpus=8, used_cores=1)
    assert not plan(snapshot(nodes, [GANG, replace(victim, beneficiary="gang")])).broken, "it is not gone yet"
    assert plan(snapshot(nodes, [GANG, victim])).broken == ("gang",)


@pytest.mark.parametrize("priority", [-1, 0, 1])
@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize("stops", [True, False], ids=["still stops", "all pods are gone"])
def test_a_gang_that_starts_again_leaves_the_room_of_a_worker_that_had_ended_to_whom_it_is_promised(
    priority: int, elsewhere: bool, stops: bool
) -> None:
    """Worker 1 had ended well on `b`, and others have left the rest of that for `next`, before worker 0 failed."""
    again = Job("gang", workers=2, reserved=True, on=("a", "b"), beneficiary="gang")
    if stops:
        again = Job("gang", 2, holding=True, on=("a", "gone"), leaving=True, beneficiary="gang", then=("a", "b"))
    nodes = [Node("a", used_gpus=8 * stops), Node("b"), Node("c", used_gpus=8 * (not elsewhere))]
    world = snapshot(nodes, [again, Job("next", reserved=True, on=("b",), priority=priority, submitted=1.0)])
    decided = plan(world)
    started = {each.uid: [world.nodes.names[node] for node in each.nodes] for each in decided.admissions}
    assert started["next"] == ["b"]
    assert moved(world, decided, "gang") == ({1: "c"} if elsewhere else {})
    assert started.get("gang") == (["a", "c"] if elsewhere and not stops else None)
    assert decided.broken == (() if elsewhere or stops else ("gang",))


def test_a_gang_that_starts_again_does_not_wait_for_room_that_is_another_s_when_it_comes_back() -> None:
    again = Job("gang", workers=2, reserved=True, on=("a", "b"), beneficiary="gang")
    waits = Job("next", reserved=True, on=("b",), submitted=1.0)
    goes = Job("victim", holding=True, on=("b",), leaving=True, beneficiary="next")
    world = snapshot([Node("a"), Node("b", used_gpus=8), Node("c")], [again, waits, goes])
    decided = plan(world)
    assert moved(world, decided, "gang") == {1: "c"}
    assert [each.uid for each in decided.admissions] == ["gang"]
    assert not decided.broken


def running(*on: str, spares: int, **more: object) -> Job:
    return replace(GANG, reserved=False, on=on, workers=len(on) - spares, **more)  # type: ignore[arg-type]


def full(nodes: list[Node], *names: str) -> list[Node]:
    return [replace(node, used_gpus=8, used_cores=1) if node.name in names else node for node in nodes]


@pytest.mark.parametrize(
    ("mine", "reclaim", "found"),
    [
        ("borrower", Preempts.LOWER_PRIORITY, False),
        ("borrower", Preempts.NEVER, True),  # it does not take back what it lent
        ("owner", Preempts.LOWER_PRIORITY, True),
    ],
)
def test_lacking_spare_borrows_no_quota_that_owners_wait_for(mine: str, reclaim: Preempts, found: bool) -> None:
    nodes = [Node("a", used_gpus=8), Node("b"), Node("c")]
    queues = [Queue("owner", gpus=16, cohort=0), Queue("borrower", gpus=0, cohort=0)]
    gang = Job("gang", workers=1, queue=mine, holding=True, on=("a", "gone"))
    waits = Job("waits", workers=2, queue="owner", submitted=1.0)
    for jobs, told in (([gang, waits], found), ([gang], True)):
        world = with_spares(snapshot(nodes, jobs, queues), gang=1)
        world.jobs.held[0] = world.jobs.requests[0]
        policies = np.full(len(world.queues.names), reclaim, dtype=np.int32)
        world = replace(world, queues=replace(world.queues, reclaim=policies))
        assert moved(world, plan(world), "gang") == ({1: "b"} if told else {})


def test_lacking_spare_of_a_running_gang_is_found_when_there_is_room_for_nobody_else() -> None:
    on = ("rack-0-host-0", "rack-0-host-1", "gone")
    nodes = full([*rack(0, 3), *rack(1, 1)], *on)
    world = with_spares(snapshot(nodes, [running(*on, spares=1)]), gang=1)
    assert moved(world, plan(world), "gang") == {2: "rack-0-host-2"}
    ahead = with_spares(snapshot(nodes, [running(*on, spares=1), Job("first", workers=2)]), gang=1)
    assert not plan(ahead).replacements


def test_lacking_spare_asks_for_quota() -> None:
    on = ("rack-0-host-0", "rack-0-host-1", "gone")
    nodes = full(rack(0, 3), *on)

    def planned(gpus: int) -> dict[int, str]:
        world = with_spares(snapshot(nodes, [running(*on, spares=1)], [Queue(gpus=gpus)]), gang=1)
        held = world.jobs.requests * 2  # the spare that is gone is not counted
        world = replace(world, jobs=replace(world.jobs, held=held))
        return moved(world, plan(world), "gang")

    assert planned(24) == {2: "rack-0-host-2"}
    assert planned(23) == {}


@pytest.mark.parametrize(("own", "found"), [(24, True), (16, False), (8, True)])
def test_nothing_is_borrowed_for_a_lacking_spare_by_a_queue_that_borrows_nothing(own: int, found: bool) -> None:
    """Whoever takes it back ends the whole gang. One that borrows may be asked anyhow."""
    on = ("rack-0-host-0", "rack-0-host-1", "gone")
    shares = [Queue(gpus=own, cohort=0), Queue("lender", gpus=64, cohort=0)]
    world = with_spares(snapshot(full(rack(0, 3), *on), [running(*on, spares=1)], shares), gang=1)
    world = replace(world, jobs=replace(world.jobs, held=world.jobs.requests * 2))
    assert bool(moved(world, plan(world), "gang")) is found


@pytest.mark.parametrize("policy", [DEFAULT, replace(DEFAULT, elastic=False, promotion=False)])
def test_spare_on_a_broken_node_moves_within_the_rack_and_without_a_stop(policy: Policy) -> None:
    on = ("rack-0-host-0", "rack-0-host-1", "rack-0-host-2")
    nodes = full([*rack(0, 4), *rack(1, 1)], *on)
    nodes[2] = replace(nodes[2], usable=False)
    world = with_spares(snapshot(nodes, [running(*on, spares=1)]), gang=1)
    decided = plan(world, policy)
    assert moved(world, decided, "gang") == {2: "rack-0-host-3"}
    assert not decided.evictions


def with_lost(world: Snapshot, **lost: tuple[int, ...]) -> Snapshot:
    """The gangs of these uids wait for new pods of these workers."""
    rows = {world.jobs.uids.index(uid): np.array(indexes, dtype=np.int64) for uid, indexes in lost.items()}
    return replace(world, jobs=replace(world.jobs, runs=replace(world.jobs.runs, lost=rows)))


ON = ("rack-0-host-0", "rack-0-host-1", "rack-0-host-2")


def test_lost_worker_of_a_running_gang_leaves_a_broken_node_and_nobody_gets_its_new_one() -> None:
    nodes = full([*rack(0, 4), *rack(1, 1)], *ON)
    nodes[1] = replace(nodes[1], usable=False)
    others = [Job(f"other-{number}") for number in range(2)]
    world = with_lost(snapshot(nodes, [running(*ON, spares=0), *others]), gang=(1,))
    decided = plan(world)
    assert moved(world, decided, "gang") == {1: "rack-0-host-3"}
    assert [world.nodes.names[each.nodes[0]] for each in decided.admissions] == ["rack-1-host-0"]
    assert not decided.evictions


def test_lost_worker_whose_node_stands_and_workers_that_live_on_broken_nodes_stay() -> None:
    nodes = full(rack(0, 4), *ON)
    nodes[1] = replace(nodes[1], usable=False)
    world = with_lost(snapshot(nodes, [running(*ON, spares=0)]), gang=(2,))
    assert not plan(world).replacements


def test_lost_worker_takes_the_place_of_a_spare_which_goes_elsewhere() -> None:
    nodes = full([node for node in rack(0, 4) if node.name != "rack-0-host-1"], *ON)
    world = with_spares(with_lost(snapshot(nodes, [running(*ON, spares=1)]), gang=(1,)), gang=1)
    assert moved(world, plan(world), "gang") == {1: "rack-0-host-2", 2: "rack-0-host-3"}


def test_lost_worker_gets_no_room_that_is_promised_to_others() -> None:
    nodes = full(rack(0, 4), *ON)
    nodes[1] = replace(nodes[1], usable=False)
    other = replace(GANG, uid="other", workers=1, on=("rack-0-host-3",))
    world = with_lost(snapshot(nodes, [running(*ON, spares=0), other]), gang=(1,))
    decided = plan(world)
    assert not decided.replacements
    assert [each.uid for each in decided.admissions] == ["other"]


@st.composite
def breakdowns(draw: st.DrawFn) -> Snapshot:
    """Promised gangs in racks, some of whose nodes break; others use what is left."""
    racks = [rack(index, draw(st.integers(1, 4)), gpus=4) for index in range(draw(st.integers(1, 3)))]
    nodes = [node for group in racks for node in group]
    free = {node.name: 4 for node in nodes}
    jobs = []
    for number in range(draw(st.integers(1, 3))):
        wanted, gpus = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 4]))
        mode = draw(st.sampled_from(["required", "preferred", "unconstrained"]))
        group = draw(st.sampled_from(racks)) if mode == "required" else nodes
        places = [node.name for node in group for _ in range(free[node.name] // gpus)][:wanted]
        if not places:
            continue
        for name in places:
            free[name] -= gpus
        level = {mode: "rack"} if mode != "unconstrained" else {}
        jobs.append(Job(f"job-{number}", len(places), gpus, cores=0, on=tuple(places), reserved=True, **level))  # type: ignore[arg-type]
    left = []
    for node in nodes:
        if draw(st.sampled_from([True, True, True, False])):
            used = draw(st.integers(0, free[node.name]))
            left.append(replace(node, used_gpus=used, usable=draw(st.sampled_from([True, True, False]))))
    return snapshot(left, jobs)


@thorough
@given(breakdowns())
def test_only_what_broke_moves_within_what_is_required_and_no_room_is_given_twice(world: Snapshot) -> None:
    after, replacements, _ = mend_promises(world, Tree(world.nodes.domains, world.levels))
    event(f"replacements: {len(replacements)}")
    booked: Counter[int] = Counter()
    for row in range(len(world.jobs.uids)):
        before, now = world.jobs.runs.nodes_of(row), after.jobs.runs.nodes_of(row)
        stood = [node != NONE and bool(world.nodes.usable[node]) for node in before]
        found = next((each for each in replacements if each.uid == world.jobs.uids[row]), None)
        if found is None:
            assert now.tolist() == before.tolist()
            booked.update(node for node in now.tolist() if node != NONE)
            continue
        assert [index for index, stands in enumerate(stood) if not stands] == found.indexes.tolist()
        assert all(now[index] == before[index] for index, stands in enumerate(stood) if stands)
        assert world.nodes.usable[now].all()
        if world.jobs.modes[row] == TopologyMode.REQUIRED:
            assert len(set(world.nodes.domains[now, RACK].tolist())) == 1
    asked = np.zeros(len(world.nodes.names), dtype=np.int64)
    for row in range(len(world.jobs.uids)):
        nodes = after.jobs.runs.nodes_of(row)
        np.add.at(asked, nodes[nodes != NONE], world.jobs.requests[row, GPU])
    assert (asked <= world.nodes.free[:, GPU]).all()
    assert mend_promises(after, Tree(world.nodes.domains, world.levels))[1] == ()


@thorough
@given(breakdowns())
def test_promise_alone_breaks_only_if_those_that_stand_leave_no_valid_placement(world: Snapshot) -> None:
    jobs = world.jobs
    if not len(jobs.uids):
        return
    states = np.full(len(jobs.uids), JobState.PENDING, dtype=np.int32)
    states[0] = JobState.RESERVED
    nodes = jobs.runs.nodes_of(0)
    first = np.array([0, *[len(nodes)] * len(jobs.uids)], dtype=np.int64)
    world = replace(world, jobs=replace(jobs, states=states, runs=replace(jobs.runs, first=first, placed=nodes.copy())))
    stands = [node != NONE and bool(world.nodes.usable[node]) for node in nodes]
    if all(stands):
        return
    free = world.nodes.free[:, GPU].copy()
    np.subtract.at(free, nodes[nodes != NONE], jobs.requests[0, GPU])
    room = [
        int(max(0, each) // jobs.requests[0, GPU]) * bool(ok) for each, ok in zip(free, world.nodes.usable, strict=True)
    ]
    at_racks = jobs.modes[0] == TopologyMode.REQUIRED
    home = {int(world.nodes.domains[node, RACK]) for node, ok in zip(nodes, stands, strict=True) if ok}
    there = sum(
        slots
        for slots, domain in zip(room, world.nodes.domains[:, RACK], strict=True)
        if not at_racks or domain in home
    )
    possible = any(stands) and there >= stands.count(False)
    event(f"possible: {possible}")
    decided = plan(world)
    assert ("job-0" in decided.broken) != possible or world.jobs.uids[0] != "job-0"


@thorough
@given(breakdowns())
def test_lost_workers_of_running_gangs_move_alone_into_room_that_nobody_has(world: Snapshot) -> None:
    jobs, free = world.jobs, world.nodes.free.copy()
    gangs = [jobs.runs.nodes_of(row) for row in range(len(jobs.uids))]
    stood = [[node != NONE and bool(world.nodes.usable[node]) for node in nodes] for nodes in gangs]
    for row, nodes in enumerate(gangs):
        np.subtract.at(free, nodes[nodes != NONE], jobs.requests[row])
    lost = {row: np.flatnonzero(~np.array(stands)) for row, stands in enumerate(stood) if not all(stands)}
    states = np.full(len(jobs.uids), JobState.HOLDING, dtype=np.int32)
    jobs = replace(jobs, states=states, runs=replace(jobs.runs, lost=lost))
    world = replace(world, jobs=jobs, nodes=replace(world.nodes, free=free))
    after, replacements = mend_gangs(world, Tree(world.nodes.domains, world.levels))
    event(f"replacements: {len(replacements)}")
    moved = {each.uid: each.indexes.tolist() for each in replacements}
    for row, uid in enumerate(jobs.uids):
        before, now = gangs[row], after.jobs.runs.nodes_of(row)
        if uid not in moved:
            assert now.tolist() == before.tolist()
            continue
        assert moved[uid] == lost[row].tolist()
        assert all(now[index] == before[index] for index, stands in enumerate(stood[row]) if stands)
        assert world.nodes.usable[now].all()
        if jobs.modes[row] == TopologyMode.REQUIRED:
            assert len(set(world.nodes.domains[now, RACK].tolist())) == 1
    assert (after.nodes.free[world.nodes.usable] >= np.minimum(world.nodes.free, 0)[world.nodes.usable]).all()
    assert mend_gangs(after, Tree(world.nodes.domains, world.levels))[1] == ()
