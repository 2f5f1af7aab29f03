"""What broke is replaced wherever the workers that stand leave a valid placement, spares first."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from muster.scheduling.gangs import Gang
from muster.scheduling.replacement import replace_workers
from muster.scheduling.snapshot import NONE, Levels, Shape, TopologyMode
from muster.scheduling.topology import Tree

from . import brute
from .test_placement import LEVELS, Case, cases, domains_of

pytestmark = pytest.mark.unit
thorough = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)

ZONE, BLOCK, RACK, HOST = range(len(LEVELS))


def place_anew(case: Case, lost: list[int], free: list[int], gone: list[int]) -> dict[int, int] | None:
    """The new node of each index that moves (NONE: the spare has none). `gone`: of the lost, those without a node."""
    tree, before = case.tree, case.located()
    assert before is not None
    placed = np.argsort(tree.order)[before]
    placed[gone] = NONE
    found = replace_workers(tree, np.array(free)[tree.order], case.gang, placed, np.array(lost, dtype=np.int64))
    if found is None:
        return None
    assert found.indexes.tolist() == sorted(set(found.indexes.tolist()))
    places = [int(tree.order[place]) if place != NONE else NONE for place in found.places.tolist()]
    return dict(zip(found.indexes.tolist(), places, strict=True))


@st.composite
def breakdowns(draw: st.DrawFn) -> tuple[Case, list[int], list[int], list[int]]:
    """A gang that was placed, the workers that it loses, what is free then, and whose nodes are gone."""
    case = draw(cases())
    assume(case.located() is not None)
    lost = sorted(draw(st.lists(st.integers(0, case.gang.total - 1), min_size=1, max_size=5, unique=True)))
    free = draw(st.lists(st.integers(0, 2), min_size=len(case.slots), max_size=len(case.slots)))
    return case, lost, free, [index for index in lost if draw(st.booleans())]


@thorough
@given(breakdowns())
def test_lost_workers_are_replaced_exactly_if_those_that_stand_leave_a_valid_placement(
    breakdown: tuple[Case, list[int], list[int], list[int]],
) -> None:
    case, lost, free, gone = breakdown
    gang, before, moved = case.gang, case.located(), place_anew(case, lost, free, gone)
    assert before is not None
    standing = [None if index in lost else before[index] for index in range(gang.size)]
    ready = Counter(before[spare] for spare in range(gang.size, gang.total) if spare not in lost)
    seats = [slots + ready[node] for node, slots in enumerate(free)]
    if standing == [None] * gang.size and gang.mode == TopologyMode.REQUIRED:  # it stays with its spares
        home = int(case.domains[before[0], gang.level])
        seats = [count * (int(case.domains[node, gang.level]) == home) for node, count in enumerate(seats)]
    room = brute.Ground.of(case.domains, seats)
    possible = (standing != [None] * gang.size or bool(ready)) and brute.can_replace(room, gang, standing)
    event(f"nobody but spares stands: {standing == [None] * gang.size and bool(ready)}")
    event(f"possible: {possible}, slices: {len(gang.shape.slices)}, balanced: {gang.shape.balanced != NONE}")
    assert (moved is not None) == possible
    if moved is None:
        return
    assert set(lost) <= set(moved)
    after = [moved.get(index, before[index]) for index in range(gang.size)]
    assert NONE not in after
    assert any(brute.may_stand(room, gang, after, share) for share in brute.shares(gang))
    _check_room(case, before, moved, lost, free)


def _check_room(case: Case, before: list[int], moved: dict[int, int], lost: list[int], free: list[int]) -> None:
    """Nobody is put where neither room is free nor a spare stood; nobody moves but the lost, and spares for them."""
    gang = case.gang
    spares = [index for index in moved if index >= gang.size and index not in lost]
    taken = Counter(node for node in moved.values() if node != NONE)
    given_up = Counter(before[spare] for spare in spares)
    assert all(count <= free[node] + given_up[node] for node, count in taken.items())
    assert all(index in lost or index >= gang.size for index in moved)
    by_workers = Counter(node for index, node in moved.items() if index < gang.size)
    assert all(by_workers[node] >= count for node, count in given_up.items()), "a spare moved for nobody"
    if gang.mode == TopologyMode.REQUIRED:
        there = {int(case.domains[node, gang.level]) for node in moved.values() if node != NONE}
        assert there <= {int(case.domains[before[0], gang.level])}


def case_of(gang: Gang, racks: int = 2, hosts: int = 4, slots: int = 1) -> Case:
    """Racks of one block."""
    count = racks * hosts
    return Case(
        domains_of([(0, 0, host // hosts) for host in range(count)]),
        np.full(count, slots),
        np.ones(count),
        np.zeros(count),
        gang,
    )


def required(level: int, size: int, **shape: object) -> Gang:
    return Gang(0, size, TopologyMode.REQUIRED, level, Shape(**shape))  # type: ignore[arg-type]


def test_spare_goes_first_and_is_lacking_when_nothing_else_is_free() -> None:
    case = case_of(required(RACK, 3, spares=1))
    before = case.located()
    assert before is not None
    assert place_anew(case, [0], [0] * 8, [0]) == {0: before[3], 3: NONE}


def test_spare_is_made_good_in_the_same_rack() -> None:
    case = case_of(required(RACK, 2, spares=1))
    assert case.located() == [0, 1, 2]
    assert place_anew(case, [1], [0, 0, 0, 1, 1, 1, 1, 1], [1]) == {1: 2, 2: 3}


def test_spare_of_another_rack_does_not_help_a_slice() -> None:
    case = case_of(Gang(0, 8, TopologyMode.PREFERRED, BLOCK, Shape(slices=((4, RACK),), spares=1)), racks=3)
    assert place_anew(case, [1], [0] * 12, [1]) is None
    assert place_anew(case, [1], [0, 1] + [0] * 10, [1]) == {1: 1}


def test_slice_that_is_lost_whole_moves_to_a_rack_that_holds_it() -> None:
    case = case_of(Gang(0, 8, TopologyMode.PREFERRED, BLOCK, Shape(slices=((4, RACK),))), racks=4)
    free = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1]
    moved = place_anew(case, [0, 1, 2, 3], free, [])
    assert moved is not None
    assert sorted(moved.values()) == [12, 13, 14, 15]


def test_worker_goes_close_to_its_neighbour_in_rank() -> None:
    case = case_of(Gang(0, 6, TopologyMode.UNCONSTRAINED, NONE), hosts=3)
    assert place_anew(case, [4], [1, 0, 0, 0, 1, 0], [4]) == {4: 4}


def test_required_rack_is_not_left() -> None:
    case = case_of(required(RACK, 4))
    assert place_anew(case, [2], [0, 0, 0, 0, 1, 1, 1, 1], [2]) is None


def test_gang_of_which_only_spares_stand_goes_to_their_places() -> None:
    case = case_of(required(RACK, 2, spares=2))
    assert case.located() == [0, 1, 2, 3]
    assert place_anew(case, [0, 1], [0] * 8, [0, 1]) == {0: 2, 1: 3, 2: NONE, 3: NONE}
    alone = case_of(required(RACK, 1, spares=1))
    assert place_anew(alone, [0], [0, 0, 0, 1, 1, 1, 1, 1], [0]) == {0: 1, 1: 3}
    assert place_anew(case_of(required(RACK, 2, spares=1)), [0, 1], [0, 0, 0, 0, 1, 1, 1, 1], [0, 1]) is None


def test_gang_of_which_nobody_stands_is_placed_anew_as_a_whole() -> None:
    case = case_of(required(RACK, 2))
    assert place_anew(case, [0, 1], [1] * 8, []) is None


def test_tree_without_levels_will_do() -> None:
    tree = Tree(np.empty((3, 0), dtype=np.int32), Levels((), ()))
    gang = Gang(0, 2, TopologyMode.UNCONSTRAINED, NONE)
    found = replace_workers(tree, np.array([0, 0, 1]), gang, np.array([0, 1]), np.array([1]))
    assert found is not None
    assert found.places.tolist() == [2]
