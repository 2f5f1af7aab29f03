"""Slow, obvious answers to check the planner against: plain loops over names, none of the planner's own code."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from muster.scheduling.plan import Plan, WaitReason
from muster.scheduling.snapshot import NONE, UNLIMITED, Int, JobState, Snapshot, TopologyMode


def job_index(snapshot: Snapshot, uid: str) -> int:
    return snapshot.jobs.uids.index(uid)


def slots_of(snapshot: Snapshot, job: int, room: Int) -> list[int]:
    """Workers of a job that fit on each node, by trying one after the other."""
    counts = []
    for node in range(len(snapshot.nodes.names)):
        left = [int(value) for value in room[node]]
        count = 0
        if snapshot.nodes.usable[node] and snapshot.eligible[snapshot.jobs.filters[job]][node]:
            request = [int(value) for value in snapshot.jobs.requests[job]]
            while count < 100 and all(not want or have >= want for want, have in zip(request, left, strict=True)):
                left = [have - want for want, have in zip(request, left, strict=True)]
                count += 1
        counts.append(count)
    return counts


def valid_domains(snapshot: Snapshot, job: int, room: Int) -> list[list[int]]:
    """Every set of nodes that may and can hold the whole gang together."""
    slots = slots_of(snapshot, job, room)
    nodes = range(len(slots))
    if snapshot.jobs.modes[job] != TopologyMode.REQUIRED:
        candidates = [list(nodes)]
    else:
        domains = snapshot.nodes.domains[:, snapshot.jobs.levels[job]]
        candidates = [[node for node in nodes if domains[node] == d] for d in sorted(set(domains.tolist()) - {NONE})]
    return [members for members in candidates if sum(slots[node] for node in members) >= snapshot.jobs.workers[job]]


def empty_room(snapshot: Snapshot) -> Int:
    nodes = snapshot.nodes
    assert nodes.fixed is not None
    return np.maximum(nodes.allocatable - nodes.fixed, nodes.free)


def pending(snapshot: Snapshot) -> list[int]:
    """Pending jobs, first in rank first."""
    jobs = snapshot.jobs
    indices = [job for job in range(len(jobs.uids)) if jobs.states[job] == JobState.PENDING]
    return sorted(indices, key=lambda job: (-int(jobs.priorities[job]), float(jobs.submitted[job]), jobs.uids[job]))


def usage(snapshot: Snapshot) -> dict[tuple[int, int, int], int]:
    """What each queue uses, by (queue, flavour, resource)."""
    use: dict[tuple[int, int, int], int] = {}
    jobs = snapshot.jobs
    for job in range(len(jobs.uids)):
        for resource in range(len(snapshot.resources)):
            key = (int(jobs.queues[job]), int(jobs.flavours[job]), resource)
            use[key] = use.get(key, 0) + int(jobs.held[job, resource])
    return use


def quota_allows(snapshot: Snapshot, use: dict[tuple[int, int, int], int], job: int) -> bool:
    """Whether each limit that the job's use reaches still holds after the job is added, for all that it asks for."""
    jobs = snapshot.jobs
    queue, flavour = int(jobs.queues[job]), int(jobs.flavours[job])
    needs = [int(jobs.requests[job, resource]) * int(jobs.workers[job]) for resource in range(len(snapshot.resources))]
    return all(may_add(snapshot, use, queue, flavour, resource, need) for resource, need in enumerate(needs))


def may_add(
    snapshot: Snapshot, use: dict[tuple[int, int, int], int], queue: int, flavour: int, resource: int, need: int
) -> bool:
    """Whether the queue may use `need` more of the resource."""
    if not need or not limited(snapshot, queue, flavour, resource):
        return True
    grown = dict(use)
    grown[queue, flavour, resource] = grown.get((queue, flavour, resource), 0) + need
    for one in way_up(snapshot, queue):
        drawn = draws_on(snapshot, grown, one, flavour, resource)
        grows = drawn > draws_on(snapshot, use, one, flavour, resource)
        if grows and drawn > may_draw(snapshot, one, flavour, resource):
            return False
    return True


def way_up(snapshot: Snapshot, queue: int) -> list[int]:
    """The queue and all above it."""
    parent = int(snapshot.queues.parents[queue])
    return [queue] if parent == NONE else [queue, *way_up(snapshot, parent)]


def limited(snapshot: Snapshot, queue: int, flavour: int, resource: int) -> bool:
    """Whether the queue or one above it names the resource."""
    return any(int(snapshot.queues.nominal[one, flavour, resource]) < UNLIMITED for one in way_up(snapshot, queue))


def has(snapshot: Snapshot, queue: int, flavour: int, resource: int) -> int:
    """The queue's own nominal, and what those below it lend."""
    nominal = int(snapshot.queues.nominal[queue, flavour, resource])
    total = nominal if nominal < UNLIMITED else 0
    for child in range(len(snapshot.queues.names)):
        if snapshot.queues.parents[child] == queue:
            limit = int(snapshot.queues.lending[child, flavour, resource])
            total += min(has(snapshot, child, flavour, resource), limit)
    return total


def keeps(snapshot: Snapshot, queue: int, flavour: int, resource: int) -> int:
    """What the queue lends to nobody above it."""
    mine = has(snapshot, queue, flavour, resource)
    if snapshot.queues.parents[queue] == NONE:
        return mine
    return max(0, mine - int(snapshot.queues.lending[queue, flavour, resource]))


def draws_on(snapshot: Snapshot, use: dict[tuple[int, int, int], int], queue: int, flavour: int, resource: int) -> int:
    """What the queue's own jobs use, and what those below it use beyond what they keep."""
    total = use.get((queue, flavour, resource), 0) if limited(snapshot, queue, flavour, resource) else 0
    for child in range(len(snapshot.queues.names)):
        if snapshot.queues.parents[child] == queue:
            drawn = draws_on(snapshot, use, child, flavour, resource)
            total += max(0, drawn - keeps(snapshot, child, flavour, resource))
    return total


def may_draw(snapshot: Snapshot, queue: int, flavour: int, resource: int) -> int:
    """Nominal and borrowing limit; a root has nobody to borrow from."""
    mine = has(snapshot, queue, flavour, resource)
    if snapshot.queues.parents[queue] == NONE:
        return mine
    return mine + int(snapshot.queues.borrowing[queue, flavour, resource])


def add(snapshot: Snapshot, use: dict[tuple[int, int, int], int], job: int) -> None:
    jobs = snapshot.jobs
    for resource in range(len(snapshot.resources)):
        key = (int(jobs.queues[job]), int(jobs.flavours[job]), resource)
        use[key] = use.get(key, 0) + int(jobs.requests[job, resource]) * int(jobs.workers[job])


def admitted(snapshot: Snapshot, plan: Plan) -> Iterator[tuple[int, list[int]]]:
    """(job, node of each worker) of each admission, in order."""
    for admission in plan.admissions:
        yield job_index(snapshot, admission.uid), admission.nodes.tolist()


def starts_later(snapshot: Snapshot, first: Plan, again: Plan) -> set[str]:
    """Who starts in the plan after one that was carried out, and rightly so: see the docstring of `planner`.

    They waited for quota, or behind others, in a tree of several queues. Whom room alone was lacking never do.
    """
    waited = {each.uid: each.reason for each in first.waiting}
    roots = [way_up(snapshot, queue)[-1] for queue in range(len(snapshot.queues.names))]
    rightly = set()
    for admission in again.admissions:
        root = roots[int(snapshot.jobs.queues[job_index(snapshot, admission.uid)])]
        kept_from = waited.get(admission.uid) in (WaitReason.QUOTA_EXCEEDED, WaitReason.BEHIND_OTHERS)
        if kept_from and roots.count(root) > 1:
            rightly.add(admission.uid)
    return rightly


def any_would_be_lent(snapshot: Snapshot) -> bool:
    """Whether anybody waits who needs what other queues lend: nothing is kept for those while they are young.

    What is used by jobs that yield doesn't count: these go for those who wait. Where any do, what others of its queue
    want counts, for it may be reserved for them: who yields and started behind both leaves less to borrow.
    """
    use, yields = usage(snapshot), snapshot.jobs.runs.yields
    for job in np.flatnonzero(yields).tolist():
        _add(snapshot, use, job, snapshot.jobs.held, -1)
    waiting, asked = pending(snapshot), snapshot.jobs.requests * snapshot.jobs.workers[:, None]
    for job in waiting:
        others = dict(use)
        for other in waiting if yields.any() else ():
            if other != job:
                _add(snapshot, others, other, asked, 1)
        if _would_be_lent(snapshot, others, job):
            return True
    return False


def _add(snapshot: Snapshot, use: dict[tuple[int, int, int], int], job: int, amounts: Int, sign: int) -> None:
    queue, flavour = int(snapshot.jobs.queues[job]), int(snapshot.jobs.flavours[job])
    for resource, amount in enumerate(amounts[job].tolist()):
        use[queue, flavour, resource] = use.get((queue, flavour, resource), 0) + sign * amount


def _would_be_lent(snapshot: Snapshot, use: dict[tuple[int, int, int], int], job: int) -> bool:
    """Whether a job takes its queue beyond what that and the queues above it name."""
    jobs = snapshot.jobs
    queue, flavour = int(jobs.queues[job]), int(jobs.flavours[job])
    for resource in range(len(snapshot.resources)):
        need = int(jobs.requests[job, resource]) * int(jobs.workers[job])
        named = [int(snapshot.queues.nominal[one, flavour, resource]) for one in way_up(snapshot, queue)]
        own = sum(each for each in named if each < UNLIMITED)
        if need and limited(snapshot, queue, flavour, resource) and use.get((queue, flavour, resource), 0) + need > own:
            return True
    return False
