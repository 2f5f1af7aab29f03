"""For whom others move aside: the first in rank that waits for room of which there is enough, but in pieces.

The pieces may be parts of nodes, for a job that wants whole ones, or nodes of several domains, for one that wants a
single domain. Whether moving pays, and who moves where, is told by `muster.scheduling.defrag`.

It need not be a head: one whose quota others lend holds no reservation while it is young. But what is kept for a head,
and what would come back on its nodes, is not for those behind it; nor does a borrower get quota that owners wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from muster.scheduling.claims import movable
from muster.scheduling.defrag import Rearrangement, defragment
from muster.scheduling.demand import coming_back
from muster.scheduling.fallback import fallback_starts, other_starts
from muster.scheduling.gangs import Gang
from muster.scheduling.heads import Head, Heads
from muster.scheduling.moves import Pace
from muster.scheduling.owners import Owners
from muster.scheduling.room import Room
from muster.scheduling.rounds import Round
from muster.scheduling.snapshot import FOREVER, Int
from muster.scheduling.verdicts import Fate, Verdict


@dataclass(frozen=True)
class Way:
    """
    Attributes:
        job: row of the one that waits; its quota is reserved.
        flavour: whose quota it draws on.
        found: where it goes, and who moves where.
    """

    job: int
    flavour: int
    found: Rearrangement


def make_way(round_: Round, heads: Heads, owners: Owners, verdicts: Sequence[Verdict]) -> Way | None:
    """Look for moves that let one of those start who wait for room; jobs that are alike are looked at once.

    Searches end when they have looked at `Policy.candidates` running jobs, as those for victims do.
    """
    first = heads.all[0] if heads.all else None
    behind = {each.job for each in heads.all[1:]}
    pieces_of_first, pieces = _Pieces(round_, round_.room), _Pieces(round_, round_.open_to_all())
    running, looked_at, seen = int(movable(round_.snapshot).sum()), 0, set[tuple[int, int]]()
    for verdict in verdicts:
        if verdict.fate is not Fate.ROOM or looked_at >= round_.policy.candidates:
            continue
        alike = (round_.queue_of[verdict.job], round_.kinds.of[verdict.job])
        if verdict.job in behind or alike in seen:
            continue
        seen.add(alike)
        head = first if first is not None and first.job == verdict.job else None
        asking = _asking(round_, verdict, head)
        there = pieces if head is None else pieces_of_first
        if not there.would_do(asking.gang):
            continue
        looked_at += running
        found = _search(round_, owners, asking, there.room, _wait(round_, heads, verdict, asking, there.room))
        if found is not None:
            return Way(asking.job, asking.flavour, found)
    return None


@dataclass(frozen=True)
class _Asking:
    """
    Attributes:
        gang: the smallest that the job may be.
        head: its reservation, if it has one.
    """

    job: int
    choice: int
    flavour: int
    gang: Gang
    head: Head | None


def _asking(round_: Round, verdict: Verdict, head: Head | None) -> _Asking:
    kind, it = round_.kinds.of[verdict.job], round_.kind(verdict.job)
    choice = verdict.choice
    if head is not None:
        choice = next(index for index, each in enumerate(it.choices) if each.worker == head.gang.worker)
    gang = round_.kinds.gang(kind, choice, it.sizes[-1])
    return _Asking(verdict.job, choice, it.choices[choice].flavour, gang, head)


class _Pieces:
    """What is open in all, by the nodes that suit; whether it lies together is not asked."""

    def __init__(self, round_: Round, room: Room) -> None:
        self.room = room
        self._workers = round_.kinds.workers
        self._sums: dict[int, Int] = {}

    def would_do(self, gang: Gang) -> bool:
        """Whether it would be enough for the gang if it lay together."""
        worker = self._workers[gang.worker]
        sums = self._sums.get(worker.filter)
        if sums is None:
            open_ = self.room.open[:, self.room.candidates(gang.worker)]
            sums = self._sums[worker.filter] = np.maximum(open_, 0).sum(axis=1)
        return all(sums[resource] >= amount * gang.total for resource, amount in worker.asks)


def _wait(round_: Round, heads: Heads, verdict: Verdict, it: _Asking, room: Room) -> float:
    """Seconds until a job is expected to start if nobody moves, on any kind of nodes that it takes."""
    if it.head is None:
        start = heads.earliest(it.gang, heads.all, room.open)
    else:
        start = min(it.head.reservation.start, other_starts(round_, heads).get(it.job, FOREVER))
    return min(start, fallback_starts(round_, [verdict]).get(it.job, FOREVER)) - round_.snapshot.now


def _search(round_: Round, owners: Owners, it: _Asking, room: Room, wait: float) -> Rearrangement | None:
    """Moves that let one job start. Its quota is reserved then, as it was before if it is a head."""
    snapshot, queue = round_.snapshot, round_.queue_of[it.job]
    need = round_.kinds.need(round_.kinds.of[it.job], it.choice, it.gang.size)
    if it.head is not None:
        # Its quota is reserved already, and must not stand in its own way.
        round_.charge_reserved(it.job, it.choice, need, -1)
        ledger = round_.promised
    elif round_.shortage(it.job, it.choice, need) is None:
        ledger = owners.ledger_for(queue, it.flavour, need)
    else:
        return None
    found = defragment(
        snapshot,
        round_.tree,
        room,
        ledger,
        round_.kinds.workers,
        it.gang,
        it.job,
        replace(coming_back(snapshot, round_.tree), quota=()),
        wait,
        flavour=it.flavour,
        pace=Pace(settle=round_.policy.settle),
        kept=None if it.head is not None or round_.spare is round_.room else round_.kept_nodes(),
    )
    if it.head is not None:
        round_.charge_reserved(it.job, it.choice, need, 1)
    elif found is not None:
        round_.reserve_quota(it.job, it.choice, need)
    return found
