"""Slots: how many workers of one kind fit on each node. Arrays are R x N or N, in tree order, as the room's are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from muster.scheduling.gangs import Worker
from muster.scheduling.snapshot import Int, Mask
from muster.scheduling.topology import Tree

MANY: Final = 2**31
"""Slots of a worker that asks for nothing."""
_Any = TypeVar("_Any", bound=np.generic)


@dataclass(frozen=True)
class Taken:
    """Workers of a gang by place, only of places that have some.

    Attributes:
        places: in tree order.
        workers: of each of the places.
    """

    places: Int
    workers: Int

    @classmethod
    def of(cls, counts: Int) -> Taken:
        """From N, the workers of each place."""
        (places,) = (counts != 0).nonzero()  # of a mask it is several times as fast
        return cls(places, counts[places])


@dataclass(frozen=True)
class Site:
    """The places that are worth a look.

    Attributes:
        places: P, in tree order; None: all.
        tree: of these places alone.
        index_of: N, the index of each place, or NONE; None where all are looked at.
    """

    tree: Tree
    places: Int | None = None
    index_of: Int | None = None

    def cut(self, values: npt.NDArray[_Any]) -> npt.NDArray[_Any]:
        """Of N values those of the site's places."""
        return values if self.places is None else values[self.places]

    def whole(self, indexes: Int) -> Int:
        """The places of the whole tree that indexes of the site stand for."""
        return indexes if self.places is None else self.places[indexes]


@dataclass
class Slots:
    """
    Attributes:
        site: the places that are counted; all others have no slots.
        counts: P, workers that each of the site's places can take.
        prefix: P + 1, prefix sums of `counts`.
        seen: how many of the touched places have been taken into account.
    """

    site: Site
    counts: Int
    prefix: Int
    seen: int = 0

    @property
    def tree(self) -> Tree:
        return self.site.tree

    @property
    def total(self) -> int:
        return int(self.prefix[-1])

    def everywhere(self) -> Int:
        """N, workers that each place can take."""
        if self.site.index_of is None or self.site.places is None:
            return self.counts
        counts = np.zeros(len(self.site.index_of), dtype=np.int64)
        counts[self.site.places] = self.counts
        return counts

    def between(self, starts: Int, ends: Int) -> Int:
        """Workers that places [start, end) can take."""
        if self.site.places is not None:
            starts, ends = np.searchsorted(self.site.places, starts), np.searchsorted(self.site.places, ends)
        return self.prefix[ends] - self.prefix[starts]


def by_resource(table: Int, order: Int) -> Int:
    """R x N from N x R, nodes in the order of `order`. One resource after the other it is much faster than by rows."""
    rows = np.array(table.T, order="C")
    if (order[1:] > order[:-1]).all():  # they are in order already
        return rows
    return np.stack([row[order] for row in rows])


def count_slots(room: Int | Sequence[Int], worker: Worker, candidates: Mask) -> Int:
    """How many workers fit on each place of `room` (R x N); 0 where it is no candidate or a resource is overdrawn."""
    slots: Int | None = None
    for resource, amount in worker.asks:
        each: Int = room[resource] // amount
        slots = each if slots is None else np.minimum(slots, each, out=slots)
    if slots is None:
        return np.where(candidates, np.int64(MANY), 0)
    np.maximum(slots, 0, out=slots)
    slots *= candidates
    return slots


def open_then(free: Int, spare: Int, coming: Int | int) -> Int:
    """What is open to all when `coming` is back: it is kept for jobs ahead as what is free, so that there is no more of
    both than what is kept leaves over. `free` is less than nothing where more is held than there is.

    Args:
        free, spare, coming: of the same shape: what is free, that less what is kept, and what comes back.
    """
    then = free + coming
    found: Int = np.where(then < 0, then, np.maximum(spare + coming, 0))
    return found
