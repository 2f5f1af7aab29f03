"""Placements that end before anybody who waits is looked at: their queue is drained, or its quota was lowered."""

from __future__ import annotations

import numpy as np

from muster.scheduling.claims import held_by
from muster.scheduling.lowered import give_up
from muster.scheduling.plan import Eviction, MoveReason, Promise
from muster.scheduling.rounds import Round


def withdraw(round_: Round) -> None:
    """Ask those to end, or to shrink, who hold more than their queue may use now.

    What they use stays used in this plan: it is free when their pods are gone.
    """
    snapshot = round_.snapshot
    if not (snapshot.queues.drain.any() or round_.promised.exceeded()):
        return
    evicted, shrunk = give_up(snapshot, round_.promised.copy(), frozenset())
    jobs = snapshot.jobs
    rows = np.array([*(each.row for each in evicted), *(each.row for each in shrunk)], dtype=np.int64)
    for row, need in zip(rows.tolist(), held_by(snapshot, rows), strict=True):
        round_.give_back_quota(int(jobs.queues[row]), int(jobs.flavours[row]), need)
    for gone in evicted:
        round_.evictions.append(Eviction(jobs.uids[gone.row], gone.reason, "", gone.lost))
    for less in shrunk:
        uid, flavour = jobs.uids[less.row], int(jobs.flavours[less.row])
        round_.promises.append(Promise(uid, less.nodes, flavour))
        round_.evictions.append(Eviction(uid, MoveReason.SHRUNK, uid, less.lost))
        round_.keep_nodes(less.row, less.nodes)
