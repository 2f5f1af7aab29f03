"""The room on the nodes while a plan is made: what is free, and what of it is kept for jobs that wait.

Arrays here are R x N, in tree order, so that one resource is one run of memory. Slots (how many workers of one kind fit
on each node) are counted once a worker and afterwards only on the nodes that were touched since.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from muster.scheduling.families import Family, families
from muster.scheduling.gangs import Worker, is_accelerator
from muster.scheduling.slots import MANY, Site, Slots, Taken, by_resource, count_slots
from muster.scheduling.snapshot import NONE, Int, Mask, Snapshot
from muster.scheduling.topology import Tree, prefix_sums

_FEW: Final = 8
"""Places up to which it is faster to count slots one by one than by arrays."""
_LARGE: Final = 1024
"""Nodes from which on it pays to leave out full ones."""
_VARIED: Final = 16
"""Different workers from which on it pays to find out which nodes are alike, and to look at one of each."""
_SPARSE: Final = 0.25
"""Part of the nodes with room up to which it pays to make a tree of these alone."""


class Room:
    """
    Attributes:
        free: what is left when the plan so far is carried out.
        open: `free` less what is kept; what the next job in rank may take. The same array until something is kept.
        empty: what jobs would find if no other job ran.
        eligible: F x N, the filter's nodes, usable or not.
        usable: N.
    """

    def __init__(self, snapshot: Snapshot, tree: Tree, workers: list[Worker], free: Int | None = None) -> None:
        """`free`: N x R, by node; the snapshot's if None."""
        nodes, order = snapshot.nodes, tree.order
        self._snapshot, self._tree, self._workers = snapshot, tree, workers
        self._at_first = nodes.free if free is None else free
        self.free: Int = by_resource(self._at_first, order)
        capacity = nodes.allocatable if nodes.fixed is None else nodes.allocatable - nodes.fixed
        self.empty: Int = by_resource(capacity, order)
        # Never less than what is free now, whatever the caller counted as fixed.
        np.maximum(self.empty, self.free, out=self.empty)
        self.open: Int = self.free  # one array as long as nothing is kept
        self.usable: Mask = nodes.usable[order]
        self.eligible: Mask = snapshot.eligible[:, order]
        self._touched: Int = np.empty(1024, dtype=np.int64)
        self._touches = 0
        self._whole = Site(tree)
        self._sites: dict[tuple[int, ...], Site] = {}
        self._slots: dict[int | Family, Slots] = {}
        self._family_of = families(workers, snapshot.resources) if len(workers) >= _VARIED else {}
        self._empty: dict[int, Slots] = {}
        self._empty_alike: dict[tuple[int, bytes], Slots] = {}
        self._kept: dict[int, Mask] = {}
        self._most_open: list[int] | None = None
        self._candidates: dict[int, Mask] = {}

    @property
    def touches(self) -> int:
        """Grows whenever anything is taken or kept."""
        return self._touches

    def twin(self) -> Room:
        """An independent room in the same state."""
        other = copy(self)
        other.free, other._touched = self.free.copy(), self._touched.copy()
        other.open = other.free if self.open is self.free else self.open.copy()
        other._kept = self._kept.copy()
        other._slots = {key: replace(slots, counts=slots.counts.copy()) for key, slots in self._slots.items()}
        other._family_of = self._family_of.copy()
        return other

    def frozen(self) -> Room:
        """A view in which `free` and `empty` stay as they are now. It counts no slots of what is open."""
        view = copy(self)
        view.free = self.free.copy()
        return view

    @cached_property
    def spared(self) -> Mask:
        """N, nodes with free accelerators at first, which workers without any leave alone if they can."""
        nodes, order = self._snapshot.nodes, self._tree.order
        accelerators = [index for index, name in enumerate(self._snapshot.resources) if is_accelerator(name)]
        spared: Mask = ((self._at_first[:, accelerators] > 0).any(axis=1) & (nodes.flavours != NONE))[order]
        return spared

    def candidates(self, worker: int) -> Mask:
        """Places where the worker may run and pods can start."""
        return self._suited(self._workers[worker].filter)

    def _suited(self, of_filter: int) -> Mask:
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
        return Slots(self._whole, counts, prefix_sums(counts))

    def none_fits(self, worker: int) -> bool:
        """Whether no place has as much of some resource open as the worker asks for: told without counting slots, and
        not always where it is so."""
        if self._most_open is None:  # what is taken later makes it less
            self._most_open = self.open.max(axis=1, initial=0).tolist()
        most = self._most_open
        return any(amount > most[resource] for resource, amount in self._workers[worker].asks)

    def slots(self, worker: int) -> Slots:
        """Slots in what is open now."""
        family = self._family_of.get(worker)
        if family is not None:
            slots = self._up_to_date(family, (family.least, family.most))
            if slots is not None:
                return slots
            for member in family.members:
                del self._family_of[member]
        slots = self._up_to_date(worker, (self._workers[worker],))
        assert slots is not None, "a worker is told apart from itself"
        return slots

    def _up_to_date(self, key: int | Family, bounds: Sequence[Worker]) -> Slots | None:
        """Slots of the workers from the first to the last of the bounds; None if any place tells these apart."""
        slots = self._slots.get(key)
        if slots is None:
            site = self._site(bounds[0])
            counts = self._count(bounds, site.places)
            if counts is None:
                return None
            slots = self._slots[key] = Slots(site, counts, prefix_sums(counts), self._touches)
        elif slots.seen < self._touches and not self._refresh(bounds, slots):
            del self._slots[key]
            return None
        return slots

    def _site(self, worker: Worker) -> Site:
        """The places that had some of every resource when the first like this worker was looked at: room shrinks."""
        if self.open.shape[1] < _LARGE:
            return self._whole
        asked = tuple(resource for resource, _ in worker.asks)
        site = self._sites.get(asked)
        if site is None:
            some = np.ones(self.free.shape[1], dtype=np.bool_)
            for resource in asked:
                some &= self.free[resource] > 0
            places = np.flatnonzero(some)
            if len(places) > _SPARSE * self.free.shape[1]:
                self._sites[asked] = self._whole
                return self._whole
            index_of = np.full(self.free.shape[1], NONE, dtype=np.int64)
            index_of[places] = np.arange(len(places))
            site = self._sites[asked] = Site(self._tree.among(places), places, index_of)
        return site

    def _count(self, bounds: Sequence[Worker], places: Int | None) -> Int | None:
        """Slots in what is open, on some places or on all; None if the bounds differ there."""
        candidates = self._suited(bounds[0].filter)
        room: Int | list[Int] = self.open
        if places is not None:
            room, candidates = [row[places] for row in self.open], candidates[places]
        counts = count_slots(room, bounds[0], candidates)
        if len(bounds) > 1 and (count_slots(room, bounds[-1], candidates) != counts).any():
            return None
        return counts

    def _count_at(self, bounds: Sequence[Worker], place: int) -> int | None:
        """Slots in what is open on one place; None if the bounds differ there."""
        if not self._suited(bounds[0].filter)[place]:
            return 0
        open_ = self.open
        counts = [
            max(0, min([open_.item(resource, place) // amount for resource, amount in worker.asks], default=MANY))
            for worker in bounds
        ]
        return counts[0] if counts[0] == counts[-1] else None

    @cached_property
    def _alike_when_empty(self) -> tuple[Int, Int]:
        """(R x C, the different nodes when they are empty; N, which of these each place is)."""
        table = np.ascontiguousarray(self.empty.T)
        keys = table.view(np.dtype((np.void, table.shape[1] * table.itemsize))).ravel()
        _, first, row_of = np.unique(keys, return_index=True, return_inverse=True)
        return np.ascontiguousarray(table[first].T), row_of.astype(np.int64)

    def slots_when_empty(self, worker: int) -> Slots:
        """Slots on empty nodes. The same object for workers of which nodes take as many each."""
        slots = self._empty.get(worker)
        if slots is None:
            slots = self._empty[worker] = self._count_empty(worker)
        return slots

    def _count_empty(self, worker: int) -> Slots:
        asks, mask = self._workers[worker], self.candidates(worker)
        if len(self._workers) < _VARIED:
            counts = count_slots(self.empty, asks, mask)
            return Slots(self._whole, counts, prefix_sums(counts))
        rows, row_of = self._alike_when_empty
        each = count_slots(rows, asks, np.ones(rows.shape[1], dtype=np.bool_))
        key = (asks.filter, each.tobytes())
        slots = self._empty_alike.get(key)
        if slots is None:
            counts = np.where(mask, each[row_of], 0)
            slots = self._empty_alike[key] = Slots(self._whole, counts, prefix_sums(counts))
        return slots

    def take(self, worker: int, taken: Taken) -> None:
        """Carry out an admission."""
        places = taken.places
        where, workers = (places, taken.workers) if len(places) != 1 else (int(places[0]), int(taken.workers[0]))
        tables = (self.free,) if self.open is self.free else (self.free, self.open)
        for resource, amount in self._workers[worker].asks:
            used = workers * amount
            for table in tables:
                row = table[resource]  # twice as fast as both indexes at once
                row[where] -= used
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
        if self.open is self.free:
            self.open = self.free.copy()
        places = np.flatnonzero(fresh)
        for resource, amount in self._workers[worker].asks:
            # Nothing is open below zero, and nothing must wrap round.
            self.open[resource, places] = np.maximum(
                self.open[resource, places] - counts[places] * amount, -self.empty[resource, places]
            )
        self._touch(places)
        self._most_open = None
        return fresh

    def _touch(self, places: Int) -> None:
        """Remember which places changed: one behind the other in an array, so that none are joined when asked for."""
        end = self._touches + len(places)
        if end > len(self._touched):
            self._touched = np.concatenate([self._touched, np.empty(end, dtype=np.int64)])
        self._touched[self._touches : end] = places
        self._touches = end

    def _refresh(self, bounds: Sequence[Worker], slots: Slots) -> bool:
        """Count again on the places that were touched since. False if the bounds differ on any of them."""
        site, places = slots.site, self._touched[slots.seen : self._touches]
        slots.seen = self._touches
        if len(places) > len(slots.counts) // 2:
            everywhere = self._count(bounds, site.places)
            if everywhere is None:
                return False
            slots.counts = everywhere
        elif len(places) <= _FEW:
            for place in places.tolist():
                index = place if site.index_of is None else int(site.index_of[place])
                if index != NONE:
                    count = self._count_at(bounds, place)
                    if count is None:
                        return False
                    slots.counts[index] = count
        else:
            indexes = places
            if site.index_of is not None:
                indexes = site.index_of[places]
                there = indexes != NONE
                indexes, places = indexes[there], places[there]
            counts = self._count(bounds, places)
            if counts is None:
                return False
            slots.counts[indexes] = counts
        slots.prefix = prefix_sums(slots.counts)
        return True
