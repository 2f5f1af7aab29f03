"""Where a gang goes: the smallest domain that holds it, filled so that few nodes are broken into.

Everything here speaks of slots: how many of the gang's workers a node can take now. `place` says how many workers each
place of the tree order gets, never more than its slots; `locate` which worker goes where.

* REQUIRED at a level, and PREFERRED: look for one domain that holds the whole gang, narrowest level first. REQUIRED
  stops at its level; PREFERRED climbs on to the widest and then to the whole cluster. Among the domains of a level the
  one with the fewest slots wins, then the one whose wider domain has the fewest, so that the large ones stay whole.
* Inside a domain, level by level: the tightest child that holds all; where none does, as few children as possible, the
  largest filled whole and the tightest that holds the rest. Nodes without a label are the last resort.
* UNCONSTRAINED: nodes that are in use already first, and as few untouched nodes as possible.
* Slices and balance hold in every mode: room is counted in whole slices (`muster.scheduling.slices`), which are shared
  out like workers, and each slice's workers within its domain. A balanced gang uses as few domains as it can.
* Spares are not part of any slice. They go where the gang goes, as close as there is room.
* Workers without accelerators go to nodes that have none free, where that is as close.

Ranks follow the tree order, so neighbours in rank are neighbours in the tree. Every slice begins and ends with its
domain's share of the workers, because each domain gets whole slices only.

The search for one domain is exhaustive and counts of whole slices are exact, so the answer is None only if no valid
placement exists. A gang without balance that does not fit does not fit with more workers either; one with balance may.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.scheduling.balanced import most_even
from muster.scheduling.gangs import Gang
from muster.scheduling.packing import fill_broken_first, share_out
from muster.scheduling.slices import Counted, Grains, count, counted, grains, slice_in
from muster.scheduling.snapshot import NONE, Int, Mask, TopologyMode
from muster.scheduling.topology import Tree, prefix_sums


def fits(tree: Tree, prefix: Int, gang: Gang) -> bool:
    """Whether any valid placement exists, given prefix sums of slots."""
    if gang.mode == TopologyMode.REQUIRED:
        return gang.level != NONE and bool(holding(tree, prefix, gang, gang.level).any())
    if int(prefix[-1]) < gang.total:
        return False
    if not gang.shape.slices and gang.shape.balanced == NONE:
        return True
    return any(int(room.prefixes[0][-1]) >= room.needed for room in counted(tree, prefix, gang, NONE))


def holding(tree: Tree, prefix: Int, gang: Gang, level: int) -> Mask:
    """Domains of a level that can each hold the whole gang, slices, balance and spares included."""
    found = np.zeros(len(tree.starts[level]), dtype=np.bool_)
    for room in counted(tree, prefix, gang, level):
        found |= _holding(tree, room, gang, level)
    return found


def placeable(tree: Tree, prefix: Int, gang: Gang, level: int) -> Int:
    """How many of the gang's workers each domain of a level could hold, in whole slices and in balance, without spares.

    Level NONE: the whole cluster, as an array of one. More than the gang needs is told for gangs without balance. For
    balanced gangs with slices around the balance it may be less than what they could be cut down to.
    """
    most = np.zeros(1 if level == NONE else len(tree.starts[level]), dtype=np.int64)
    for cut in grains(gang, level):
        if gang.shape.balanced > level and cut[0].single:
            return _evenly_placeable(tree, prefix, gang, level, cut[1:])
        room = count(tree, prefix, gang, cut)
        units = room.prefixes[0][-1:] if level == NONE else tree.sums(room.prefixes[0], level)
        if gang.shape.balanced > level:
            units = np.minimum(units, room.needed)
        np.maximum(most, units * (gang.size // room.needed), out=most)
    return most


def most_placeable(tree: Tree, prefix: Int, gang: Gang) -> int:
    """`placeable`, of the domain that holds most; of the whole cluster where the gang requires no level."""
    required = gang.mode == TopologyMode.REQUIRED
    if required and gang.level == NONE:
        return 0
    return int(placeable(tree, prefix, gang, gang.level if required else NONE).max(initial=0))


def _evenly_placeable(tree: Tree, prefix: Int, gang: Gang, level: int, inner: Grains) -> Int:
    """`placeable` of a balanced gang without slices around the balance, whatever number of workers it then has.

    Args:
        inner: slices inside the domains that are balanced.
    """
    unit = slice_in(gang, gang.shape.balanced)
    finest = count(tree, prefix, gang, inner)
    parts = tree.sums(finest.prefixes[0], gang.shape.balanced) // (unit // (inner[0].size if inner else 1))
    starts = tree.starts[gang.shape.balanced]
    around = [(0, len(prefix))] if level == NONE else zip(tree.starts[level], tree.ends[level], strict=True)
    most = [most_even(parts[(starts >= start) & (starts < end)], gang.size // unit) for start, end in around]
    return np.array(most, dtype=np.int64) * unit


def _holding(tree: Tree, room: Counted, gang: Gang, level: int) -> Mask:
    holds: Mask = tree.sums(room.slots, level) >= gang.total
    if room.grains:
        holds &= tree.sums(room.prefixes[0], level) >= room.needed
    return holds


def place(tree: Tree, slots: Int, prefix: Int, gang: Gang, *, whole: Mask, spared: Mask | None) -> Int | None:
    """How many workers, spares included, each place gets; None if no valid placement exists. See `locate`."""
    chosen = _choose(tree, slots, prefix, gang, whole, spared)
    return None if chosen is None else sum(chosen[1:], chosen[0])


def locate(tree: Tree, slots: Int, prefix: Int, gang: Gang, *, whole: Mask, spared: Mask | None) -> Int | None:
    """The place of each worker in order of rank, the spares behind; None if no valid placement exists.

    Args:
        slots: workers that each place can take.
        prefix: prefix sums of `slots`.
        whole: places that nothing uses yet, as far as this worker can tell.
        spared: places to leave alone where others are as close, or None.
    """
    chosen = _choose(tree, slots, prefix, gang, whole, spared)
    if chosen is None:
        return None
    ranks = [_each(taken) for taken in chosen]
    return np.concatenate(ranks) if len(ranks) > 1 else ranks[0]


def _each(taken: Int) -> Int:
    """The place of each of those that are taken, in tree order."""
    places = (taken != 0).nonzero()[0]
    each: Int = places.repeat(taken[places])
    return each


@dataclass(frozen=True)
class _Site:
    """A domain, or the whole cluster, in which the gang is to be packed: places [start, end) of children of `level`."""

    room: Counted
    start: int
    end: int
    level: int


def _choose(
    tree: Tree, slots: Int, prefix: Int, gang: Gang, whole: Mask, spared: Mask | None
) -> tuple[Int, ...] | None:
    """How many of the gang's workers, and, if it has any, how many spares, each place gets."""
    pools = [(slots, prefix)]
    if spared is not None and spared.any():
        kept = np.where(spared, 0, slots)
        pools.insert(0, (kept, prefix_sums(kept)))
    if gang.mode == TopologyMode.UNCONSTRAINED:
        return _anywhere(tree, pools, gang, whole)
    if gang.mode == TopologyMode.REQUIRED and gang.level == NONE:
        return None
    widest = gang.level if gang.mode == TopologyMode.REQUIRED else NONE
    for level in range(tree.depth - 1, widest - 1, -1):
        for pool, sums in pools:
            site = _find_site(tree, sums, gang, level)
            if site is not None:
                return _settle(tree, pool, site, gang)
    return None


def _find_site(tree: Tree, prefix: Int, gang: Gang, level: int) -> _Site | None:
    """The tightest domain of a level that holds the gang; level NONE: the whole cluster."""
    for room in counted(tree, prefix, gang, level):
        if level == NONE:
            if int(prefix[-1]) >= gang.total and int(room.prefixes[0][-1]) >= room.needed:
                return _Site(room, 0, len(prefix) - 1, 0)
            continue
        domain = _tightest(tree, prefix, level, np.flatnonzero(_holding(tree, room, gang, level)))
        if domain != NONE:
            return _Site(room, int(tree.starts[level][domain]), int(tree.ends[level][domain]), level + 1)
    return None


def _tightest(tree: Tree, prefix: Int, level: int, fitting: Int) -> int:
    """Of the domains of a level that fit the one with the fewest slots, or NONE."""
    if not fitting.size:
        return NONE
    around, first = fitting, tree.starts[level]
    for wider in range(level, -1, -1):
        if fitting.size == 1:
            break
        if wider < level:
            around = tree.domain_of[wider][first[fitting]]
        room = prefix[tree.ends[wider][around]] - prefix[tree.starts[wider][around]]
        tightest = room == room.min()
        fitting = fitting[tightest]
        around = around[tightest]
    return int(fitting[0])


def _settle(tree: Tree, slots: Int, site: _Site, gang: Gang) -> tuple[Int, ...]:
    """Pack the gang into a site that holds it, then its spares beside it."""
    room, spares = site.room, gang.shape.spares
    start, end = np.array([site.start]), np.array([site.end])
    if not room.grains:
        # Packed together the spares are as close as can be: they are the last in tree order.
        taken = spread(tree, room.slots, start, end, np.array([gang.total]), site.level, tree.depth)
        return _part(taken, spares)
    taken = _unfold(tree, room, spread(tree, room.prefixes[0], start, end, *_needed(room, site.level)))
    if not spares:
        return (taken,)
    left = prefix_sums(slots - taken)
    return taken, spread(tree, left, start, end, np.array([spares]), site.level, tree.depth)


def _needed(room: Counted, level: int) -> tuple[Int, int, int]:
    """What `spread` is asked for the widest grain: how many, from which level on, down to which."""
    return np.array([room.needed]), level, room.grains[0].level + 1


def _unfold(tree: Tree, room: Counted, taken: Int) -> Int:
    """From grains on their domains' first places to workers on places, grain by grain inwards."""
    for index, grain in enumerate(room.grains):
        domains = np.flatnonzero(taken[tree.starts[grain.level]])
        starts, ends = tree.starts[grain.level][domains], tree.ends[grain.level][domains]
        inner = room.grains[index + 1] if index + 1 < len(room.grains) else None
        ratio = grain.size // inner.size if inner else grain.size
        until = inner.level + 1 if inner else tree.depth
        taken = spread(tree, room.prefixes[index + 1], starts, ends, taken[starts] * ratio, grain.level + 1, until)
    return taken


def spread(tree: Tree, prefix: Int, starts: Int, ends: Int, needs: Int, level: int, until: int) -> Int:
    """Share needs out among the children of domains, level by level.

    Args:
        prefix: prefix sums of what is shared out.
        starts, ends: places [start, end) of the domains, of the level above `level`; in order.
        needs: of each domain, at least 1 and at most what it holds.
        until: level below the last one: at the tree's depth it ends on the places, before it on domains' first places.

    Returns:
        N, what each place gives.
    """
    for at in range(level, until):
        stretches = tree.stretches[at]
        children, begins = _ranges(stretches.starts.searchsorted(starts), stretches.starts.searchsorted(ends))
        child_starts, child_ends = stretches.starts[children], stretches.ends[children]
        given = share_out(needs, prefix[child_ends] - prefix[child_starts], begins, stretches.loose[children])
        used = np.flatnonzero(given)
        starts, ends, needs = child_starts[used], child_ends[used], given[used]
    taken = np.zeros(len(prefix) - 1, dtype=np.int64)
    if until < tree.depth:
        taken[starts] = needs
        return taken
    places, begins = _ranges(starts, ends)
    room = prefix[1:][places] - prefix[:-1][places]
    taken[places] = share_out(needs, room, begins, np.zeros(len(room), np.bool_))
    return taken


def _ranges(first: Int, last: Int) -> tuple[Int | slice, Int]:
    """All indices of the ranges [first, last), one after the other, and where each range begins among them."""
    if len(first) == 1:
        return slice(int(first[0]), int(last[0])), np.zeros(1, dtype=np.int64)
    lengths = last - first
    begins = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(first - begins, lengths), begins


def _anywhere(tree: Tree, pools: list[tuple[Int, Int]], gang: Gang, whole: Mask) -> tuple[Int, ...] | None:
    """Where the gang as a whole may lie anywhere: what is in use already is used up first."""
    if not gang.shape.slices and gang.shape.balanced == NONE:
        if int(pools[-1][1][-1]) < gang.total:
            return None
        return _part(_fill_pools([pool for pool, _ in pools], whole, gang.total), gang.shape.spares)
    for pool, prefix in pools:
        site = _find_site(tree, prefix, gang, NONE)
        if site is not None:
            return _scatter(tree, pool, site.room, gang, whole)
    return None


def _scatter(tree: Tree, slots: Int, room: Counted, gang: Gang, whole: Mask) -> tuple[Int, ...]:
    """Slices anywhere: domains that are in use already first; spares likewise, on what is left."""
    level = room.grains[0].level
    units = np.diff(room.prefixes[0])
    starts, ends = tree.starts[level], tree.ends[level]
    untouched = prefix_sums(whole | (slots == 0))
    anchored = np.zeros(len(slots), dtype=np.bool_)
    anchored[starts] = untouched[ends] - untouched[starts] == ends - starts
    taken = _unfold(tree, room, fill_broken_first(units, anchored, room.needed))
    if not gang.shape.spares:
        return (taken,)
    return taken, fill_broken_first(slots - taken, whole & (taken == 0), gang.shape.spares)


def _fill_pools(pools: list[Int], whole: Mask, size: int) -> Int:
    """Fill the first pool before the next is touched; each pool holds the ones before it."""
    if len(pools) == 1:
        return fill_broken_first(pools[0], whole, size)
    taken = np.zeros(len(whole), dtype=np.int64)
    for pool in pools:
        if not size:
            break
        left = pool - taken
        part = min(size, int(left.sum()))
        taken += fill_broken_first(left, whole & (taken == 0), part)
        size -= part
    return taken


def _part(taken: Int, spares: int) -> tuple[Int, ...]:
    """The last workers in tree order are the spares."""
    if not spares:
        return (taken,)
    behind = np.maximum(np.cumsum(taken) - (int(taken.sum()) - spares), 0)
    last = np.minimum(taken, behind)
    return taken - last, last
