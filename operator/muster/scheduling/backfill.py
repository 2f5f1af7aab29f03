"""Who may start before its turn: only those who provably do not delay a job ahead that waits for room.

The proof is about every future: jobs may end early, at their bound, or never. Let T be the moment at which the job
ahead (the *head*) would start if nobody had been let in. Somebody else may start now

1. **freely**, on room that the head cannot use: nodes outside its reach, resources that it does not ask for, and what
   its workers leave over when they fill the node. Then the head starts at T.
2. **freely**, on room that is sure to be in excess: the head does not fit now, so before T some running job must end in
   the domain where it starts. If, after the smallest of those ends alone, the head would still fit beside the
   newcomer, the newcomer is in nobody's way. Then the head starts at T, give or take the time in which the pods of one
   gang go, which is at most one grace.
3. **yielding**, anywhere, if it is preemptible: it is evicted as soon as the head fits into what is free and what those
   who yield hold. Room free without backfill is never more than that, so the head starts at T and one grace. A head
   that has one before it on the same nodes is let in itself: by a promise that yields, which may not end before it has
   started. So it may cost that one another grace.

An enforced end before the head's reservation (EASY backfill) is no such proof: when others end early, the head could
have started early, and now it waits until the newcomer's end. It never waits beyond its reservation, though. That
weaker promise is `Proof.RESERVATION`: T or the reserved start, whichever is later, and one grace.

Each proof is relative to the jobs that run at the time, those let in before included. So they add up: letting one in
after the other, in one plan or in several, still delays nobody. Quota is no part of it: the head's is charged before
anybody behind it is looked at, and who borrows behind it in its own queue yields (`muster.scheduling.letin`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.room import Room
from muster.scheduling.slots import Taken, count_slots
from muster.scheduling.snapshot import FOREVER, PLAIN, Int, Mask, Seconds, TopologyMode
from muster.scheduling.timeline import Reservation, Timeline
from muster.scheduling.topology import Tree, prefix_sums

_MANY = np.int64(2**40)
"""More slots than any cluster has."""


class Proof(Enum):
    """What is promised to the job ahead."""

    EVERY_FUTURE = "it starts no later than without backfill, whatever ends when"
    RESERVATION = "it starts no later than without backfill, or than its reserved start"


@dataclass(frozen=True)
class Guard:
    """What must be known of a job that waits for room, so that others behind it are judged in no time.

    Attributes:
        gang, reservation: of the job that waits.
        resources, amounts: what each of its workers asks for: A; A x 1, amounts above zero.
        most: N, workers that a place takes when it is empty, in a domain that could ever hold the whole gang; 0 on all
            others: they are out of its reach.
        starts, ends: D, ranges of places of the domains of which one must hold the gang; one range without a required
            level.
        smallest: D, the least that the end of any one job gives back in each domain, in slots; 0 where a job's end
            alone gives none, and where others than the snapshot's jobs hold room: nobody knows what they give back.
        excess: D, slots beside the whole gang when the smallest of those ends has come; later there are not more.
    """

    gang: Gang
    reservation: Reservation
    resources: Int
    amounts: Int
    most: Int
    starts: Int
    ends: Int
    smallest: Int
    excess: Int


def guard(timeline: Timeline, tree: Tree, room: Room, gang: Gang, worker: Worker, reservation: Reservation) -> Guard:
    """Look once at a job that waits for room. Costs a few milliseconds for 12,500 nodes and 5,000 jobs.

    Args:
        timeline: whose holds are all that runs, those admitted by this plan included.
        worker: the gang's worker, `workers[gang.worker]`.
    """
    empty = room.slots_when_empty(gang.worker)
    if gang.mode == TopologyMode.REQUIRED:
        large_enough = tree.sums(empty.prefix, gang.level) >= gang.total
        starts, ends = tree.starts[gang.level][large_enough], tree.ends[gang.level][large_enough]
        inside = tree.members(gang.level, large_enough)
    else:
        starts, ends = np.zeros(1, dtype=np.int64), np.full(1, len(empty.counts), dtype=np.int64)
        inside = np.ones(len(empty.counts), dtype=np.bool_)
    most = np.where(inside, empty.counts, 0)
    smallest = _smallest_ends(timeline, room, worker, most, starts)
    asks = np.array(worker.asks, dtype=np.int64).reshape(-1, 2)
    free = prefix_sums(count_slots(room.free, worker, room.candidates(gang.worker)))
    excess = _excess(gang, free[ends] - free[starts], smallest)
    return Guard(gang, reservation, asks[:, 0], asks[:, 1:], most, starts, ends, smallest, excess)


def delays(
    guard: Guard,
    room: Room,
    worker: Worker,
    taken: Taken,
    *,
    until: float,
    preemptible: bool,
    proof: Proof = Proof.EVERY_FUTURE,
    spent: Int | None = None,
) -> bool:
    """Whether starting a gang now could delay the guarded job; False only with proof.

    A preemptible gang for which this is False must be admitted with `yields=True`, unless it is False as well with
    `preemptible=False`: then it stays as long as it likes.

    Args:
        room: `room.free` is what is free before the gang starts.
        worker: of the gang that would start.
        taken: its workers by place.
        until: when its room is back at the latest, one grace included (`Timeline.until`); FOREVER without a limit.
        spent: D, what those take of the excess who were let in for good since the guard was made, and those ahead of
            the guarded job. Part of it may be slots that only the ends give back, which those free now do not tell.
    """
    if preemptible:
        return False
    if proof is Proof.RESERVATION and until <= guard.reservation.start:
        return False
    domains, cost = costs(guard, room.free[guard.resources[:, None], taken.places], worker, taken)
    if not len(domains):
        return False
    if replace(guard.gang.shape, spares=0) != PLAIN:
        # Slices need more than a sum of slots: what is in excess cannot be told from it.
        return True
    excess = guard.excess[domains] if spent is None else guard.excess[domains] - spent[domains]
    if (cost > excess).any():  # room only shrinks
        return True
    free = room.free_slots(guard.gang.worker).between(guard.starts[domains], guard.ends[domains])
    return bool((cost > _excess(guard.gang, free, guard.smallest[domains])).any())


def costs(guard: Guard, free: Int, worker: Worker, taken: Taken) -> tuple[Int, Int]:
    """In which domains the guarded job could ever lack slots that a gang takes now, and how many: see `lost_slots`."""
    lost = lost_slots(guard, free, worker, taken)
    lacking = np.flatnonzero(lost)
    if not len(lacking):
        return lacking, lost[lacking]
    # What lacks slots is in reach, so it lies in one of the domains.
    home = guard.starts.searchsorted(taken.places[lacking], side="right") - 1
    first = np.flatnonzero(np.append(True, home[1:] != home[:-1]))  # places are in order, and so are their domains
    return home[first], np.add.reduceat(lost[lacking], first)


def taken_ahead(guard: Guard, gang: Gang, worker: Worker, where: Mask) -> Int:
    """D, at most how many slots a gang ahead of the guarded job takes in each domain when it starts.

    Args:
        where: N, places that it could use.
    """
    room = prefix_sums(np.where(where, guard.most, 0))
    asks = zip(guard.resources.tolist(), guard.amounts[:, 0].tolist(), strict=True)
    slots = in_slots(asks, worker)
    most: Int = np.minimum(slots * gang.total, room[guard.ends] - room[guard.starts])
    return most


def in_slots(asks: Iterable[tuple[int, int]], other: Worker) -> int:
    """At most how many slots of a worker that asks for this another one costs."""
    asked = dict(other.asks)
    return max((-(-asked.get(resource, 0) // amount) for resource, amount in asks), default=0)


def fits_beside(
    timeline: Timeline, room: Room, free: Int, gang: Gang, worker: Worker, ahead: Sequence[tuple[Gang, Worker]]
) -> float:
    """When a gang fits whatever ends when, and wherever those `ahead` of it start: they take what is free then, be it
    what is reserved for the gang. So as many more of its workers must fit as they could take the room of. FOREVER where
    that is not known.

    Args:
        free: R x N in tree order, as for `Timeline.reserve`, but not less what is reserved.
    """
    if ahead and replace(gang.shape, spares=0) != PLAIN:
        return FOREVER  # slices need more than a number of slots
    more = sum(in_slots(worker.asks, other) * each.total for each, other in ahead)
    return timeline.reserve(room, replace(gang, size=gang.size + more), worker, free).latest


def _excess(gang: Gang, free: Int, smallest: Int) -> Int:
    """D, slots beside the whole gang in some domains when the smallest end there has come; `free` before it."""
    excess: Int = np.minimum(free + smallest, _MANY) - gang.total
    return excess


def lost_slots(guard: Guard, free: Int, worker: Worker, taken: Taken) -> Int:
    """At most how many slots the guarded job could ever lack on each place that a gang takes now.

    Args:
        free: A x places, what is free there before.
    """
    asked, places = dict(worker.asks), taken.places
    most, resources, amounts = guard.most[places], guard.resources, guard.amounts
    each = np.array([asked.get(resource, 0) for resource in resources.tolist()], dtype=np.int64)
    used = each[:, None] * taken.workers
    # Where all that the guarded job could ever take there is free besides, nothing is lost of this resource.
    scarce = free - used < most * amounts
    # Ceiling: whatever is free beforehand, taking `used` costs no more slots than this.
    lost: Int = np.minimum((-(-used // amounts) * scarce).max(axis=0, initial=0), most)
    return lost


def worthwhile(reservation: Reservation, now: float, estimate: Seconds, restart: Seconds, grace: Seconds) -> Mask:
    """J, whether jobs that would have to yield at the reserved start get enough done before it to be let in.

    Enough is the whole run, or at least as long as starting and stopping take together. Where nobody knows when the
    head starts, idle room is used. All in seconds; `estimate` is FOREVER where unknown.
    """
    gap = reservation.start - now - restart
    enough: Mask = (gap >= estimate) | (gap >= restart + grace)
    return enough


def _smallest_ends(timeline: Timeline, room: Room, worker: Worker, most: Int, starts: Int) -> Int:
    """D, slots that come back in a domain with the end of that one job there which gives back least."""
    holds = timeline.holds
    smallest = np.full(len(starts), _MANY, dtype=np.int64)
    within = np.flatnonzero(most[holds.places] > 0)
    strangers = np.zeros(len(most), dtype=np.bool_)
    for resource, _ in worker.asks:
        held = room.empty[resource] - room.free[resource]
        np.subtract.at(held, holds.places, holds.workers * timeline.requests[holds.jobs, resource])
        strangers |= (held > 0) & (most > 0)
    smallest[np.searchsorted(starts, np.flatnonzero(strangers), side="right") - 1] = 0
    if not within.size:
        return smallest
    places, workers, jobs = holds.places[within], holds.workers[within], holds.jobs[within]
    before = np.full(len(within), _MANY, dtype=np.int64)
    after = before.copy()
    relevant = np.zeros(len(within), dtype=np.bool_)
    for resource, amount in worker.asks:
        free = room.free[resource, places]
        given = workers * timeline.requests[jobs, resource]
        relevant |= given > 0
        np.minimum(before, free // amount, out=before)
        np.minimum(after, (free + given) // amount, out=after)
    gain = np.maximum(after, 0) - np.maximum(before, 0)
    places, jobs, gain = places[relevant], jobs[relevant], gain[relevant]
    if not places.size:
        return smallest
    domain = np.searchsorted(starts, places, side="right") - 1
    # Domains lie one behind the other, and so do a job's places for the most part; where they do not, a job counts as
    # several, each of which gives less: that errs to the safe side.
    edges = np.flatnonzero(np.append(True, (np.diff(jobs) != 0) | (np.diff(domain) != 0)))
    np.minimum.at(smallest, domain[edges], np.add.reduceat(gain, edges))
    return smallest
