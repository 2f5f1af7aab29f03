"""GPUs that the cluster had and no job held: the pools minus the intervals, at every moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import pairwise

from muster.telemetry.cost.intervals import Interval, PoolInterval
from muster.telemetry.cost.periods import seconds

Flavour = tuple[str, str]


@dataclass(frozen=True)
class Holding:
    """GPUs of one flavour that nobody held, for a while."""

    gpu_type: str
    capacity: str
    gpus: int
    begins: datetime
    ends: datetime
    estimated: bool


@dataclass
class _Step:
    """What changes at a moment."""

    held: int = 0
    pool: PoolInterval | None = None
    closes: bool = False


def idle(
    intervals: Iterable[Interval], pools: Iterable[PoolInterval], begins: datetime, ends: datetime
) -> tuple[list[Holding], dict[str, Fraction]]:
    """What was idle within [begins, ends); and by flavour the GPU-seconds that were held beyond what its pool had,
    where there is a pool at all.

    Both lists have one row a key, as `current` gives it.
    """
    by_flavour = defaultdict[Flavour, list[PoolInterval]](list)
    for pool in pools:
        by_flavour[pool.gpu_type, pool.capacity].append(pool)
    used = defaultdict[Flavour, list[Interval]](list)
    for row in intervals:
        if (row.gpu_type, row.capacity) in by_flavour:
            used[row.gpu_type, row.capacity].append(row)
    found: list[Holding] = []
    beyond = dict[str, Fraction]()
    for flavour, rows in sorted(by_flavour.items()):
        over = _of_flavour(_steps(rows, used[flavour], begins, ends), found)
        if over:
            beyond["/".join(flavour)] = over
    return found, beyond


def _steps(
    pools: list[PoolInterval], intervals: list[Interval], begins: datetime, ends: datetime
) -> dict[datetime, _Step]:
    steps = defaultdict[datetime, _Step](_Step)
    rows = sorted(pools, key=lambda pool: pool.begins)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        # A row that was never closed ends where the next one begins.
        last = ends if row.ends is None else min(row.ends, ends)
        until = last if following is None else min(last, following.begins)
        since = max(row.begins, begins)
        if since < until:
            steps[since].pool = row
            steps[until].closes = True
    for interval in intervals:
        since, until = max(interval.begins, begins), ends if interval.ends is None else min(interval.ends, ends)
        if since < until:
            steps[since].held += interval.gpus
            steps[until].held -= interval.gpus
    return steps


def _of_flavour(steps: dict[datetime, _Step], found: list[Holding]) -> Fraction:
    """Puts what is idle into `found`; the GPU-seconds held beyond the pool."""
    held, pool, over = 0, None, Fraction(0)
    moments = sorted(steps)
    for moment, following in pairwise(moments):  # nothing is open after the last one
        step = steps[moment]
        held += step.held
        if step.closes:
            pool = None
        pool = step.pool or pool
        if pool is None:
            continue
        free = pool.gpus - held
        if free > 0:
            found.append(Holding(pool.gpu_type, pool.capacity, free, moment, following, pool.estimated))
        over += max(0, -free) * seconds(moment, following)
    return over
