"""Placements that end before anybody who waits is looked at: their queue is drained, or its quota was lowered; or nodes
of theirs are gone for too long, and they go on with fewer workers."""

from __future__ import annotations

import numpy as np

from muster.scheduling.claims import held_by
from muster.scheduling.lowered import give_up
from muster.scheduling.mending import reduce_gangs
from muster.scheduling.offers import lost_seconds
from muster.scheduling.plan import Eviction, MoveReason, Promise
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, Index


def withdraw(round_: Round) -> None:
    """Ask those to end, or to go on with fewer workers, who cannot keep what they have.

    What they use stays used in this plan: it is free when their pods are gone.
    """
    if round_.snapshot.queues.drain.any() or round_.promised.exceeded():
        _give_up(round_)
    if round_.snapshot.jobs.runs.shrinks:
        _go_on_with_fewer(round_)


def _give_up(round_: Round) -> None:
    snapshot = round_.snapshot
    evicted, shrunk = give_up(snapshot, round_.promised.copy(), frozenset())
    jobs = snapshot.jobs
    rows = np.array([*(each.row for each in evicted), *(each.row for each in shrunk)], dtype=np.int64)
    for row, need in zip(rows.tolist(), held_by(snapshot, rows), strict=True):
        round_.give_back_quota(int(jobs.queues[row]), int(jobs.flavours[row]), need)
    for gone in evicted:
        round_.evictions.append(Eviction(jobs.uids[gone.row], gone.reason, "", gone.lost))
    for less in shrunk:
        _resize(round_, less.row, less.nodes, MoveReason.SHRUNK, less.lost)


def _go_on_with_fewer(round_: Round) -> None:
    snapshot = round_.after_evictions()
    jobs = snapshot.jobs
    for row, nodes in reduce_gangs(snapshot, round_.tree, round_.kept.free).items():
        queue = int(jobs.queues[row])
        if queue == NONE:
            continue
        (need,) = held_by(snapshot, np.array([row], dtype=np.int64))
        round_.give_back_quota(queue, int(jobs.flavours[row]), need)
        (lost,) = lost_seconds(snapshot, np.array([row], dtype=np.int64)).tolist()
        _resize(round_, row, nodes, MoveReason.WORKERS_LOST, lost)


def _resize(round_: Round, row: int, nodes: Index, reason: MoveReason, lost: float) -> None:
    """It stops, and goes on at once on `nodes`."""
    uid = round_.snapshot.jobs.uids[row]
    round_.promises.append(Promise(uid, nodes, int(round_.snapshot.jobs.flavours[row])))
    round_.evictions.append(Eviction(uid, reason, uid, lost))
    round_.keep_nodes(row, nodes)
