"""A domain counted in what the gang is made of: workers, or whole slices of them, with a bound on what offers add.

Nested slices are counted from the narrowest level upwards, as in `muster.scheduling.slices`. The same climb gives the
bound: with s workers in a slice's domain now, y more make at most y / (size - s mod size) slices more there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.scheduling.gangs import Gang
from muster.scheduling.slices import grains
from muster.scheduling.snapshot import NONE, Int, Seconds, TopologyMode
from muster.scheduling.topology import Tree


@dataclass(frozen=True)
class Step:
    """From a finer count to a coarser one.

    Attributes:
        unit_of: the coarser domain of each finer one (of each place, in the first step), or NONE.
        count: number of coarser domains.
        ratio: so many of the finer make one of the coarser.
    """

    unit_of: Int
    count: int
    ratio: int

    def sums(self, counts: Int) -> Int:
        """The finer count in each coarser domain."""
        inside = self.unit_of != NONE
        sums = np.zeros(self.count, dtype=np.int64)
        np.add.at(sums, self.unit_of[inside], counts[inside])
        return sums


@dataclass(frozen=True)
class Measure:
    """
    Attributes:
        steps: narrowest first; none for a gang without slices.
        needed: of the coarsest count.
        exact: whether so many are enough for the gang, its spares aside; False for balanced gangs.
    """

    steps: tuple[Step, ...]
    needed: int
    exact: bool

    def counts(self, slots: Int) -> Int:
        """How many of the coarsest each of its domains holds."""
        counts = slots
        for step in self.steps:
            counts = step.sums(counts) // step.ratio
        return counts

    def count(self, slots: Int) -> int:
        """How many of the coarsest there are."""
        return int(self.counts(slots).sum())

    def anchors(self) -> Int:
        """A place of each of the coarsest domains."""
        anchors = np.arange(len(self.steps[0].unit_of))
        for step in self.steps:
            first = np.full(step.count, NONE, dtype=np.int64)
            inside = step.unit_of != NONE
            first[step.unit_of[inside]] = anchors[inside]
            anchors = first
        return anchors

    def weights(self, slots: Int, most: Int, places: Int, offers: Int, weights: Seconds) -> tuple[Int, Int, Seconds]:
        """From bounds in workers to bounds in the coarsest count, one for each offer and coarsest domain.

        Args:
            slots, most: workers on each place now, and when all that is on offer is taken.
            places, offers, weights: of each entry.

        Returns:
            Coarsest domains (places, without slices), offers and bounds; their sum over any set of offers bounds what
            the set adds.
        """
        units = places
        for step in self.steps:
            base, final = step.sums(slots), step.sums(most)
            units = step.unit_of[units]
            inside = units != NONE
            units, offers, weights = _merge(units[inside], offers[inside], weights[inside], step.count)
            slots, most = base // step.ratio, final // step.ratio
            weights = np.minimum(weights / (step.ratio - base % step.ratio)[units], (most - slots)[units])
        return units, offers, weights


def measure_of(tree: Tree, gang: Gang) -> Measure | None:
    """How the gang is counted, over all places; None if the cluster or the gang's own size never allows its shape."""
    within = gang.level if gang.mode == TopologyMode.REQUIRED else NONE
    cuts = list(grains(gang, within))
    if not cuts:
        return None
    if gang.shape.balanced > within:
        return Measure((), gang.total, exact=False)
    steps, finer, size = [], np.arange(len(tree.order)), 1
    for grain in reversed(cuts[0]):
        starts = tree.starts[grain.level]
        unit_of = unit_of_places(starts, tree.ends[grain.level], len(tree.order))[finer]
        steps.append(Step(unit_of, len(starts), grain.size // size))
        finer, size = starts, grain.size
    return Measure(tuple(steps), gang.size // size if steps else gang.total, exact=True)


def unit_of_places(starts: Int, ends: Int, count: int) -> Int:
    """The domain of each place, given domains that are ranges in order; NONE outside."""
    if not len(starts):
        return np.full(count, NONE, dtype=np.int64)
    unit = np.searchsorted(starts, np.arange(count), side="right") - 1
    outside = (unit < 0) | (np.arange(count) >= ends[unit])
    return np.where(outside, NONE, unit).astype(np.int64)


def within(measure: Measure, start: int, end: int) -> Measure:
    """The same for places [start, end), a domain that holds the slices' domains whole."""
    steps = []
    first, last = start, end
    for step in measure.steps:
        units = step.unit_of[first:last]
        known = units[units != NONE]
        low, high = (int(known.min()), int(known.max()) + 1) if len(known) else (0, 0)
        steps.append(Step(np.where(units == NONE, NONE, units - low), high - low, step.ratio))
        first, last = low, high
    return Measure(tuple(steps), measure.needed, measure.exact)


def _merge(units: Int, offers: Int, weights: Seconds, count: int) -> tuple[Int, Int, Seconds]:
    """One entry for each offer and unit, with the sum of their weights."""
    keys, index = np.unique(offers * max(1, count) + units, return_inverse=True)
    sums = np.zeros(len(keys))
    np.add.at(sums, index, weights)
    offers, units = np.divmod(keys, max(1, count))
    return units, offers, sums
