"""One domain while offers are taken from it and given back to it: what is free, what fits, what quota is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Final

import numpy as np

from muster.scheduling.claims import Right, still_right
from muster.scheduling.demand import Demand
from muster.scheduling.grainwise import within
from muster.scheduling.offers import Offers
from muster.scheduling.placement import fits
from muster.scheduling.quota import Need
from muster.scheduling.snapshot import UNLIMITED, Int, Mask
from muster.scheduling.topology import prefix_sums

_FEW: Final = 4
"""Places up to which it is faster to count one by one than by arrays."""
_MANY: Final = 2**62
_RECLAIM: Final = int(Right.RECLAIM)

Home = tuple[int, int]
"""(queue, flavour) whose quota comes back."""


class Ground:
    """
    Attributes:
        domain: which, of the demand's.
        free: asked resources x places of the domain.
        slots: workers of the gang on each place.
        total: their sum.
        taken: offers that are taken now, in the order of taking.
        measure: how the gang is counted here.
        eligible: places where its workers may run.
    """

    def __init__(self, demand: Demand, offers: Offers, domain: int, *, quota: bool) -> None:
        """
        Args:
            demand: its ledger changes with what is taken: `clear` in the end.
            quota: whether quota is short, or rights depend on it.
        """
        self.demand, self.offers, self.domain = demand, offers, domain
        self.start, self.end = int(demand.starts[domain]), int(demand.ends[domain])
        self.measure = within(demand.measure, self.start, self.end)
        self._ledger, self._quota = demand.ledger, quota
        self._limited = [
            (resource, amount)
            for resource, amount in demand.need
            if demand.ledger.most(demand.queue, demand.flavour, resource) < UNLIMITED
        ]
        self.eligible = demand.eligible[self.start : self.end]
        self._rights: list[int] = offers.rights.tolist()
        self._asked: list[int] = demand.divisors[:, 0].tolist()
        self._resources = range(len(self._asked))
        self._by_place: dict[int, list[tuple[int, list[int]]]] = {}  # by offer: (column, what it gives back there)
        self._needs: dict[int, Need] = {}
        self._extra: list[tuple[Int, Int, Home, Need]] = []
        self.free = demand.base[:, self.start : self.end].copy()
        self.slots = self._count(self.free)
        self.slots[~self.eligible] = 0
        self.total = int(self.slots.sum())
        self.taken: dict[int, None] = {}
        entries = np.flatnonzero((offers.places >= self.start) & (offers.places < self.end))
        entries = entries[self.eligible[offers.places[entries] - self.start]]
        self._columns: Int = offers.places[entries] - self.start
        self._amounts: Int = offers.given[:, entries]
        self._first: list[int] = np.searchsorted(offers.owners[entries], np.arange(len(offers.rows) + 1)).tolist()

    def part(self, offer: int) -> tuple[Int, Int]:
        """(columns, asked resources x columns) of what an offer gives back here."""
        first, last = self._first[offer], self._first[offer + 1]
        return self._columns[first:last], self._amounts[:, first:last]

    def here(self, places: Int, workers: Int, row: int) -> tuple[Int, Int]:
        """(columns, amounts) of what so many workers of a job on these places give back here."""
        columns = places - self.start
        inside: Mask = (columns >= 0) & (places < self.end)
        inside[inside] &= self.eligible[columns[inside]]
        request = self.demand.snapshot.jobs.requests[row][self.demand.asked]
        return columns[inside], request[:, None] * workers[inside]

    def take(self, offer: int) -> None:
        self._move_offer(offer, 1)
        if self._quota:
            self._ledger.discharge(*self.offers.homes[offer], self._need(offer))
        self.taken[offer] = None

    def give_back(self, offer: int) -> None:
        self._move_offer(offer, -1)
        if self._quota:
            self._ledger.charge(*self.offers.homes[offer], self._need(offer))
        del self.taken[offer]

    def take_all(self, offers: Sequence[int]) -> None:
        """Take many at once."""
        self._move_all(offers, 1)
        for offer in offers:
            if self._quota:
                self._ledger.discharge(*self.offers.homes[offer], self._need(offer))
            self.taken[offer] = None

    def take_part(self, columns: Int, amounts: Int, home: Home, need: Need) -> None:
        """Take what is nobody's offer, until `clear`."""
        self._move(columns, amounts, 1)
        self._ledger.discharge(*home, need)
        self._extra.append((columns, amounts, home, need))

    def holds_with(self, columns: Int, amounts: Int, home: Home, need: Need) -> bool:
        """Whether the gang fits when this much more comes back."""
        self._move(columns, amounts, 1)
        self._ledger.discharge(*home, need)
        held = self.holds()
        self._move(columns, amounts, -1)
        self._ledger.charge(*home, need)
        return held

    def set(self, offers: Iterable[int]) -> None:
        """Take exactly these."""
        wanted = dict.fromkeys(offers)
        gone = [each for each in self.taken if each not in wanted]
        self._move_all(gone, -1)
        for offer in gone:
            if self._quota:
                self._ledger.charge(*self.offers.homes[offer], self._need(offer))
            del self.taken[offer]
        self.take_all([offer for offer in wanted if offer not in self.taken])

    def clear(self) -> None:
        """Give everything back."""
        for columns, amounts, home, need in reversed(self._extra):
            self._move(columns, amounts, -1)
            self._ledger.charge(*home, need)
        self._extra.clear()
        self.set(())

    def holds(self) -> bool:
        """Whether the gang fits and may draw its quota now."""
        if self.total < self.demand.gang.total or (self._quota and self._lacks_quota()):
            return False
        if self.measure.exact:
            return not self.measure.steps or self.measure.count(self.slots) >= self.measure.needed
        return fits(self.demand.tree, prefix_sums(self.widened()), self.demand.gang)

    def widened(self) -> Int:
        """N, slots of this domain among all places; the others have none."""
        whole = np.zeros(len(self.demand.tree.order), dtype=np.int64)
        whole[self.start : self.end] = self.slots
        return whole

    def may_take(self, offer: int) -> bool:
        """Whether the right to the offer holds when those taken are taken before it."""
        right, demand = self._rights[offer], self.demand
        if not self._quota or right < _RECLAIM:
            return True
        claim = (demand.queue, demand.flavour, demand.need)
        return still_right(self._ledger, right, claim, self.offers.homes[offer], self._need(offer))

    def rightful(self) -> bool:
        """Whether all that is taken may be taken together: see `muster.scheduling.claims`."""
        if not self._quota:
            return True
        offers = self.offers
        bound = [offer for offer in self.taken if self._rights[offer] >= _RECLAIM]
        for offer in bound:
            self._ledger.charge(*offers.homes[offer], self._need(offer))
        allowed = True
        for offer in sorted(bound, key=self._size):
            allowed = allowed and self.may_take(offer)
            self._ledger.discharge(*offers.homes[offer], self._need(offer))
        return allowed

    def twin(self) -> Ground:
        """An independent ground in the same state."""
        other = copy(self)
        other._ledger, other._extra = self._ledger.copy(), list(self._extra)
        other.free, other.slots, other.taken = self.free.copy(), self.slots.copy(), dict(self.taken)
        return other

    def _need(self, offer: int) -> Need:
        need = self._needs.get(offer)
        if need is None:
            need = self._needs[offer] = self.offers.need(offer)
        return need

    def _size(self, offer: int) -> float:
        """What the offer gives back of what quota limits, in gangs of the claimant."""
        held = self.offers.held[offer]
        return max((float(held[resource]) / amount for resource, amount in self._limited), default=0.0)

    def _lacks_quota(self) -> bool:
        demand = self.demand
        short = self._ledger.shortage(demand.queue, demand.flavour, demand.need, borrowing=demand.borrowing)
        return short is not None

    def _move_offer(self, offer: int, sign: int) -> None:
        """Take an offer, or give it back. Single ones are moved hundreds of times in one search: see `clearing`."""
        first, last = self._first[offer], self._first[offer + 1]
        if last - first > _FEW:
            self._move(self._columns[first:last], self._amounts[:, first:last], sign)
            return
        few = self._by_place.get(offer)
        if few is None:
            given = self._amounts[:, first:last].T.tolist()
            few = self._by_place[offer] = list(zip(self._columns[first:last].tolist(), given, strict=True))
        free, slots = self.free, self.slots
        for column, given in few:
            least = _MANY
            for row, amount, asked in zip(self._resources, given, self._asked, strict=True):
                there = free.item(row, column) + sign * amount
                free[row, column] = there
                if (fit := there // asked) < least:
                    least = fit
            if least < 0:
                least = 0
            self.total += least - slots.item(column)
            slots[column] = least

    def _move(self, columns: Int, amounts: Int, sign: int) -> None:
        free = self.free[:, columns] + amounts if sign > 0 else self.free[:, columns] - amounts
        self.free[:, columns] = free
        slots = self._count(free)
        self.total += int(slots.sum()) - int(self.slots[columns].sum())
        self.slots[columns] = slots

    def _move_all(self, offers: Sequence[int], sign: int) -> None:
        if len(offers) <= 1:
            for offer in offers:
                self._move_offer(offer, sign)
            return
        parts = [self.part(offer) for offer in offers]
        columns = np.concatenate([columns for columns, _ in parts])
        for row, amount in zip(self.free, np.concatenate([amounts for _, amounts in parts], axis=1), strict=True):
            np.add.at(row, columns, sign * amount)
        columns = np.unique(columns)
        slots = self._count(self.free[:, columns])
        self.total += int(slots.sum()) - int(self.slots[columns].sum())
        self.slots[columns] = slots

    def _count(self, free: Int) -> Int:
        slots: Int = (free // self.demand.divisors).min(axis=0)
        return np.maximum(slots, 0, out=slots)
