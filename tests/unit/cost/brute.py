"""The same question answered the slow way: look at every second, and add up who held what in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from muster.telemetry.cost.intervals import Interval, PoolInterval

Rates = Sequence[tuple[datetime, str, str, Decimal]]
"""(from when on, GPU type, capacity, money an hour), in the order of time."""


NOTHING = Decimal(0)


@dataclass
class Answer:
    gpu_seconds: dict[str, int]
    cost: dict[tuple[str, str], Fraction]
    idle_seconds: int
    idle_cost: dict[str, Fraction]


def counted(
    intervals: Sequence[Interval], pools: Sequence[PoolInterval], rates: Rates, begins: datetime, ends: datetime
) -> Answer:
    """By job, and (job, month); what was idle, by month. All moments are whole seconds, and no key comes twice."""
    used, idle = Counter[tuple[str, str, Decimal]](), Counter[tuple[str, Decimal]]()
    spans = [(row, offset(row.begins, begins), offset(row.ends or ends, begins)) for row in intervals]
    had = [(pool, offset(pool.begins, begins), offset(pool.ends or ends, begins)) for pool in pools]
    for second in range(offset(ends, begins)):
        moment, busy = begins + timedelta(seconds=second), Counter[tuple[str, str]]()
        month = f"{moment:%Y-%m}"
        hourly = {(gpu, kind): price for since, gpu, kind, price in rates if since <= moment}
        for row, since, until in spans:
            if since <= second < until:
                used[row.job, month, hourly.get((row.gpu_type, row.capacity), NOTHING)] += row.gpus
                busy[row.gpu_type, row.capacity] += row.gpus
        for pool, since, until in had:
            if since <= second < until:
                flavour = (pool.gpu_type, pool.capacity)
                idle[month, hourly.get(flavour, NOTHING)] += pool.gpus - busy[flavour]
    answer = Answer(defaultdict(int), defaultdict(Fraction), idle.total(), defaultdict(Fraction))
    for (job, month, price), seconds in used.items():
        answer.gpu_seconds[job] += seconds
        answer.cost[job, month] += Fraction(price) * seconds / 3600
    for (month, price), seconds in idle.items():
        answer.idle_cost[month] += Fraction(price) * seconds / 3600
    return answer


def offset(moment: datetime, begins: datetime) -> int:
    return int((moment - begins).total_seconds())
