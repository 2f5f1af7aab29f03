"""New places for workers that broke, while the others of the gang stay where they are.

What held for the whole gang holds again: `required`, slices and balance. A slice of which somebody stands is bound to
its domain, so what it lost goes there; a slice that is lost whole goes to any domain that holds it inside the domain of
the slice around it. In balanced gangs the workers of one domain, neighbours in rank, are bound together like a slice.

Room is counted from the narrowest level upwards: first what bound slices need is taken off their domain, then whole
slices are counted in what is left. That is exact, so the answer is None only if the workers that stand leave no valid
placement; then the gang has to be placed anew as a whole.

Spares go first: a worker that is lost takes the place of a spare where the shape allows it, so that no pod has to be
scheduled before the gang can go on. Otherwise it goes as close as possible to its neighbour in rank. A gang of which no
worker stands stays where its spares are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from muster.scheduling.gangs import Gang
from muster.scheduling.placement import spread
from muster.scheduling.slices import Grains, grains
from muster.scheduling.snapshot import NONE, Int, TopologyMode
from muster.scheduling.topology import Tree, prefix_sums


@dataclass(frozen=True)
class Replaced:
    """
    Attributes:
        indexes: workers whose place changes, ascending: those that were lost, and spares whose place one of them took.
        places: new place of each; NONE for a spare that there is no room for now.
    """

    indexes: Int
    places: Int


@dataclass(frozen=True)
class _Site:
    """Places [start, end): a domain of level `within`, or the whole cluster (NONE), in which the gang stays."""

    within: int
    start: int
    end: int


def replace_workers(tree: Tree, slots: Int, gang: Gang, placed: Int, lost: Int) -> Replaced | None:
    """Find new places for what a gang lost.

    Args:
        slots: workers that each place can take now, beside those that stand.
        gang: of the size that it was placed with.
        placed: place of each worker in order of rank, the spares behind; NONE where the node is gone.
        lost: indexes of the workers and spares to be replaced. Workers without a place are lost too.

    Returns:
        None if the workers that stand, or else the spares, leave no valid placement, or nobody stands.
    """
    standing = placed != NONE
    standing[lost] = False
    workers = np.where(standing, placed, NONE)[: gang.size]
    spares = gang.size + np.flatnonzero(standing[gang.size :])
    stays = workers[workers != NONE] if (workers != NONE).any() else placed[spares]
    if not stays.size or (gang.mode == TopologyMode.REQUIRED and gang.level == NONE):
        return None
    ready = np.bincount(placed[spares], minlength=len(slots))
    for site in _sites(tree, gang, stays):
        for cut in grains(gang, site.within):
            spans = _assign(tree, slots + ready, site, cut, workers)
            if spans is not None:
                seats = _Seats(tree, slots.copy(), ready, {int(spare): int(placed[spare]) for spare in spares})
                return _seat(seats, gang, site, workers, spans)
    return None


def _sites(tree: Tree, gang: Gang, there: Int) -> Iterator[_Site]:
    """The domains that all of these places lie in, narrowest first, as far as the gang's mode lets it climb."""
    widest = gang.level if gang.mode == TopologyMode.REQUIRED else 0
    for level in range(tree.depth - 1, widest - 1, -1):
        domain = int(tree.domain_of[level][there[0]])
        if domain != NONE and (tree.domain_of[level][there] == domain).all():
            yield _Site(level, int(tree.starts[level][domain]), int(tree.ends[level][domain]))
    if gang.mode != TopologyMode.REQUIRED:
        yield _Site(NONE, 0, len(tree.order))


def _assign(tree: Tree, room: Int, site: _Site, cut: Grains, workers: Int) -> list[tuple[int, int]] | None:
    """For each lost worker, in order, the places [start, end) among which it may be put; None if there is no room."""
    homes = _bind(tree, cut, workers)
    if homes is None:
        return None
    counts = np.zeros_like(room)
    counts[site.start : site.end] = room[site.start : site.end]
    prefixes = _count(tree, cut, homes, workers, counts)
    if prefixes is None:
        return None
    level, within = site.within, [(site.start, site.end)] * len(workers)
    for grain, home, prefix in zip(cut, homes, prefixes, strict=True):
        _settle(tree, home, within, prefix, level, grain.level)
        starts, ends = tree.starts[grain.level][home].tolist(), tree.ends[grain.level][home].tolist()
        size = len(workers) // len(home)
        within = [(starts[worker // size], ends[worker // size]) for worker in range(len(workers))]
        level = grain.level
    return [within[worker] for worker in np.flatnonzero(workers == NONE).tolist()]


def _bind(tree: Tree, cut: Grains, workers: Int) -> list[Int] | None:
    """For each grain the domain of each part: that of its workers that stand, NONE for a part that is lost whole.

    None if the gang does not lie like this cut.
    """
    homes: list[Int] = []
    for grain in cut:
        there = np.where(workers != NONE, tree.domain_of[grain.level][workers], NONE).reshape(-1, grain.size)
        stands = (workers != NONE).reshape(-1, grain.size)
        domains: Int = there.max(axis=1)
        if (stands & (there != domains[:, None])).any() or (stands.any(axis=1) & (domains == NONE)).any():
            return None
        bound = domains[domains != NONE]
        if grain.single and len(np.unique(bound)) < len(bound):
            return None
        homes.append(domains)
    return homes


def _count(tree: Tree, cut: Grains, homes: list[Int], workers: Int, counts: Int) -> list[Int] | None:
    """Prefix sums of what the places hold of each grain, when bound parts have got what they lack; None: too little.

    Args:
        counts: workers that each place takes.
    """
    prefixes: list[Int] = []
    parts = workers
    for grain, home in zip(reversed(cut), reversed(homes), strict=True):
        ratio = len(parts) // len(home)
        around = np.repeat(home, ratio)
        wanted = around[(parts == NONE) & (around != NONE)]
        left = tree.sums(prefix_sums(counts), grain.level) - np.bincount(
            wanted, minlength=len(tree.starts[grain.level])
        )
        if (left < 0).any():
            return None
        left //= ratio
        if grain.single:
            np.minimum(left, 1, out=left)
            left[home[home != NONE]] = 0
        counts = np.zeros_like(counts)
        counts[tree.starts[grain.level]] = left
        prefixes.insert(0, prefix_sums(counts))
        parts = home
    return prefixes if int(counts.sum()) >= int((parts == NONE).sum()) else None


def _settle(tree: Tree, home: Int, within: list[tuple[int, int]], prefix: Int, level: int, until: int) -> None:
    """Give each part without a domain one, inside the domain (of `level`) of the part around it. Fills `home`."""
    fresh = np.flatnonzero(home == NONE)
    if not fresh.size:
        return
    size = len(within) // len(home)
    spans = np.array([within[part * size] for part in fresh.tolist()])
    fresh, spans = fresh[np.argsort(spans[:, 0], kind="stable")], np.sort(spans, axis=0)
    starts, first, needs = np.unique(spans[:, 0], return_index=True, return_counts=True)
    taken = spread(tree, prefix, starts, spans[first, 1], needs, level + 1, until + 1)
    chosen = tree.domain_of[until][np.flatnonzero(taken)]
    home[fresh] = np.repeat(chosen, taken[taken > 0])


@dataclass
class _Seats:
    """Free places while they are given out.

    Attributes:
        free: N, slots.
        ready: N, spares that stand.
        spares: place of each spare that stands, by index.
    """

    tree: Tree
    free: Int
    ready: Int
    spares: dict[int, int]

    def take(self, start: int, end: int, near: int) -> tuple[int, int]:
        """A place in [start, end), one with a spare if there is any, else close to `near`; and that spare, or NONE."""
        place = self._closest(self.ready, start, end, near)
        if place == NONE:
            place = self._closest(self.free, start, end, near)
            if place != NONE:
                self.free[place] -= 1
            return place, NONE
        self.ready[place] -= 1
        spare = next(index for index, where in self.spares.items() if where == place)
        del self.spares[spare]
        return place, spare

    def free_one(self, start: int, end: int, near: int) -> int:
        """A free place in [start, end), close to `near`; or NONE."""
        place = self._closest(self.free, start, end, near)
        if place != NONE:
            self.free[place] -= 1
        return place

    def _closest(self, room: Int, start: int, end: int, near: int) -> int:
        """In the narrowest domain around `near` that has room, the place with the least; or NONE."""
        for level in range(self.tree.depth - 1, -1, -1):
            domain = int(self.tree.domain_of[level][near])
            if domain != NONE:
                low = max(start, int(self.tree.starts[level][domain]))
                place = _tightest(room, low, min(end, int(self.tree.ends[level][domain])))
                if place != NONE:
                    return place
        return _tightest(room, start, end)


def _tightest(room: Int, start: int, end: int) -> int:
    options = np.flatnonzero(room[start:end] > 0) if start < end else np.empty(0, dtype=np.int64)
    return start + int(options[np.argmin(room[start:end][options])]) if options.size else NONE


def _seat(seats: _Seats, gang: Gang, site: _Site, workers: Int, spans: list[tuple[int, int]]) -> Replaced:
    """Put each lost worker into its span, then the spares that are lacking wherever the gang may have them."""
    stands = np.flatnonzero(workers != NONE)
    home = workers[stands[-1]] if stands.size else next(iter(seats.spares.values()))
    lacking = sorted(set(range(gang.size, gang.total)) - set(seats.spares))
    moved: dict[int, int] = {}
    for worker, (start, end) in zip(np.flatnonzero(workers == NONE).tolist(), spans, strict=True):
        near = workers[stands[np.argmin(np.abs(stands - worker))]] if stands.size else home
        place, spare = seats.take(start, end, int(near))
        assert place != NONE, "room that was counted is not there"
        moved[worker] = place
        if spare != NONE:
            lacking.append(spare)
    start, end = _reach(seats.tree, gang, site)
    for spare in sorted(lacking):
        moved[spare] = seats.free_one(start, end, int(home))
    indexes = sorted(moved)
    return Replaced(np.array(indexes, dtype=np.int64), np.array([moved[index] for index in indexes], dtype=np.int64))


def _reach(tree: Tree, gang: Gang, site: _Site) -> tuple[int, int]:
    """Where the gang's spares may be."""
    if gang.mode != TopologyMode.REQUIRED:
        return 0, len(tree.order)
    domain = int(tree.domain_of[gang.level][site.start])
    return int(tree.starts[gang.level][domain]), int(tree.ends[gang.level][domain])
