"""A gang is refused only if no valid placement exists, whatever its shape; what it gets is valid and close."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from muster.scheduling.gangs import Gang
from muster.scheduling.packing import share_out
from muster.scheduling.placement import fits, holding, locate, place, placeable
from muster.scheduling.snapshot import NONE, PLAIN, Index, Int, Levels, Shape, TopologyMode
from muster.scheduling.topology import Tree, prefix_sums

from . import brute

pytestmark = pytest.mark.unit
thorough = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])

LEVELS = ("zone", "block", "rack", "host")
HOST = len(LEVELS) - 1


@dataclass(frozen=True)
class Case:
    """A cluster and a gang. `whole` and `spared` only guide the choice."""

    domains: Index
    slots: Int
    whole: Int
    spared: Int
    gang: Gang

    @property
    def tree(self) -> Tree:
        names = tuple(tuple(str(at) for at in range(len(self.slots))) for _ in LEVELS)
        return Tree(self.domains, Levels(LEVELS, names))

    @property
    def ground(self) -> brute.Ground:
        return brute.Ground.of(self.domains, self.slots.tolist())

    def located(self) -> list[int] | None:
        """Node of each worker."""
        tree = self.tree
        slots = self.slots[tree.order]
        options = {"whole": self.whole[tree.order] > 0, "spared": self.spared[tree.order] > 0}
        places = locate(tree, slots, prefix_sums(slots), self.gang, **options)
        counts = place(tree, slots, prefix_sums(slots), self.gang, **options)
        if places is None:
            assert counts is None
            return None
        assert counts is not None
        assert counts.tolist() == np.bincount(places, minlength=len(slots)).tolist()
        assert fits(tree, prefix_sums(slots), self.gang)
        workers = places[: self.gang.size]
        assert (np.diff(workers) >= 0).all(), "ranks do not follow the tree"
        return [int(node) for node in tree.order[places]]


def domains_of(paths: list[tuple[int | None, ...]]) -> Index:
    """Domains by path: rack 0 of one block is not rack 0 of another. A host is a domain of its own."""
    found = np.full((len(paths), len(LEVELS)), NONE, dtype=np.int32)
    known: list[dict[tuple[int | None, ...], int]] = [{} for _ in LEVELS]
    for node, labels in enumerate(paths):
        path = (*labels, node)
        for level in range(len(LEVELS)):
            if None in path[: level + 1]:
                break
            found[node, level] = known[level].setdefault(path[: level + 1], len(known[level]))
    return found


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, Shape]:
    """(size, shape): slices are nested, balance may lie anywhere; the gang has 1 to 12 workers."""
    levels = draw(st.lists(st.integers(0, HOST), max_size=2, unique=True))
    if draw(st.integers(0, 3)):
        levels.sort()
    innermost = draw(st.sampled_from([1, 2, 2, 3]))
    sizes = [innermost * draw(st.sampled_from([2, 2, 3])) ** at for at in reversed(range(len(levels)))]
    unit = sizes[0] if sizes else 1
    size = unit * draw(st.integers(1, max(1, 12 // unit)))
    if draw(st.integers(0, 19)) == 0:
        size += 1
    return size, Shape(
        slices=tuple(zip(sizes, levels, strict=True)),
        balanced=draw(st.sampled_from([NONE, NONE, *range(len(LEVELS))])),
        spares=draw(st.sampled_from([0, 0, 0, 1, 2])),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(2, 9))
    label = st.sampled_from([0, 0, 1, 1, None]) if draw(st.booleans()) else st.integers(0, 1)
    paths = [(draw(st.sampled_from([0, 0, 0, 1])), draw(label), draw(label)) for _ in range(count)]
    slots = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    size, shape = draw(shapes())
    mode = draw(st.sampled_from(TopologyMode))
    level = NONE if mode == TopologyMode.UNCONSTRAINED else draw(st.integers(0, HOST))
    flags = st.lists(st.integers(0, 1), min_size=count, max_size=count)
    return Case(
        domains_of(paths),
        np.array(slots, dtype=np.int64),
        np.array(draw(flags)),
        np.array(draw(flags)),
        Gang(0, size, mode, level, shape),
    )


@thorough
@given(cases())
def test_gang_is_placed_exactly_if_a_valid_placement_exists(case: Case) -> None:
    nodes = case.located()
    exists = brute.exists(case.ground, case.gang)
    event(f"exists: {exists}, slices: {len(case.gang.shape.slices)}, balanced: {case.gang.shape.balanced != NONE}")
    assert (nodes is not None) == exists
    if nodes is not None:
        assert brute.is_valid(case.ground, case.gang, nodes)


@thorough
@given(cases())
def test_fits_says_what_place_does(case: Case) -> None:
    slots = case.slots[case.tree.order]
    assert fits(case.tree, prefix_sums(slots), case.gang) == (case.located() is not None)


@thorough
@given(cases(), st.integers(0, HOST))
def test_domains_that_hold_the_gang_are_those_in_which_a_valid_placement_exists(case: Case, level: int) -> None:
    tree = case.tree
    found = holding(tree, prefix_sums(case.slots[tree.order]), case.gang, level)
    anywhere = replace(case.gang, mode=TopologyMode.UNCONSTRAINED, level=NONE)
    for domain, holds in enumerate(found.tolist()):
        inside = tree.order[tree.starts[level][domain] : tree.ends[level][domain]]
        slots = np.zeros_like(case.slots)
        slots[inside] = case.slots[inside]
        assert holds == brute.exists(brute.Ground.of(case.domains, slots.tolist()), anywhere)


@thorough
@given(cases())
def test_balanced_gang_uses_as_few_domains_as_any_valid_placement_in_its_domain(case: Case) -> None:
    shape = case.gang.shape
    balanced = shape.balanced if shape.balanced != NONE else 2
    case = replace(case, gang=replace(case.gang, shape=replace(shape, balanced=balanced)))
    nodes = case.located()
    if nodes is None or case.gang.mode != TopologyMode.UNCONSTRAINED or (case.spared > 0).any():
        return
    used = {int(case.domains[node, balanced]) for node in nodes[: case.gang.size]}
    assert len(used) == brute.fewest_domains(case.ground, case.gang)


@thorough
@given(cases())
def test_gang_gets_the_narrowest_domain_that_holds_it_and_the_tightest_of_those(case: Case) -> None:
    """A balanced gang prefers few domains to a tight one."""
    shape = replace(case.gang.shape, balanced=NONE)
    case = replace(case, spared=np.zeros_like(case.spared), gang=replace(case.gang, shape=shape))
    nodes = case.located()
    if nodes is None or case.gang.mode == TopologyMode.UNCONSTRAINED:
        return
    anywhere = replace(case.gang, mode=TopologyMode.UNCONSTRAINED, level=NONE)
    for level in reversed(range(len(LEVELS))):
        column = case.domains[:, level]
        rooms = {}
        for domain in set(column.tolist()) - {NONE}:
            slots = np.where(column == domain, case.slots, 0)
            if brute.exists(brute.Ground.of(case.domains, slots.tolist()), anywhere):
                rooms[domain] = int(slots.sum())
        if rooms:
            chosen = set(column[nodes].tolist())
            assert len(chosen) == 1
            assert rooms[chosen.pop()] == min(rooms.values())
            return


@thorough
@given(cases(), st.integers(0, len(LEVELS) - 1))
def test_the_level_of_a_gang_that_only_prefers_moves_no_worker(case: Case, level: int) -> None:
    prefers = replace(case.gang, mode=TopologyMode.PREFERRED, level=0)
    located = replace(case, gang=prefers).located()
    assert replace(case, gang=replace(prefers, level=level)).located() == located


def test_spares_come_last_and_plain_gangs_have_none() -> None:
    case = Case(
        domains_of([(0, 0, 0)] * 3),
        np.array([2, 2, 2]),
        np.ones(3),
        np.zeros(3),
        Gang(0, 4, TopologyMode.REQUIRED, 2, Shape(spares=1)),
    )
    nodes = case.located()
    assert nodes is not None
    assert len(nodes) == 5
    plain = replace(case, gang=replace(case.gang, shape=PLAIN)).located()
    assert plain is not None
    assert len(plain) == 4


def _inside(case: Case, level: int, domain: int) -> brute.Ground:
    """The case's ground with room in one domain of the level alone; level NONE: in all of it."""
    tree = case.tree
    inside = tree.order if level == NONE else tree.order[tree.starts[level][domain] : tree.ends[level][domain]]
    slots = np.zeros_like(case.slots)
    slots[inside] = case.slots[inside]
    return brute.Ground.of(case.domains, slots.tolist())


@thorough
@given(cases(), st.integers(NONE, HOST))
def test_placeable_is_the_largest_gang_of_this_shape_that_each_domain_holds(case: Case, level: int) -> None:
    shape = replace(case.gang.shape, balanced=NONE, spares=0)
    unit = shape.slices[0][0] if shape.slices else 1
    gang = replace(case.gang, mode=TopologyMode.UNCONSTRAINED, level=NONE, shape=shape)
    if gang.size % unit:
        return
    tree = case.tree
    found = placeable(tree, prefix_sums(case.slots[tree.order]), gang, level)
    for domain, most in enumerate(found.tolist()):
        ground = _inside(case, level, domain)
        if any(tree_level <= level for _, tree_level in shape.slices):
            unit = next((size for size, narrower in shape.slices if narrower > level), 1)
        if most and most <= 12:
            assert brute.exists(ground, replace(gang, size=most, shape=_within(shape, level)))
        assert not brute.exists(ground, replace(gang, size=most + unit, shape=_within(shape, level)))


def _within(shape: Shape, level: int) -> Shape:
    """What is left to ask of a gang that lies in one domain of the level."""
    return replace(shape, slices=tuple((size, narrower) for size, narrower in shape.slices if narrower > level))


def test_placeable_of_a_balanced_gang_counts_equal_shares() -> None:
    paths: list[tuple[int | None, ...]] = [(0, 0, 0)] * 5 + [(0, 0, 1)] * 3
    gang = Gang(0, 8, TopologyMode.REQUIRED, 1, Shape(balanced=2))
    case = Case(domains_of(paths), np.ones(8, dtype=np.int64), np.ones(8), np.zeros(8), gang)
    assert placeable(case.tree, prefix_sums(case.slots), gang, 1).tolist() == [6], "3 in each of the two racks"
    assert case.located() is None
    prime = replace(gang, size=7)
    assert placeable(case.tree, prefix_sums(case.slots), prime, NONE).tolist() == [6], "whatever 7 is a multiple of"


@thorough
@given(cases(), st.integers(NONE, HOST))
def test_placeable_of_a_balanced_gang_is_the_most_that_brute_force_finds(case: Case, level: int) -> None:
    shape = Shape(
        balanced=HOST if level == HOST - 1 else HOST - 1, slices=((2, HOST),) if case.gang.size % 2 == 0 else ()
    )
    if level >= shape.balanced:
        return
    gang = replace(case.gang, mode=TopologyMode.UNCONSTRAINED, level=NONE, shape=shape)
    tree, unit = case.tree, 2 if shape.slices else 1
    found = placeable(tree, prefix_sums(case.slots[tree.order]), gang, level)
    for domain, most in enumerate(found.tolist()):
        ground = _inside(case, level, domain)
        sizes = (size for size in range(gang.size, 0, -unit) if brute.exists(ground, replace(gang, size=size)))
        assert most == next(sizes, 0)


quick = settings(max_examples=60, deadline=None)
children = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=12)


@quick
@given(children, children, st.integers(1, 200), st.integers(1, 200), st.sampled_from([1, 40_000]))
def test_one_parent_is_shared_out_as_beside_another(
    one: list[tuple[int, bool]], other: list[tuple[int, bool]], first: int, second: int, scale: int
) -> None:
    """There is a shorter way for a parent alone. `scale`: ranks in more than 16 bits are sorted otherwise."""
    rooms = [np.array([room * scale for room, _ in each], dtype=np.int64) for each in (one, other)]
    if not all(room.any() for room in rooms):
        return
    lasts = [np.array([last for _, last in each], dtype=np.bool_) for each in (one, other)]
    needs = [min(need * scale, int(room.sum())) for need, room in zip((first, second), rooms, strict=True)]
    begins = np.array([0, len(one)])
    together = share_out(np.array(needs), np.concatenate(rooms), begins, np.concatenate(lasts))
    alone = [
        share_out(np.array([need]), *each) for need, *each in zip(needs, rooms, [begins[:1]] * 2, lasts, strict=True)
    ]
    assert together.tolist() == np.concatenate(alone).tolist()
