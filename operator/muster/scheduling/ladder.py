"""What whole slots cost, and whole slices of them: a lower bound, and the order in which to clear them.

An offer's cost is shared among the nodes on which it lies, in any way; then each node can be looked at alone, and the
sum of what is bought on each is never more than what the offers cost (a Lagrangian decomposition). On a node the cost
of k slots is a fractional knapsack over the shares there, so the k-th slot costs no less than the one before it.

The same climbs to slices: the first new slice in a rack takes the cheapest of the slots there, as many as are missing
for it, the next one the next cheapest. So slices have prices as slots have, and the cheapest of them all, as many as
the gang lacks, are a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.scheduling.grainwise import Measure
from muster.scheduling.snapshot import NONE, Int, Seconds


@dataclass(frozen=True)
class Rise:
    """From finer pieces (slots, or slices in slices) to coarser ones.

    Attributes:
        unit_of: the coarser domain of each finer one, or NONE.
        missing: of each coarser domain, finer pieces until it holds one more of the coarser.
        ratio: finer pieces in one of the coarser.
    """

    unit_of: Int
    missing: Int
    ratio: int


@dataclass(frozen=True)
class Pieces:
    """Slots or slices that can be bought whole.

    Attributes:
        units: place or domain of each.
        prices: least cost of each, when the cheaper ones of its unit are bought, too.
        piece_of: of each entry (or finer piece) the piece that it is bought with, or NONE.
    """

    units: Int
    prices: Seconds
    piece_of: Int


def rises_of(measure: Measure, slots: Int) -> tuple[Rise, ...]:
    """The climb from slots to the coarsest slices, where so many slots are there now."""
    rises, counts = [], slots
    for step in measure.steps:
        base = step.sums(counts)
        rises.append(Rise(step.unit_of, step.ratio - base % step.ratio, step.ratio))
        counts = base // step.ratio
    return tuple(rises)


def slots_of(places: Int, parts: Seconds, shares: Seconds) -> Pieces:
    """Whole slots, from what each entry adds at most to its place, and its share of its offer's cost."""
    order = np.lexsort((shares / np.maximum(parts, 1e-12), places))
    places, parts, shares = places[order], parts[order], shares[order]
    reach, spent = np.append(0.0, np.cumsum(parts)), np.append(0.0, np.cumsum(shares))
    edge, ends = _edges(places)
    count = np.floor(reach[ends] - reach[edge] + 1e-6).astype(np.int64)
    first = np.cumsum(count) - count
    unit = np.repeat(np.arange(len(edge)), count)
    start = reach[edge][unit] + np.arange(len(unit)) - first[unit]
    limit = reach[ends][unit]
    prices = np.interp(np.minimum(start + 1, limit), reach, spent) - np.interp(np.minimum(start, limit), reach, spent)
    group = np.repeat(np.arange(len(edge)), ends - edge)
    which = np.floor(reach[:-1] - reach[edge][group] + 1e-9).astype(np.int64)
    piece_of = np.full(len(order), NONE, dtype=np.int64)
    piece_of[order] = np.where(which < count[group], first[group] + which, NONE)
    return Pieces(places[edge][unit], prices, piece_of)


def climb(pieces: Pieces, rise: Rise) -> Pieces:
    """Whole coarser pieces, each of the cheapest finer ones that are left in its domain."""
    units = rise.unit_of[pieces.units]
    inside = np.flatnonzero(units != NONE)
    order = inside[np.lexsort((pieces.prices[inside], units[inside]))]
    units, prices = units[order], pieces.prices[order]
    edge, ends = _edges(units)
    group = np.repeat(np.arange(len(edge)), ends - edge)
    beyond = np.arange(len(units)) - edge[group] - rise.missing[units]
    which = np.where(beyond < 0, 0, 1 + beyond // rise.ratio)
    size = ends - edge
    missing = rise.missing[units[edge]]
    count = np.where(size < missing, 0, 1 + (size - missing) // rise.ratio)
    first = np.cumsum(count) - count
    piece = np.where(which < count[group], first[group] + which, NONE)
    sums = np.zeros(int(count.sum()))
    np.add.at(sums, piece[piece != NONE], prices[piece != NONE])
    piece_of = np.full(len(pieces.units), NONE, dtype=np.int64)
    piece_of[order] = piece
    return Pieces(np.repeat(units[edge], count), sums, piece_of)


def least_sums(pieces: Pieces, domain_of: Int, needed: Int) -> Seconds:
    """For each domain the cost of the cheapest `needed` pieces; infinite where there are not so many.

    Args:
        domain_of: the domain of each unit.
    """
    home = domain_of[pieces.units]
    order = np.flatnonzero(home != NONE)
    order = order[np.lexsort((pieces.prices[order], home[order]))]
    home, prices = home[order], pieces.prices[order]
    chosen = np.arange(len(home)) - np.searchsorted(home, home) < needed[home]
    bounds = np.zeros(len(needed))
    np.add.at(bounds, home[chosen], prices[chosen])
    bounds[np.bincount(home, minlength=len(needed)) < needed] = np.inf
    return bounds


def whole(places: Int, parts: Seconds, shares: Seconds, rises: tuple[Rise, ...]) -> Pieces:
    """The coarsest pieces; `piece_of` tells which one each entry is bought with."""
    pieces = slots_of(places, parts, shares)
    piece_of = pieces.piece_of
    for rise in rises:
        pieces = climb(pieces, rise)
        piece_of = np.where(piece_of == NONE, NONE, np.append(pieces.piece_of, NONE)[piece_of])
    return Pieces(pieces.units, pieces.prices, piece_of)


def in_order(pieces: Pieces, owners: Int, prices: Seconds, count: int) -> Int:
    """All of `count` offers, in the order in which pieces are bought, the cheapest first; then those that add nothing.

    Args:
        owners, prices: of each entry: its offer, and what it asks for what it adds.
    """
    bought = np.append(pieces.prices, np.inf)[pieces.piece_of]
    ranked = owners[np.lexsort((np.arange(len(owners)), prices, pieces.piece_of, bought))]
    turn = np.full(count, len(ranked), dtype=np.int64)
    np.minimum.at(turn, ranked, np.arange(len(ranked)))
    order: Int = np.lexsort((np.arange(count), turn))
    return order


def _edges(groups: Int) -> tuple[Int, Int]:
    """Where each run of equal values begins and ends."""
    if not len(groups):
        return groups.astype(np.int64), groups.astype(np.int64)
    edge = np.flatnonzero(np.append(True, groups[1:] != groups[:-1])).astype(np.int64)
    return edge, np.append(edge[1:], len(groups))
