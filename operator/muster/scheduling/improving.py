"""What is done for jobs that run already, after everybody who waits was looked at: they move, or they grow.

Each move is a stop and a start, so each has to pay (`muster.scheduling.moves.Pace`). In this order:

* **defragmentation**: the first job that waits for room in one domain, while there is enough in all, gets it by moving
  others aside; at most one such job in a plan, and none in a plan that asks others to end;
* **promotion**: jobs on their second choice of nodes move to a better one;
* **spares** that broke or are lacking are found again (`muster.scheduling.mending`), without a stop;
* **growth**: elastic jobs grow. Not in a tree of queues in which anybody waits for quota.

Promotion and growth take only room that is kept for nobody, and none in a plan that moves others aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from muster.scheduling.defrag import defragment
from muster.scheduling.demand import coming_back
from muster.scheduling.elastic import grow
from muster.scheduling.heads import Head, Heads
from muster.scheduling.mending import mend_spares
from muster.scheduling.moves import Move, Pace
from muster.scheduling.plan import Eviction, Promise
from muster.scheduling.promotion import PROMOTION, promote
from muster.scheduling.rounds import Fate, Round, Verdict
from muster.scheduling.snapshot import FOREVER, NONE, PLAIN, Snapshot, TopologyMode


def improve(round_: Round, heads: Heads, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Decide on moves. Returns the verdicts, in which a job that others move aside for has its promise."""
    if round_.policy.defragmentation and heads.all and not round_.evictions:
        moved_for = _defragment(round_, heads.all[0])
        if moved_for != NONE:
            return [each._replace(fate=Fate.CLEARED) if each.job == moved_for else each for each in verdicts]
    if not _anybody_may_change(round_):
        return list(verdicts)
    open_ = np.minimum(round_.room.open, round_.spare.open).copy()
    round_.replacements += mend_spares(round_.after_evictions(), round_.tree, open_, round_.promised)
    settle = round_.policy.settle
    if round_.policy.promotion and any(round_.snapshot.jobs.terms.alternatives):
        pace = replace(PROMOTION, settle=settle)
        _carry_out(round_, promote(round_.after_evictions(), round_.tree, open_, round_.promised, pace))
    if round_.policy.elastic and _anybody_may_grow(round_.snapshot):
        calm = _without_contested_quota(round_, round_.after_evictions(), verdicts)
        _carry_out(round_, grow(calm, round_.tree, open_, round_.promised, Pace(settle=settle)))
    return list(verdicts)


def _anybody_may_change(round_: Round) -> bool:
    """Whether any running job has spares, or could be moved or resized."""
    policy, jobs = round_.policy, round_.snapshot.jobs
    if not (policy.promotion or policy.elastic) or not jobs.holding.any():
        return False
    plain = jobs.terms.shapes.count(PLAIN) == len(jobs.uids)
    return not plain or any(jobs.terms.alternatives) or _anybody_may_grow(round_.snapshot)


def _anybody_may_grow(snapshot: Snapshot) -> bool:
    sizes = snapshot.jobs.sizes
    return bool(((sizes.least < sizes.most) & snapshot.jobs.holding).any())


def _defragment(round_: Round, head: Head) -> int:
    """The row of the job for which others move aside, or NONE."""
    gang = head.gang
    if gang.mode != TopologyMode.REQUIRED or round_.room.slots(gang.worker).total < gang.total:
        return NONE
    kind = round_.kinds.of[head.job]
    choice = next(index for index, each in enumerate(round_.kinds.kinds[kind].choices) if each.worker == gang.worker)
    flavour = round_.kinds.kinds[kind].choices[choice].flavour
    need = round_.kinds.need(kind, choice, gang.size)
    snapshot = round_.snapshot
    wait = head.reservation.start - snapshot.now if head.reservation.start < FOREVER else FOREVER
    # Its quota is reserved already, and must not stand in its own way.
    round_.give_back_quota(round_.queue_of[head.job], flavour, need)
    found = defragment(
        snapshot,
        round_.tree,
        round_.room,
        round_.promised,
        round_.kinds.workers,
        gang,
        head.job,
        replace(coming_back(snapshot, round_.tree), quota=()),
        wait,
        flavour=flavour,
        pace=Pace(settle=round_.policy.settle),
    )
    round_.reserve_quota(head.job, choice, need)
    if found is None:
        return NONE
    _carry_out(round_, found.moves)
    round_.promises.append(Promise(round_.snapshot.jobs.uids[head.job], found.nodes, flavour))
    return head.job


def _carry_out(round_: Round, moves: Sequence[Move]) -> None:
    uids = round_.snapshot.jobs.uids
    for move in moves:
        round_.promises.append(Promise(uids[move.row], move.nodes, move.flavour))
        round_.evictions.append(Eviction(uids[move.row], move.reason, uids[move.row], move.lost))


def _without_contested_quota(round_: Round, snapshot: Snapshot, verdicts: Sequence[Verdict]) -> Snapshot:
    """The same, but jobs do not grow where quota is waited for, or room by those to whom quota would be lent: for most
    of these nothing is kept."""
    circle = round_.used.circle
    waiting = [
        each
        for each in verdicts
        if each.fate is Fate.QUOTA or (each.fate is Fate.ROOM and round_.would_be_lent(each.job, each.choice))
    ]
    circles = {circle(queue) for queue in {round_.queue_of[each.job] for each in waiting}}
    if not circles:
        return snapshot
    jobs = snapshot.jobs
    by_queue = [circle(queue) in circles for queue in range(len(snapshot.queues.names))]
    contested = np.array([*by_queue, False], dtype=np.bool_)[jobs.queues]  # the last is of no queue
    most = np.where(contested, np.minimum(jobs.sizes.most, jobs.sizes.least), jobs.sizes.most).astype(np.int32)
    return replace(snapshot, jobs=replace(jobs, sizes=replace(jobs.sizes, most=most)))
