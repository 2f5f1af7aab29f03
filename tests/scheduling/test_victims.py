"""Preemption: who may be asked, what the cheapest set is, and that the gang really starts in what it frees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations, permutations

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings

from muster.scheduling.claims import Right, Standing
from muster.scheduling.demand import coming_back
from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.kinds import Kinds
from muster.scheduling.placement import fits
from muster.scheduling.plan import MoveReason
from muster.scheduling.quota import Ledger, Need
from muster.scheduling.room import Room
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import NONE, Int, JobState, Preempts, Snapshot, TopologyMode
from muster.scheduling.topology import Tree, prefix_sums
from muster.scheduling.victims import Victims, find_victims

from .cases import GPU
from .standing import standing

pytestmark = pytest.mark.unit
thorough = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Case:
    """A snapshot whose row 0 waits, with what a search needs."""

    world: Snapshot
    tree: Tree
    room: Room
    ledger: Ledger
    workers: list[Worker]
    gang: Gang

    @property
    def need(self) -> Need:
        return tuple((resource, amount * self.gang.total) for resource, amount in self.workers[self.gang.worker].asks)

    def find(self, *, elastic: bool = True) -> Victims | None:
        coming = coming_back(self.world, self.tree)
        return find_victims(
            self.world, self.tree, self.room, self.ledger, self.workers, self.gang, 0, coming, elastic=elastic
        )


def case_of(world: Snapshot) -> Case:
    kinds = Kinds(world, np.array([0]), elastic=False)
    tree = Tree(world.nodes.domains, world.levels)
    room = Room(world, tree, kinds.workers)
    return Case(world, tree, room, Ledger(world.queues, world.jobs), kinds.workers, kinds.gang(kinds.of[0]))


def subsets(rows: Iterable[int]) -> Iterator[tuple[int, ...]]:
    rows = list(rows)
    return chain.from_iterable(combinations(rows, size) for size in range(len(rows) + 1))


def cost(world: Snapshot, row: int) -> float:
    """As the docstring says, in words of its own."""
    runs, bases = world.jobs.runs, world.jobs.bases
    seconds = world.now - max(runs.saved[row], runs.started[row]) + runs.restart[row]
    gang = {row, bases.get(row, row), *(beyond for beyond, base in bases.items() if base == row)}
    return float(seconds) * max(1, int(world.jobs.requests[row, GPU]) * sum(len(runs.nodes_of(each)) for each in gang))


def counted(world: Snapshot, row: int) -> float:
    """Each stop that a job has had makes it count once more."""
    return cost(world, row) * (1 + int(world.jobs.runs.stops[row]))


def leaving(world: Snapshot) -> list[int]:
    return [row for row in range(len(world.jobs.uids)) if world.jobs.runs.leaving[row]]


def free_without(world: Snapshot, rows: Iterable[int]) -> Int:
    """N x R, when these are gone."""
    free = world.nodes.free.copy()
    for row in rows:
        for node in world.jobs.runs.nodes_of(row):
            free[node] += world.jobs.requests[row]
    return free


def starts_in(case: Case, free: Int) -> bool:
    """Whether the gang could be placed in this room (N x R)."""
    room = np.ascontiguousarray(free[case.tree.order].T)
    slots = count_slots(room, case.workers[case.gang.worker], case.room.candidates(case.gang.worker))
    return fits(case.tree, prefix_sums(slots), case.gang)


def has_quota(case: Case, rows: Iterable[int]) -> bool:
    world, jobs = case.world, case.world.jobs
    ledger = Ledger(world.queues, jobs)
    for row in rows:
        ledger.discharge(int(jobs.queues[row]), int(jobs.flavours[row]), held(world, row))
    queue, flavour = int(jobs.queues[0]), int(jobs.flavours[0])
    return ledger.shortage(queue, flavour, case.need, borrowing=bool(jobs.terms.preemptible[0])) is None


def held(world: Snapshot, row: int) -> Need:
    return [(resource, amount) for resource, amount in enumerate(world.jobs.held[row].tolist()) if amount]


def is_rightful(case: Case, rights: np.ndarray, rows: Iterable[int], before: Iterable[int] = ()) -> bool:
    """Whether there is an order in which each may be taken after those before, while its queue still borrows where that
    is the right."""
    jobs, queue, flavour = case.world.jobs, int(case.world.jobs.queues[0]), int(case.world.jobs.flavours[0])
    free = [row for row in rows if rights[row] in (Right.YIELDS, Right.PRIORITY)]
    bound = [row for row in rows if row not in free]
    for order in permutations(bound):
        ledger = Ledger(case.world.queues, jobs)
        for row in (*leaving(case.world), *before, *free):
            ledger.discharge(int(jobs.queues[row]), int(jobs.flavours[row]), held(case.world, row))
        allowed = True
        for row in order:
            home = int(jobs.queues[row]), int(jobs.flavours[row])
            if rights[row] == Right.RECLAIM:
                allowed = allowed and ledger.may_reclaim(queue, home[0], flavour, case.need)
            else:
                asked = [resource for resource, _ in case.need]
                allowed = allowed and any(
                    resource in asked and ledger.borrowed(*home, resource) >= amount
                    for resource, amount in held(case.world, row)
                )
            ledger.discharge(*home, held(case.world, row))
        if allowed:
            return True
    return False


def is_enough(case: Case, rows: Iterable[int]) -> bool:
    gone = [*rows, *leaving(case.world)]
    return starts_in(case, free_without(case.world, gone)) and has_quota(case, gone)


@thorough
@given(standing(slices=True))
def test_the_victims_cost_is_the_least_that_any_set_has(world: Snapshot) -> None:
    case = case_of(world)
    rights = Standing(world).rights(case.ledger, 0, int(world.jobs.flavours[0]), case.need)
    yielding = np.flatnonzero(rights == Right.YIELDS).tolist()
    others = np.flatnonzero(rights > Right.YIELDS).tolist()
    found = case.find()
    sets = [
        rows
        for rows in subsets(others)
        if (is_rightful(case, rights, rows, yielding) and is_enough(case, (*rows, *yielding)))
        or (is_rightful(case, rights, rows) and is_enough(case, rows))
    ]
    event(f"solvable: {bool(sets)}, victims: {len(found.rows) if found else '-'}")
    assert (found is not None) == bool(sets)
    if found is None:
        return
    least = min(sum(counted(world, row) for row in rows) for rows in sets)
    evicted = [each.row for each in found.evicted if each.reason is not MoveReason.YIELDED]
    assert sum(counted(world, row) for row in evicted) == pytest.approx(least)
    assert found.lost == pytest.approx(sum(cost(world, each.row) for each in found.evicted))
    assert is_rightful(case, rights, evicted)
    if least:
        assert found.decisive == pytest.approx(least)
    else:
        sets = [rows for rows in subsets(yielding) if is_enough(case, rows)]
        assert found.decisive == pytest.approx(min(sum(counted(world, row) for row in rows) for rows in sets))
    assert found.bound == pytest.approx(found.decisive), "few offers: the search ends"


@thorough
@given(standing(elastic=True, slices=True))
def test_the_gang_starts_in_what_the_victims_free(world: Snapshot) -> None:
    case = case_of(world)
    used = case.ledger.copy()
    found = case.find()
    assert case.ledger._used == used._used, "the ledger is left as it was"
    if found is None:
        return
    event(f"evicted {len(found.evicted)}, shrunk {len(found.shrunk)}")
    free = free_without(world, leaving(world)) + _freed_by(world, found, found.rows)
    assert len(found.nodes) == case.gang.total
    asked = world.jobs.requests[0] > 0
    for node in found.nodes.tolist():
        assert world.nodes.usable[node]
        free[node] -= world.jobs.requests[0]
        assert (free[node][asked] >= 0).all()
    if case.gang.mode == TopologyMode.REQUIRED:
        assert len(set(world.nodes.domains[found.nodes, case.gang.level].tolist())) == 1
    for size, level in case.gang.shape.slices:
        for start in range(0, case.gang.size, size):
            domains = world.nodes.domains[found.nodes[start : start + size], level]
            assert domains[0] != NONE
            assert (domains == domains[0]).all()
    for queue, flavour, need in found.returned:
        used.discharge(queue, flavour, need)
    for row in leaving(world):
        used.discharge(int(world.jobs.queues[row]), int(world.jobs.flavours[row]), held(world, row))
    queue, flavour = int(world.jobs.queues[0]), int(world.jobs.flavours[0])
    assert used.shortage(queue, flavour, case.need, borrowing=bool(world.jobs.terms.preemptible[0])) is None
    assert np.array_equal(
        np.sort(case.tree.order[np.repeat(np.arange(len(found.places)), found.places)]), np.sort(found.nodes)
    )


@thorough
@given(standing(elastic=True))
def test_nobody_is_asked_who_may_not_be(world: Snapshot) -> None:
    case = case_of(world)
    found = case.find()
    jobs, queues = world.jobs, world.queues
    for row in found.rows if found else ():
        other, own = int(jobs.queues[row]), int(jobs.queues[0])
        assert jobs.states[row] == JobState.HOLDING
        assert jobs.terms.preemptible[row]
        assert not jobs.runs.leaving[row]
        lower = jobs.priorities[row] < jobs.priorities[0]
        if jobs.runs.yields[row] and jobs.priorities[row] <= jobs.priorities[0]:
            continue
        if own == other:
            assert lower
            assert queues.within[own] == Preempts.LOWER_PRIORITY
            assert jobs.runs.budget[row] > 0
            continue
        assert lower or queues.reclaim[own] == Preempts.ANY
        flavour = int(jobs.flavours[row])
        borrows = any(case.ledger.borrowed(other, flavour, resource) > 0 for resource, _ in case.need)
        if not borrows:
            assert lower
            assert jobs.runs.budget[row] > 0
            assert all(queues.nominal[other, flavour, resource] == 2**62 for resource, _ in case.need)


@thorough
@given(standing(elastic=True))
def test_elastic_jobs_shrink_before_anybody_is_evicted(world: Snapshot) -> None:
    """Those that are evicted would be in the way even if all elastic jobs among the victims shrank."""
    case = case_of(world)
    found, rigid = case.find(), case.find(elastic=False)
    assert found is not None or rigid is None, "who can be evicted can shrink as well"
    if found is None:
        return
    jobs = world.jobs
    event(f"evicted {len(found.evicted)}, shrunk {len(found.shrunk)}")
    if rigid is not None:
        evicted = [counted(world, each.row) for each in found.evicted if each.reason is not MoveReason.YIELDED]
        assert sum(evicted) <= sum(counted(world, each.row) for each in rigid.evicted) + 1e-6
    for each in found.shrunk:
        whole, size = jobs.runs.nodes_of(each.row), len(each.nodes)
        assert jobs.sizes.least[each.row] <= size < len(whole)
        assert (len(whole) - size) % jobs.sizes.step[each.row] == 0
        ranks = iter(whole.tolist())
        assert all(node in ranks for node in each.nodes.tolist()), "ranks keep their order"


@thorough
@given(standing(elastic=True))
def test_nobody_goes_whom_the_gang_does_not_need(world: Snapshot) -> None:
    case = case_of(world)
    found = case.find()
    for row in found.rows if found else ():
        assert found is not None
        gone = _freed_by(world, found, found.rows) - _freed_by(world, found, [row])
        free = free_without(world, leaving(world)) + gone
        ledger = Ledger(world.queues, world.jobs)
        for other in leaving(world):
            ledger.discharge(int(world.jobs.queues[other]), int(world.jobs.flavours[other]), held(world, other))
        for other, returned in zip(found.rows, found.returned, strict=True):
            if other != row:
                ledger.discharge(*returned)
        queue, flavour = int(world.jobs.queues[0]), int(world.jobs.flavours[0])
        quota = ledger.shortage(queue, flavour, case.need, borrowing=bool(world.jobs.terms.preemptible[0])) is None
        assert not (quota and starts_in(case, _only_in_domain(case, found, free)))


def _freed_by(world: Snapshot, found: Victims, rows: Iterable[int]) -> Int:
    """N x R, what these victims give back."""
    stays = {each.row: each.nodes for each in found.shrunk}
    freed = np.zeros_like(world.nodes.free)
    for row in rows:
        np.add.at(freed, world.jobs.runs.nodes_of(row), world.jobs.requests[row])
        if row in stays:
            np.subtract.at(freed, stays[row], world.jobs.requests[row])
    return freed


def _only_in_domain(case: Case, found: Victims, free: Int) -> Int:
    """Room of the domain that was chosen; the others have none."""
    if case.gang.mode != TopologyMode.REQUIRED:
        return free
    domains = case.world.nodes.domains[:, case.gang.level]
    inside = domains == domains[found.nodes[0]]
    return np.where(inside[:, None], free, -1)
