"""The room on the nodes while a plan is made: what is free, and what of it is kept for jobs that wait.

Arrays here are R x N, in tree order, so that one resource is one run of memory. Slots (how many workers of one kind fit
on each node) are counted once a worker and afterwards only on the nodes that were touched since.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from muster.scheduling.gangs import Worker, is_accelerator
from muster.scheduling.snapshot import NONE, Int, Mask, Snapshot
from muster.scheduling.topology import Tree, prefix_sums

_MANY = np.int64(2**31)
"""Slots of a worker that asks for nothing."""
_LARGE: Final = 1024
"""Nodes from which on it pays to leave out full ones, and to look once at nodes that are alike."""


@dataclass
class Slots:
    """
    Attributes:
        counts: N, workers that each place can take.
        prefix: N + 1, prefix sums of `counts`.
        seen: how many of the touched places have been taken into account.
    """

    counts: Int
    prefix: Int
    seen: int


class Room:
    """
    Attributes:
        free: what is left when the plan so far is carried out.
        open: `free` less what is kept; what the next job in rank may take.
        empty: what jobs would find if no other job ran.
        eligible: F x N, the filter's nodes, usable or not.
        usable: N.
    """

    def __init__(self, snapshot: Snapshot, tree: Tree, workers: list[Worker]) -> None:
        nodes, order = snapshot.nodes, tree.order
        self._snapshot, self._tree, self._workers = snapshot, tree, workers
        self.free: Int = np.ascontiguousarray(nodes.free[order].T)
        capacity = nodes.allocatable if nodes.fixed is None else nodes.allocatable - nodes.fixed
        self.empty: Int = np.ascontiguousarray(capacity[order].T)
        # Never less than what is free now, whatever the caller counted as fixed.
        np.maximum(self.empty, self.free, out=self.empty)
        self.open: Int = self.free.copy()
        self.usable: Mask = nodes.usable[order]
        self.eligible: Mask = snapshot.eligible[:, order]
        self._touched: Int = np.empty(1024, dtype=np.int64)
        self._touches = 0
        self._slots: dict[int, Slots] = {}
        self._empty: dict[int, Slots] = {}
        self._open_at_first: dict[tuple[int, ...], Int] = {}
        self._kept: dict[int, Mask] = {}
        self._candidates: dict[int, Mask] = {}

    def frozen(self) -> Room:
        """A view in which `free` and `empty` stay as they are now. It counts no slots of what is open."""
        view = copy(self)
        view.free = self.free.copy()
        return view

    @cached_property
    def spared(self) -> Mask:
        """N, nodes with free accelerators in the snapshot, which workers without any leave alone if they can."""
        nodes, order = self._snapshot.nodes, self._tree.order
        accelerators = [index for index, name in enumerate(self._snapshot.resources) if is_accelerator(name)]
        spared: Mask = ((nodes.free[:, accelerators] > 0).any(axis=1) & (nodes.flavours != NONE))[order]
        return spared

    def candidates(self, worker: int) -> Mask:
        """Places where the worker may run and pods can start."""
        of_filter = self._workers[worker].filter
        mask = self._candidates.get(of_filter)
        if mask is None:
            mask = self._candidates[of_filter] = self.eligible[of_filter] & self.usable
            mask.flags.writeable = False
        return mask

    def free_slots(self, worker: int) -> Slots:
        """Slots in what is free, whoever it is kept for."""
        if not self._kept:  # all that is free is open
            return self.slots(worker)
        counts = count_slots(self.free, self._workers[worker], self.candidates(worker))
        return Slots(counts, prefix_sums(counts), self._touches)

    def slots(self, worker: int) -> Slots:
        """Slots in what is open now."""
        slots = self._slots.get(worker)
        if slots is None:
            counts = self._count_open(worker)
            slots = self._slots[worker] = Slots(counts, prefix_sums(counts), self._touches)
        elif slots.seen < self._touches:
            self._refresh(worker, slots)
        return slots

    def _count_open(self, worker: int) -> Int:
        """Slots in what is open, looked for only on places that had some of every resource at first: room shrinks."""
        if self.open.shape[1] < _LARGE:
            return count_slots(self.open, self._workers[worker], self.candidates(worker))
        asked = tuple(resource for resource, _ in self._workers[worker].asks)
        places = self._open_at_first.get(asked)
        if places is None:
            some = (self.open[list(asked)] > 0).all(axis=0)
            places = self._open_at_first[asked] = np.flatnonzero(some)
        counts = np.zeros(self.open.shape[1], dtype=np.int64)
        mask = self.candidates(worker)[places]
        counts[places] = count_slots(self.open[:, places], self._workers[worker], mask)
        return counts

    def _count_empty(self, worker: int) -> Int:
        if self.empty.shape[1] < _LARGE:
            return count_slots(self.empty, self._workers[worker], self.candidates(worker))
        rows, row_of = self._alike_when_empty
        each = count_slots(rows, self._workers[worker], np.ones(rows.shape[1], dtype=np.bool_))
        return np.where(self.candidates(worker), each[row_of], 0)

    @cached_property
    def _alike_when_empty(self) -> tuple[Int, Int]:
        """(R x C, the different nodes when they are empty; N, which of these each place is)."""
        table = np.ascontiguousarray(self.empty.T)
        keys = table.view(np.dtype((np.void, table.shape[1] * table.itemsize))).ravel()
        _, first, row_of = np.unique(keys, return_index=True, return_inverse=True)
        return np.ascontiguousarray(table[first].T), row_of.astype(np.int64)

    def slots_when_empty(self, worker: int) -> Slots:
        slots = self._empty.get(worker)
        if slots is None:
            counts = self._count_empty(worker)
            slots = self._empty[worker] = Slots(counts, prefix_sums(counts), 0)
        return slots

    def take(self, worker: int, taken: Int) -> None:
        """Carry out an admission: `taken` workers on each place."""
        places = np.flatnonzero(taken != 0)  # of a mask it is several times as fast
        for resource, amount in self._workers[worker].asks:
            used = taken[places] * amount
            self.free[resource, places] -= used
            self.open[resource, places] -= used
        self._touch(places)

    def keep(self, worker: int, where: Mask) -> Mask | None:
        """Keep room for every slot that the worker would have on the chosen, empty places.

        Kept once a place and worker: that covers all waiting gangs of this worker. Different workers add up, because
        one may start beside the other.

        Returns:
            The places where room is kept anew, or None if all of it was kept before.
        """
        counts = self.slots_when_empty(worker).counts
        where = where & (counts > 0)
        kept = self._kept.get(worker)
        fresh: Mask = where if kept is None else where & ~kept
        if not fresh.any():
            return None
        self._kept[worker] = where if kept is None else kept | where
        places = np.flatnonzero(fresh)
        for resource, amount in self._workers[worker].asks:
            # Nothing is open below zero, and nothing must wrap round.
            self.open[resource, places] = np.maximum(
                self.open[resource, places] - counts[places] * amount, -self.empty[resource, places]
            )
        self._touch(places)
        return fresh

    def _touch(self, places: Int) -> None:
        """Remember which places changed: one behind the other in an array, so that none are joined when asked for."""
        end = self._touches + len(places)
        if end > len(self._touched):
            self._touched = np.concatenate([self._touched, np.empty(end, dtype=np.int64)])
        self._touched[self._touches : end] = places
        self._touches = end

    def _refresh(self, worker: int, slots: Slots) -> None:
        places = self._touched[slots.seen : self._touches]
        slots.seen = self._touches
        mask = self.candidates(worker)
        if len(places) > len(mask) // 2:
            slots.counts = count_slots(self.open, self._workers[worker], mask)
        else:
            slots.counts[places] = count_slots(self.open[:, places], self._workers[worker], mask[places])
        slots.prefix = prefix_sums(slots.counts)


def count_slots(room: Int, worker: Worker, candidates: Mask) -> Int:
    """How many workers fit on each place of `room` (R x N); 0 where it is no candidate or a resource is overdrawn."""
    slots = np.full(room.shape[1], _MANY, dtype=np.int64)
    each = np.empty_like(slots)
    for resource, amount in worker.asks:
        np.minimum(slots, np.floor_divide(room[resource], amount, out=each), out=slots)
    np.maximum(slots, 0, out=slots)
    slots[~candidates] = 0
    return slots
