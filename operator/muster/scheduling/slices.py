"""Slices and balance: parts of a gang that must lie together while the gang itself spreads wider.

A gang with slices is counted in whole slices. `collapse` puts, on the first place of each domain of a level, the number
of whole slices that the domain can hold, and nothing on the others. What comes out looks like slots again, so the same
is done for the slices around them, and everything that places workers on nodes places slices on domains.

A `Grain` is one such step. Its size divides that of the next wider grain, and its level is narrower: so to hold as many
of each as fit is always best, and a count of whole slices from the narrowest level upwards is exact.

Balance is a grain too: of the workers that each domain of its level gets, and no domain holds two. How many that is
depends on the number of domains, so each number that divides the gang is tried, the smallest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

import numpy as np

from muster.scheduling.balanced import most_first, possible, shares
from muster.scheduling.gangs import Gang
from muster.scheduling.snapshot import NONE, Int
from muster.scheduling.topology import Tree, prefix_sums


@dataclass(frozen=True)
class Grain:
    """
    Attributes:
        level: each grain lies in one domain of it.
        size: workers.
        single: a domain holds one at most.
    """

    level: int
    size: int
    single: bool = False


Grains = tuple[Grain, ...]
"""Widest first. Empty: the gang is counted in workers."""


def grains(gang: Gang, within: int) -> Iterator[Grains]:
    """The ways to cut the gang when it lies in one domain of level `within` (NONE: the whole cluster), best first.

    Nothing comes where the gang's size is no multiple of its slices', or the cluster lacks a level.
    """
    shape = gang.shape
    if any(level == NONE or gang.size % size for size, level in shape.slices):
        return
    # What shares a domain with the gang, or with the slice around it, in a narrower level anyway needs nothing more.
    around = [within, *(level for _, level in shape.slices)]
    slices = [Grain(level, size) for at, (size, level) in enumerate(shape.slices, 1) if level > max(around[:at])]
    if shape.balanced <= within:
        yield tuple(slices)
        return
    outer = [grain for grain in slices if grain.level < shape.balanced]
    inner = [grain for grain in slices if grain.level >= shape.balanced]
    for share in shares(gang.size, slice_in(gang, shape.balanced)):
        outside = (Grain(grain.level, lcm(grain.size, share)) for grain in outer)
        inside = (grain for grain in inner if grain.level > shape.balanced)
        yield (*outside, Grain(shape.balanced, share, single=True), *inside)


def slice_in(gang: Gang, level: int) -> int:
    """Workers of the widest slice that lies in one domain of a level; 1 without any."""
    return next((size for size, narrow in gang.shape.slices if narrow >= level), 1)


@dataclass(frozen=True)
class Counted:
    """What the places hold, counted in workers and in each grain.

    Attributes:
        grains: widest first.
        prefixes: prefix sums over places, one for each grain, and those of the workers' slots last.
        needed: of the widest grain (of workers, without grains), for the gang; spares are not in it.
    """

    grains: Grains
    prefixes: tuple[Int, ...]
    needed: int

    @property
    def slots(self) -> Int:
        return self.prefixes[-1]


def counted(tree: Tree, prefix: Int, gang: Gang, within: int) -> Iterator[Counted]:
    """The room in each way to cut the gang that could do, best first; see `grains`. `prefix`: prefix sums of slots."""
    rooms = most_first(tree.sums(prefix, gang.shape.balanced)) if gang.shape.balanced > within else None
    for cut in grains(gang, within):
        if rooms is None or possible(gang.size, _share(cut), rooms):
            yield count(tree, prefix, gang, cut)


def count(tree: Tree, prefix: Int, gang: Gang, cut: Grains) -> Counted:
    """The room for one way to cut the gang."""
    prefixes, size = [prefix], 1
    for grain in reversed(cut):
        prefixes.insert(0, collapse(tree, prefixes[0], grain, grain.size // size))
        size = grain.size
    return Counted(cut, tuple(prefixes), gang.size // size)


def _share(cut: Grains) -> int:
    """Workers in each domain of a balanced gang."""
    return next(grain.size for grain in cut if grain.single)


def collapse(tree: Tree, prefix: Int, grain: Grain, ratio: int) -> Int:
    """Prefix sums of whole grains, which stand on their domains' first places.

    Args:
        prefix: prefix sums of what a grain is made of.
        ratio: so many of those make one grain.
    """
    whole = tree.sums(prefix, grain.level) // ratio
    if grain.single:
        np.minimum(whole, 1, out=whole)
    counts = np.zeros(len(prefix) - 1, dtype=np.int64)
    counts[tree.starts[grain.level]] = whole
    return prefix_sums(counts)
