"""Whose room a waiting gang gets: the cheapest victims that free a valid shape and enough quota.

Cost is lost work: seconds since a victim's last committed checkpoint and its restart time, times its accelerators; one
that was stopped for others n times before counts n times more (`offers.burdens`). What is asked for first does not
depend on cost: placements that were let in before their turn yield first, then elastic gangs shrink, and only then is
anybody evicted. So the cost of evictions is the least that is possible when all others yield and shrink as far as they
can; then the cost of shrinking is the least for those evictions; then that of yielding.
An elastic gang that shrinks gives back no more replicas than it must; which of them go is told by
`muster.scheduling.offers`, and where that is not the cheapest, by `muster.scheduling.replicas`.

Room that comes back without anybody's help, from placements that are ending already, counts as there: nobody is evicted
for what waiting brings.

The search goes domain by domain of a required level (for other gangs the cluster is the one domain), in the order of
their lower bounds, until no bound is below the best found: `muster.scheduling.hunt`. The set in one domain is found by
`muster.scheduling.clearing`, who may be asked at all by `muster.scheduling.claims`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from muster.scheduling.claims import Right, Standing, held_by
from muster.scheduling.demand import Coming, Demand, Returned, demand
from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.ground import Ground
from muster.scheduling.hunt import Cleared, Hunt
from muster.scheduling.offers import Offers, Tier, build, burdens, gather, needs_of, without
from muster.scheduling.placement import locate
from muster.scheduling.plan import MoveReason
from muster.scheduling.quota import Ledger
from muster.scheduling.replicas import Leaving, choices_of_replicas
from muster.scheduling.room import Room
from muster.scheduling.snapshot import NONE, Index, Int, Mask, Snapshot
from muster.scheduling.topology import Tree, prefix_sums

_REASONS = {
    Right.YIELDS: MoveReason.YIELDED,
    Right.PRIORITY: MoveReason.PREEMPTED,
    Right.RECLAIM: MoveReason.RECLAIMED,
    Right.SURPLUS: MoveReason.PREEMPTED,
}


@dataclass(frozen=True)
class Evicted:
    """A job that has to go, and what that costs in accelerator-seconds."""

    row: int
    reason: MoveReason
    lost: float


@dataclass(frozen=True)
class Shrunk:
    """An elastic job that goes on with fewer workers, on `nodes` (by rank), and what its restart costs."""

    row: int
    nodes: Index
    lost: float


@dataclass(frozen=True)
class Victims:
    """
    Attributes:
        evicted, shrunk: both empty when what comes back anyway is enough: then a promise alone will do.
        lost: accelerator-seconds, of all of them.
        decisive: accelerator-seconds of the last kind that was needed: evictions, else shrinking, else yielding. Each
            job's count as often as its stops make them (`offers.burdens`).
        bound: no valid choice has a lower `decisive`; equal to it when the search went to its end.
        nodes: where the gang starts, by rank, spares behind.
        places: N in tree order, how many of its workers each place gets, as `Room.take` wants it.
        freed_places, freed: places where the victims give room back, and how much: R x places.
        returned: quota that the victims give back, in the order of `rows`.
    """

    evicted: tuple[Evicted, ...]
    shrunk: tuple[Shrunk, ...]
    lost: float
    decisive: float
    bound: float
    nodes: Index
    places: Int
    freed_places: Int
    freed: Int
    returned: Returned

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of all whose placements end."""
        return (*(each.row for each in self.evicted), *(each.row for each in self.shrunk))


def find_victims(
    snapshot: Snapshot,
    tree: Tree,
    room: Room,
    ledger: Ledger,
    workers: Sequence[Worker],
    gang: Gang,
    job: int,
    coming: Coming,
    candidates: Int | None = None,
    *,
    standing: Standing | None = None,
    flavour: int | None = None,
    elastic: bool = True,
    passed: Set[int] = frozenset(),
) -> Victims | None:
    """The cheapest victims for one waiting gang.

    To carry the answer out within a plan: `room.take(gang.worker, found.places)`, charge the gang's need to the ledger,
    and go on with `coming.after(found.rows, found.freed_places, found.freed, found.returned)`.

    Args:
        room: `open` is what the job may take now; what victims give back comes on top of it.
        ledger: with the promises that stand (what their victims still hold is not counted). Left as it was.
        job: row of the gang's job.
        coming: of `coming_back`, and of what was decided earlier in this plan.
        candidates: rows that may be asked; None: all whom the job has a right to ask, as nobody else is in either case.
        standing: of the snapshot, when it was made already.
        flavour: whose quota the gang draws on; None: the job's own.
        elastic: whether elastic jobs may shrink.
        passed: see `Standing.rights`.

    Returns:
        None if the gang could not start even if everybody went who may be asked.
    """
    wants = demand(snapshot, tree, room, ledger, workers, gang, job, coming, flavour)
    if wants is None:
        return None
    rights = (standing or Standing(snapshot)).rights(ledger, job, wants.flavour, wants.need, passed)
    if candidates is not None:
        allowed = np.zeros(len(rights), dtype=np.bool_)
        allowed[candidates] = True
        rights[~allowed] = Right.NONE
    rights[list(coming.gone)] = Right.NONE
    return clear_room(wants, rights, coming, elastic=elastic)


def clear_room(
    wants: Demand, rights: Index, coming: Coming, *, elastic: bool, most: float = math.inf
) -> Victims | None:
    """The cheapest victims among those with a right over them; None where even their `bound` would be above `most`."""
    for queue, flavour, need in coming.quota:
        wants.ledger.discharge(queue, flavour, need)
    found, asked, sizes = None, np.flatnonzero(rights != int(Right.NONE)), wants.snapshot.jobs.sizes
    shrinks = elastic and bool((sizes.least[asked] < sizes.most[asked]).any())
    if _would_do(wants, asked):
        found = _search(wants, rights, elastic=shrinks, most=most)
        if found is None and shrinks and (rights >= int(Right.RECLAIM)).any():
            # Gangs that shrink may leave their queue with so little borrowed that nobody of it may be evicted any more.
            found = _search(wants, rights, elastic=False, most=most)
        if shrinks and (found is None or found.rows):
            found = _with_other_replicas(wants, rights, asked, found)
    for queue, flavour, need in coming.quota:
        wants.ledger.charge(queue, flavour, need)
    return found


def _would_do(wants: Demand, rows: Int) -> bool:
    """Whether quota and room would be enough if all of these went, whatever their rights forbid together.

    Most searches are in vain, and this short look tells nearly all of those.
    """
    if not _would_give_quota(wants, rows):
        return False
    slots = wants.slots(wants.with_back(rows))
    prefix = prefix_sums(slots)
    return bool((prefix[wants.ends] - prefix[wants.starts] >= wants.gang.total).any())


def _would_give_quota(wants: Demand, rows: Int) -> bool:
    """Whether the gang's queue could use enough if all of these went. Only those of its own tree and flavour matter."""
    jobs, ledger = wants.snapshot.jobs, wants.ledger
    short = ledger.shortage(wants.queue, wants.flavour, wants.need, borrowing=wants.borrowing)
    if short is None:
        return True
    of_tree = ledger.circles[jobs.queues[rows]] == ledger.circle(wants.queue)
    helping = rows[of_tree & (jobs.flavours[rows] == wants.flavour)]
    if int(jobs.held[helping, short.resource].sum()) < short.needed - short.available:
        return False
    # The sum may lie where the queue has no way to it: below what others keep to themselves, or above its own limit.
    left = ledger.copy()
    for row, need in zip(helping.tolist(), held_by(wants.snapshot, helping), strict=True):
        left.discharge(int(jobs.queues[row]), wants.flavour, need)
    return left.shortage(wants.queue, wants.flavour, wants.need, borrowing=wants.borrowing) is None


def _with_other_replicas(wants: Demand, rights: Index, asked: Int, found: Victims | None) -> Victims | None:
    """What is found when other replicas leave, if that costs less: see `muster.scheduling.replicas`."""
    least = (float("inf"),) if found is None else _weight(wants.snapshot, found)
    for leaving in choices_of_replicas(wants, rights, asked):
        other = _search(wants, rights, elastic=True, leaving=leaving)
        if other is None:
            continue
        weight = _weight(wants.snapshot, other)
        if weight < least and not np.allclose(weight, least):
            found, least = other, weight
    return found


def _weight(snapshot: Snapshot, found: Victims) -> tuple[float, ...]:
    """What it costs as it counts: of those evicted, of those that shrink, of those that yield; then how many leave."""
    yields = MoveReason.YIELDED
    kinds = (
        [each for each in found.evicted if each.reason is not yields],
        found.shrunk,
        [each for each in found.evicted if each.reason is yields],
    )
    rows = [(np.array([each.row for each in kind], dtype=np.int64), [each.lost for each in kind]) for kind in kinds]
    leave = sum(len(snapshot.jobs.runs.nodes_of(each.row)) - len(each.nodes) for each in found.shrunk)
    return *(float((burdens(snapshot, there) * lost).sum()) for there, lost in rows), float(leave)


def _search(
    wants: Demand, rights: Index, *, elastic: bool, leaving: Leaving | None = None, most: float = math.inf
) -> Victims | None:
    drafts = gather(wants.snapshot, rights, wants.wanted_in, wants.favoured, elastic=elastic, leaving=leaving)
    offers = build(wants.snapshot, drafts, rights, wants.place_of, wants.asked)
    cleared = Hunt(wants, offers, most).search()
    return None if cleared is None else _assemble(wants, offers, cleared, leaving or {})


def _assemble(wants: Demand, offers: Offers, cleared: Cleared, leaving: Leaving) -> Victims:
    """Who goes, who shrinks by how much, and where the gang starts."""
    ground = Ground(wants, offers, cleared.domain, quota=True)
    ground.set(cleared.taken)
    runs = wants.snapshot.jobs.runs
    shrinks = int(Tier.SHRINK)
    gone = [offer for offer in cleared.taken if offers.tiers[offer] != shrinks]
    evicted = {int(offers.rows[offer]): offer for offer in gone}
    going = {row: runs.nodes_of(row) for row in evicted}
    shrunk = []

    def lost(offer: int) -> float:
        return float(offers.costs[offer] / burdens(wants.snapshot, offers.rows[offer : offer + 1])[0])

    for offer in cleared.taken:
        row = int(offers.rows[offer])
        if row not in evicted:
            goes = _trim(wants, offers, ground, offer, leaving.get(row))
            nodes = runs.nodes_of(row)
            going[row] = nodes[goes]
            shrunk.append(Shrunk(row, nodes[~goes], lost(offer)))
    places = _locate(wants, ground)
    ground.clear()
    shrunk.sort(key=lambda each: each.row)
    freed_places, freed = _freed(wants, going)
    return Victims(
        evicted=tuple(
            Evicted(row, _REASONS[Right(int(offers.rights[offer]))], lost(offer))
            for row, offer in sorted(evicted.items())
        ),
        shrunk=tuple(shrunk),
        lost=sum(map(lost, evicted.values())) + sum(each.lost for each in shrunk),
        decisive=cleared.decisive,
        bound=cleared.bound,
        nodes=wants.tree.order[places].astype(np.int32),
        places=np.bincount(places, minlength=len(wants.tree.order)).astype(np.int64),
        freed_places=freed_places,
        freed=freed,
        returned=_returned(wants.snapshot, going, (*sorted(evicted), *(each.row for each in shrunk))),
    )


def _trim(wants: Demand, offers: Offers, ground: Ground, offer: int, leaving: Mask | None) -> Mask:
    """Which workers a shrinking job gives back: no more replicas than must be, the rest of its offer stays."""
    snapshot, row = wants.snapshot, int(offers.rows[offer])
    nodes = snapshot.jobs.runs.nodes_of(row)
    there = (nodes != NONE) & (wants.wanted_in[nodes] == ground.domain) if leaving is None else leaving
    step = max(1, int(snapshot.jobs.sizes.step[row]))
    kept = offers.kept[offer]
    assert kept is not None, "only offers to shrink are trimmed"
    most = (len(nodes) - len(kept)) // step
    favoured = wants.favoured(row, most * step)
    ground.give_back(offer)
    home = offers.homes[offer]
    for replicas in range(1, most + 1):
        going = without(snapshot, row, replicas, there, favoured)
        places = wants.place_of[nodes[going & (nodes != NONE)]]
        columns, counts = np.unique(places, return_counts=True)
        part = (*ground.here(columns, counts, row), home, needs_of(snapshot, row, int(going.sum())))
        if replicas == most or ground.holds_with(*part):
            ground.take_part(*part)
            return going
    raise AssertionError("an offer to shrink gives back at least one replica")


def _locate(wants: Demand, ground: Ground) -> Int:
    """The place of each worker by rank, within the domain that was cleared."""
    slots = ground.widened()
    whole = slots >= wants.room.slots_when_empty(wants.gang.worker).counts
    places = locate(wants.tree, slots, prefix_sums(slots), wants.gang, whole=whole, spared=wants.spared)
    assert places is not None, "a gang that was found to fit was not placed"
    return places


def _freed(wants: Demand, going: dict[int, Index]) -> tuple[Int, Int]:
    """Where room comes back, and how much of each resource."""
    count = len(wants.tree.order)
    freed = np.zeros((count, len(wants.snapshot.resources)), dtype=np.int64)
    for row, nodes in going.items():
        np.add.at(freed, wants.place_of[nodes[nodes != NONE]], wants.snapshot.jobs.requests[row])
    places = np.flatnonzero(freed.any(axis=1)).astype(np.int64)
    return places, freed[places].T.copy()


def _returned(snapshot: Snapshot, going: dict[int, Index], rows: Sequence[int]) -> Returned:
    jobs = snapshot.jobs
    return tuple(
        (int(jobs.queues[row]), int(jobs.flavours[row]), needs_of(snapshot, row, len(going[row]))) for row in rows
    )
