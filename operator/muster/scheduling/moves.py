"""What growing, promotion and defragmentation share: one placement that stands, and the one it gets instead.

A move is a stop and a start: the job saves, ends, and starts again on its new nodes. So each of them has to pay for the
work that it loses, and none is made while a placement is still young: what moved a moment ago stays. A job that saves
no checkpoints is never moved: it would begin again at its first step. Nor is one of whose workers some have ended well:
it is about to end, and all of them would begin again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.scheduling.borrowing import placed
from muster.scheduling.claims import goes_on
from muster.scheduling.gangs import Gang, Worker, is_accelerator
from muster.scheduling.kinds import row_keys
from muster.scheduling.plan import MoveReason
from muster.scheduling.quota import Need
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import FOREVER, NONE, Index, Int, Mask, Seconds, Snapshot, TopologyMode
from muster.scheduling.topology import Tree

SETTLE: Final = 600.0
"""Seconds that a placement stands at least before it moves, where the platform says nothing else."""


@dataclass(frozen=True)
class Pace:
    """When a move pays.

    Attributes:
        settle: seconds that a placement stands at least before it moves.
        horizon: seconds over which a gain counts at most, and when nobody knows how long the job still runs.
        gain: how many times the loss the gain must be; above 0.
    """

    settle: float = SETTLE
    horizon: float = 3_600.0
    gain: float = 2.0


@dataclass(frozen=True)
class Move:
    """A job that ends and starts again at once.

    Attributes:
        nodes: its new nodes by rank, spares behind.
        flavour: whose quota it draws on there.
        lost: accelerator-seconds that it costs.
        places: where it takes room that it does not hold now, in tree order.
        taken: R x places, how much.
    """

    row: int
    nodes: Index
    flavour: int
    reason: MoveReason
    lost: float
    places: Int
    taken: Int


@dataclass(frozen=True)
class Choice:
    """A kind of node that a job takes: which filter, and whose quota."""

    filter: int
    flavour: int


class Choices:
    """The kinds of node that standing jobs take, in their order, and which of them each is on.

    A standing job's flavour is that of the nodes it is on. The flavour of its first choice is that of most nodes which
    pass its filter. Without accelerators all are of flavour 0, and the nodes tell which filter they pass.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._filters: list[int] = snapshot.jobs.filters.tolist()
        self._flavours: list[int] = snapshot.jobs.flavours.tolist()
        self._firsts: dict[int, int] = {}

    def on(self, row: int) -> int:
        """Which of its choices a job is on: 0 is its first."""
        own, others = self._flavours[row], self._snapshot.jobs.terms.alternatives[row]
        if not others:
            return 0
        if own == 0:
            return self._passed(row)
        return next((index for index, other in enumerate(others, start=1) if other.flavour == own), 0)

    def _passed(self, row: int) -> int:
        """The first choice whose filter all of a job's nodes pass; 0 if there is none."""
        nodes, others = self._snapshot.jobs.runs.nodes_of(row), self._snapshot.jobs.terms.alternatives[row]
        nodes = nodes[nodes != NONE]
        filters = [self._filters[row], *(other.filter for other in others)]
        return next((index for index, each in enumerate(filters) if self._snapshot.eligible[each, nodes].all()), 0)

    def current(self, row: int) -> int:
        """The filter of the choice that a job is on."""
        on = self.on(row)
        return self._snapshot.jobs.terms.alternatives[row][on - 1].filter if on else self._filters[row]

    def better(self, row: int) -> list[Choice]:
        """Those that a job would rather be on, the best first."""
        on, others = self.on(row), self._snapshot.jobs.terms.alternatives[row]
        if not on:
            return []
        first = Choice(self._filters[row], self._first(row))
        return [first, *(Choice(other.filter, other.flavour) for other in others[: on - 1])]

    def _first(self, row: int) -> int:
        nodes, filter_ = self._snapshot.nodes, self._filters[row]
        if self._flavours[row] == 0:
            return 0
        if filter_ not in self._firsts:
            suited = nodes.flavours[self._snapshot.eligible[filter_] & (nodes.flavours != NONE)]
            self._firsts[filter_] = int(np.bincount(suited).argmax()) if len(suited) else self._flavours[row]
        return self._firsts[filter_]


def settled(snapshot: Snapshot, pace: Pace) -> Mask:
    """J, jobs whose placement has stood for long enough to move, and that go on then from where they have saved."""
    stays_on: Mask = placed(snapshot) & goes_on(snapshot) & snapshot.jobs.terms.saves
    old: Mask = stays_on & (snapshot.now - snapshot.jobs.runs.started >= pace.settle)
    old[_ending(snapshot)] = False
    return old


def _ending(snapshot: Snapshot) -> list[int]:
    """Rows of gangs some of whose workers have no node any more, and get no other: they have ended well."""
    runs, found = snapshot.jobs.runs, list[int]()
    gone = np.flatnonzero(runs.placed == NONE)
    rows = np.searchsorted(runs.first, gone, side="right") - 1
    for row, index in zip(rows.tolist(), (gone - runs.first[rows]).tolist(), strict=True):
        if index < snapshot.jobs.workers[row] and index not in runs.lost.get(row, ()):
            found.append(row)
    return found


def remaining(snapshot: Snapshot, rows: Int, pace: Pace) -> Seconds:
    """Seconds that each job still runs, as far as they count."""
    runs = snapshot.jobs.runs
    end = np.minimum(runs.ends[rows], runs.bound[rows])
    left: Seconds = np.where(end == FOREVER, pace.horizon, np.clip(end - snapshot.now, 0.0, pace.horizon))
    return left


def accelerators_each(snapshot: Snapshot, rows: Int) -> Int:
    """Accelerators of one worker of each; 1 where it has none, so that work without them counts too."""
    each: Int = np.maximum(1, _accelerators(snapshot, rows))
    return each


def has_accelerators(snapshot: Snapshot, rows: Int) -> Mask:
    has: Mask = _accelerators(snapshot, rows) > 0
    return has


def _accelerators(snapshot: Snapshot, rows: Int) -> Int:
    columns = [index for index, name in enumerate(snapshot.resources) if is_accelerator(name)]
    each: Int = snapshot.jobs.requests[rows][:, columns].max(axis=1, initial=0)
    return each


def by_rank(snapshot: Snapshot, rows: Int) -> Int:
    """By priority, then first submit, then uid."""
    jobs = snapshot.jobs
    uids = np.array([jobs.uids[row] for row in rows.tolist()], dtype=np.str_)
    ranked: Int = rows[np.lexsort((uids, jobs.submitted[rows], -jobs.priorities[rows].astype(np.int64)))]
    return ranked


def worker_of(snapshot: Snapshot, row: int, filter_: int) -> Worker:
    asks = tuple((index, amount) for index, amount in enumerate(snapshot.jobs.requests[row].tolist()) if amount > 0)
    return Worker(asks, filter_, any(is_accelerator(snapshot.resources[index]) for index, _ in asks))


def gang_of(snapshot: Snapshot, row: int, size: int) -> Gang:
    """The gang that a job is with so many workers, its spares not counted."""
    jobs = snapshot.jobs
    mode, level = TopologyMode(jobs.modes[row]), int(jobs.levels[row])
    if mode == TopologyMode.UNCONSTRAINED or (mode == TopologyMode.PREFERRED and level == NONE):
        mode, level = TopologyMode.UNCONSTRAINED, NONE
    return Gang(0, size, mode, level, jobs.terms.shapes[row])


def need_of(snapshot: Snapshot, row: int, workers: int) -> Need:
    """Quota for so many of a job's workers."""
    request = snapshot.jobs.requests[row].tolist()
    return tuple((resource, amount * workers) for resource, amount in enumerate(request) if amount > 0)


class OpenRoom:
    """Room that moves may take, with the slots of each kind of worker counted once and again only where it shrank.

    Attributes:
        room: R x N in tree order; changed by `take`.
    """

    def __init__(self, snapshot: Snapshot, tree: Tree, room: Int) -> None:
        self._snapshot, self._tree, self.room = snapshot, tree, room
        self._usable: Mask = snapshot.nodes.usable[tree.order]
        self._slots: dict[tuple[bytes, int], tuple[int, Int, int]] = {}
        self._touched: list[Int] = []

    def slots(self, row: int, filter_: int) -> tuple[Int, int]:
        """N, workers of a job that each place has room for when they pass a filter; and their sum."""
        key = (self._snapshot.jobs.requests[row].tobytes(), filter_)
        seen, slots, total = self._slots.get(key, (-1, None, 0))
        if slots is None:
            worker = worker_of(self._snapshot, row, filter_)
            slots = count_slots(self.room, worker, self._suits(filter_))
        elif seen < len(self._touched):
            worker, places = worker_of(self._snapshot, row, filter_), np.concatenate(self._touched[seen:])
            slots[places] = count_slots(self.room[:, places], worker, self._suits(filter_)[places])
        if seen < len(self._touched):
            total = int(slots.sum())
            self._slots[key] = (len(self._touched), slots, total)
        return slots, total

    def totals(self, rows: Int, filters: Int) -> Int:
        """How many workers of each of these jobs have room in all, where they pass these filters."""
        keys = row_keys(np.column_stack((self._snapshot.jobs.requests[rows], filters)))
        one = dict(zip(keys, zip(rows.tolist(), filters.tolist(), strict=True), strict=True))
        total = {key: self.slots(*each)[1] for key, each in one.items()}
        return np.array([total[key] for key in keys], dtype=np.int64)

    def take(self, row: int, places: Int) -> tuple[Int, Int]:
        """Take room for one worker on each of these; returns the different places and what was taken there."""
        where, taken = take_room(self._snapshot, self.room, row, places)
        self._touched.append(where)
        return where, taken

    def _suits(self, filter_: int) -> Mask:
        suits: Mask = self._usable & self._snapshot.eligible[filter_][self._tree.order]
        return suits


def take_room(snapshot: Snapshot, room: Int, row: int, places: Int) -> tuple[Int, Int]:
    """Take room for workers on these places (one each); returns the different places and what was taken there."""
    where, workers = np.unique(places, return_counts=True)
    taken = snapshot.jobs.requests[row][:, None] * workers
    room[:, where] -= taken
    return where.astype(np.int64), taken
