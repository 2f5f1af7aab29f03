"""Whose reserved start is no proof, whatever ends when: somebody who has a turn before it may take that room or quota.

Nothing is kept for a job that has no reservation, and nothing tells when it has quota, or whom it may pass. It takes
quota and room that were reserved for those behind it in the order. So does

* a head that starts with more workers than are reserved for it, or on other nodes;
* one that could never start as it is, but takes another kind of nodes by then;
* who is asked to end for others and then waits again, or has its next window by then;
* an owner that waits behind a head which borrows: owners come before borrowers, see `muster.scheduling.owners`.

Room that victims leave there in this plan is their beneficiary's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from muster.scheduling.again import Again
from muster.scheduling.heads import Head, Heads
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import FOREVER, NONE, Preempts
from muster.scheduling.verdicts import Fate, Verdict

ABLE: Final = frozenset((Fate.QUOTA, Fate.ROOM, Fate.WINDOW))
"""Of jobs that could start one day."""
_ABLE_LATER: Final = frozenset((Fate.NO_NODES, Fate.TOO_LARGE, Fate.NODES_AWAY, Fate.NEVER))
"""Of jobs that could on another kind of nodes alone."""


def may_be_passed(round_: Round, heads: Heads, verdicts: Sequence[Verdict], starts: Mapping[int, float]) -> set[int]:
    """Rows of those heads that may start later than is proven of the room that is reserved for them.

    Args:
        verdicts: of all who wait, first in rank first.
        starts: by row, of those heads of which a start is proven.
    """
    left, found = set(starts), set[int]()
    if not left:
        return found
    again, takers = Again(round_), _Takers(round_, heads)
    for verdict in verdicts:
        if not left:
            break
        job = verdict.job
        if job in left:
            left.remove(job)
            head, start = heads.of(job), starts[job]
            workers, pools = again.before(job, start)
            workers |= takers.workers_before(start) | _owners_before(round_, head, verdicts)
            pool = (round_.used.circle(round_.queue_of[job]), head.flavour)
            lacks_quota = pool in pools or takers.pools.get(pool, FOREVER) < start
            if lacks_quota or heads.may_lose_room(head, workers) or heads.has_lost_room(head):
                found.add(job)
        takers.add(verdict)
    return found


class _Takers:
    """What those who wait may take without a reservation of it.

    Attributes:
        pools: from when on they draw on the quota of a tree of queues, by that and the flavour.
    """

    def __init__(self, round_: Round, heads: Heads) -> None:
        self._round, self._heads = round_, heads
        self._workers = dict[int, float]()
        self._seen = set[tuple[int, int, bool, Fate]]()
        self.pools = dict[tuple[int, int], float]()

    def workers_before(self, start: float) -> set[int]:
        """The workers with which they may have started by then."""
        return {worker for worker, since in self._workers.items() if since < start}

    def add(self, verdict: Verdict) -> None:
        """One that comes before all that are looked at from now on."""
        round_, (job, fate, *_) = self._round, verdict
        if fate not in ABLE and fate not in _ABLE_LATER:
            return
        queue = round_.queue_of[job]
        key = (queue, round_.kinds.of[job], job in self._heads.jobs, fate)
        if key in self._seen and not round_.snapshot.jobs.terms.alternatives[job]:
            return
        if not round_.opens_later(job):
            self._seen.add(key)
        taken = self._heads.may_take(job) if fate in ABLE else self._heads.later_kinds_of(job)
        for worker, flavour, since in taken:
            self._workers[worker] = min(self._workers.get(worker, FOREVER), since)
            if round_.used.limited(queue, flavour):
                pool = (round_.used.circle(queue), flavour)
                self.pools[pool] = min(self.pools.get(pool, FOREVER), since)


def _owners_before(round_: Round, head: Head, verdicts: Sequence[Verdict]) -> set[int]:
    """The workers of those who have their turn before a head that borrows, wherever they are in the order: also of
    those who are within their queue's nominal only when others of it have ended."""
    used, queue, kinds = round_.used, round_.queue_of[head.job], round_.kinds
    asks = kinds.workers[head.gang.worker].asks
    need = [(resource, amount * head.gang.total) for resource, amount in asks]
    if queue == NONE or used.within(queue, head.flavour, need):
        return set()
    circle, reclaim = used.circle(queue), round_.snapshot.queues.reclaim
    found, seen = set[int](), set[tuple[int, int]]()
    for job, fate, *_ in verdicts:
        other, kind = round_.queue_of[job], kinds.of[job]
        if fate not in ABLE or other in (NONE, queue) or (other, kind) in seen:
            continue
        seen.add((other, kind))
        if used.circle(other) == circle and reclaim[other] == int(Preempts.ANY):
            for at, each in enumerate(kinds.kinds[kind].choices):
                least = kinds.need(kind, at, kinds.kinds[kind].sizes[-1])
                if used.never(other, each.flavour, least, borrowing=False) is None:
                    found.add(each.worker)
    return found
