"""Placements that end because of their queue alone: it is drained, or uses more than it may since a limit was lowered.

Nobody benefits, so nothing is searched for: of a drained queue all preemptible jobs end. Of a queue beyond its limit
(nominal + borrowing limit) jobs end until the excess is gone, also those of queues below it. First those are asked that
go beyond what the queue has (`muster.scheduling.borrowing`), so that no queue loses its own because another's was
lowered. Of these elastic jobs shrink first, by no more replicas than they must, then whole jobs go, those that lose the
least for what they give back first, and none that proves to be needless. Disruption budgets do not protect what is
beyond a limit. Where a limit is not known, because a spec can't be read or a parent is missing, nobody is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.scheduling.borrowing import reach
from muster.scheduling.claims import held_by, movable
from muster.scheduling.hierarchy import depth_of, path
from muster.scheduling.offers import lost_seconds, needs_of, replicas_to_spare, without
from muster.scheduling.plan import MoveReason
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import Mask, Snapshot
from muster.scheduling.victims import Evicted, Shrunk


def give_up(snapshot: Snapshot, ledger: Ledger, gone: frozenset[int]) -> tuple[tuple[Evicted, ...], tuple[Shrunk, ...]]:
    """Who ends and who shrinks because of a drained queue or a lowered limit.

    Args:
        ledger: with all promises, not counting what is ending already; what comes back here is discharged.
        gone: rows whose end was decided in this plan.
    """
    may = movable(snapshot).copy()
    may[list(gone)] = False
    evicted = _drain(snapshot, ledger, may)
    may[[each.row for each in evicted]] = False
    excesses = _excesses(snapshot, ledger)
    if not excesses:
        return tuple(evicted), ()
    shrunk: list[Shrunk] = []
    reaches, depths = reach(snapshot), depth_of(snapshot.queues.parents)
    for queue, flavour, resource in excesses:
        beyond = reaches[:, resource] <= depths[queue]
        more, smaller = _lower(snapshot, ledger, may, beyond, (queue, flavour, resource))
        evicted += more
        shrunk += smaller
        may[[each.row for each in more] + [each.row for each in smaller]] = False
    return tuple(evicted), tuple(shrunk)


def _drain(snapshot: Snapshot, ledger: Ledger, may: Mask) -> list[Evicted]:
    jobs = snapshot.jobs
    rows = np.flatnonzero(may & (jobs.queues >= 0))
    rows = rows[snapshot.queues.drain[jobs.queues[rows]]].astype(np.int64)
    for row, need in zip(rows.tolist(), held_by(snapshot, rows), strict=True):
        ledger.discharge(int(jobs.queues[row]), int(jobs.flavours[row]), need)
    costs = lost_seconds(snapshot, rows).tolist()
    return [Evicted(row, MoveReason.DRAINED, cost) for row, cost in zip(rows.tolist(), costs, strict=True)]


def _excesses(snapshot: Snapshot, ledger: Ledger) -> list[tuple[int, int, int]]:
    """(queue, flavour, resource) of which more is used than may be, those of the lowest queues first."""
    over: dict[tuple[int, int], list[int]] = {}
    for queue, flavour, resource in ledger.exceeded():
        if not snapshot.queues.certain[queue]:
            continue
        over.setdefault((queue, flavour), []).append(resource)
    if not over:
        return []
    jobs, parents, count = snapshot.jobs, snapshot.queues.parents.tolist(), len(snapshot.flavours)
    holds = jobs.held.any(axis=1) & (jobs.queues >= 0)
    deepest: dict[tuple[int, int, int], int] = {}
    for key in np.unique(jobs.queues[holds].astype(np.int64) * count + jobs.flavours[holds]).tolist():
        row, flavour = divmod(key, count)
        for depth, above in enumerate(path(parents, row)):
            for resource in over.get((above, flavour), ()):
                at = (above, flavour, resource)
                deepest[at] = max(depth, deepest.get(at, 0))
    return sorted(deepest, key=lambda key: (deepest[key], key))


def _below(snapshot: Snapshot, queue: int) -> Mask:
    """Q, the queue and all queues below it."""
    parents = snapshot.queues.parents
    below = np.zeros(len(parents), dtype=np.bool_)
    below[queue] = True
    while True:
        more = below | ((parents >= 0) & below[parents])
        if (more == below).all():
            return below
        below = more


def _lower(
    snapshot: Snapshot, ledger: Ledger, may: Mask, beyond: Mask, limit: tuple[int, int, int]
) -> tuple[list[Evicted], list[Shrunk]]:
    """Those first that go `beyond` what the queue has: what the others have is their own queues'."""
    jobs, (queue, flavour, resource) = snapshot.jobs, limit
    inside = may & (jobs.flavours == flavour) & (jobs.held[:, resource] > 0)
    inside &= _below(snapshot, queue)[np.maximum(jobs.queues, 0)]
    rows = np.flatnonzero(inside).astype(np.int64)
    losses = lost_seconds(snapshot, rows)
    cost = dict(zip(rows.tolist(), losses.tolist(), strict=True))
    ranked = rows[np.lexsort((rows, losses / np.maximum(1, jobs.held[rows, resource])))]
    taken: list[int] = []
    shrunk: list[Shrunk] = []
    for part in (ranked[beyond[ranked]], ranked[~beyond[ranked]]):
        shrunk += _shrink(snapshot, ledger, part.tolist(), cost, limit)
        taken += _end(snapshot, ledger, part.tolist(), _left(shrunk), limit)
    left = _left(shrunk)
    for row in sorted(taken, key=lambda row: -cost[row]):
        _move(snapshot, ledger, row, left.get(row, -1), end=False)
        if ledger.excess(*limit) > 0:
            _move(snapshot, ledger, row, left.get(row, -1), end=True)
        else:
            taken.remove(row)
    evicted = [Evicted(row, MoveReason.QUOTA_LOWERED, cost[row]) for row in sorted(taken)]
    return evicted, [each for each in shrunk if each.row not in taken]


def _left(shrunk: Sequence[Shrunk]) -> dict[int, int]:
    """Workers of those that have shrunk, by row."""
    return {each.row: len(each.nodes) for each in shrunk}


def _end(
    snapshot: Snapshot, ledger: Ledger, order: Sequence[int], left: dict[int, int], limit: tuple[int, int, int]
) -> list[int]:
    """Whole jobs go, one after the other, until nothing is in excess: the rows of those whose end helps."""
    taken = []
    for row in order:
        before = ledger.excess(*limit)
        if before <= 0:
            break
        _move(snapshot, ledger, row, left.get(row, -1), end=True)
        if ledger.excess(*limit) < before:
            taken.append(row)
        else:
            _move(snapshot, ledger, row, left.get(row, -1), end=False)
    return taken


def _shrink(
    snapshot: Snapshot, ledger: Ledger, order: Sequence[int], cost: dict[int, float], limit: tuple[int, int, int]
) -> list[Shrunk]:
    """Elastic jobs give replicas back, one job after the other, until nothing is in excess: each as many as help. What
    its queue has by itself and does not lend is nobody's gain."""
    shrunk, jobs = [], snapshot.jobs
    for row in order:
        nodes = jobs.runs.nodes_of(row)
        kept = nodes
        for replicas in range(1, replicas_to_spare(snapshot, row) + 1):
            before = ledger.excess(*limit)
            if before <= 0:
                break
            going = without(snapshot, row, replicas, np.zeros(len(nodes), dtype=np.bool_))
            given = needs_of(snapshot, row, len(kept) - int((~going).sum()))
            ledger.discharge(int(jobs.queues[row]), int(jobs.flavours[row]), given)
            if ledger.excess(*limit) >= before:
                ledger.charge(int(jobs.queues[row]), int(jobs.flavours[row]), given)
                break
            kept = nodes[~going]
        if len(kept) < len(nodes):
            shrunk.append(Shrunk(row, kept, cost[row]))
    return shrunk


def _move(snapshot: Snapshot, ledger: Ledger, row: int, left: int, *, end: bool) -> None:
    """End a job, or undo that; `left` workers of it when it has shrunk, -1 when it has not."""
    jobs = snapshot.jobs
    workers = len(jobs.runs.nodes_of(row)) if left < 0 else left
    change = ledger.discharge if end else ledger.charge
    change(int(jobs.queues[row]), int(jobs.flavours[row]), needs_of(snapshot, row, workers))
