"""How often nodes fail in this cluster, by what the jobs' statuses tell: checkpoints with `interval: auto` go by it.

Each job that exists tells how long its workers trained and how often the platform ended a run of it. That is added to
what is supposed, which counts like a single failure: a new cluster goes by the supposition, one with a few thousand
worker-hours by its own experience (the mean of a gamma posterior with shape 1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from muster.api.builtin import AUTO
from muster.api.effective import EffectiveSpec
from muster.api.trainingjob import TrainingJob
from muster.cluster.pod_storage import worst_hours, worst_kind
from muster_protocol import env

NodeHours = tuple[tuple[str, float], ...]
"""Hours between two failures of one worker, by kind of capacity."""

LOOK_AGAIN: Final = 60.0
"""Seconds for which the last look at all jobs holds."""
MOVED: Final = 0.1
"""Share of it by which the figure must change to be told anew; the interval changes by half of that."""
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Stay:
    """What one job has seen of its nodes.

    Attributes:
        capacity: the kinds that it names; empty: any, on demand first.
        seconds: that its workers trained, all together.
        breakdowns: how often the platform ended a run of it, or one worker of it that was replaced alone.
    """

    capacity: tuple[str, ...]
    seconds: float
    breakdowns: int


def stay_of(job: TrainingJob, capacity: tuple[str, ...], now: datetime) -> Stay:
    """`capacity`: the kinds that the job names."""
    status = job.status
    present = (now - status.running_since).total_seconds() if status.running_since else 0.0
    workers = status.placement.workers if status.placement else status.replicas or job.spec.workers.replicas
    breakdowns = (status.breakdowns or 0) + (status.replacements or 0)
    return Stay(capacity, workers * ((status.runtime_seconds or 0) + max(0.0, present)), breakdowns)


def observed(supposed: Mapping[str, float], stays: Iterable[Stay]) -> dict[str, float]:
    """Hours between two failures of one worker, by kind: (supposed + seen) / (1 + breakdowns)."""
    hours, failures = dict(supposed), dict.fromkeys(supposed, 1)
    for stay in stays:
        kind = worst_kind(stay.capacity, supposed)
        hours[kind] += stay.seconds / _HOUR
        failures[kind] += stay.breakdowns
    return {kind: hours[kind] / failures[kind] for kind in supposed}


def hours_for(spec: EffectiveSpec, known: NodeHours) -> float | None:
    """What a job's checkpoints go by; None where they don't: another interval, or a figure in the job's own `env`."""
    if spec.checkpoint is None or spec.checkpoint.interval != AUTO:
        return None
    if any(entry.name == env.CHECKPOINT_NODE_HOURS for entry in spec.env):
        return None
    return worst_hours(spec.kinds, dict(known))


def moved(told: float, hours: float) -> bool:
    """Whether who was told the one is to be told the other."""
    return abs(hours - told) > MOVED * told


class Reliability:
    """`observed`, looked at anew at most once in `LOOK_AGAIN` seconds: there may be ten thousand jobs."""

    def __init__(
        self, supposed: NodeHours, stays: Callable[[], Iterable[Stay]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._supposed, self._stays, self._clock = dict(supposed), stays, clock
        self._hours: NodeHours = ()
        self._looked_at = 0.0

    def hours(self) -> NodeHours:
        now = self._clock()
        if not self._hours or now - self._looked_at >= LOOK_AGAIN:
            self._hours = tuple(sorted(observed(self._supposed, self._stays()).items()))
            self._looked_at = now
        return self._hours
