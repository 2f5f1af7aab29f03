"""Which writes of a plan count on others of it, for room or quota that somebody is told by these to leave.

What victims leave over may be promised to another than the one for whom they go, and only that one's promise tells
them. Were the other promised it though that write has failed, it would lose its promise in the next plan, or keep it
in vain, and who else was asked for it would have stopped for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import numpy as np

from muster.scheduling.hierarchy import roots
from muster.scheduling.plan import MoveReason, Plan
from muster.scheduling.promises import left_nodes
from muster.scheduling.snapshot import NONE, Index, Snapshot

Source = tuple[int, int]
"""A tree of queues and a flavour, whose quota it is; or NONE and a node."""

_AT_LAST: Final = (MoveReason.GROWN, MoveReason.PROMOTED)
"""Moves that are decided on after everybody who waits was looked at; all others before that."""


def counted_on(snapshot: Snapshot, decided: Plan) -> dict[str, tuple[str, ...]]:
    """By UID of each job that a plan promises something, or stops for nobody else, those whose writes are to stand
    before. In the order in which they were decided. Errs to the side of too many.
    """
    if not (decided.promises or decided.evictions):
        return {}
    sources, onward = _Sources(snapshot), {each.uid: each.nodes for each in decided.promises}
    leaving: dict[str, list[str]] = defaultdict(list)  # by whose write tells them
    first, last = list[str](), list[str]()
    for each in decided.evictions:
        leaving[each.beneficiary or each.uid].append(each.uid)
        if each.for_itself or not each.beneficiary:
            (last if each.reason in _AT_LAST else first).append(each.uid)
    stopped = {each.uid for each in decided.evictions}
    waiting = [uid for uid in {**onward, **leaving} if uid not in stopped]
    found: dict[str, tuple[str, ...]] = {}
    given: dict[Source, list[str]] = defaultdict(list)  # by whose writes it comes back
    for uid in [*first, *waiting, *last]:
        taken = sources.taken(uid, onward[uid]) if uid in onward else set()
        found[uid] = tuple(dict.fromkeys(other for source in sorted(taken) for other in given.get(source, ())))
        for gone in leaving[uid]:
            for source in sources.left(gone, onward.get(gone, np.empty(0, dtype=np.int32))):
                given[source].append(uid)
    return found


class _Sources:
    """Where room and quota of gangs come from."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._jobs, self._flavours = snapshot.jobs, snapshot.nodes.flavours
        self._roots = roots(snapshot.queues.parents)

    def taken(self, uid: str, nodes: Index) -> set[Source]:
        """Of a gang on these nodes."""
        row, there = self._jobs.rows[uid], nodes[nodes != NONE]
        flavours = set(self._flavours[there].tolist()) if self._jobs.flavours[row] else {0}
        return {(NONE, node) for node in there.tolist()} | self._quota(row, flavours)

    def left(self, uid: str, onward: Index) -> set[Source]:
        """Of a gang that goes on there, or nowhere."""
        row = self._jobs.rows[uid]
        more = self._jobs.beyond.get(row)
        rows = [row] if more is None or more.row == NONE else [row, more.row]
        before = np.concatenate([self._jobs.runs.nodes_of(each) for each in rows])
        drawn_on = self.taken(uid, before) | self._quota(row, set(self._jobs.flavours[rows].tolist()))
        kept = self.taken(uid, onward) if len(onward) >= len(before) else set()
        left = {(NONE, node) for node in left_nodes(before, onward).tolist()}
        return left | {source for source in drawn_on - kept if source[0] != NONE}

    def _quota(self, row: int, flavours: set[int]) -> set[Source]:
        queue = int(self._jobs.queues[row])
        return (
            {(int(self._roots[queue]), flavour) for flavour in flavours if flavour != NONE} if queue != NONE else set()
        )
