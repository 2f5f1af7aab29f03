"""What each job's rank is made of: age, slack, expected work and first submit. See `muster.scheduling.order`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from muster.scheduling.gangs import is_accelerator
from muster.scheduling.snapshot import NONE, Index, Int, Jobs, Mask, Seconds, Snapshot

AGE_STEP: Final = 6 * 3600.0
"""Seconds of waiting that make a job one step older."""
AGE_STEPS: Final = 4
STEP_AT_MOST: Final = 42 * 3600.0
"""Seconds: whatever its length, nothing waits longer than a week only because others are shorter."""
SLACK_COUNTS: Final = 86_400.0
"""Seconds: a deadline that is further off than this hurries nobody."""


_Column = TypeVar("_Column", bound=npt.NDArray[Any])


def once(function: Callable[[Snapshot], _Column]) -> Callable[[Snapshot], _Column]:
    """What is worked out from a snapshot alone is kept with it, as long as it is: nobody changes either of them."""
    name = f"_{function.__name__}"

    @wraps(function)
    def kept(snapshot: Snapshot) -> _Column:
        known = snapshot.__dict__
        if name not in known:
            column = function(snapshot)
            column.flags.writeable = False
            known[name] = column
        found: _Column = known[name]
        return found

    return kept


def pending_by_rank(jobs: Jobs) -> Int:
    """Indices of the pending jobs by priority, first submit and uid alone, first in rank first."""
    pending = np.flatnonzero(jobs.pending).astype(np.int64)
    return in_order((jobs.submitted, -jobs.priorities.astype(np.int64)), jobs.uids, pending)


def positions(queues: Index, counted: Mask) -> Int:
    """Place of each job in its own queue, from 1, given the queues of the waiting jobs in order of rank; 0 of those
    that are not `counted`."""
    rows = np.flatnonzero(counted)
    mine = queues[rows]
    order = np.argsort(mine, kind="stable")
    _, first, counts = np.unique(mine[order], return_index=True, return_counts=True)
    places = np.zeros(len(queues), dtype=np.int64)
    places[rows[order]] = np.arange(1, len(rows) + 1) - np.repeat(first, counts)
    return places


@once
def ages(snapshot: Snapshot) -> Int:
    """J, steps of age that each job has, from 0 to AGE_STEPS."""
    waited = np.maximum(0.0, snapshot.now - snapshot.jobs.submitted)
    length = snapshot.jobs.terms.length
    by_own = by_length(snapshot) & np.isfinite(length)
    step = np.where(by_own, np.clip(length / AGE_STEPS, AGE_STEP, STEP_AT_MOST), AGE_STEP)
    steps: Int = np.minimum(waited // step, AGE_STEPS).astype(np.int64)
    return steps


@once
def by_length(snapshot: Snapshot) -> Mask:
    """J, jobs of queues in which the shortest come first."""
    jobs = snapshot.jobs
    chosen: Mask = (jobs.queues != NONE) & snapshot.queues.shortest[jobs.queues]
    return chosen


@once
def works(snapshot: Snapshot) -> Seconds:
    """J, accelerator-seconds that each job was expected to need when it was placed, or would now; infinite: unknown.

    A job without accelerators counts as if each worker had one.
    """
    jobs = snapshot.jobs
    columns = [index for index, name in enumerate(snapshot.resources) if is_accelerator(name)]
    each = np.maximum(1, jobs.requests[:, columns].max(axis=1, initial=0))
    seconds: Seconds = jobs.terms.length * (each * jobs.workers)
    return seconds


@once
def slacks(snapshot: Snapshot) -> Seconds:
    """J, seconds that each job can wait and still meet its deadline; infinite where that hurries nobody.

    One that cannot be met any more comes behind those that can, or one late job after the other would make the rest
    late, too; before those without, or it would wait for all that were submitted before. One that has passed hurries
    nobody.
    """
    terms = snapshot.jobs.terms
    takes = np.where(np.isfinite(terms.estimate), terms.estimate, 0.0)
    slack = terms.deadlines - snapshot.now - takes
    hurries = (terms.deadlines > snapshot.now) & (slack < SLACK_COUNTS)
    return np.where(hurries, np.where(slack < 0, SLACK_COUNTS, slack), np.inf)


def classes_of(snapshot: Snapshot, steps: Int) -> Int:
    """J, the smaller the higher priority and, of equal ones, age. `steps` is of `ages`."""
    classes: Int = -(snapshot.jobs.priorities.astype(np.int64) * (AGE_STEPS + 1) + steps)
    return classes


@once
def classes(snapshot: Snapshot) -> Int:
    """J, `classes_of` the ages that the jobs have by now."""
    return classes_of(snapshot, ages(snapshot))


def lengths(snapshot: Snapshot) -> tuple[Seconds, ...]:
    """Keys that order the jobs of one class in queues whose shortest come first, the most important last."""
    shortest = by_length(snapshot)
    if not shortest.any():
        return ()
    return np.where(shortest, works(snapshot), 0.0), np.where(shortest, slacks(snapshot), 0.0)


def ranked(snapshot: Snapshot, rows: Int) -> Int:
    """Rows of waiting jobs in the order of `muster.scheduling.order`, shares aside; those of each queue in its own."""
    keys: tuple[Int | Seconds, ...] = (
        snapshot.jobs.submitted,
        slacks(snapshot),
        *lengths(snapshot),
        classes(snapshot),
    )
    return in_order(keys, snapshot.jobs.uids, rows)


def in_order(keys: tuple[Int | Seconds, ...], uids: Sequence[str], rows: Int) -> Int:
    """Rows in the order of `keys`, the most important last as in `np.lexsort`, and of uid where all are equal."""
    keys = tuple(key[rows] for key in keys)
    order: Int = np.lexsort(keys)
    tied = np.ones(max(0, len(order) - 1), dtype=np.bool_)
    for key in keys:
        tied &= key[order][1:] == key[order][:-1]
    if not tied.any():
        return rows[order]
    among = np.zeros(len(order), dtype=np.bool_)
    among[1:] |= tied
    among[:-1] |= tied
    names = np.zeros(len(uids), dtype=np.int64)
    named = sorted(rows[order[among]].tolist(), key=uids.__getitem__)
    names[named] = np.arange(len(named))
    return rows[np.lexsort((names[rows], *keys))]


class FirstSubmitted:
    """The order without fairness: priority, first submit, uid. In place of `Ordering`; `passed` has who yields only."""

    def __init__(self, jobs: Jobs) -> None:
        self._all = jobs
        self._running = np.flatnonzero(jobs.runs.yields).tolist()
        self.passed: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        for job in pending_by_rank(self._all).tolist():
            self.passed = {row for row in self._running if self._rank(row) < self._rank(job)}
            yield job

    def _rank(self, job: int) -> tuple[int, float, str]:
        return -int(self._all.priorities[job]), float(self._all.submitted[job]), self._all.uids[job]

    def charged(self, job: int, workers: int | None = None, flavour: int | None = None) -> None:
        """Nothing depends on what others have."""

    def oldest(self, job: int) -> bool:
        """Age does not count."""
        return False
