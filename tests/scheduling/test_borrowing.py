"""Which placements are borrowed use, against plain loops over the same rules; and what follows from them for owners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from muster.scheduling.borrowing import WITHIN, reach
from muster.scheduling.claims import Right, Standing
from muster.scheduling.hierarchy import path
from muster.scheduling.limits import allowed
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import NONE, UNLIMITED, Snapshot

from .cases import GPU, Job, Node, Queue, snapshot

pytestmark = pytest.mark.unit
thorough = settings(max_examples=300, deadline=None)

H100 = 1
NODE = "large"


@st.composite
def trees(draw: st.DrawFn) -> Snapshot:
    """Queues below one another to any depth, with placements of several moments; row 0 waits."""
    limit = st.sampled_from([None, None, 0, 1, 2, 4])
    queues = [
        Queue(
            f"queue-{index}",
            gpus=draw(st.sampled_from([None, 0, 1, 2, 4, 8])),
            lending=draw(limit),
            parent=draw(st.sampled_from([None, *(f"queue-{above}" for above in range(index))])),
            cohort=draw(st.sampled_from([NONE, 0, 0])),
        )
        for index in range(draw(st.integers(1, 6)))
    ]
    of = st.sampled_from([queue.name for queue in queues])
    count = draw(st.integers(1, 8))
    workers = [draw(st.integers(1, 4)) for _ in range(count)]
    jobs = [
        Job("claimant", gpus=draw(st.integers(1, 4)), queue=draw(of), priority=3),
        *(
            Job(f"job-{index}", workers=size, queue=draw(of), holding=True, on=(NODE,) * size, priority=index % 3)
            for index, size in enumerate(workers)
        ),
    ]
    world = snapshot([Node(NODE, gpus=1000, cores=1000)], jobs, queues)
    started = np.array([0.0, *(draw(st.sampled_from([10.0, 20.0, 30.0])) for _ in workers)])
    firm = np.array([False, *(draw(st.sampled_from([False, False, False, True])) for _ in workers)])
    terms = replace(world.jobs.terms, preemptible=~firm)
    runs = replace(world.jobs.runs, started=started)
    return replace(world, jobs=replace(world.jobs, terms=terms, runs=runs))


@dataclass(frozen=True)
class Share:
    """What one placement draws at one queue."""

    job: int
    amount: int
    beyond: bool


class Naive:
    """The module's words, one placement after the other, from the leaves up."""

    def __init__(self, world: Snapshot) -> None:
        self._world, self._limits = world, allowed(world.queues).limits
        self._parents = world.queues.parents.tolist()
        self.reach: dict[int, int] = {}
        for root in np.flatnonzero(world.queues.parents == NONE).tolist():
            self._at(root)

    def _at(self, queue: int) -> list[Share]:
        """What the queue and those below it draw on the one above, in the order of placing."""
        has = int(self._limits.has[queue, H100, GPU])
        own = int(self._limits.own[queue, H100, GPU])
        depth = len(path(self._parents, queue)) - 1
        below = [share for child, above in enumerate(self._parents) if above == queue for share in self._at(child)]
        shares = sorted(
            [*self._of_jobs(queue, depth), *below], key=lambda share: (share.beyond, self._placing(share.job))
        )
        used, drawn = 0, []
        for share in shares:
            before, used = used, used + share.amount
            beyond = share.beyond and used > has
            if beyond:
                self.reach[share.job] = depth
            rest = max(0, used - own) - max(0, before - own)
            if rest:
                drawn.append(Share(share.job, rest, beyond))
        return drawn

    def _of_jobs(self, queue: int, depth: int) -> Iterator[Share]:
        jobs, used = self._world.jobs, 0
        if self._limits.free[queue, H100, GPU]:
            return  # neither it nor a queue above names the resource: its jobs draw on nobody's
        rows = [row for row in np.flatnonzero(jobs.holding).tolist() if jobs.queues[row] == queue]
        for row in sorted(rows, key=self._placing):
            used += int(jobs.held[row, GPU])
            beyond = used > int(self._limits.named[queue, H100, GPU])
            if beyond:
                self.reach[row] = depth + 1
            yield Share(row, int(jobs.held[row, GPU]), beyond)

    def _placing(self, row: int) -> tuple[bool, float, int, str]:
        jobs = self._world.jobs
        terms, runs = jobs.terms, jobs.runs
        return bool(terms.preemptible[row]), float(runs.started[row]), -int(jobs.priorities[row]), jobs.uids[row]


@thorough
@given(trees())
def test_whoever_came_last_is_who_borrows(world: Snapshot) -> None:
    found, naive = reach(world)[:, GPU], Naive(world).reach
    limited = [not allowed(world.queues).limits.free[queue, H100, GPU] for queue in world.jobs.queues.tolist()]
    expected = [naive.get(row, WITHIN) if limited[row] else WITHIN for row in range(len(found))]
    assert found.tolist() == expected


@thorough
@given(trees())
def test_an_owner_may_ask_for_all_that_is_borrowed_and_for_nothing_else(world: Snapshot) -> None:
    """As long as a queue lacks what it has a right to, there is somebody to ask, or nobody there can be ended. Where
    more is used than all have together, for it was lowered, there may be nobody whose end alone helps."""
    jobs, ledger = world.jobs, Ledger(world.queues, world.jobs)
    roots, has = np.flatnonzero(world.queues.parents == NONE).tolist(), allowed(world.queues).limits.has
    allowed_use = all(ledger.used(root, H100, GPU) <= has[root, H100, GPU] for root in roots)
    claimant = int(jobs.queues[0])
    need = ((GPU, int(jobs.requests[0, GPU])),)
    rights = Standing(world).rights(ledger, 0, H100, need)
    asked = np.flatnonzero(rights == Right.RECLAIM).tolist()
    for row in asked:
        ledger.discharge(int(jobs.queues[row]), H100, ((GPU, int(jobs.held[row, GPU])),))
    event(f"asked: {len(asked)}, as much used as may be: {allowed_use}")
    others = {int(jobs.queues[row]) for row in np.flatnonzero(jobs.holding & jobs.terms.preemptible)} - {claimant}
    firm = bool((jobs.holding & ~jobs.terms.preemptible).any())
    lacks = ledger.shortage(claimant, H100, need) is not None
    if lacks and allowed_use and ledger.within(claimant, H100, need) and not firm:
        assert not [other for other in others if ledger.may_reclaim(claimant, other, H100, need)]


@thorough
@given(trees(), st.integers(1, 3), st.data())
def test_nobody_who_was_within_is_asked_because_somebody_borrows_later(
    world: Snapshot, gpus: int, data: st.DataObject
) -> None:
    queues = world.queues
    queue = data.draw(st.integers(0, len(queues.names) - 1))
    row, jobs = len(world.jobs.uids), world.jobs
    later = _with_one_more(world, queue, gpus)
    before, after = reach(world)[:, GPU], reach(later)[:, GPU]
    event(f"it borrows: {bool(after[row] < WITHIN)}")
    if after[row] < WITHIN:
        assert (after[:row] >= before).all()
    assert (after[:row] >= before)[jobs.queues == queue].all(), "a neighbour that came before it"


def _with_one_more(world: Snapshot, queue: int, gpus: int) -> Snapshot:
    """A preemptible placement later than all others."""
    last = Job("later", workers=gpus, queue=world.queues.names[queue], holding=True, on=(NODE,) * gpus)
    names = [
        Queue(name, gpus=None if nominal >= UNLIMITED else nominal)
        for name, nominal in zip(world.queues.names, world.queues.nominal[:, H100, GPU].tolist(), strict=True)
    ]
    old = world.jobs
    uids = dict(enumerate(old.uids))
    jobs = [
        Job(
            uids[row],
            workers=int(old.workers[row]),
            gpus=int(old.requests[row, GPU]),
            queue=world.queues.names[old.queues[row]],
            priority=int(old.priorities[row]),
            holding=bool(old.holding[row]),
            on=(NODE,) * int(old.workers[row]) if old.holding[row] else (),
        )
        for row in range(len(old.uids))
    ]
    made = snapshot([Node(NODE, gpus=1000, cores=1000)], [*jobs, last], names)
    runs = replace(made.jobs.runs, started=np.append(old.runs.started, 40.0))
    terms = replace(made.jobs.terms, preemptible=np.append(old.terms.preemptible, True))
    return replace(made, queues=world.queues, jobs=replace(made.jobs, runs=runs, terms=terms))
