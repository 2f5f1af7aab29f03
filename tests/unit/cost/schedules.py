"""Random schedules: gangs that are placed, resized, preempted and restarted, and lose workers that are replaced, on a
cluster that grows and shrinks. What the recorder would have written of them, in the order of time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise

from muster.telemetry.cost.intervals import Interval, JobFacts, PoolInterval

BEGINS = datetime(2026, 11, 30, 23, 58, tzinfo=timezone.utc)
"""Two minutes before a month ends, and the prices change."""

LENGTH = 240
"""Seconds."""

ENDS = BEGINS + timedelta(seconds=LENGTH)
DECEMBER = datetime(2026, 12, 1, tzinfo=timezone.utc)
LONG_AGO = datetime(2026, 1, 1, tzinfo=timezone.utc)

RATES = [
    (LONG_AGO, "H100", "on-demand", Decimal("6.155")),
    (LONG_AGO, "H100", "spot", Decimal("2.46375")),
    (LONG_AGO, "A100", "on-demand", Decimal("2.70")),
    (DECEMBER, "H100", "on-demand", Decimal("5.99")),
    (DECEMBER, "A100", "on-demand", Decimal("0")),
]
FLAVOURS = (("H100", "on-demand"), ("H100", "spot"), ("A100", "on-demand"), ("B200", "on-demand"))
"""B200 has no price."""


@dataclass
class Schedule:
    intervals: list[Interval] = field(default_factory=list)
    """Each as it was at its end."""
    pools: list[PoolInterval] = field(default_factory=list)
    jobs: list[JobFacts] = field(default_factory=list)


def schedule(seed: int) -> Schedule:
    chance, found = random.Random(seed), Schedule()
    for number in range(chance.randint(1, 4)):
        uid = f"job-{number}"
        found.jobs.append(
            JobFacts(
                uid,
                f"ns{number % 2}",
                f"n{number}",
                f"q{chance.randint(0, 2)}",
                f"u{number % 3}",
                chance.choice(["", "p"]),
            )
        )
        found.intervals += _gang(uid, chance)
    for gpu_type, capacity in FLAVOURS[: chance.randint(0, len(FLAVOURS))]:
        cuts = sorted(chance.sample(range(-12, LENGTH + 12), chance.randint(2, 4)))
        enough = sum(row.gpus for row in found.intervals)
        for index, (since, until) in enumerate(pairwise(cuts)):
            last = index == len(cuts) - 2 and chance.random() < 0.5
            gpus = enough + chance.randint(0, 16)
            found.pools.append(PoolInterval(gpu_type, capacity, gpus, _at(since), None if last else _at(until)))
    return found


def _gang(uid: str, chance: random.Random) -> Iterator[Interval]:
    """One job: attempts one after another, each ended by a preemption, a failure, or the job's end."""
    now = chance.randint(-20, 60)
    gpus = chance.choice([1, 4, 8])
    for attempt in range(1, chance.randint(2, 4)):
        gpu_type, capacity = chance.choice(FLAVOURS)
        length, goes_on = chance.randint(0, 100), chance.random() < 0.15
        for index in range(chance.randint(1, 3)):  # another size at each attempt: it was shrunk, or has grown
            row = Interval(uid, attempt, index, 0, f"n{index}", gpu_type, capacity, gpus, _at(now))
            if length > 4 and chance.random() < 0.3:
                lost = now + chance.randint(1, length - 1)
                # The old pod may hang on its dead node for a while, beside its replacement.
                yield replace(row, ends=_at(lost + chance.choice([0, 0, 6])), estimated=True)
                row = replace(row, replacement=1, node="spare", begins=_at(lost))
            yield replace(row, ends=None if goes_on else _at(now + length))
        if goes_on:
            return
        now += length + chance.randint(0, 40)


def told(found: Schedule, seed: int) -> list[Interval]:
    """The rows as they reach the ledger: each also as it was before its end was known, repeated, and in any order."""
    chance, rows = random.Random(seed), list(found.intervals)
    for row in found.intervals:
        if chance.random() < 0.5:
            rows.append(replace(row, ends=None, estimated=False))
        if row.ends is not None and not row.estimated and chance.random() < 0.5:
            rows.append(replace(row, ends=row.begins + (row.ends - row.begins) / 2, estimated=True))
        if chance.random() < 0.3:
            rows.append(row)
    chance.shuffle(rows)
    return rows


def _at(second: int) -> datetime:
    return BEGINS + timedelta(seconds=second)
