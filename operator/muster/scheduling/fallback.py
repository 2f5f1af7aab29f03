"""When jobs that still wait for the kind of nodes that they prefer take the next one (`Alternative.since`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from muster.scheduling.expected import when_open
from muster.scheduling.heads import Heads
from muster.scheduling.placement import fits
from muster.scheduling.rounds import Round
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import FOREVER, Alternative, Snapshot
from muster.scheduling.topology import prefix_sums
from muster.scheduling.verdicts import Fate, Verdict

_WAITING: Final = frozenset(
    (Fate.NO_NODES, Fate.TOO_LARGE, Fate.NODES_AWAY, Fate.NEVER, Fate.QUOTA, Fate.ROOM, Fate.WINDOW)
)


def fallback_starts(round_: Round, verdicts: Sequence[Verdict]) -> dict[int, float]:
    """By row, from when on a waiting job takes nodes that have room for it now, and quota; without those for whom there
    are none."""
    alternatives = round_.snapshot.jobs.terms.alternatives
    if not any(alternatives):
        return {}
    found: dict[int, float] = {}
    known: dict[tuple[int, int, int, int], bool] = {}
    for job, fate, *_ in verdicts:
        later = [each for each in alternatives[job] if each.since > round_.snapshot.now] if fate in _WAITING else ()
        for each in later:
            key = (round_.queue_of[job], round_.kinds.of[job], each.filter, each.flavour)
            if key not in known:
                known[key] = _would_start(round_, job, each)
            if known[key]:
                found[job] = when_open(round_.snapshot.jobs.terms, job, each.since)
                break
    return found


def other_starts(round_: Round, heads: Heads) -> dict[int, float]:
    """By row, when jobs with a reservation could start on other nodes than those that are kept for them: nodes that
    they take by now, or later, when enough is free there beside what others have reserved who start before."""
    found, now = dict[int, float](), round_.snapshot.now
    for at, head in enumerate(heads.all):
        need = round_.kinds.need(round_.kinds.of[head.job], 0, head.gang.size)
        for worker, flavour, since in heads.kinds_of(head.job):
            if worker == head.gang.worker or round_.shortage_on(head.job, flavour, need) is not None:
                continue
            before = [each for each in heads.all[at + 1 :] if each.reservation.start < since]
            start = max(since, heads.earliest(replace(head.gang, worker=worker), heads.all[:at] + before))
            start = when_open(round_.snapshot.jobs.terms, head.job, start)
            if now < start < found.get(head.job, FOREVER):
                found[head.job] = start
    return found


def next_fallback(snapshot: Snapshot) -> float:
    """The next moment at which a waiting job takes another kind of nodes; FOREVER for none."""
    jobs = snapshot.jobs
    waiting = (each for each, waits in zip(jobs.terms.alternatives, jobs.pending.tolist(), strict=True) if waits)
    return min((other.since for each in waiting for other in each if other.since > snapshot.now), default=FOREVER)


def _would_start(round_: Round, job: int, other: Alternative) -> bool:
    kinds, room, kind = round_.kinds, round_.spare, round_.kinds.of[job]
    least = kinds.kinds[kind].sizes[-1]
    gang = kinds.gang(kind, 0, least)
    mask = room.eligible[other.filter] & room.usable
    if not fits(round_.tree, prefix_sums(count_slots(room.open, kinds.workers[gang.worker], mask)), gang):
        return False
    return round_.shortage_on(job, other.flavour, kinds.need(kind, 0, least)) is None
