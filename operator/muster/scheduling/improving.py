"""What is done for jobs that run already, after everybody who waits was looked at: they move, or they grow.

Each move is a stop and a start, so each has to pay (`muster.scheduling.moves.Pace`). In this order:

* **defragmentation**: the first job that waits for room while there is enough in all, but in pieces (on nodes, or in
  domains), gets it by moving others aside; at most one such job in a plan, and none in a plan that asks others to end.
  It need not hold a reservation, but what is kept for those ahead is not its to take;
* **promotion**: jobs on their second choice of nodes move to a better one, but not where that leaves less quota to
  anybody in their tree of queues who waits for some;
* **spares** that broke or are lacking are found again (`muster.scheduling.mending`), without a stop;
* **growth**: elastic jobs grow. Not in a tree of queues in which anybody waits for quota.

Gangs that start on a safe base get workers beyond it before all of these, but for the first, where they could grow.

Promotion and growth take only room that is kept for nobody, and none in a plan that moves others aside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from muster.scheduling.again import ending_for_others
from muster.scheduling.aside import make_way
from muster.scheduling.elastic import grow, start_with_more
from muster.scheduling.heads import Heads
from muster.scheduling.mending import mend_spares
from muster.scheduling.moves import Move, Pace, by_rank
from muster.scheduling.owners import Owners
from muster.scheduling.plan import Eviction, Promise
from muster.scheduling.promotion import PROMOTION, promote
from muster.scheduling.quota import Need
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import NONE, PLAIN, Index, Snapshot
from muster.scheduling.verdicts import Fate, Left, Verdict


def improve(round_: Round, heads: Heads, owners: Owners, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Decide on moves. Returns the verdicts, in which a job that others move aside for has its promise."""
    if round_.policy.defragmentation and not round_.evictions:
        moved_for = _defragment(round_, heads, owners, verdicts)
        if moved_for != NONE:
            return [each._replace(fate=Fate.CLEARED) if each.job == moved_for else each for each in verdicts]
    starting = _starting_on_bases(round_)
    if not starting and not _anybody_may_change(round_):
        return list(verdicts)
    open_ = np.minimum(round_.room.open, round_.spare.open).copy()
    if starting:
        calm = _without_growth(round_, round_.after_evictions(), _contested_quota(round_, heads, verdicts))
        others = [each for each in starting if each[0] in calm.jobs.beyond]
        ledgers = (round_.promised, round_.used)  # they start at once, beside those who are still leaving
        found = start_with_more(calm, round_.tree, open_, ledgers, others, heads.queues)
        round_.beyond |= {round_.snapshot.jobs.uids[row]: nodes for row, nodes in found.items()}
    allows = owners.allow if round_.policy.preemption else _anything
    round_.replacements += mend_spares(round_.after_evictions(), round_.tree, open_, round_.promised, allows)
    settle = round_.policy.settle
    if round_.policy.promotion and any(round_.snapshot.jobs.terms.alternatives):
        pace = replace(PROMOTION, settle=settle)
        awaited = _awaited_quota(round_, heads, verdicts)
        standing = round_.after_evictions()
        _carry_out(round_, promote(standing, round_.tree, open_, round_.promised, pace, awaited, heads.queues))
    if round_.policy.elastic and _anybody_may_grow(round_.snapshot):
        contested = _contested_quota(round_, heads, verdicts)
        calm = _without_growth(round_, round_.after_evictions(), contested)
        pace, used = Pace(settle=settle), round_.used.copy() if calm.jobs.beyond else None
        _carry_out(round_, grow(calm, round_.tree, open_, round_.promised, pace, heads.queues, used))
        round_.left = Left(open_, used, contested, pace)
    return list(verdicts)


def _anything(queue: int, flavour: int, need: Need) -> bool:
    """Where nobody takes anything back, owners leave all of it."""
    return True


def _anybody_may_change(round_: Round) -> bool:
    """Whether any running job has spares, or could be moved or resized."""
    policy, jobs = round_.policy, round_.snapshot.jobs
    if not jobs.holding.any():
        return False
    if jobs.terms.shapes.count(PLAIN) < len(jobs.uids) or (policy.promotion and any(jobs.terms.alternatives)):
        return True
    return policy.elastic and _anybody_may_grow(round_.snapshot)


def _anybody_may_grow(snapshot: Snapshot) -> bool:
    sizes, holding = snapshot.jobs.sizes, snapshot.jobs.holding
    return bool(((sizes.least < sizes.most) & holding).any()) or any(holding[row] for row in snapshot.jobs.beyond)


def _starting_on_bases(round_: Round) -> list[tuple[int, Index]]:
    """Rows and nodes of gangs that start in this plan, and have nothing yet beyond their base."""
    beyond = round_.snapshot.jobs.beyond
    if not beyond or not round_.policy.elastic:
        return []
    starting = {each.uid: each.nodes for each in round_.admissions}
    uids = round_.snapshot.jobs.uids
    rows = [row for row, more in beyond.items() if more.row == NONE and uids[row] in starting]
    return [(row, starting[uids[row]]) for row in by_rank(round_.snapshot, np.array(rows, dtype=np.int64)).tolist()]


def _defragment(round_: Round, heads: Heads, owners: Owners, verdicts: Sequence[Verdict]) -> int:
    """The row of the job for which others move aside, or NONE."""
    made = make_way(round_, heads, owners, verdicts)
    if made is None:
        return NONE
    _carry_out(round_, made.found.moves, made.job)
    round_.promises.append(Promise(round_.snapshot.jobs.uids[made.job], made.found.nodes, made.flavour))
    return made.job


def _carry_out(round_: Round, moves: Sequence[Move], beneficiary: int = NONE) -> None:
    """`beneficiary`: row of the job for which they move; NONE when each moves for its own good."""
    uids = round_.snapshot.jobs.uids
    for move in moves:
        round_.promises.append(Promise(uids[move.row], move.nodes, move.flavour))
        of = uids[move.row if beneficiary == NONE else beneficiary]
        round_.evictions.append(Eviction(uids[move.row], move.reason, of, move.lost))


def _contested_quota(round_: Round, heads: Heads, verdicts: Sequence[Verdict]) -> dict[int, int]:
    """By tree of queues (`Ledger.circle`), the first job that waits for quota there, or for room while others would
    lend it quota and nothing is kept for it, or that gives way to another and will wait then: nobody grows there."""
    first: dict[int, int] = {}
    for each in verdicts:
        if _awaits_quota(round_, heads, each):
            first.setdefault(round_.used.circle(round_.queue_of[each.job]), each.job)
    for job in np.flatnonzero(ending_for_others(round_)).tolist():  # what they leave over is not idle
        first.setdefault(round_.used.circle(round_.queue_of[job]), job)
    return first


def _awaited_quota(round_: Round, heads: Heads, verdicts: Sequence[Verdict]) -> dict[tuple[int, int], set[int]]:
    """Queues of those jobs by (tree of queues, flavour): of one that lacks quota, each kind of nodes that it takes by
    now."""
    found, flavours = dict[tuple[int, int], set[int]](), round_.snapshot.jobs.flavours
    for each in verdicts:
        if _awaits_quota(round_, heads, each):
            queue, choices = round_.queue_of[each.job], round_.kind(each.job).choices
            for choice in choices if each.fate is Fate.QUOTA else (choices[each.choice],):
                found.setdefault((round_.used.circle(queue), choice.flavour), set()).add(queue)
    for job in np.flatnonzero(ending_for_others(round_)).tolist():
        queue = round_.queue_of[job]
        found.setdefault((round_.used.circle(queue), int(flavours[job])), set()).add(queue)
    return found


def _awaits_quota(round_: Round, heads: Heads, verdict: Verdict) -> bool:
    """Whether a job waits for quota, or for room while others would lend it quota and nothing is kept for it."""
    lacks_room = verdict.fate is Fate.ROOM and verdict.job not in heads.jobs
    return verdict.fate is Fate.QUOTA or (lacks_room and round_.would_be_lent(verdict.job, verdict.choice))


def _without_growth(round_: Round, snapshot: Snapshot, circles: Collection[int]) -> Snapshot:
    """The same, but jobs of these trees of queues do not grow."""
    if not circles:
        return snapshot
    jobs, circle = snapshot.jobs, round_.used.circle
    by_queue = [circle(queue) in circles for queue in range(len(snapshot.queues.names))]
    contested = np.array([*by_queue, False], dtype=np.bool_)[jobs.queues]  # the last is of no queue
    most = np.where(contested, np.minimum(jobs.sizes.most, jobs.sizes.least), jobs.sizes.most).astype(np.int32)
    beyond = {row: more for row, more in jobs.beyond.items() if not contested[row]}
    return replace(snapshot, jobs=replace(jobs, sizes=replace(jobs.sizes, most=most), beyond=beyond))
