"""Elastic jobs shrink before anybody is evicted: all sets of shrinks and victims on small clusters, one by one.

`test_victims.py` does the same for jobs that can only go whole. Here each job that may be asked stays, gives back any
of its replicas, or goes; what a search finds is compared with the cheapest of all these ways, in the order of
docs/victims.md: what is lost by those who are evicted, then by those who shrink, then by those who yield.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from math import comb, prod

import pytest
from hypothesis import HealthCheck, assume, event, given, settings

from muster.scheduling.claims import Right, Standing
from muster.scheduling.quota import Ledger, Need
from muster.scheduling.snapshot import NONE, PLAIN, Shape, Snapshot
from muster.scheduling.victims import Victims

from .standing import standing, world_of
from .test_victims import Case, case_of, counted, free_without, held, leaving, starts_in

pytestmark = pytest.mark.unit
thorough = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
CHOICES, WAYS = 32, 20_000
"""Choices of replicas up to which the search promises the cheapest, and ways that are tried for one cluster at most."""

Ways = Mapping[int, "Way"]
"""By row."""


@dataclass(frozen=True)
class Way:
    """What is asked of one job: the nodes that workers of it leave, one for each; all of them if it goes."""

    left: tuple[int, ...]
    whole: bool


def with_spares(world: Snapshot) -> Snapshot:
    """Jobs of one size, with room for one worker more: that is part of the gang, and goes with it alone."""
    jobs, shapes, workers = world.jobs, list(world.jobs.terms.shapes), world.jobs.workers.copy()
    for row in range(len(jobs.uids)):
        rigid = jobs.sizes.least[row] == jobs.sizes.most[row]
        if row % 2 == 0 and rigid and workers[row] > 1 and shapes[row] is PLAIN and row not in jobs.beyond:
            shapes[row] = Shape(spares=1)
            workers[row] -= 1
    sizes = replace(jobs.sizes, least=jobs.sizes.least.copy(), most=jobs.sizes.most.copy())
    for row, shape in enumerate(shapes):
        sizes.least[row] -= shape.spares
        sizes.most[row] -= shape.spares
    terms = replace(jobs.terms, shapes=tuple(shapes))
    return replace(world, jobs=replace(jobs, workers=workers, sizes=sizes, terms=terms))


def replicas(world: Snapshot, row: int) -> tuple[list[tuple[int, ...]], int]:
    """The nodes of each replica, and how many of these the job can do without."""
    jobs, sizes = world.jobs, world.jobs.sizes
    nodes, step = jobs.runs.nodes_of(row).tolist(), int(sizes.step[row])
    more = len(nodes) - jobs.terms.shapes[row].spares - int(sizes.least[row])
    there = [*nodes, *jobs.runs.nodes_of(jobs.bases[row]).tolist()] if row in jobs.bases else nodes
    well = all(world.nodes.usable[node] and world.eligible[jobs.filters[row], node] for node in there)
    if sizes.least[row] >= sizes.most[row] or more % step or not well or jobs.terms.shapes[row].balanced != NONE:
        return [], 0
    first = len(nodes) % step
    return [tuple(nodes[at : at + step]) for at in range(first, len(nodes), step)], more // step


def ways(world: Snapshot, row: int, right: int) -> list[Way]:
    """All that may be asked of a job, nothing first."""
    blocks, spare = replicas(world, row) if right > Right.YIELDS else ([], 0)
    sets = [sum(some, ()) for size in range(1, spare + 1) for some in combinations(blocks, size)]
    less = dict.fromkeys(tuple(sorted(left)) for left in sets)
    everything = tuple(world.jobs.runs.nodes_of(row).tolist())
    goes = [] if tuple(sorted(everything)) in less else [Way(everything, whole=True)]  # all that is beyond a base may
    return [Way((), whole=False), *(Way(left, whole=False) for left in less), *goes]


def gives(world: Snapshot, row: int, way: Way) -> Need:
    """Quota that comes back."""
    workers = len(world.jobs.runs.nodes_of(row))
    return [(resource, amount // workers * len(way.left)) for resource, amount in held(world, row) if way.left]


def weight(world: Snapshot, rights: Mapping[int, int], asked: Ways) -> tuple[float, float, float]:
    """What is lost: by who is evicted, shrinks, yields."""
    evicted = sum(counted(world, row) for row, way in asked.items() if way.whole and rights[row] > Right.YIELDS)
    shrunk = sum(counted(world, row) for row, way in asked.items() if way.left and not way.whole)
    yielded = sum(counted(world, row) for row, way in asked.items() if way.whole and rights[row] == Right.YIELDS)
    return evicted, shrunk, yielded


def is_enough(case: Case, asked: Ways) -> bool:
    world = case.world
    free, ledger = free_without(world, leaving(world)), Ledger(world.queues, world.jobs)
    for row in leaving(world):
        ledger.discharge(int(world.jobs.queues[row]), int(world.jobs.flavours[row]), held(world, row))
    for row, way in asked.items():
        for node in way.left:
            free[node] += world.jobs.requests[row]
        ledger.discharge(int(world.jobs.queues[row]), int(world.jobs.flavours[row]), gives(world, row, way))
    queue, flavour = int(world.jobs.queues[0]), int(world.jobs.flavours[0])
    borrowing = bool(world.jobs.terms.preemptible[0])
    return ledger.shortage(queue, flavour, case.need, borrowing=borrowing) is None and starts_in(case, free)


def is_rightful(case: Case, rights: Mapping[int, int], asked: Ways) -> bool:
    """Whether there is an order in which each may be asked after those before, while its queue borrows that much."""
    jobs, claim = case.world.jobs, (int(case.world.jobs.queues[0]), int(case.world.jobs.flavours[0]))
    taken = [row for row, way in asked.items() if way.left]
    bound = [row for row in taken if rights[row] in (Right.RECLAIM, Right.SURPLUS)]
    start = Ledger(case.world.queues, jobs)
    for row in leaving(case.world):
        start.discharge(int(jobs.queues[row]), int(jobs.flavours[row]), held(case.world, row))
    for row in taken:
        if row not in bound:
            start.discharge(int(jobs.queues[row]), int(jobs.flavours[row]), gives(case.world, row, asked[row]))
    needed = [resource for resource, _ in case.need]
    for order in permutations(bound):
        ledger, allowed = start.copy(), True
        for row in order:
            home, back = (int(jobs.queues[row]), int(jobs.flavours[row])), gives(case.world, row, asked[row])
            if rights[row] == Right.RECLAIM:
                allowed = allowed and ledger.may_reclaim(claim[0], home[0], claim[1], case.need)
            else:
                borrowed = (ledger.borrowed(*home, resource) >= amount for resource, amount in back)
                allowed = allowed and any(
                    enough and resource in needed for enough, (resource, _) in zip(borrowed, back, strict=True)
                )
            ledger.discharge(*home, back)
        if allowed:
            return True
    return False


def cheapest(case: Case, rights: Mapping[int, int]) -> tuple[float, float, float] | None:
    """The least that any way costs that is enough and rightful."""
    every = [ways(case.world, row, right) for row, right in rights.items()]
    asked = [dict(zip(rights, some, strict=True)) for some in product(*every)]
    costs = sorted((weight(case.world, rights, each), index) for index, each in enumerate(asked))
    enough = (cost for cost, at in costs if is_enough(case, asked[at]) and is_rightful(case, rights, asked[at]))
    return next(enough, None)


def rights_of(case: Case) -> dict[int, int]:
    """By row of those who may be asked."""
    jobs = case.world.jobs
    found = Standing(case.world).rights(case.ledger, 0, int(jobs.flavours[0]), case.need).tolist()
    return {row: right for row, right in enumerate(found) if right != Right.NONE}


def asked_by(world: Snapshot, found: Victims) -> dict[int, Way]:
    """What the search asks for."""
    asked = {each.row: Way(tuple(world.jobs.runs.nodes_of(each.row).tolist()), whole=True) for each in found.evicted}
    for each in found.shrunk:
        left = world.jobs.runs.nodes_of(each.row).tolist()
        for node in each.nodes.tolist():
            left.remove(node)
        asked[each.row] = Way(tuple(left), whole=False)
    return asked


def is_small(world: Snapshot, rights: Mapping[int, int]) -> bool:
    """Whether somebody may shrink, and all ways can be tried, by the search too."""
    blocks = [replicas(world, row) for row, right in rights.items() if right > Right.YIELDS]
    sets = [sum(comb(len(each), size) for size in range(1, spare + 1)) for each, spare in blocks if spare]
    every = prod(len(ways(world, row, right)) for row, right in rights.items())
    return bool(sets) and prod(sets) <= CHOICES and every <= WAYS


@thorough
@given(standing(elastic=True, slices=True, jobs=5).map(with_spares))
def test_nothing_cheaper_is_enough_than_what_is_asked_for(world: Snapshot) -> None:
    case = case_of(world)
    rights = rights_of(case)
    assume(is_small(world, rights))
    found = compare(case, rights)
    event(f"shrunk: {len(found.shrunk)}, evicted: {len(found.evicted)}" if found else "nobody is asked")


@settings(thorough, max_examples=150)
@given(standing(elastic=True, slices=True, jobs=4, bases=True))
def test_of_gangs_with_a_base_those_beyond_it_shrink_first_and_all_of_them_may_go(world: Snapshot) -> None:
    """A base goes whole, like a job of one size; what is lost is what the whole gang loses, whichever part is asked."""
    case = case_of(world)
    rights = rights_of(case)
    assume(is_small(world, rights) and any(row in world.jobs.bases or row in world.jobs.beyond for row in rights))
    event(f"who gives room back: {parts(world, compare(case, rights))}")


@pytest.mark.parametrize(
    ("seed", "those"),
    [
        (94, ["beyond, all"]),
        (162, ["beyond"]),
        (350, ["base"]),
        (511, ["beyond", "other"]),
        (567, ["base", "beyond"]),
        (957, ["base", "beyond, all"]),
        (2625, ["beyond, all", "other"]),
    ],
)
def test_a_base_and_those_beyond_it_give_room_back_apart(seed: int, those: list[str]) -> None:
    world = world_of(seed, elastic=True, slices=True, jobs=4, bases=True)
    case = case_of(world)
    assert parts(world, compare(case, rights_of(case))) == those


def parts(world: Snapshot, found: Victims | None) -> list[str]:
    """What those are who give room back."""
    evicted, shrunk = (found.evicted, found.shrunk) if found else ((), ())
    bases = ["base" if each.row in world.jobs.beyond else "other" for each in evicted]
    left = ["beyond" if len(each.nodes) else "beyond, all" for each in shrunk if each.row in world.jobs.bases]
    return sorted([*bases, *left, *("other" for each in shrunk if each.row not in world.jobs.bases)])


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(2129, id="one worker leaves room for two"),
        pytest.param(4128, id="a slot without a neighbour makes no slice"),
        pytest.param(4174, id="two jobs shrink on one node"),
        pytest.param(4453, id="one shrinks beside one that yields"),
        pytest.param(1726, id="its queue has borrowed less than it can do without"),
        pytest.param(715, id="one is evicted and one shrinks"),
        pytest.param(6355, id="fewer have to yield"),
        pytest.param(11561, id="in the other rack nobody has to yield"),
    ],
)
def test_other_replicas_leave_where_that_costs_less(seed: int) -> None:
    case = case_of(world_of(seed, elastic=True, slices=True, jobs=5))
    assert compare(case, rights_of(case)) is not None


def compare(case: Case, rights: Mapping[int, int]) -> Victims | None:
    """What is found: the cheapest of all ways."""
    found, least = case.find(), cheapest(case, rights)
    assert (found is not None) == (least is not None)
    if found is not None:
        asked = asked_by(case.world, found)
        assert is_enough(case, asked)
        assert is_rightful(case, rights, asked)
        assert weight(case.world, rights, asked) == pytest.approx(least)
        for each in found.shrunk:
            for way in ways(case.world, each.row, rights[each.row]):
                if len(way.left) < len(asked[each.row].left):
                    fewer = {**asked, each.row: way}
                    assert not (is_enough(case, fewer) and is_rightful(case, rights, fewer)), "more leave than must"
    return found
