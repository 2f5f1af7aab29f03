"""How needs are shared out among children: few children, the largest filled whole, the tightest for the rest.

Done for many parents at once, because a gang of slices fills hundreds of domains alike. Children stand grouped by
parent, in tree order. Amounts are slots, or whole slices of them: whatever the caller counts in.
"""

from __future__ import annotations

import numpy as np

from muster.scheduling.snapshot import Int, Mask

_LARGE = np.int64(2**40)
"""Rooms above this are alike: no gang is that large."""


def share_out(needs: Int, room: Int, first: Int, last: Mask) -> Int:
    """What each child gives, so that each parent's need is met.

    Args:
        needs: P, of each parent, at least 1 and at most the sum of its children's room.
        room: C, of each child.
        first: P, index of each parent's first child; every parent has one.
        last: C, children that are touched only when their siblings are full (nodes without a label).

    Returns:
        C, at most `room`. The largest children are filled whole until one child can hold what is left; of those that
        can, the tightest gets it.
    """
    children, parents = len(room), len(needs)
    if children == parents:
        return needs.copy()
    if parents == 1:
        return _share_one(int(needs[0]), room, last)
    parent = np.repeat(np.arange(parents), np.diff(np.append(first, children)))
    need = needs[parent]
    order = _largest_first(parent, need, room, last)
    running = np.cumsum(room[order])
    before = running[first] - room[order[first]]
    whole = running - before[parent] < need
    given = np.zeros(children, dtype=np.int64)
    filled = order[whole]
    given[filled] = room[filled]
    rest = needs - np.add.reduceat(given, first)
    tightest = _tightest(room, given == 0, rest[parent], first, last)
    given[tightest] = rest
    return given


def _largest_first(parent: Int, need: Int, room: Int, last: Mask) -> Int:
    """Children by parent, those to be touched last behind, then largest first; all that hold the need are alike."""
    largest = int(need.max())
    rank = (parent * 2 + last) * (largest + 1) + largest - np.minimum(room, need)
    return _sorted(rank, int(rank.max()))


def _tightest(room: Int, untouched: Mask, rest: Int, first: Int, last: Mask) -> Int:
    """For each parent the child with the least room that holds the rest; the first of equal ones."""
    children = len(room)
    score = np.minimum(room, _LARGE) + last * (2 * _LARGE)
    score[~untouched | (room < rest)] = 4 * _LARGE
    best: Int = np.minimum.reduceat(score, first)
    where = np.flatnonzero(score == np.repeat(best, np.diff(np.append(first, children))))
    return where[np.searchsorted(where, first)]


def _share_one(need: int, room: Int, last: Mask) -> Int:
    """`share_out` for one parent, in a third of the array operations."""
    rank = need - np.minimum(room, need) + last * (need + 1)
    order = _sorted(rank, 2 * need + 1)
    running = room[order].cumsum()
    whole = int(running.searchsorted(need))
    filled, rest = order[:whole], need - int(running[whole - 1]) if whole else need
    score = np.where(room < rest, 4 * _LARGE, np.minimum(room, _LARGE) + last * (2 * _LARGE))
    score[filled] = 4 * _LARGE
    given = np.zeros(len(room), dtype=np.int64)
    given[filled] = room[filled]
    given[score.argmin()] = rest
    return given


def _sorted(rank: Int, largest: int) -> Int:
    """The order of ranks from 0 to `largest`; of equal ones the first comes first."""
    if largest < 2**16:
        # Radix sort is used for 16 bits only, and it is what makes this cheap on ten thousand nodes.
        rank16 = rank.astype(np.uint16)
        return rank16.argsort(kind="stable")
    return rank.argsort(kind="stable")


def pack(room: Int, need: int) -> Int:
    """`share_out` for one parent; a need of 0 takes nothing."""
    given = np.zeros(len(room), dtype=np.int64)
    if not need:
        return given
    (holds,) = (room >= need).nonzero()
    if len(holds):
        given[holds[room[holds].argmin()]] = need
        return given
    return _share_one(need, room, np.zeros(len(room), dtype=np.bool_))


def fill_broken_first(room: Int, whole: Mask, need: int) -> Int:
    """Use up what is in use already, and break into as few untouched (`whole`) ones as possible."""
    given = np.zeros(len(room), dtype=np.int64)
    if need == 1:
        score = np.where(room > 0, np.minimum(room, _LARGE) + whole * (2 * _LARGE), 4 * _LARGE)
        given[score.argmin()] = 1
        return given
    (some,) = (room != 0).nonzero()
    given[some] = _fill(room[some], whole[some], need)
    return given


def _fill(room: Int, whole: Mask, need: int) -> Int:
    broken, untouched = np.where(whole, 0, room), np.where(whole, room, 0)
    in_broken = int(broken.sum())
    if in_broken >= need:
        return pack(broken, need)
    running = np.cumsum(-np.sort(-untouched))
    nodes = int(np.searchsorted(running, need - in_broken))
    on_untouched = min(need, int(running[nodes]))
    return pack(untouched, on_untouched) + pack(broken, need - on_untouched)
