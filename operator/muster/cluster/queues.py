"""Queues as the planner's arrays: a forest, with a root of its own for each cohort that is only a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from muster.scheduling.hierarchy import by_depth
from muster.scheduling.snapshot import NONE, UNLIMITED, Index, Int, Jobs, Preempts, Queues

ANY_PRIORITY: Final = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class QuotaInput:
    """One line of a queue's quota: a resource of one flavour, in base units. None does not bind."""

    flavour: str
    resource: str
    nominal: int
    borrowing: int | None = None
    lending: int | None = None


@dataclass(frozen=True)
class QueueInput:
    """
    Attributes:
        cohort: a root shared with all queues that name it; "" for none. Ignored beside a parent.
        open: False: it admits nothing, nor do the queues below it. So it is with one that can't have its `parent`.
        parent: name of the queue above it; "" for none.
        certain: False: its quota is not known. So it is with what those have that stand above it, and with one that
            can't have its `parent`, and does not know what it would lend.
        share_used: decayed mean of its dominant share of the cluster, that of the queues below it included.
    """

    name: str
    cohort: str = ""
    quotas: tuple[QuotaInput, ...] = ()
    open: bool = True
    parent: str = ""
    weight: float = 1.0
    share_used: float = 0.0
    priority_max: int = ANY_PRIORITY
    within: Preempts = Preempts.LOWER_PRIORITY
    reclaim: Preempts = Preempts.ANY
    borrower: Preempts = Preempts.NEVER
    drain: bool = False
    shortest: bool = True
    certain: bool = True


@dataclass(frozen=True)
class Lineage:
    """Who is whose parent, after what cannot be is taken away.

    Attributes:
        parents: name of the parent by name of the queue; roots are not in it.
        faults: by name of a queue that names a parent and can't have it: why, and how to mend it. Such a queue is a
            closed root: what the parent would hold it to is not known.
    """

    parents: Mapping[str, str]
    faults: Mapping[str, str]


def lineage(wanted: Mapping[str, str]) -> Lineage:
    """What to make of each queue's wish for a parent (by name, "" for none), for all queues that there are."""
    parents: dict[str, str] = {}
    faults: dict[str, str] = {}
    for name, parent in wanted.items():
        if parent in wanted:
            parents[name] = parent
        elif parent:
            faults[name] = (
                f"its parent, TrainingQueue {parent!r}, does not exist. Make it, or name another one in spec.parent"
            )
    for circle in _circles(parents):
        way = " -> ".join((*circle, circle[0]))
        for name in circle:
            del parents[name]
            faults[name] = f"the parents lead in a circle ({way}). Take spec.parent out of one of these queues"
    return Lineage(parents, faults)


def _circles(parents: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Each circle once, from its first name in the alphabet on."""
    found: list[tuple[str, ...]] = []
    done: set[str] = set()
    for start in sorted(parents):
        way: dict[str, None] = {}
        name = start
        while name in parents and name not in done and name not in way:
            way[name] = None
            name = parents[name]
        if name in way:
            names = list(way)
            circle = names[names.index(name) :]
            first = circle.index(min(circle))
            found.append(tuple(circle[first:] + circle[:first]))
        done |= way.keys()
    return found


def arrays(queues: Sequence[QueueInput], flavours: Sequence[str], resources: Sequence[str]) -> Queues:
    """The queues in their order, then the cohorts in the order of their names.

    A resource that no line names is unlimited; one that some line names is 0 in the flavours whose lines do not. A
    cohort weighs as much as its queues together, and has used what they have.
    """
    cohorts = sorted({queue.cohort for queue in queues if queue.cohort and not queue.parent})
    line = lineage({queue.name: queue.parent for queue in queues})
    parents = _parents(queues, cohorts, line.parents)
    count = len(queues)
    nominal, borrowing, lending = _amounts(queues, count + len(cohorts), flavours, resources)
    result = Queues.plain(
        (*(queue.name for queue in queues), *(f"cohort {name}" for name in cohorts)),
        parents,
        nominal,
        borrowing,
        lending,
    )
    for values, of in (
        (result.open, [queue.open and queue.name not in line.faults for queue in queues]),
        (result.weights, [queue.weight for queue in queues]),
        (result.shares_used, [queue.share_used for queue in queues]),
        (result.priorities_max, [queue.priority_max for queue in queues]),
        (result.within, [int(queue.within) for queue in queues]),
        (result.reclaim, [int(queue.reclaim) for queue in queues]),
        (result.borrower, [int(queue.borrower) for queue in queues]),
        (result.drain, [queue.drain for queue in queues]),
        (result.shortest, [queue.shortest for queue in queues]),
        (result.certain, [queue.certain and queue.name not in line.faults for queue in queues]),
    ):
        values[:count] = of
    for row in range(count, count + len(cohorts)):
        members = parents == row
        result.weights[row] = result.weights[members].sum()
        result.shares_used[row] = result.shares_used[members].sum()
    ranks = by_depth(parents)
    for rows in reversed(ranks[1:]):
        result.certain[parents[rows[~result.certain[rows]]]] = False
    for rows in ranks[1:]:
        above = parents[rows]
        result.open[rows] &= result.open[above]
        result.drain[rows] |= result.drain[above]
        result.priorities_max[rows] = np.minimum(result.priorities_max[rows], result.priorities_max[above])
    return result


def within_limits(jobs: Jobs, queues: Queues) -> Jobs:
    """The jobs with no priority above what their queue, or one above it, allows."""
    known = jobs.queues != NONE
    if not known.any():
        return jobs
    limit = np.where(known, queues.priorities_max[jobs.queues], ANY_PRIORITY)
    return replace(jobs, priorities=np.minimum(jobs.priorities, limit).astype(np.int32))


def _parents(queues: Sequence[QueueInput], cohorts: Sequence[str], kept: Mapping[str, str]) -> Index:
    row = {queue.name: index for index, queue in enumerate(queues)}
    cohort_row = {name: len(queues) + index for index, name in enumerate(cohorts)}
    parents = np.full(len(queues) + len(cohorts), NONE, dtype=np.int32)
    for index, queue in enumerate(queues):
        if queue.name in kept:
            parents[index] = row[kept[queue.name]]
        elif queue.cohort and not queue.parent:
            parents[index] = cohort_row[queue.cohort]
    return parents


def _amounts(
    queues: Sequence[QueueInput], count: int, flavours: Sequence[str], resources: Sequence[str]
) -> tuple[Int, Int, Int]:
    """Nominal, borrowing and lending limit, each Q x V x R."""
    shape = (count, len(flavours), len(resources))
    nominal, borrowing, lending = (np.full(shape, UNLIMITED, dtype=np.int64) for _ in range(3))
    column = _number(resources)
    row = _number(flavours)
    for position, queue in enumerate(queues):
        for resource in {line.resource for line in queue.quotas}:
            nominal[position, :, column[resource]] = 0
        for line in queue.quotas:
            at = (position, row[line.flavour], column[line.resource])
            nominal[at] = min(line.nominal, int(UNLIMITED))
            borrowing[at] = UNLIMITED if line.borrowing is None else min(line.borrowing, int(UNLIMITED))
            lending[at] = UNLIMITED if line.lending is None else min(line.lending, int(UNLIMITED))
    return nominal, borrowing, lending


def _number(names: Iterable[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}
