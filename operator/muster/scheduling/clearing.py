"""The cheapest set of offers that makes room for a gang in one domain: bounds, heuristics, and a search that proves.

It is a covering problem: offers free amounts on nodes, and so many slots are needed. Floors (a worker needs whole
slots), several resources and gangs with slices make it harder than a knapsack, so:

* **Bound.** With s slots on a node now and a fraction f of the next one free, giving back y slots' worth adds at most
  y / (1 - f) slots: the line through 0 and the first step of floor(f + y). In the resource that is scarcest on the
  node, that makes the offers' effects additive; whole slices are bounded by whole workers in the same way. The
  fractional knapsack over them is a lower bound (a linear programme whose optimum is greedy, Dantzig 1957). Another is
  the price of whole slots and slices (`muster.scheduling.ladder`). The higher of both is used.
* **Heuristics.** Offers in the order of cost per slot (or slice) until the gang fits; and slot by slot, slice by slice,
  the one that is the cheapest to clear first. Both are then pruned: the costliest offers are kept out one by one as
  long as the gang fits (reverse delete). The cheaper one stays.
* **Search.** Branch and bound over the same offers in the same order, from the better heuristic on. With few offers it
  ends and the answer is the cheapest; with many it stops after a fixed number of branches, and the bound tells the gap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.scheduling.ground import Ground
from muster.scheduling.ladder import Pieces, Rise, in_order, least_sums, whole
from muster.scheduling.snapshot import Int, Seconds

_LARGE: Final = np.iinfo(np.int64).max
_ROUNDING: Final = 1e-9
"""Share of what is needed that is lost where parts of it are added up."""


def weigh(free: Int, slots: Int, most: Int, divisors: Int, places: Int, amounts: Int) -> Seconds:
    """At most how many slots each entry adds, so that the sum over any set of entries bounds what they add together.

    Args:
        free: asked resources x places.
        slots: workers on each place now.
        most: asked resources x places, `free` when everything on offer is taken.
        divisors: what a worker asks for, one a row.
        places: E, column of each entry.
        amounts: asked resources x E, what each entry gives back.
    """
    missing = (slots + 1) * divisors - free  # of each resource until the next worker fits; at least 1 where it binds
    # The resource that allows the fewest workers in the end is the scarcest; where it does not bind now, another does.
    final = most // divisors
    scarcest = np.argmin(np.where(missing > 0, final, _LARGE), axis=0)
    gained = np.maximum(np.maximum(final.min(axis=0), 0) - slots, 0)
    row = scarcest[places]
    column = np.arange(len(places))
    weights: Seconds = amounts[row, column] / np.maximum(1, missing[row, places])
    capped: Seconds = np.minimum(weights, gained[places])
    return capped


def knapsack(costs: Seconds, weights: Seconds, needed: float) -> float:
    """Least cost of fractions of items whose weights sum to `needed`; infinite when all of them do not."""
    if needed <= 0:
        return 0.0
    order = np.argsort(costs / np.maximum(weights, 1e-12), kind="stable")
    running = np.cumsum(weights[order])
    last = int(np.searchsorted(running, needed * (1 - 1e-12)))
    if last >= len(order):
        return float("inf")
    before = float(running[last - 1]) if last else 0.0
    part = (needed - before) / float(weights[order[last]])
    return float(costs[order[:last]].sum() + costs[order[last]] * part)


THOROUGH: Final = 16
"""With so few offers a set may be taken if it may in any order; with more, in the order of the search."""


@dataclass
class Effort:
    """Branches that a search may still make."""

    branches: int


@dataclass(frozen=True)
class Pull:
    """What offers may add to what is lacking: slots or whole slices, or else quota.

    Attributes:
        weights: of each offer at most, so that sums bound what a set adds.
        needed: how much is lacking.
        quota: it is quota that is lacking.
        places, owners, parts: slots by place: which offer adds how much there at most.
        rises: from slots to what is needed.
    """

    weights: Seconds
    needed: float
    quota: bool
    places: Int
    owners: Int
    parts: Seconds
    rises: tuple[Rise, ...]


def cheapest(ground: Ground, choices: Int, costs: Seconds, pull: Pull, effort: Effort) -> tuple[list[int] | None, bool]:
    """Offers of `choices` to take beside those taken already so that the gang fits, and whether none are cheaper.

    Args:
        ground: where the gang does not fit yet.
        choices: offers, none of them taken.
        costs: of each.
        pull: of each, in the same order.

    Returns:
        None if no set was found that fits, and whether there is none for certain. The ground is left as it was.
    """
    before = list(ground.taken)
    order = np.lexsort((np.arange(len(choices)), costs / np.maximum(pull.weights, 1e-12)))
    offers = choices[order].tolist()
    price = dict(zip(offers, costs[order].tolist(), strict=True))
    pieces = _pieces(costs, pull)
    bound = _least_cost(costs, pull, pieces)
    best = _greedy(ground, offers, price)
    ground.set(before)
    if best is None or _sum(price, best) > bound * (1 + 1e-12):
        asks = _shares(costs, pull) / np.maximum(pull.parts, 1e-12)
        found = _greedy(ground, choices[in_order(pieces, pull.owners, asks, len(choices))].tolist(), price)
        ground.set(before)
        if found is not None and (best is None or _sum(price, found) < _sum(price, best)):
            best = found
    search = _Search(ground, offers, price, pull.weights[order], pull.needed, effort, best)
    proven = (best is not None and _sum(price, best) <= bound * (1 + 1e-12)) or search.run()
    ground.set(before)
    return search.best, proven


def _pieces(costs: Seconds, pull: Pull) -> Pieces:
    return whole(pull.places, pull.parts, _shares(costs, pull), pull.rises)


def _least_cost(costs: Seconds, pull: Pull, pieces: Pieces) -> float:
    """A lower bound on the cost of what is lacking."""
    bound = knapsack(costs, pull.weights, pull.needed)
    if pull.needed <= 0 or pull.quota:
        return bound
    home = np.zeros(int(pieces.units.max(initial=0)) + 1, dtype=np.int64)
    return max(bound, float(least_sums(pieces, home, np.array([int(pull.needed)]))[0]))


def _shares(costs: Seconds, pull: Pull) -> Seconds:
    """The cost of each offer, shared among the places that it lies on."""
    sums = np.zeros(len(costs))
    np.add.at(sums, pull.owners, pull.parts)
    shares: Seconds = pull.parts / np.maximum(sums[pull.owners], 1e-12) * costs[pull.owners]
    return shares


def _sum(price: dict[int, float], offers: Sequence[int]) -> float:
    return sum(price[offer] for offer in offers)


def _greedy(ground: Ground, sequence: Sequence[int], price: dict[int, float]) -> list[int] | None:
    """Take in this order until the gang fits, then keep out what is not needed, the costliest first."""
    mine: list[int] = []
    for offer in sequence:
        if offer in ground.taken or not ground.may_take(offer):
            continue
        ground.take(offer)
        mine.append(offer)
        if ground.holds():
            break
    else:
        return None
    for offer in sorted(mine, key=lambda each: -price[each]):
        ground.give_back(offer)
        if not ground.holds():
            ground.take(offer)
    return [offer for offer in mine if offer in ground.taken] if ground.rightful() else None


class _Search:
    """Branch and bound: each offer in turn is taken or left out, the most useful first."""

    def __init__(
        self,
        ground: Ground,
        offers: list[int],
        price: dict[int, float],
        weights: Seconds,
        needed: float,
        effort: Effort,
        best: list[int] | None,
    ) -> None:
        self._ground, self._offers, self._price, self._effort = ground, offers, price, effort
        self._needed, self._thorough = needed, len(offers) <= THOROUGH
        self._wide: Ground | None = None
        self._weight: list[float] = weights.tolist()
        self._cost = [price[offer] for offer in offers]
        self._running: list[float] = np.concatenate([[0.0], np.cumsum(weights)]).tolist()
        self._spent: list[float] = np.concatenate([[0.0], np.cumsum(self._cost)]).tolist()
        self.best = best
        self._least = _sum(price, best) if best is not None else float("inf")

    def run(self) -> bool:
        """Improve `best`; whether it is the cheapest for certain."""
        if self.best is None and not self._widest.holds():
            return True
        return self._too_dear(0, 0.0, 0.0) or self._branch(0, 0.0, 0.0, [])

    @property
    def _widest(self) -> Ground:
        """All that is taken and all that is not decided: what it does not hold, no set does. Rights only forbid more.

        Made when the first offer is about to be left out: up to then, all that is not taken is not decided.
        """
        if self._wide is None:
            self._wide = self._ground.twin()
            self._wide.take_all([offer for offer in self._offers if offer not in self._ground.taken])
        return self._wide

    def _branch(self, index: int, cost: float, weight: float, mine: list[int]) -> bool:
        """From offer `index` on, with `mine` taken; False when the effort ran out before it was decided.

        Half of all branches are too dear: that is asked before the offer is moved, which takes far longer.
        """
        if self._ground.holds():
            self.best, self._least = list(mine), cost
            return True
        if index == len(self._offers):
            return True
        if not self._effort.branches:
            return False
        self._effort.branches -= 1
        offer, done = self._offers[index], True
        with_it = cost + self._cost[index], weight + self._weight[index]
        if not (self._thorough or self._ground.may_take(offer)):
            done = False  # in another order it might have been allowed
        elif not self._too_dear(index + 1, *with_it):
            self._ground.take(offer)
            # What may not be taken together may not be taken with still more either.
            if not self._thorough or self._ground.rightful():
                mine.append(offer)
                done = self._branch(index + 1, *with_it, mine)
                mine.pop()
            self._ground.give_back(offer)
        if not self._too_dear(index + 1, cost, weight):
            self._widest.give_back(offer)
            if self._widest.holds():
                done = self._branch(index + 1, cost, weight, mine) and done
            self._widest.take(offer)
        return done

    def _too_dear(self, index: int, cost: float, weight: float) -> bool:
        """Whether all that comes of the offers from `index` on costs no less than the best that is known."""
        return cost + self._bound(index, self._needed - weight) >= self._least * (1 - 1e-12)

    def _bound(self, index: int, needed: float) -> float:
        """Least cost of what is still needed from the offers that are not decided: `knapsack` on sorted items."""
        if needed <= self._needed * _ROUNDING:  # thirds do not add up to a whole
            return 0.0
        reach = self._running[index] + needed
        last = bisect_left(self._running, reach * (1 - 1e-12), lo=index + 1)
        if last >= len(self._running):
            return float("inf")
        part = (reach - self._running[last - 1]) / max(self._weight[last - 1], 1e-12)
        return self._spent[last - 1] - self._spent[index] + self._cost[last - 1] * min(1.0, part)
