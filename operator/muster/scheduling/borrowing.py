"""Which placements are what a queue has borrowed: whoever came last, when the queue had given out its own.

A queue that uses more than its nominal may be asked to give back what it borrowed, and only that: a small job that
borrows puts nobody at risk who was within nominal before it came. So placements have an order: those that can't be
ended, then all others as they were placed, those of one plan by rank. Counted in it, a placement with which the jobs of
its queue use more than the queue's own nominal *goes beyond* it.

So it is on the way up. At a queue with others below it, whoever went beyond below comes behind those who did not; with
which of them the queue and those below it use more than they have together, it goes beyond that, too. What the queues
below keep to themselves (`muster.scheduling.quota`) is not drawn on it.

At each queue that uses more than it has, somebody goes beyond, and without those it would be within what it has: who
did not go beyond below uses no more than the queues there have together. So owners get what is theirs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from muster.scheduling.hierarchy import depth_of
from muster.scheduling.limits import allowed
from muster.scheduling.ranks import once, ranked
from muster.scheduling.snapshot import NONE, Index, Int, Mask, Snapshot

WITHIN: Final = np.iinfo(np.int32).max
"""Deeper than any queue."""


@once
def placed(snapshot: Snapshot) -> Mask:
    """J, jobs of a known queue with a placement that isn't ending already."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    stands: Mask = jobs.holding & ~runs.leaving & (np.diff(runs.first) > 0) & (jobs.queues != NONE)
    return stands


@once
def reach(snapshot: Snapshot) -> Index:
    """J x R, the depth of the highest queue that each placement goes beyond, with all of those below it: 0 at a root.

    One more than the depth of its own queue where it goes beyond that one's own nominal alone; WITHIN where it doesn't.
    """
    jobs, queues = snapshot.jobs, snapshot.queues
    rows = ranked(snapshot, np.flatnonzero(jobs.holding & ~jobs.runs.leaving & (jobs.queues != NONE)).astype(np.int64))
    rows = rows[np.lexsort((jobs.runs.started[rows], (placed(snapshot) & jobs.terms.preemptible)[rows]))]
    limits, depths = allowed(queues).limits, depth_of(queues.parents)
    found = np.full(jobs.held.shape, WITHIN, dtype=np.int32)
    for resource in np.flatnonzero(~limits.free.all(axis=(0, 1))).tolist():
        limited = ~limits.free[jobs.queues[rows], jobs.flavours[rows], resource]
        at = rows[limited & (jobs.held[rows, resource] > 0)]
        branch, flavours, drawn = jobs.queues[at].copy(), jobs.flavours[at], jobs.held[at, resource]
        used = _used(branch, flavours, np.zeros(len(at), dtype=np.bool_), drawn)
        beyond = used > limits.named[branch, flavours, resource]
        found[at[beyond], resource] = depths[branch[beyond]] + 1
        for depth in range(int(depths[branch].max(initial=-1)), -1, -1):
            here = np.flatnonzero((depths[branch] == depth) & (drawn > 0))
            queue, flavour = branch[here], flavours[here]
            used = _used(queue, flavour, beyond[here], drawn[here])
            beyond[here] &= used > limits.has[queue, flavour, resource]
            found[at[here[beyond[here]]], resource] = depth
            own = limits.own[queue, flavour, resource]
            drawn[here] = np.maximum(0, used - own) - np.maximum(0, used - drawn[here] - own)
            branch[here] = queues.parents[queue]
    return found


def _used(queues: Index, flavours: Index, behind: Mask, amounts: Int) -> Int:
    """What is used of each queue and flavour, up to and with each entry; `behind`: those that come after the others."""
    order = np.lexsort((behind, flavours, queues))
    queues, flavours, amounts = queues[order], flavours[order], amounts[order]
    totals = np.cumsum(amounts)
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (queues[1:] != queues[:-1]) | (flavours[1:] != flavours[:-1])
    before = (totals - amounts)[first]
    used = np.empty(len(order), dtype=np.int64)
    used[order] = totals - before[np.cumsum(first) - 1]
    return used
