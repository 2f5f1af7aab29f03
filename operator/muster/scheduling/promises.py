"""Promises: room that is kept for a job while its victims give it back.

A plan that needs the room of others promises nodes to one job (`Promise`) and asks its victims to end (`Eviction`).
From then on the job is RESERVED. In every later plan, before anybody else is looked at,

* the whole gang's room is taken off its nodes, so that nobody else gets what is free there now or comes back later;
* its quota is charged in its queue, and what those still hold who are ending is not;
* it starts, on exactly those nodes, as soon as they have the room and the victims' quota is free.

A promise is broken when it can no longer be kept: a node is gone, not usable, taken by strangers or no longer suits the
job and no other is found for it (`muster.scheduling.mending`), nodes have moved to other domains so that the gang would
not lie as it asks, the job's window has closed, its queue was closed or may no longer use that much. A gang that ran,
and starts again, goes on in a closed queue, unless that is drained and the gang may be stopped. Victims that take their
time break nothing. In the plan that breaks a promise what is left of it is still kept, where its job waits on: that one
has its turn in the next plan, and those behind it would have started on what its victims gave back.

A job that is moved or resized has a promise as well, while it still runs: it is HOLDING, `leaving`, and its own
beneficiary. Its new nodes are kept for it in the same way. One that was let in before its turn still yields when it
goes on: its nodes are those of which room is kept for a job ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from muster.scheduling.plan import Admission
from muster.scheduling.quota import Ledger, Need
from muster.scheduling.snapshot import NONE, Index, Int, Mask, Seconds, Snapshot, TopologyMode


@dataclass(frozen=True)
class Kept:
    """What becomes of the promises that stand.

    Attributes:
        admissions: of those that can start now.
        waiting: rows of those whose victims are not gone yet, first in rank first.
        broken: uids.
        left: rows of those among them for whom what is left is still kept, first in rank first.
        free: N x R, of the snapshot, less everything that is promised, and what is left of the promises that break in
            this plan; may be negative where victims still run.
    """

    admissions: tuple[Admission, ...]
    waiting: tuple[int, ...]
    broken: tuple[str, ...]
    left: tuple[int, ...]
    free: Int


def keep_promises(snapshot: Snapshot, used: Ledger, promised: Ledger) -> Kept:
    """Start what can start, keep the rest of the promises, break those that cannot be kept.

    Args:
        used: quota held by placements; admissions are charged here.
        promised: a copy of it, in which promises are charged, and what those hold who are ending is not.
    """
    reserved = reserved_by_rank(snapshot)
    if not reserved and not snapshot.jobs.runs.leaving.any():
        return Kept((), (), (), (), snapshot.nodes.free)
    _count_off_leavers(snapshot, promised)
    firm = _Firm(snapshot, promised)
    kept, broken = list[int](), list[int]()
    for job in reserved:  # where quota is enough for some, the first in rank have it
        if _is_broken(snapshot, job, promised) or not firm.allows(job):
            broken.append(job)
        else:
            promised.charge(*_holding(snapshot, job))
            kept.append(job)
    now, free = snapshot.nodes.free.copy(), snapshot.nodes.free.copy()
    for job in moving(snapshot):
        _take(snapshot, free, job, snapshot.jobs.runs.promised_to(job))
    admissions, waiting = [], []
    for job in kept:
        nodes = snapshot.jobs.runs.nodes_of(job)
        _take(snapshot, free, job, nodes)
        queue, flavour, need = _holding(snapshot, job)
        if used.shortage(queue, flavour, need) is None and _has_room(snapshot, now, job, nodes):
            _take(snapshot, now, job, nodes)
            used.charge(queue, flavour, need)
            yields = bool(snapshot.jobs.runs.yields[job])
            admissions.append(Admission(snapshot.jobs.uids[job], nodes.copy(), flavour, yields))
        else:
            waiting.append(job)
    left = _keep_for_those_who_wait_on(snapshot, broken, promised, free)
    uids = tuple(snapshot.jobs.uids[job] for job in broken)
    return Kept(tuple(admissions), tuple(waiting), uids, tuple(left), free)


def _keep_for_those_who_wait_on(snapshot: Snapshot, broken: list[int], promised: Ledger, free: Int) -> list[int]:
    """Nobody gets what is left of a promise in the plan that breaks it, while its job may start elsewhere: it has its
    turn in the next plan. Returns the rows of those for whom it is kept."""
    kept = []
    for job in broken:
        queue, flavour, need = _holding(snapshot, job)
        if queue == NONE or _is_closed(snapshot, job) or promised.shortage(queue, flavour, need) is not None:
            continue
        promised.charge(queue, flavour, need)
        _take(snapshot, free, job, snapshot.jobs.runs.nodes_of(job))
        kept.append(job)
    return kept


class _Firm:
    """What cannot be given back stays within a queue's own nominal, where only its like count: what the queue's other
    jobs use beside it can be taken back, so it keeps no promise from being kept. See `Round.firm_shortage`."""

    def __init__(self, snapshot: Snapshot, ledger: Ledger) -> None:
        self._snapshot, self._ledger = snapshot, ledger
        self._use: Int | None = None

    def allows(self, job: int) -> bool:
        """Whether a promise stays within what its queue has; to be asked in the order of rank, once each."""
        snapshot = self._snapshot
        if snapshot.jobs.terms.preemptible[job]:
            return True
        if self._use is None:
            self._use = firm_use(snapshot, snapshot.jobs.holding)
        queue, flavour, need = _holding(snapshot, job)
        for resource, amount in need:
            if self._use[queue, flavour, resource] + amount > self._ledger.most_own(queue, flavour, resource):
                return False
        for resource, amount in need:
            self._use[queue, flavour, resource] += amount
        return True


def firm_use(snapshot: Snapshot, counted: Mask) -> Int:
    """Q x V x R, what those of the `counted` jobs hold, or are promised, that cannot give it back. One that grows has
    its new size already."""
    jobs = snapshot.jobs
    firm = np.zeros_like(snapshot.queues.nominal)
    of = counted & ~jobs.terms.preemptible & (jobs.queues != NONE)
    rows = np.flatnonzero(of)
    np.add.at(firm, (jobs.queues[rows], jobs.flavours[rows]), jobs.held[rows])
    for row in moving(snapshot):
        if of[row]:
            there = jobs.requests[row] * len(jobs.runs.promised_to(row))
            firm[jobs.queues[row], jobs.flavours[row]] += np.maximum(0, there - jobs.held[row])
    return firm


def victims_of(snapshot: Snapshot, job: int) -> list[int]:
    """Rows of the placements that are being ended for a job, or that shrink or move and give back room on its nodes."""
    runs = snapshot.jobs.runs
    ending = [int(row) for row in np.flatnonzero(runs.leaving & (runs.beneficiary == job)) if row != job]
    left = ((row, left_nodes(runs.nodes_of(row), runs.promised_to(row))) for row in moving(snapshot))
    return ending + [row for row, nodes in left if np.isin(nodes, runs.nodes_of(job)).any()]


def cleared_at(snapshot: Snapshot) -> Seconds:
    """J, when the last of those is gone who make room for a RESERVED job, or give its quota back; `now` for all
    others."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    found = np.full(len(jobs.uids), snapshot.now)
    reserved = np.flatnonzero(jobs.reserved).tolist()
    if not reserved or not runs.leaving.any():
        return found
    victims = np.flatnonzero(runs.leaving & (runs.beneficiary != NONE))
    np.maximum.at(found, runs.beneficiary[victims], snapshot.now + runs.grace[victims])
    left = left_at(snapshot)
    for job in reserved:
        nodes = runs.nodes_of(job)
        found[job] = left[nodes[nodes != NONE]].max(initial=found[job])
    ready = [job for job in reserved if found[job] <= snapshot.now]
    return _when_quota_is_back(snapshot, ready, found) if ready else found


def _when_quota_is_back(snapshot: Snapshot, ready: list[int], found: Seconds) -> Seconds:
    """The same for RESERVED jobs that nobody is to leave room for, but whose queue may use that much only when those of
    its tree are gone who leave other nodes: a quota there was lowered since."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    used = Ledger(snapshot.queues, jobs)
    leaving = np.flatnonzero(runs.leaving & jobs.holding & (jobs.queues != NONE))
    circles = np.array([used.circle(queue) for queue in jobs.queues[leaving].tolist()], dtype=np.int64)
    for job in ready:
        queue, flavour, need = _holding(snapshot, job)
        if queue != NONE and used.shortage(queue, flavour, need) is not None:
            back = leaving[circles == used.circle(queue)]
            found[job] = (snapshot.now + runs.grace[back]).max(initial=found[job])
    return found


def left_at(snapshot: Snapshot) -> Seconds:
    """N, when the last of those is gone who leave a node, for whomever: what one of them leaves may be promised to
    several. `now` where there are none."""
    runs, found = snapshot.jobs.runs, np.full(len(snapshot.nodes.names), snapshot.now)
    movers = {*moving(snapshot)}
    for row in np.flatnonzero(runs.leaving & snapshot.jobs.holding).tolist():
        nodes = runs.nodes_of(row)
        nodes = left_nodes(nodes, runs.promised_to(row)) if row in movers else nodes[nodes != NONE]
        found[nodes] = np.maximum(found[nodes], snapshot.now + runs.grace[row])
    return found


def left_nodes(before: Index, after: Index) -> Index:
    """Nodes on which a gang that moves or is resized has fewer workers than before."""
    nodes, counts = np.unique(before[before != NONE], return_counts=True)
    fewer: Index = nodes[[np.count_nonzero(after == node) < count for node, count in zip(nodes, counts, strict=True)]]
    return fewer


def reserved_by_rank(snapshot: Snapshot) -> list[int]:
    """Rows of the jobs that wait for the room that is promised to them, first in rank first."""
    jobs = snapshot.jobs
    rows = jobs.reserved.nonzero()[0].tolist()
    return sorted(rows, key=lambda job: (-int(jobs.priorities[job]), float(jobs.submitted[job]), jobs.uids[job]))


def moving(snapshot: Snapshot) -> list[int]:
    """Rows of the jobs that are being moved or resized and still run. Workers beyond a base may all go."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    if runs.promised_first is None:
        return []
    own = runs.beneficiary == np.arange(len(jobs.uids))
    there = np.diff(runs.promised_first) > 0
    there[list(jobs.bases)] = True
    return [int(row) for row in np.flatnonzero(own & runs.leaving & there & jobs.holding)]


def promised_nodes(snapshot: Snapshot, job: int) -> Index:
    """Nodes that are promised to a job which waits, is moved or is resized, by rank."""
    runs = snapshot.jobs.runs
    return runs.nodes_of(job) if snapshot.jobs.reserved[job] else runs.promised_to(job)


def _holding(snapshot: Snapshot, job: int) -> tuple[int, int, Need]:
    """(queue, flavour, need) of what a job holds."""
    jobs = snapshot.jobs
    need = [(resource, amount) for resource, amount in enumerate(jobs.held[job].tolist()) if amount > 0]
    return int(jobs.queues[job]), int(jobs.flavours[job]), need


def _count_off_leavers(snapshot: Snapshot, promised: Ledger) -> None:
    """What those hold who are ending is for others already; a job that moves has what it moves to."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    for job in np.flatnonzero(runs.leaving & jobs.holding & (jobs.queues != NONE)).tolist():
        queue, flavour, need = _holding(snapshot, job)
        promised.discharge(queue, flavour, need)
        size = len(runs.promised_to(job)) if int(runs.beneficiary[job]) == job else 0
        if size:
            asked = [(resource, amount * size) for resource, amount in enumerate(jobs.requests[job].tolist()) if amount]
            promised.charge(queue, _flavour_there(snapshot, job), asked)


def _flavour_there(snapshot: Snapshot, job: int) -> int:
    """The flavour that a job which is being moved will draw on: that of its new nodes, if it uses accelerators."""
    own, nodes = int(snapshot.jobs.flavours[job]), snapshot.jobs.runs.promised_to(job)
    there = snapshot.nodes.flavours[nodes[nodes != NONE]]
    return int(there[0]) if own != 0 and len(there) and there[0] != NONE else own


def _is_broken(snapshot: Snapshot, job: int, promised: Ledger) -> bool:
    nodes = snapshot.jobs.runs.nodes_of(job)
    queue, flavour, need = _holding(snapshot, job)
    if queue == NONE or _is_closed(snapshot, job) or not len(nodes) or (nodes == NONE).any():
        return True
    if not (snapshot.nodes.usable[nodes] & suited(snapshot, job, nodes)).all() or not _lies_as_asked(snapshot, job):
        return True
    return promised.shortage(queue, flavour, need) is not None


def _lies_as_asked(snapshot: Snapshot, job: int) -> bool:
    """False where nodes that are promised to a job, of which it asks that they share a domain, are in several by now. A
    node whose label is gone for a while is taken to be where it was."""
    jobs, nodes = snapshot.jobs, snapshot.jobs.runs.nodes_of(job)
    shape = jobs.terms.shapes[job]
    workers = nodes[: int(jobs.workers[job])] if shape.spares else nodes
    together = list(shape.slices)
    if jobs.modes[job] == TopologyMode.REQUIRED and jobs.levels[job] != NONE:
        together.append((len(workers), int(jobs.levels[job])))
    for size, level in together:
        domains = snapshot.nodes.domains[workers, level]
        for first in range(0, len(workers), size):
            known = domains[first : first + size]
            if len(np.unique(known[known != NONE])) > 1:
                return False
    return True


class BrokenBy(Enum):
    """Why a promise can't be kept, as far as a snapshot alone tells."""

    NO_QUEUE = "no queue"
    WINDOW = "window"
    CLOSED = "closed"
    UNSUITED = "unsuited"
    """A node that can take pods suits the job no longer."""
    MOVED = "moved"
    """Its nodes lie in other domains by now, not as the job asks."""
    TAKEN = "taken"
    """Strangers have its room, or its queue may use less than before."""


def broken_by(snapshot: Snapshot, job: int) -> BrokenBy:
    """Of a RESERVED job whose promise is broken and whose nodes can take pods."""
    if snapshot.jobs.queues[job] == NONE:
        return BrokenBy.NO_QUEUE
    if snapshot.jobs.terms.opens[job] > snapshot.now:
        return BrokenBy.WINDOW
    if _is_closed(snapshot, job):
        return BrokenBy.CLOSED
    nodes = snapshot.jobs.runs.nodes_of(job)
    if not suited(snapshot, job, nodes[nodes != NONE]).all():
        return BrokenBy.UNSUITED
    whole = bool((nodes != NONE).all())
    return BrokenBy.TAKEN if not whole or _lies_as_asked(snapshot, job) else BrokenBy.MOVED


def _is_closed(snapshot: Snapshot, job: int) -> bool:
    """Whether its window or its queue keeps a job from starting. One that ran, and starts again, is no new job to the
    queue: it goes on unless the queue is drained and it may be stopped."""
    queues, queue = snapshot.queues, snapshot.jobs.queues[job]
    if snapshot.jobs.terms.opens[job] > snapshot.now:
        return True
    if snapshot.jobs.runs.beneficiary[job] == job:
        return bool(queues.drain[queue] and snapshot.jobs.terms.preemptible[job])
    return not queues.open[queue]


def suited(snapshot: Snapshot, job: int, nodes: Index) -> Mask:
    """Which of these nodes pass one of the job's filters. All of them must be there."""
    jobs = snapshot.jobs
    suits: Mask = snapshot.eligible[int(jobs.filters[job]), nodes]
    for other in jobs.terms.alternatives[job]:
        suits = suits | snapshot.eligible[other.filter, nodes]
    return suits


def stands(snapshot: Snapshot, row: int, nodes: Index) -> Mask:
    """Which of these nodes are there, usable, and suit a job. On others it does not start, though it may run there."""
    found: Mask = nodes != NONE
    there = nodes[found]
    found[found] = snapshot.nodes.usable[there] & suited(snapshot, row, there)
    return found


def base_stands(snapshot: Snapshot, row: int) -> bool:
    """Of workers beyond a base, whether that `stands`: without it their gang starts nowhere. True for all others."""
    jobs = snapshot.jobs
    base = jobs.bases.get(row)
    return base is None or bool(stands(snapshot, base, jobs.runs.nodes_of(base)).all())


def _take(snapshot: Snapshot, free: Int, job: int, nodes: Index) -> None:
    there = nodes[nodes != NONE]
    np.subtract.at(free, there, snapshot.jobs.requests[job])


def _has_room(snapshot: Snapshot, free: Int, job: int, nodes: Index) -> bool:
    """Whether the whole gang fits on its nodes in what is free."""
    where, workers = np.unique(nodes, return_counts=True)
    request = snapshot.jobs.requests[job]
    left = free[where] - workers[:, None] * request
    return bool((left[:, request > 0] >= 0).all())
