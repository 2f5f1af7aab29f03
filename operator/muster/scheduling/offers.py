"""What placements that stand could give back, and what that would cost.

An offer is a part of one job's workers that can go at once. A job that can only be evicted makes one offer: all of
them. An elastic job makes two: the workers that it can do without (it shrinks), and the rest, which can only go
together with the first (it is evicted after all).

Which workers a job does without depends on where room is wanted: whole replicas of `Sizes.step` workers, those with the
most workers in the wanted domain first; of these the ones that together make room for a worker of the gang on their
node; of equals the highest ranks. Workers are renumbered in order, so what is left of a gang with slices keeps its
slices whole, because its step is a multiple of its widest slice. Balanced gangs do not shrink where they stand: equal
numbers would not stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from muster.scheduling.claims import Right, goes_on
from muster.scheduling.gangs import is_accelerator
from muster.scheduling.promises import base_stands, stands
from muster.scheduling.quota import Need
from muster.scheduling.snapshot import NONE, Index, Int, Jobs, Mask, Seconds, Snapshot

ELSEWHERE: Final = -2
"""Of an offer: it stands wherever its job has made none for the domain."""


class Tier(IntEnum):
    """What is asked for first: a later tier gives way only when all that the earlier ones offer is not enough."""

    YIELD = 0
    SHRINK = 1
    EVICT = 2


@dataclass(frozen=True)
class Offers:
    """I offers with E entries, one for each node on which an offer has workers.

    Attributes:
        rows: I, the job.
        tiers: I, of Tier.
        rights: I, of `claims.Right`.
        costs: I, accelerator-seconds lost, as often as they count: see `burdens`.
        domains: I, the offer stands only where room is wanted in this domain; NONE: anywhere; or ELSEWHERE.
        rests: I, the workers that an elastic job needs; they go only together with the others.
        first: I + 1; entries of offer i are [first[i], first[i + 1]).
        places: E, in tree order.
        workers: E, how many go.
        given: asked resources x E, what comes back; asked by the gang that wants the room.
        held: I x R, quota that comes back.
        homes: I, (queue, flavour) whose quota it is.
        kept: I, nodes of the workers that stay when a SHRINK offer is taken, by rank; None for the others.
    """

    rows: Int
    tiers: Int
    rights: Int
    costs: Seconds
    domains: Int
    rests: Mask
    first: Int
    places: Int
    workers: Int
    given: Int
    held: Int
    homes: tuple[tuple[int, int], ...]
    kept: tuple[Index | None, ...]

    @property
    def owners(self) -> Int:
        """E, the offer of each entry."""
        return np.repeat(np.arange(len(self.rows)), np.diff(self.first))

    def need(self, offer: int) -> Need:
        """Quota that comes back with an offer."""
        return [(resource, amount) for resource, amount in enumerate(self.held[offer].tolist()) if amount > 0]


def lost_seconds(snapshot: Snapshot, rows: Int) -> Seconds:
    """Accelerator-seconds that ending each placement now costs: work since the last committed checkpoint and the
    restart, times its accelerators. A job without any counts as one."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    accelerators = [index for index, name in enumerate(snapshot.resources) if is_accelerator(name)]
    each = jobs.requests[rows][:, accelerators].max(axis=1, initial=0)
    count = np.maximum(1, each * _workers(jobs, rows))
    since = np.maximum(0.0, snapshot.now - np.maximum(runs.saved[rows], runs.started[rows]))
    lost: Seconds = (since + runs.restart[rows]) * count
    return lost


def _workers(jobs: Jobs, rows: Int) -> Int:
    """Workers of the gangs that stop when these do: who leaves beyond a base stops the base, too."""
    first = jobs.runs.first
    workers: Int = first[rows + 1] - first[rows]
    if jobs.bases:
        other = {**jobs.bases, **{base: row for row, base in jobs.bases.items()}}
        beside = np.array([other.get(row, NONE) for row in rows.tolist()], dtype=np.int64)
        workers += np.where(beside == NONE, 0, first[beside + 1] - first[beside])
    return workers


def burdens(snapshot: Snapshot, rows: Int) -> Seconds:
    """How many times what each job loses counts: once more for each time that it was stopped for others before."""
    return (1 + snapshot.jobs.runs.stops[rows]).astype(np.float64)


class Draft(NamedTuple):
    """One offer in the making. A tuple: every search makes one for each running job that it looks at."""

    row: int
    tier: int
    cost: float
    domain: int
    nodes: Index
    kept: Index | None = None
    rest: bool = False


Favoured = Callable[[int, int], Seconds | None]
"""`Demand.favoured`: by row, and the most workers that may leave."""


def gather(
    snapshot: Snapshot,
    rights: Index,
    domain_of: Int,
    favoured: Favoured,
    *,
    elastic: bool = True,
    leaving: Mapping[int, Mask] | None = None,
) -> list[Draft]:
    """Offers of all jobs with a right over them, cheapest first, then those that started last.

    Args:
        rights: J, of `claims.Right`.
        domain_of: N, by node: the domain in which room may be wanted, or NONE.
        favoured: which workers of an elastic job are to go first.
        elastic: whether elastic jobs may shrink.
        leaving: the workers that leave elastic jobs; who is not in it does not shrink. None: each chooses by itself.
    """
    rows = np.flatnonzero(rights != int(Right.NONE)).astype(np.int64)
    costs = lost_seconds(snapshot, rows) * burdens(snapshot, rows)
    jobs = snapshot.jobs
    # Of equals the lowest priority goes first, then the latest start; the uid makes it certain.
    names = np.array([jobs.uids[row] for row in rows.tolist()], dtype=np.str_)
    order = np.lexsort((names, -jobs.runs.started[rows], jobs.priorities[rows], costs))
    rows, costs = rows[order], costs[order]
    fluid = (jobs.sizes.least[rows] < jobs.sizes.most[rows]) & elastic
    tiers = np.where(rights[rows] == int(Right.YIELDS), int(Tier.YIELD), int(Tier.EVICT))
    columns = (rows, tiers, costs, fluid, jobs.runs.first[rows], jobs.runs.first[rows + 1])
    placed, yields = jobs.runs.placed, int(Tier.YIELD)
    drafts: list[Draft] = []
    for row, tier, cost, may_shrink, first, last in zip(*(column.tolist() for column in columns), strict=True):
        nodes = placed[first:last]
        replicas = replicas_to_spare(snapshot, row) if may_shrink and tier != yields else 0
        if replicas and leaving is not None and row in leaving:
            drafts.extend(_both(row, cost, NONE, nodes, leaving[row]))
        elif replicas and leaving is None:
            drafts.extend(_elastic(snapshot, row, cost, nodes, replicas, domain_of, favoured))
        else:
            drafts.append(Draft(row, tier, cost, NONE, nodes))
    return drafts


def build(snapshot: Snapshot, drafts: list[Draft], rights: Index, place_of: Int, asked: Int) -> Offers:
    """The drafts as arrays.

    Args:
        place_of: N, place in tree order of each node.
        asked: resources that the gang asks for.
    """
    count, jobs = len(place_of), snapshot.jobs
    rows = np.array([draft.row for draft in drafts], dtype=np.int64)
    sizes = np.array([len(draft.nodes) for draft in drafts], dtype=np.int64)
    nodes = np.concatenate([draft.nodes for draft in drafts]) if drafts else np.empty(0, dtype=np.int32)
    owner = np.repeat(np.arange(len(drafts)), sizes)
    there = nodes != NONE
    keys, workers = np.unique(owner[there] * count + place_of[nodes[there]], return_counts=True)
    first = np.searchsorted(keys, np.arange(len(drafts) + 1) * count)
    requests = jobs.requests[rows][:, asked]
    return Offers(
        rows=rows,
        tiers=np.array([draft.tier for draft in drafts], dtype=np.int64),
        rights=rights[rows].astype(np.int64),
        costs=np.array([draft.cost for draft in drafts], dtype=np.float64),
        domains=np.array([draft.domain for draft in drafts], dtype=np.int64),
        rests=np.array([draft.rest for draft in drafts], dtype=np.bool_),
        first=first.astype(np.int64),
        places=keys % max(1, count),
        workers=workers.astype(np.int64),
        given=np.ascontiguousarray((requests[keys // max(1, count)] * workers[:, None]).T),
        held=_held(snapshot, rows, sizes),
        homes=tuple(zip(jobs.queues[rows].tolist(), jobs.flavours[rows].tolist(), strict=True)),
        kept=tuple(draft.kept for draft in drafts),
    )


def _held(snapshot: Snapshot, rows: Int, sizes: Int) -> Int:
    """I x R, quota that so many workers of each job hold; see `needs_of`."""
    runs, held = snapshot.jobs.runs, snapshot.jobs.held[rows]
    whole = np.maximum(1, runs.first[rows + 1] - runs.first[rows])
    parts: Int = held // whole[:, None] * sizes[:, None]
    return np.where((sizes == whole)[:, None], held, parts)


def needs_of(snapshot: Snapshot, row: int, workers: int) -> Need:
    """Quota of so many of a job's workers; a job holds it in proportion to its workers."""
    runs = snapshot.jobs.runs
    whole = max(1, int(runs.first[row + 1] - runs.first[row]))
    # A job's workers are alike, so the division leaves no rest; should it, the last worker gives the rest back too.
    held = snapshot.jobs.held[row].tolist()
    parts = held if workers == whole else [amount // whole * workers for amount in held]
    return tuple((resource, amount) for resource, amount in enumerate(parts) if amount > 0)


def replicas_to_spare(snapshot: Snapshot, row: int) -> int:
    """How many replicas a standing job can do without; 0 for one that may not shrink where it stands."""
    jobs = snapshot.jobs
    least, step = int(jobs.sizes.least[row]), max(1, int(jobs.sizes.step[row]))
    if least >= jobs.sizes.most[row] or not goes_on(snapshot)[row]:
        return 0
    shape = jobs.terms.shapes[row]
    if shape.balanced != NONE or (shape.slices and step % shape.slices[0][0]):
        return 0
    if not stands(snapshot, row, jobs.runs.nodes_of(row)).all() or not base_stands(snapshot, row):
        return 0  # what stays starts again, and no job starts on such a node
    more = len(jobs.runs.nodes_of(row)) - shape.spares - least
    return 0 if more % step else max(0, more // step)  # no whole steps lead from a size that it may not have to one


def _elastic(
    snapshot: Snapshot, row: int, cost: float, nodes: Index, replicas: int, domain_of: Int, favoured: Favoured
) -> list[Draft]:
    """Two offers for each domain in which the job has workers, and two for all others; two in all if it lies in one."""
    there = domain_of[nodes]
    there[nodes == NONE] = NONE
    domains = [NONE] if (there == there[0]).all() else [ELSEWHERE, *np.unique(there[there != NONE]).tolist()]
    drafts: list[Draft] = []
    first = favoured(row, replicas * max(1, int(snapshot.jobs.sizes.step[row])))
    for domain in domains:
        going = without(snapshot, row, replicas, there == domain, first)
        drafts.extend(_both(row, cost, domain, nodes, going))
    return drafts


def _both(row: int, cost: float, domain: int, nodes: Index, going: Mask) -> list[Draft]:
    """An elastic job without these workers, and the rest of it."""
    drafts = [Draft(row, int(Tier.SHRINK), cost, domain, nodes[going], nodes[~going])]
    if not going.all():  # workers beyond a base may all go
        drafts.append(Draft(row, int(Tier.EVICT), cost, domain, nodes[~going], rest=True))
    return drafts


def without(snapshot: Snapshot, row: int, replicas: int, wanted: Mask, favoured: Seconds | None = None) -> Mask:
    """Which workers go when the job gives back so many replicas, where `wanted` tells whose nodes are wanted, and
    `favoured` for how much (see `Demand.favoured`).

    Replicas are counted from the last rank of the gang backwards; spares behind it stay.
    """
    jobs = snapshot.jobs
    step = max(1, int(jobs.sizes.step[row]))
    size = len(wanted) - jobs.terms.shapes[row].spares
    count = (size - size % step) // step
    blocks = np.arange(size - count * step, size).reshape(count, step)
    useful = wanted[blocks].sum(axis=1)
    order: tuple[Int | Seconds, ...] = (-np.arange(count), -useful)
    if favoured is not None:
        gains = favoured[blocks].sum(axis=1)
        together = np.where(gains > 0, _last_on_node(jobs.runs.nodes_of(row)[:size])[blocks[:, -1]], 0)
        order = (-np.arange(count), -together, -gains, -useful)
    chosen = np.lexsort(order)[:replicas]
    going = np.zeros(len(wanted), dtype=np.bool_)
    going[blocks[chosen].ravel()] = True
    return going


def _last_on_node(nodes: Index) -> Int:
    """W, the last worker on the node of each."""
    last = {node: rank for rank, node in enumerate(nodes.tolist())}
    return np.array([last[node] for node in nodes.tolist()], dtype=np.int64)
