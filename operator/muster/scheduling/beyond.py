"""Gangs with a safe base: what a plan decides about their two rows, as what it means for the one gang.

An elastic gang may ask for a base: its fewest workers run on a kind of nodes that stays, and those beyond on one that
may be taken back. A gang draws on the quota of one flavour everywhere else in this package, so such a gang is two rows:
the base, a gang of one size that waits, starts and ends like any other; and behind it, while there are any, the workers
beyond it, an elastic gang that may shrink to nothing (`Beyond`), unless the spec was edited since it started, or the
gang has turned out to be of one size. Each row has its own nodes, quota and promises, and no rule about any of them
knows that there is another. `muster.scheduling.elastic` adds workers beyond a base.

What the rows share is known here alone: a gang stops and starts as a whole.

| decided of the base | of those beyond it | the gang |
| --- | --- | --- |
| starts | start, or are found room for | starts with both |
| starts | wait, or cannot have their room any more | starts with its base |
| waits | start | waits |
| ends | anything | ends |
| ends and goes on elsewhere | anything | goes on with its base; others may join it later |
| stays | end, shrink, grow or move | stops, and goes on with its base and what is left or new beyond it |
| anything but ends | end, or wait, and it can't do without | as they do |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from muster.scheduling.plan import Admission, Eviction, MoveReason, Plan, Promise, Replacement
from muster.scheduling.promises import promised_nodes, stands
from muster.scheduling.snapshot import NONE, Index, Jobs, Mask, Snapshot, TopologyMode

_SHRINKS: Final = frozenset(
    {MoveReason.PREEMPTED, MoveReason.RECLAIMED, MoveReason.YIELDED, MoveReason.QUOTA_LOWERED, MoveReason.DRAINED}
)
"""Ends of workers beyond a base: to the gang, which goes on without them, they are none."""


def join(snapshot: Snapshot, decided: Plan, found: Mapping[str, Index]) -> Plan:
    """The plan in which gangs with a safe base are one job each.

    Args:
        snapshot: the plan's, with what was mended in it.
        found: by uid of gangs that start: nodes of workers beyond their base.
    """
    if not snapshot.jobs.beyond:
        return decided
    both = _Both(snapshot)
    admissions = both.admissions(decided.admissions, found)
    starting = {each.uid for each in admissions}
    evictions, promises = both.moves(decided.evictions, decided.promises)
    reduced, broken = both.lost(decided.reduced, decided.broken, starting)
    return replace(
        decided,
        admissions=tuple(admissions),
        evictions=tuple(evictions),
        promises=tuple(promises),
        replacements=tuple(both.replacements(decided.replacements)),
        reduced=tuple(reduced),
        broken=tuple(broken),
    )


class _Both:
    """Rows of gangs with a base, and of what they have beyond it."""

    def __init__(self, snapshot: Snapshot) -> None:
        uids, jobs = snapshot.jobs.uids, snapshot.jobs
        self._snapshot = snapshot
        self._bases = {uids[row]: row for row in jobs.beyond}
        self._beyond = {uids[row]: base for row, base in jobs.bases.items()}
        self._uid_beyond = {uids[base]: uids[row] for row, base in jobs.bases.items()}
        self._needed = {uids[row] for row in jobs.bases if jobs.sizes.least[row]}

    def admissions(self, decided: Iterable[Admission], found: Mapping[str, Index]) -> list[Admission]:
        """Those of gangs, in their order: no gang starts with workers beyond its base alone."""
        decided = list(decided)
        beyond = {each.uid: each.nodes for each in decided if each.uid in self._beyond}
        joined = []
        for each in decided:
            if each.uid in self._bases:
                uid = self._uid_beyond.get(each.uid, "")
                if uid in self._needed and uid not in beyond:
                    continue
                more = beyond.get(uid, found.get(each.uid))
                nodes = each.nodes if more is None else np.concatenate([each.nodes, more])
                joined.append(replace(each, nodes=nodes, base=len(each.nodes)))
            elif each.uid not in self._beyond:
                joined.append(each)
        return joined

    def moves(self, evictions: Iterable[Eviction], promises: Iterable[Promise]) -> tuple[list[Eviction], list[Promise]]:
        """Ends of gangs, and where they go on; promises to those who wait are left as they are."""
        ends = {each.uid: each for each in evictions}
        onward = {each.uid: each for each in promises}
        gone = [each for each in ends.values() if each.uid not in self._beyond]
        kept = [self._with_base(each) for each in onward.values() if each.uid not in self._beyond]
        for uid, base in self._beyond.items():
            own = self._snapshot.jobs.uids[base]
            if uid not in ends or own in ends:
                continue
            end = ends[uid]
            reason = MoveReason.SHRUNK if end.reason in _SHRINKS else end.reason
            beneficiary = own if end.for_itself else end.beneficiary
            nodes = self._snapshot.jobs.runs.nodes_of(base)
            may = uid in onward or uid not in self._needed
            if may and stands(self._snapshot, base, nodes).all():
                gone.append(Eviction(own, reason, beneficiary, end.lost))
                more = onward[uid].nodes if uid in onward else np.empty(0, dtype=np.int32)
                kept.append(self._going_on(base, nodes, more))
            else:  # it starts neither on these nor with these alone: it queues again
                gone.append(Eviction(own, end.reason, "" if beneficiary == own else beneficiary, end.lost))
        return gone, kept

    def replacements(self, decided: Iterable[Replacement]) -> list[Replacement]:
        """One of each gang, counted over both rows."""
        joined: dict[str, Replacement] = {}
        for each in decided:
            base = self._beyond.get(each.uid)
            uid = each.uid if base is None else self._snapshot.jobs.uids[base]
            first = 0 if base is None else int(self._snapshot.jobs.workers[base])
            indexes, nodes = (each.indexes + first).astype(np.int32), each.nodes
            if uid in joined:
                indexes = np.concatenate([joined[uid].indexes, indexes])
                nodes = np.concatenate([joined[uid].nodes, nodes])
            joined[uid] = Replacement(uid, indexes, nodes)
        return list(joined.values())

    def lost(
        self, reduced: Iterable[Promise], broken: Iterable[str], starting: set[str]
    ) -> tuple[list[Promise], list[str]]:
        """Promises of fewer workers, and those that cannot be kept: of workers beyond a base alone it is the former."""
        joined, broken = list[Promise](), list(broken)
        whole = {self._snapshot.jobs.uids[self._beyond[uid]] for uid in broken if uid in self._needed}
        broken += sorted(whole - {*broken})
        left = {uid: np.empty(0, dtype=np.int32) for uid in broken if uid in self._beyond}
        for each in reduced:
            if each.uid in self._beyond:
                left.setdefault(each.uid, each.nodes)
            else:
                joined.append(self._with_base(each))
        for uid, more in left.items():
            base = self._beyond[uid]
            own, nodes = self._snapshot.jobs.uids[base], promised_nodes(self._snapshot, base)
            if own not in broken and own not in starting and (nodes != NONE).all():
                joined.append(self._going_on(base, nodes, more))
        return joined, [uid for uid in broken if uid not in self._beyond]

    def _going_on(self, base: int, nodes: Index, more: Index) -> Promise:
        jobs = self._snapshot.jobs
        joined = np.concatenate([nodes, more]).astype(np.int32)
        return Promise(jobs.uids[base], joined, int(jobs.flavours[base]), len(nodes))

    def _with_base(self, promise: Promise) -> Promise:
        """Of a gang with a base, the first are that: all that a waiting one is promised, or that go on elsewhere."""
        base = self._bases.get(promise.uid)
        return promise if base is None else replace(promise, base=int(self._snapshot.jobs.workers[base]))


def beside_their_bases(jobs: Jobs, allowed: Mask, domains: Index) -> tuple[Jobs, Mask]:
    """Where one domain must hold a gang, its workers beyond the base may run in that of the base alone: that is a
    filter of its own."""
    filters, more = jobs.filters.copy(), list[Mask]()
    for row, base in jobs.bases.items():
        if jobs.modes[base] != TopologyMode.REQUIRED or jobs.levels[base] == NONE:
            continue
        nodes = jobs.runs.nodes_of(base)
        if (nodes == NONE).all():
            nodes = jobs.runs.promised_to(base)  # its pods are gone, and it goes on there
        there = domains[nodes[nodes != NONE], jobs.levels[base]]
        inside = domains[:, jobs.levels[base]] == (there[0] if len(there) else NONE)
        filters[row] = len(allowed) + len(more)
        more.append(allowed[jobs.filters[row]] & inside & (domains[:, jobs.levels[base]] != NONE))
    return (replace(jobs, filters=filters), np.vstack([allowed, *more])) if more else (jobs, allowed)
