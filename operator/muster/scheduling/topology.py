"""The tree of domains, laid out so that every domain is one range of nodes.

Nodes are put in tree order: sorted by their domain at the widest level, then the next, nodes without a label last among
their neighbours. Then a domain's room is a difference of two prefix sums, its children are a range too, and workers
that are numbered along the nodes are neighbours in the tree when they are neighbours in index.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from muster.scheduling.snapshot import NONE, Index, Int, Levels, Mask


@dataclass(frozen=True)
class _Layout:
    """What a tree knows of its nodes' labels alone; for the attributes see `Tree`.

    Attributes:
        labels: for each level, the snapshot's index of each domain.
        domain_of: for each level, the domain of each place, or NONE.
    """

    order: Int
    stretches: tuple[Stretches, ...]
    starts: tuple[Int, ...]
    ends: tuple[Int, ...]
    labels: tuple[Int, ...]
    domain_of: tuple[Int, ...]

    @cached_property
    def place_of(self) -> Int:
        """N, the place of each node."""
        place_of = np.empty(len(self.order), dtype=np.int64)
        place_of[self.order] = np.arange(len(self.order))
        place_of.flags.writeable = False
        return place_of


@dataclass(frozen=True)
class Stretches:
    """A level's domains and, behind their siblings, the nodes without its label: together all places, in order.

    Attributes:
        starts, ends: places [start, end) of each; each lies in one stretch of the next wider level.
        loose: nodes without the label.
    """

    starts: Int
    ends: Int
    loose: Mask


class Tree:
    """
    Attributes:
        order: N, the snapshot's node at each place of the tree order.
        starts, ends: for each level, the range [start, end) of places of each of its domains, in tree order.
        depth: number of levels.
        stretches: for each level, what its domains and the nodes without its label divide the places into.
    """

    def __init__(self, domains: Index, levels: Levels) -> None:
        self._levels = levels
        self.depth = len(levels.names)
        self._take_up(_lay_out(domains.shape, np.ascontiguousarray(domains, dtype=np.int32).tobytes()))

    def _take_up(self, layout: _Layout) -> None:
        self._layout = layout
        self.order = layout.order
        self.stretches = layout.stretches
        self.starts, self.ends = layout.starts, layout.ends
        self._labels, self.domain_of = layout.labels, layout.domain_of

    @property
    def place_of(self) -> Int:
        """N, the place of each of the snapshot's nodes. Not for trees of some places alone."""
        return self._layout.place_of

    def among(self, places: Int) -> Tree:
        """The tree of some places alone, in their order; domains without any of them are not in it."""
        twin = copy(self)
        twin._take_up(_lay_out_among(self._layout, places))
        return twin

    def sums(self, prefix: Int, level: int) -> Int:
        """Sum over each domain of a level, from prefix sums over places (length N + 1, starting with 0)."""
        sums: Int
        if len(self.starts[level]) == len(prefix) - 1:  # each place is a domain of its own
            sums = prefix[1:] - prefix[:-1]
        else:
            sums = prefix[self.ends[level]] - prefix[self.starts[level]]
        return sums

    def level_name(self, level: int) -> str:
        return self._levels.names[level] if level != NONE else ""

    def domain_name(self, level: int, domain: int) -> str:
        return self._levels.domain_names[level][int(self._labels[level][domain])]

    def members(self, level: int, domains: Mask) -> Mask:
        """Places that lie in one of the chosen domains of a level."""
        domain_of = self.domain_of[level]
        if not len(domains):
            return np.zeros(len(domain_of), dtype=np.bool_)
        members: Mask = domains[domain_of] & (domain_of != NONE)
        return members


@lru_cache(maxsize=4)
def _lay_out(shape: tuple[int, int], data: bytes) -> _Layout:
    """The layout of `domains` (N x L, int32), kept from plan to plan: labels change far less often than what is free.

    By content, since each snapshot has an array of its own. To compare it costs a tenth of sorting it.
    """
    domains = np.frombuffer(data, dtype=np.int32).reshape(shape)
    nodes, depth = shape
    # A node that lacks a wider level's label belongs to no narrower domain either.
    labelled = np.logical_and.accumulate(domains != NONE, axis=1)
    keys = np.where(labelled, domains, np.iinfo(np.int32).max)
    order = np.lexsort((np.arange(nodes), *keys.T[::-1])).astype(np.int64)
    keys, labelled = keys[order], labelled[order]
    changed = np.zeros(nodes, dtype=np.bool_)
    changed[:1] = True
    stretches, labels, owners = [], [], []
    for level in range(depth):
        changed[1:] |= keys[1:, level] != keys[:-1, level]
        edges = np.flatnonzero(changed)
        inside = labelled[edges, level]
        stretches.append(Stretches(edges, np.append(edges[1:], nodes), ~inside))
        labels.append(keys[edges[inside], level].astype(np.int64))
        members = labelled[:, level]
        owners.append(np.where(members, np.cumsum(changed & members) - 1, NONE))
    layout = _Layout(
        order,
        tuple(stretches),
        tuple(stretch.starts[~stretch.loose] for stretch in stretches),
        tuple(stretch.ends[~stretch.loose] for stretch in stretches),
        tuple(labels),
        tuple(owners),
    )
    _freeze(layout)
    return layout


def _lay_out_among(layout: _Layout, places: Int) -> _Layout:
    """The layout of some places, in tree order."""
    stretches, starts, ends, labels, owners = [], [], [], [], []
    for level, stretch in enumerate(layout.stretches):
        first, last = np.searchsorted(places, stretch.starts), np.searchsorted(places, stretch.ends)
        some = first < last
        inside = some[~stretch.loose]
        stretches.append(Stretches(first[some], last[some], stretch.loose[some]))
        starts.append(first[~stretch.loose][inside])
        ends.append(last[~stretch.loose][inside])
        labels.append(layout.labels[level][inside])
        owner = layout.domain_of[level][places]
        owners.append(np.where(owner == NONE, NONE, (np.cumsum(inside) - 1)[owner] if len(inside) else NONE))
    return _Layout(layout.order[places], tuple(stretches), tuple(starts), tuple(ends), tuple(labels), tuple(owners))


def _freeze(layout: _Layout) -> None:
    """Shared by plans, so nobody may write into it."""
    arrays = [array for stretch in layout.stretches for array in (stretch.starts, stretch.ends, stretch.loose)]
    for array in (layout.order, *layout.starts, *layout.ends, *layout.labels, *layout.domain_of, *arrays):
        array.flags.writeable = False


def prefix_sums(counts: Int) -> Int:
    """Length N + 1, starting with 0."""
    prefix = np.zeros(len(counts) + 1, dtype=np.int64)
    counts.cumsum(out=prefix[1:])
    return prefix
