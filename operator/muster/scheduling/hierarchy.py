"""The forest of queues: rows by depth, and the way from a queue to its root."""

from __future__ import annotations

import numpy as np

from muster.scheduling.snapshot import NONE, Index, Int


def by_depth(parents: Index) -> list[Int]:
    """Rows of each depth, roots first. Raises ValueError when queues are each other's parents in a circle."""
    ranks: list[Int] = []
    below = parents != NONE
    current = np.flatnonzero(~below)
    seen = 0
    while len(current):
        ranks.append(current.astype(np.int64))
        seen += len(current)
        above = np.zeros(len(parents), dtype=np.bool_)
        above[current] = True
        current = np.flatnonzero(below & above[parents])
    if seen < len(parents):
        raise ValueError("queues are each other's parents in a circle")
    return ranks


def roots(parents: Index) -> Int:
    """For each row the root of its tree."""
    root = np.arange(len(parents), dtype=np.int64)
    for rows in by_depth(parents)[1:]:
        root[rows] = root[parents[rows]]
    return root


def depth_of(parents: Index) -> Index:
    """For each row how many rows are above it."""
    depths = np.zeros(len(parents), dtype=np.int32)
    for depth, rows in enumerate(by_depth(parents)):
        depths[rows] = depth
    return depths


def path(parents: list[int], row: int) -> list[int]:
    """The row and all rows above it, its root last."""
    rows = []
    while row != NONE:
        rows.append(row)
        row = parents[row]
    return rows
