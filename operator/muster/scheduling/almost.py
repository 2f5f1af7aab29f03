"""In which domains a gang almost fits: what one or two more nodes there would be worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from muster.scheduling.balanced import shares
from muster.scheduling.gangs import Gang
from muster.scheduling.placement import placeable
from muster.scheduling.plan import Almost
from muster.scheduling.slices import slice_in
from muster.scheduling.snapshot import NONE, Int, TopologyMode
from muster.scheduling.topology import Tree

CLOSEST: Final = 3
"""Domains that are told: enough to see whether one more node would do."""


def almost_fits(tree: Tree, prefix: Int, gang: Gang) -> tuple[Almost, ...]:
    """The closest domains of the level that the gang requires. One that may lie anywhere is told those of the level in
    which its equal shares must lie, or of its widest slices.

    Args:
        prefix: prefix sums of slots over all places.
    """
    if gang.mode == TopologyMode.REQUIRED and gang.level != NONE:
        rooms = placeable(tree, prefix, gang, gang.level)
        return _told(tree, gang.level, rooms, np.full(len(rooms), gang.total))
    balanced, slices = gang.shape.balanced, gang.shape.slices
    if gang.mode == TopologyMode.REQUIRED or gang.size % (slices[0][0] if slices else 1):
        return ()
    if balanced != NONE:
        return _shares(tree, prefix, gang) if len(tree.starts[balanced]) else ()
    if slices and slices[0][1] != NONE:
        size, level = slices[0]
        inner = replace(gang, shape=replace(gang.shape, slices=slices[1:]))
        rooms = placeable(tree, prefix, inner, level)
        return _told(tree, level, rooms, np.where(rooms < gang.size, (rooms // size + (rooms % size > 0)) * size, 0))
    return ()


def _shares(tree: Tree, prefix: Int, gang: Gang) -> tuple[Almost, ...]:
    """Of a balanced gang: the domains that it would use, shared out as where the fewest workers lack room."""
    level = gang.shape.balanced
    rooms = placeable(tree, prefix, replace(gang, shape=replace(gang.shape, balanced=NONE)), level)
    ordered = np.sort(rooms)[::-1]
    lacks = {
        share: int(np.maximum(share - ordered[: gang.size // share], 0).sum())
        for share in shares(gang.size, slice_in(gang, level))
        if gang.size // share <= len(ordered)
    }
    if not lacks:
        return ()
    share = min(lacks, key=lacks.__getitem__)
    used = np.argsort(-rooms, kind="stable")[: gang.size // share]
    wanted = np.zeros(len(rooms), dtype=np.int64)
    wanted[used] = share
    return _told(tree, level, rooms, wanted)


def _told(tree: Tree, level: int, rooms: Int, wanted: Int) -> tuple[Almost, ...]:
    """Those with room for some of the workers that each is wanted for, not for all; what lacks least comes first."""
    short = np.flatnonzero((rooms > 0) & (rooms < wanted))
    best = short[np.lexsort((-rooms[short], wanted[short] - rooms[short]))][:CLOSEST]
    return tuple(
        Almost(tree.domain_name(level, domain), int(rooms[domain]), int(wanted[domain] - rooms[domain]))
        for domain in best.tolist()
    )
