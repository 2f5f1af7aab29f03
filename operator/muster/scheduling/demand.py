"""What a waiting gang demands, and what it finds: the fixed part of one search for victims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from muster.scheduling.claims import held_by, in_time
from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.grainwise import Measure, measure_of
from muster.scheduling.quota import Ledger, Need
from muster.scheduling.room import Room
from muster.scheduling.snapshot import NONE, Int, Mask, Seconds, Snapshot, TopologyMode
from muster.scheduling.topology import Tree

Returned = tuple[tuple[int, int, Need], ...]
"""(queue, flavour, need) of quota that comes back."""


@dataclass(frozen=True)
class Coming:
    """What comes back from placements that are ending already.

    Attributes:
        room: R x N, in tree order.
        quota: what a ledger that keeps promises still counts.
        gone: rows whose end was decided in this plan.
        freed: of those, by the set in which they were asked: their rows, places, and R x places.
    """

    room: Int
    quota: Returned
    gone: frozenset[int]
    freed: tuple[tuple[tuple[int, ...], Int, Int], ...] = ()

    def after(self, rows: Sequence[int], places: Int, freed: Int, returned: Returned) -> Coming:
        """The same with more placements ending; `freed` is R x places."""
        room = self.room.copy()
        room[:, places] += freed
        apart = (*self.freed, (tuple(rows), places, freed))
        return replace(self, room=room, quota=self.quota + returned, gone=self.gone | set(rows), freed=apart)

    def in_time(self, snapshot: Snapshot, tree: Tree, job: int) -> Coming:
        """The same without what those leave who may take so long to go that a job's window is shut by then: else others
        would be asked to go for it in vain. A set of victims counts when all of them are gone."""
        late = ~in_time(snapshot, job)
        if not late.any():
            return self
        missing, room = coming_back(snapshot, tree, late), self.room.copy()
        room -= missing.room
        for rows, places, freed in self.freed:
            if late[list(rows)].any():
                room[:, places] -= freed
        kept = [
            (queue, flavour, tuple((resource, -amount) for resource, amount in need))
            for queue, flavour, need in missing.quota
        ]
        return replace(self, room=room, quota=(*self.quota, *kept))


def coming_back(snapshot: Snapshot, tree: Tree, among: Mask | None = None) -> Coming:
    """What the snapshot's `leaving` placements give back, or those of them that are `among` these.

    The quota of those that leave for the job they were asked for is that job's already (`muster.scheduling.promises`).
    """
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    leave = runs.leaving & jobs.holding & (np.diff(runs.first) > 0)
    rows = np.flatnonzero(leave if among is None else leave & among)
    room = np.zeros((len(snapshot.resources), len(tree.order)), dtype=np.int64)
    place_of = tree.place_of
    quota = []
    for row, need in zip(rows.tolist(), held_by(snapshot, rows), strict=True):
        nodes = runs.nodes_of(row)
        np.add.at(room.T, place_of[nodes[nodes != NONE]], jobs.requests[row])
        beneficiary = int(runs.beneficiary[row])
        settled = beneficiary != NONE and (beneficiary == row or jobs.reserved[beneficiary])
        if not settled and jobs.queues[row] != NONE:
            quota.append((int(jobs.queues[row]), int(jobs.flavours[row]), tuple(need)))
    return Coming(room, tuple(quota), frozenset())


@dataclass(frozen=True)
class Demand:
    """
    Attributes:
        ledger: changed while a search goes on, and left as it was.
        job: the claimant's row.
        flavour, need: quota that its gang would draw, spares included.
        borrowing: whether it may borrow.
        asks: (resource, amount) of one worker.
        divisors: len(asks) x 1, the amounts.
        eligible: N, places where its workers may run.
        starts, ends: places of the domains that may hold the gang; one, the whole cluster, unless a level is required.
        domain_of: N, the domain of each place, or NONE.
        spared: N, places that the gang leaves alone where others are as close; None if there are none.
        base: len(asks) x N, what the gang finds there: open room, and what comes back anyway.
        measure: how the gang is counted, over all places.
    """

    snapshot: Snapshot
    tree: Tree
    room: Room
    ledger: Ledger
    gang: Gang
    job: int
    flavour: int
    need: Need
    borrowing: bool
    asks: tuple[tuple[int, int], ...]
    divisors: Int
    eligible: Mask
    starts: Int
    ends: Int
    domain_of: Int
    spared: Mask | None
    base: Int
    measure: Measure

    @cached_property
    def queue(self) -> int:
        return int(self.snapshot.jobs.queues[self.job])

    @property
    def place_of(self) -> Int:
        """N, the place of each node."""
        return self.tree.place_of

    @cached_property
    def wanted_in(self) -> Int:
        """N, by node: its domain, and NONE for nodes that the gang cannot use."""
        wanted = np.full(len(self.tree.order), NONE, dtype=np.int64)
        wanted[self.tree.order] = np.where(self.eligible, self.domain_of, NONE)
        return wanted

    @cached_property
    def asked(self) -> Int:
        """Indices of the resources that are asked for."""
        return np.array([resource for resource, _ in self.asks], dtype=np.int64)

    def with_back(self, rows: Int) -> Int:
        """`base` when these placements have given back all that they hold, where the gang could use it."""
        runs, requests = self.snapshot.jobs.runs, self.snapshot.jobs.requests
        sizes = runs.first[rows + 1] - runs.first[rows]
        ends = np.cumsum(sizes)
        entries = np.repeat(runs.first[rows] - ends + sizes, sizes) + np.arange(ends[-1] if len(ends) else 0)
        nodes, owners = runs.placed[entries], np.repeat(rows, sizes)
        there = nodes != NONE
        places, owners = self.place_of[nodes[there]], owners[there]
        free = self.base.copy()
        for row, (resource, _) in zip(free, self.asks, strict=True):
            np.add.at(row, places, requests[owners, resource])
        return free

    def favoured(self, row: int, most: int) -> Seconds | None:
        """Of a running job, W: how many slots of the gang its node gains by the leaving of each worker that is one of
        the fewest there for that; 0 for all others. None where it is the same for all: no node gains any, or each
        worker that leaves makes a slot by itself.

        Args:
            most: workers of the job that may leave.
        """
        # Asked for every elastic job that a search looks at, most of which have few workers: plain numbers are faster.
        request = self.snapshot.jobs.requests[row][self.asked].tolist()
        asks = [(had, amount) for had, (_, amount) in zip(request, self.asks, strict=True)]
        if all(had == amount for had, amount in asks):
            return None
        there: dict[int, list[int]] = {}
        nodes = self.snapshot.jobs.runs.nodes_of(row).tolist()
        workers = len(nodes) - self.snapshot.jobs.terms.shapes[row].spares  # spares behind them stay
        for rank, node in enumerate(nodes[:workers]):
            there.setdefault(node, []).append(rank)
        found = None
        for node, ranks in there.items():
            place = self.place_of[node]
            gained, fewest = _gained(asks, self.base[:, place].tolist(), min(most, len(ranks)))
            if gained and self.eligible[place]:
                found = np.zeros(len(nodes)) if found is None else found
                found[ranks[-fewest:]] = gained / fewest
        return found

    def slots(self, free: Int) -> Int:
        """N, how many of the gang's workers each place has room for, given asked resources x N that are free."""
        slots: Int = np.maximum((free // self.divisors).min(axis=0), 0)
        slots[~self.eligible] = 0
        return slots


def _gained(asks: Sequence[tuple[int, int]], free: Sequence[int], workers: int) -> tuple[int, int]:
    """How many slots a node gains when so many workers leave it, and how few are enough for that.

    Args:
        asks: what one of these workers has of each resource, and what one of the gang asks for.
        free: of each, on the node.
    """

    def slots(leaving: int) -> int:
        return max(0, min((have + leaving * had) // amount for have, (had, amount) in zip(free, asks, strict=True)))

    before, after = slots(0), slots(workers)
    if after == before:
        return 0, 0
    # Ceilings of what is lacking; who has none of a resource adds none, and it is enough already.
    fewest = max(-((have - after * amount) // had) for have, (had, amount) in zip(free, asks, strict=True) if had)
    return after - before, fewest


def demand(
    snapshot: Snapshot,
    tree: Tree,
    room: Room,
    ledger: Ledger,
    workers: Sequence[Worker],
    gang: Gang,
    job: int,
    coming: Coming,
    flavour: int | None,
) -> Demand | None:
    """Work out what one gang demands; None if its shape is never possible in this cluster."""
    measure = measure_of(tree, gang)
    if measure is None or (gang.mode == TopologyMode.REQUIRED and gang.level == NONE):
        return None
    asks, count = workers[gang.worker].asks, len(tree.order)
    if gang.mode == TopologyMode.REQUIRED:
        starts, ends, domain_of = tree.starts[gang.level], tree.ends[gang.level], tree.domain_of[gang.level]
    else:
        starts, ends, domain_of = np.zeros(1, np.int64), np.full(1, count, np.int64), np.zeros(count, np.int64)
    asked = [resource for resource, _ in asks]
    jobs = snapshot.jobs
    return Demand(
        snapshot=snapshot,
        tree=tree,
        room=room,
        ledger=ledger,
        gang=gang,
        job=job,
        flavour=int(jobs.flavours[job]) if flavour is None else flavour,
        need=tuple((resource, amount * gang.total) for resource, amount in asks),
        borrowing=bool(jobs.terms.preemptible[job]),
        asks=asks,
        divisors=np.array([amount for _, amount in asks], dtype=np.int64)[:, None],
        eligible=room.candidates(gang.worker),
        starts=starts,
        ends=ends,
        domain_of=domain_of,
        spared=None if workers[gang.worker].accelerated else room.spared,
        base=room.open[asked] + coming.room[asked],
        measure=measure,
    )
