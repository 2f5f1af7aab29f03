"""What is left of an elastic gang when nodes of some workers are gone and there are none in their place.

The gang goes on with the largest size that it may have: workers that stand keep their nodes and are numbered anew in
their order, and free places fill up what is lacking to a whole step. A gang without slices may be cut anywhere, for its
workers are alike. One with slices keeps whole slices, those that have lost the least before all others.

Balanced gangs are placed anew as a whole: equal numbers would not stay equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from muster.scheduling.gangs import Gang
from muster.scheduling.replacement import replace_workers
from muster.scheduling.snapshot import NONE, Int, Snapshot
from muster.scheduling.topology import Tree


def reduce_gang(tree: Tree, slots: Int, gang: Gang, placed: Int, sizes: Sequence[int]) -> Int | None:
    """The places of the largest gang that can go on, by rank.

    Args:
        slots: workers that each place can take now, beside those that stand.
        gang: of the size that it was placed with, without spares.
        placed: place of each worker in order of rank; NONE for those that are lost.
        sizes: that it may go on with, the largest first, in whole slices.

    Returns:
        None if those that stand leave no valid placement of any size.
    """
    if gang.shape.balanced != NONE:
        return None
    slices = placed.reshape(-1, gang.shape.slices[0][0] if gang.shape.slices else 1)
    whole_first = np.argsort((slices == NONE).sum(axis=1), kind="stable")

    def with_size(size: int) -> Int | None:
        kept = np.sort(whole_first[: size // slices.shape[1]])
        return _filled(tree, slots, replace(gang, size=size), slices[kept].ravel())

    # What a larger gang finds a smaller one finds too.
    largest = bisect_left(sizes, True, key=lambda size: with_size(size) is not None)
    return with_size(sizes[largest]) if largest < len(sizes) else None


def _filled(tree: Tree, slots: Int, gang: Gang, workers: Int) -> Int | None:
    """The places of a gang of which some have none, with free ones for those."""
    lacking = np.flatnonzero(workers == NONE)
    if not lacking.size:
        return workers
    found = replace_workers(tree, slots, gang, workers, lacking)
    if found is None:
        return None
    filled = workers.copy()
    filled[found.indexes] = found.places
    return filled


def smaller_sizes(snapshot: Snapshot, row: int, size: int) -> Sequence[int]:
    """Sizes below `size` that a job may have, the largest first; none for one that is not elastic."""
    sizes = snapshot.jobs.sizes
    least, most, step = int(sizes.least[row]), int(sizes.most[row]), max(1, int(sizes.step[row]))
    if least >= most or size <= least:
        return ()
    return range(least + (min(size - 1, most) - least) // step * step, least - 1, -step)
