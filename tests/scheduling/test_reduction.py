"""Nodes of an elastic gang go and none come in their place: it goes on with the largest size that it may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from muster.scheduling.gangs import Gang
from muster.scheduling.plan import Eviction, MoveReason, Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import DEFAULT, Policy
from muster.scheduling.reduction import reduce_gang, smaller_sizes
from muster.scheduling.snapshot import NONE, Shape, Snapshot, TopologyMode
from muster.scheduling.topology import Tree

from . import brute
from .cases import Job, Node, Queue, rack, snapshot
from .test_mending import full, with_lost
from .test_placement import LEVELS, Case
from .test_replacement import case_of

pytestmark = pytest.mark.unit
thorough = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)

BLOCK, RACK = LEVELS.index("block"), LEVELS.index("rack")
WAITED = 1_000.0
"""The moment from which the gangs of these tests go on without those that they lost."""


@st.composite
def breakdowns(draw: st.DrawFn) -> tuple[Case, list[int], list[int], list[int]]:
    """A gang that was placed, the workers that it loses, what is free then, and the sizes that it may go on with."""
    slice_ = draw(st.sampled_from([1, 1, 2]))
    mode, level = draw(
        st.sampled_from(
            [
                (TopologyMode.UNCONSTRAINED, NONE),
                (TopologyMode.PREFERRED, BLOCK),
                (TopologyMode.REQUIRED, BLOCK),
                (TopologyMode.REQUIRED, RACK),
            ]
        )
    )
    slices = ((slice_, RACK),) if slice_ > 1 and level != RACK else ()
    gang = Gang(0, slice_ * draw(st.integers(2, 4)), mode, level, Shape(slices=slices))
    case = case_of(gang, racks=draw(st.integers(1, 3)), hosts=draw(st.integers(2, 4)), slots=draw(st.integers(1, 2)))
    assume(case.located() is not None)
    lost = sorted(draw(st.lists(st.integers(0, gang.size - 1), min_size=1, max_size=gang.size, unique=True)))
    free = draw(st.lists(st.sampled_from([0, 0, 1]), min_size=len(case.slots), max_size=len(case.slots)))
    least, step = slice_ * draw(st.integers(1, gang.size // slice_)), slice_ * draw(st.integers(1, 2))
    return case, lost, free, list(range(least, gang.size, step))[::-1]


@thorough
@given(breakdowns())
def test_the_largest_size_that_those_who_stand_and_free_room_allow(
    breakdown: tuple[Case, list[int], list[int], list[int]],
) -> None:
    case, lost, free, sizes = breakdown
    tree, before = case.tree, case.located()
    assert before is not None
    placed = np.argsort(tree.order)[before]
    placed[lost] = NONE
    found = reduce_gang(tree, np.array(free)[tree.order], case.gang, placed, sizes)
    after = None if found is None else [int(tree.order[place]) for place in found.tolist()]
    standing = [None if index in lost else node for index, node in enumerate(before)]
    largest = _largest(case, standing, free, sizes)
    event(f"slices: {bool(case.gang.shape.slices)}, of {case.gang.size}: {len(after or ())}")
    if not case.gang.shape.slices:
        assert len(after or ()) == largest
    assert len(after or ()) <= largest
    assert len(after or ()) >= max((size for size in sizes if size <= _in_whole_slices(case, standing)), default=0)
    if after is None:
        return
    living = [node for node in standing if node is not None]
    kept = Counter(after) & Counter(living)
    assert sum(kept.values()) >= min(len(after), len(living)) or case.gang.shape.slices, "one that stands is left out"
    assert all(count <= free[node] for node, count in (Counter(after) - kept).items()), "room is given twice"
    ground = brute.Ground.of(case.domains, case.slots.tolist())
    assert brute.may_stand(ground, replace(case.gang, size=len(after)), after, None)


def _largest(case: Case, standing: Sequence[int | None], free: list[int], sizes: list[int]) -> int:
    """By a search through the placements of every size, of those who stand first; 0 for none."""
    ground = brute.Ground.of(case.domains, free)
    slice_ = case.gang.shape.slices[0][0] if case.gang.shape.slices else 1
    parts = [standing[at : at + slice_] for at in range(0, len(standing), slice_)]
    for size in sizes:
        gang = replace(case.gang, size=size)
        for chosen in _choices(len(parts), size // slice_, parts):
            nodes = [node for part in chosen for node in parts[part]]
            if any(node is not None for node in nodes) and brute.can_replace(ground, gang, nodes):
                return size
    return 0


def _choices(parts: int, count: int, all_parts: Sequence[Sequence[int | None]]) -> list[tuple[int, ...]]:
    """Which parts may be kept; of a gang without slices only those that stand first, for workers are alike."""
    if len(all_parts[0]) == 1:
        first = sorted(range(parts), key=lambda part: all_parts[part][0] is None)
        return [tuple(sorted(first[:count]))]
    return [
        tuple(part for part in range(parts) if bits >> part & 1)
        for bits in range(2**parts)
        if bits.bit_count() == count
    ]


def _in_whole_slices(case: Case, standing: Sequence[int | None]) -> int:
    """Workers of slices that have lost nobody."""
    slice_ = case.gang.shape.slices[0][0] if case.gang.shape.slices else 1
    parts = [standing[at : at + slice_] for at in range(0, len(standing), slice_)]
    return sum(len(part) for part in parts if None not in part)


def gang(*on: str, **more: object) -> Job:
    return Job("gang", workers=len(on), on=on, required="rack", **more)  # type: ignore[arg-type]


def elastic(world: Snapshot, least: int, most: int, step: int = 1, *, now: float = WAITED) -> Snapshot:
    """The first job may have from `least` to `most` workers, and goes on without those that it lost from WAITED on."""
    sizes = world.jobs.sizes
    first = np.arange(len(world.jobs.uids)) == world.jobs.uids.index("gang")
    sizes = replace(
        sizes,
        least=np.where(first, least, sizes.least).astype(np.int32),
        most=np.where(first, most, sizes.most).astype(np.int32),
        step=np.where(first, step, sizes.step).astype(np.int32),
        partial=first,
    )
    runs = replace(world.jobs.runs, shrinks=dict.fromkeys(world.jobs.runs.lost, WAITED))
    return replace(world, now=now, jobs=replace(world.jobs, sizes=sizes, runs=runs))


def names(world: Snapshot, nodes: np.ndarray) -> list[str]:
    return [world.nodes.names[node] for node in nodes.tolist()]


def goes_on(world: Snapshot, decided: Plan) -> list[str]:
    """The nodes on which the gang goes on with fewer workers."""
    (eviction,), (promise,) = decided.evictions, decided.promises
    assert (eviction.uid, eviction.reason, eviction.beneficiary) == ("gang", MoveReason.WORKERS_LOST, "gang")
    assert promise.uid == "gang"
    return names(world, promise.nodes)


ON = tuple(f"rack-0-host-{host}" for host in range(4))


def lost(least: int, most: int, *indexes: int, step: int = 1, free: int = 0, now: float = WAITED) -> Snapshot:
    """A gang of four that fills a rack but for `free` hosts; the nodes of these workers are not usable any more."""
    nodes = full([*rack(0, 4 + free), *rack(1, 2)], *ON)
    for index in indexes:
        nodes[index] = replace(nodes[index], usable=False)
    return elastic(with_lost(snapshot(nodes, [gang(*ON)]), gang=indexes), least, most, step, now=now)


def test_a_gang_that_lost_a_worker_waits_and_then_goes_on_with_those_that_live() -> None:
    early = plan(lost(2, 4, 1, now=WAITED - 0.1))
    assert (early.evictions, early.promises, early.replacements) == ((), (), ())
    world = lost(2, 4, 1)
    assert goes_on(world, plan(world)) == [ON[0], ON[2], ON[3]]


def test_a_gang_in_a_held_queue_goes_on_with_those_that_live_and_one_in_a_drained_queue_ends() -> None:
    world = lost(2, 4, 1)
    held = replace(world, queues=replace(world.queues, open=np.array([False])))
    assert goes_on(held, plan(held)) == [ON[0], ON[2], ON[3]]
    drained = plan(replace(held, queues=replace(held.queues, drain=np.array([True]))))
    assert [(each.uid, each.reason) for each in drained.evictions] == [("gang", MoveReason.DRAINED)]


def test_a_free_node_is_taken_instead_also_when_the_time_is_up() -> None:
    decided = plan(lost(2, 4, 1, free=1))
    assert not decided.evictions
    assert [each.indexes.tolist() for each in decided.replacements] == [[1]]


def test_the_gang_keeps_whole_steps_and_fills_one_up_with_free_room() -> None:
    world = lost(2, 4, 1, step=2)
    assert goes_on(world, plan(world)) == [ON[0], ON[2]], "the highest rank is let go"
    nodes = full(rack(0, 7), *ON, "rack-0-host-4", "rack-0-host-5")
    on = (*ON, "rack-0-host-4", "rack-0-host-5")
    for host in (0, 1, 2):
        nodes[host] = replace(nodes[host], usable=False)
    world = elastic(with_lost(snapshot(nodes, [gang(*on)]), gang=(0, 1, 2)), 2, 6, 2)
    assert goes_on(world, plan(world)) == ["rack-0-host-6", "rack-0-host-3", "rack-0-host-4", "rack-0-host-5"]


@pytest.mark.parametrize(("least", "most"), [(4, 4), (4, 6), (3, 5)])
def test_a_gang_that_may_not_be_so_small_waits_on(least: int, most: int) -> None:
    decided = plan(lost(least, most, 0, 3))
    assert (decided.evictions, decided.promises, decided.replacements) == ((), (), ())


def test_one_that_lives_on_a_broken_node_is_left_behind_too() -> None:
    world = lost(1, 4, 1)
    nodes = replace(world.nodes, usable=world.nodes.usable & (np.arange(len(world.nodes.names)) != 2))
    world = replace(world, nodes=nodes)
    assert goes_on(world, plan(world)) == [ON[0], ON[3]], "no new pod could be made there"


def test_a_lost_worker_whose_node_stands_does_not_make_the_gang_smaller() -> None:
    nodes = full(rack(0, 4), *ON)
    assert not plan(elastic(with_lost(snapshot(nodes, [gang(*ON)]), gang=(1,)), 2, 4)).evictions


def test_balanced_gangs_are_not_cut() -> None:
    world = lost(2, 4, 1, step=2)
    shapes = (Shape(balanced=2),)
    world = replace(world, jobs=replace(world.jobs, terms=replace(world.jobs.terms, shapes=shapes)))
    assert not plan(world).evictions


def test_nobody_gets_the_room_that_it_goes_on_in_and_the_next_plan_changes_nothing() -> None:
    world = lost(2, 4, 1)
    after = elastic(
        snapshot(
            [replace(node, usable=index != 1) for index, node in enumerate(full([*rack(0, 4)], *ON))],
            [gang(*ON, leaving=True, beneficiary="gang", then=(ON[0], ON[2], ON[3])), Job("urgent", priority=9)],
        ),
        2,
        4,
    )
    assert goes_on(world, plan(world)) == [ON[0], ON[2], ON[3]]
    again = plan(after)
    assert (again.evictions, again.promises, again.admissions, again.reduced) == ((), (), (), ())


def promised(least: int, most: int, *broken: int, own: bool = True, **job: object) -> Snapshot:
    """A gang of four that is to start again in a rack of which nodes broke."""
    nodes = rack(0, 4)
    for index in broken:
        nodes[index] = replace(nodes[index], usable=False)
    return elastic(snapshot(nodes, [gang(*ON, reserved=True, beneficiary="gang" if own else "", **job)]), least, most)


def test_a_gang_that_starts_again_does_so_at_once_with_those_whose_nodes_stand() -> None:
    world = promised(2, 4, 3)
    decided = plan(world)
    assert not decided.broken
    (smaller,), (started,) = decided.reduced, decided.admissions
    assert names(world, smaller.nodes) == names(world, started.nodes) == list(ON[:3])


def test_one_that_still_stops_is_promised_less_and_nothing_twice() -> None:
    nodes = full(rack(0, 4), *ON)
    nodes[0] = replace(nodes[0], usable=False)
    stopping = gang(*ON, leaving=True, beneficiary="gang", then=ON)
    world = elastic(snapshot(nodes, [stopping]), 2, 4)
    decided = plan(world)
    assert [names(world, each.nodes) for each in decided.reduced] == [list(ON[1:])]
    assert not decided.admissions
    then = elastic(snapshot(nodes, [replace(stopping, then=ON[1:])]), 2, 4)
    assert not plan(then).reduced


@pytest.mark.parametrize(("least", "own"), [(4, True), (3, True), (2, False)])
def test_a_promise_that_can_not_be_smaller_is_broken(least: int, own: bool) -> None:
    decided = plan(promised(least, 4, 0, 1, own=own))
    assert (decided.broken, decided.reduced) == (("gang",), ())


def back(seconds: float, unsaved: float, policy: Policy = DEFAULT) -> tuple[Eviction, ...]:
    """The gang was made smaller so long ago, its fourth node is back, and so much work is not saved."""
    nodes = full(rack(0, 4), *ON[:3])
    world = elastic(snapshot(nodes, [gang(*ON[:3])], [Queue()]), 2, 4, now=WAITED + seconds)
    started = np.array([WAITED])
    runs = replace(world.jobs.runs, started=started, saved=started + seconds - unsaved, restart=np.array([60.0]))
    return plan(replace(world, jobs=replace(world.jobs, runs=runs)), policy).evictions


def test_it_grows_again_once_it_has_stood_for_a_while_and_has_just_saved() -> None:
    assert not back(599.0, 1.0), "nodes that come and go do not make it shrink and grow with them"
    assert not back(601.0, 600.0), "too much would be lost, should the save fail"
    assert [each.reason for each in back(601.0, 1.0)] == [MoveReason.GROWN]
    assert [each.reason for each in back(21.0, 1.0, Policy(settle=20.0))] == [MoveReason.GROWN], "a platform may say so"


def test_sizes_are_whole_steps_above_the_least() -> None:
    world = elastic(snapshot(rack(0, 4), [gang(*ON)]), 2, 9, 3)
    assert [list(smaller_sizes(world, 0, size)) for size in (9, 8, 5, 2)] == [[8, 5, 2], [5, 2], [2], []]
    assert list(smaller_sizes(world, 0, 30)) == [8, 5, 2], "it had more once, and may not any more"


def test_a_tree_without_levels_will_do() -> None:
    world = snapshot([Node("a", None, None), Node("b", None, None)], [])
    tree = Tree(world.nodes.domains, world.levels)
    gang_ = Gang(0, 2, TopologyMode.UNCONSTRAINED, NONE)
    found = reduce_gang(tree, np.array([0, 0]), gang_, np.array([NONE, 1]), [1])
    assert found is not None
    assert found.tolist() == [1]
