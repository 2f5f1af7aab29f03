"""Who holds quota: the jobs for which one that lacks it waits."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from muster.scheduling.snapshot import Int, Mask, Snapshot

SHARERS: Final = 8
"""Jobs of other queues that are told: of a large company's tree there may be thousands."""


class Holders:
    """Looks at what is held when a plan is made: once for each queue, flavour and resource.

    Args:
        circles: Q, the number of each queue's tree (`Ledger.circles`).
    """

    def __init__(self, snapshot: Snapshot, circles: Int) -> None:
        self._jobs, self._circles = snapshot.jobs, circles
        self._of_queue: dict[tuple[int, int, int, bool], tuple[tuple[str, ...], int]] = {}
        self._of_tree: dict[tuple[int, int, int], tuple[str, ...]] = {}

    def of_queue(self, queue: int, flavour: int, resource: int, *, firm: bool) -> tuple[tuple[str, ...], int]:
        """(UIDs of the queue's jobs that hold the resource, who holds most first; how much they hold).

        Args:
            firm: only of those that are not preemptible.
        """
        key = (queue, flavour, resource, firm)
        if key not in self._of_queue:
            first, last = np.searchsorted(self._queues, (queue, queue + 1))
            rows = self._most_first(self._rows[first:last], flavour, resource)
            rows = rows[self._jobs.terms.preemptible[rows] == 0] if firm else rows
            self._of_queue[key] = self._uids(rows), int(self._jobs.held[rows, resource].sum())
        return self._of_queue[key]

    def of_tree(self, queue: int, flavour: int, resource: int) -> tuple[str, ...]:
        """UIDs of the first jobs, of all queues of its tree, that hold the resource."""
        key = (int(self._circles[queue]), flavour, resource)
        if key not in self._of_tree:
            rows = self._rows[self._circles[self._queues] == key[0]]
            self._of_tree[key] = self._uids(self._most_first(rows, flavour, resource)[:SHARERS])
        return self._of_tree[key]

    @cached_property
    def _rows(self) -> Int:
        """Of all jobs that hold anything, by queue: of ten thousand that wait none is looked at again."""
        jobs = self._jobs
        holding: Mask = ~jobs.pending & (jobs.queues >= 0)
        rows = np.flatnonzero(holding)
        ordered: Int = rows[np.argsort(jobs.queues[rows], kind="stable")].astype(np.int64)
        return ordered

    @cached_property
    def _queues(self) -> Int:
        """The queue of each of `_rows`."""
        queues: Int = self._jobs.queues[self._rows].astype(np.int64)
        return queues

    def _most_first(self, rows: Int, flavour: int, resource: int) -> Int:
        held = self._jobs.held[rows, resource]
        holds = (held > 0) & (self._jobs.flavours[rows] == flavour)
        found: Int = rows[holds][np.argsort(-held[holds], kind="stable")]
        return found

    def _uids(self, rows: Int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._jobs.gangs[row] for row in rows.tolist()))
