"""What an outcome is judged by.

* wait: seconds without a placement, from submission to the end, each requeueing included.
* completion: from submission to the end.
* bounded slowdown: completion / work, both at least 60 s (D. Feitelson, "Metrics for Parallel Job Scheduling and Their
  Convergence", JSSPP '01), so that jobs of seconds do not rule the mean.
* utilisation: GPU-seconds in use over those of usable nodes, from the first submission to the last: what follows is a
  cluster that drains, and is counted only where all jobs are submitted at once. useful: the same of work that was kept;
  lost are grace, restarts and work done twice.
* fairness: R. Jain's index (Σx)² / nΣx² over each user's mean bounded slowdown: 1 when all users wait alike for their
  work, 1/n when one of n has all the waiting. even speeds: the same over each user's mean speed, which is work /
  completion and so what a user gets; the index was made for such quantities, where more is better (R. Jain, D. Chiu,
  W. Hawe, "A Quantitative Measure of Fairness", DEC TR-301, 1984).
* fragmentation: of the GPUs that were idle while jobs waited, the share on nodes that were partly in use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from muster.scheduling.snapshot import Seconds
from muster.simulate.engine import Outcome

BOUND = 60.0


@dataclass(frozen=True)
class Figures:
    """One policy on one trace. Seconds unless said otherwise; shares from 0 to 1."""

    policy: str
    jobs: int
    never: int
    mean_completion: float
    mean_wait: float
    median_wait: float
    p90_wait: float
    p99_wait: float
    mean_slowdown: float
    fairness: float
    even_speeds: float
    utilisation: float
    useful: float
    lost: float
    """Share of the GPU-seconds in use, over the whole run, that were not kept."""
    lost_gpu_hours: float
    fragmentation: float
    makespan: float
    evictions: int
    most_stops: int
    """The most times that one job was stopped for others."""
    crashes: int
    plans: int
    planning_seconds: float
    seconds: float
    """Processor time of this machine, for the whole simulation."""

    def as_dict(self) -> dict[str, float | int | str]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Users:
    """Each user's means, of bounded slowdown and of its inverse; users without a finished job left out."""

    slowdown: Seconds
    speed: Seconds


def measure(outcome: Outcome) -> Figures:
    """The figures of one outcome. Jobs that never ended count in `never` alone."""
    world, trace = outcome.world, outcome.world.workload.trace
    ended = np.isfinite(world.ended)
    completion = (world.ended - trace.submit)[ended]
    wait = world.queued[ended]
    slow, by_user = slowdown(outcome)[ended], users(outcome)
    percentiles = np.percentile(wait, [50, 90, 99]) if wait.size else np.zeros(3)
    used, useful, there = _gpu_seconds(outcome)
    all_used, kept = _totals(outcome)
    idle, broken = _idle(outcome)
    return Figures(
        policy=outcome.policy,
        jobs=len(trace),
        never=int((~ended).sum()),
        mean_completion=_mean(completion),
        mean_wait=_mean(wait),
        median_wait=float(percentiles[0]),
        p90_wait=float(percentiles[1]),
        p99_wait=float(percentiles[2]),
        mean_slowdown=_mean(slow),
        fairness=jain(by_user.slowdown),
        even_speeds=jain(by_user.speed),
        utilisation=used / there if there else 0.0,
        useful=useful / there if there else 0.0,
        lost=1 - kept / all_used if all_used else 0.0,
        lost_gpu_hours=(all_used - kept) / 3600,
        fragmentation=broken / idle if idle else 0.0,
        makespan=float(world.ended[ended].max(initial=0.0)),
        evictions=int(world.evictions.sum()),
        most_stops=int(world.stops.max(initial=0)),
        crashes=int(world.crashes.sum()),
        plans=outcome.plans,
        planning_seconds=outcome.planning,
        seconds=outcome.seconds,
    )


def slowdown(outcome: Outcome) -> Seconds:
    """J, bounded; NaN for jobs that never ended."""
    trace = outcome.world.workload.trace
    completion = np.maximum(outcome.world.ended - trace.submit, BOUND)
    bounded: Seconds = np.maximum(completion / np.maximum(trace.duration, BOUND), 1.0)
    return bounded


def users(outcome: Outcome) -> Users:
    """Means of each user who had a job that ended."""
    trace = outcome.world.workload.trace
    ended = np.isfinite(outcome.world.ended)
    users_, slow = trace.user[ended], slowdown(outcome)[ended]
    count = np.bincount(users_, minlength=len(trace.users))
    slowdowns, speeds = (np.bincount(users_, each, minlength=len(trace.users)) for each in (slow, 1 / slow))
    return Users(slowdowns[count > 0] / count[count > 0], speeds[count > 0] / count[count > 0])


def jain(shares: Seconds) -> float:
    """Jain's fairness index; 1 for nobody."""
    squares = float((shares**2).sum()) * len(shares)
    return float(shares.sum()) ** 2 / squares if squares else 1.0


def _mean(values: Seconds) -> float:
    return float(values.mean()) if values.size else 0.0


def _gpu_seconds(outcome: Outcome) -> tuple[float, float, float]:
    """In use, useful, and of usable nodes, from the first submission to the last; if all come at once, until the last
    run's end."""
    runs, trace = outcome.world.runs, outcome.world.workload.trace
    gpus, start, stop = np.array(runs.gpus), np.array(runs.start), np.array(runs.stop)
    first, last = float(trace.submit[0]), float(trace.submit[-1])
    if first == last:
        last = float(stop.max(initial=first))
    working, kept, worked = np.array(runs.working), np.array(runs.kept), np.array(runs.worked)
    used = float((gpus * _within(start, stop, first, last)).sum())
    useful = float((worked * _within(working, working + kept, first, last)).sum())
    # Jobs that still run when a simulation is given up have no run yet; none of the measures needs them.
    return used, useful, _there(outcome, first, last)


def _there(outcome: Outcome, first: float, last: float) -> float:
    """GPU-seconds of usable nodes."""
    gpus, start, stop = (
        np.array(column, dtype=np.float64) for column in zip(*outcome.away, (0, 0.0, 0.0), strict=True)
    )
    away = float((gpus * _within(start, stop, first, last)).sum())
    return float(outcome.world.workload.cluster.gpus.sum()) * (last - first) - away


def _within(start: Seconds, stop: Seconds, first: float, last: float) -> Seconds:
    inside: Seconds = np.maximum(np.minimum(stop, last) - np.maximum(start, first), 0.0)
    return inside


def _totals(outcome: Outcome) -> tuple[float, float]:
    runs = outcome.world.runs
    gpus, worked = np.array(runs.gpus, dtype=np.float64), np.array(runs.worked, dtype=np.float64)
    used = float((gpus * (np.array(runs.stop) - np.array(runs.start))).sum())
    return used, float((worked * np.array(runs.kept)).sum())


def _idle(outcome: Outcome) -> tuple[int, int]:
    series = outcome.series
    waiting = np.array(series.waiting) > 0
    return int(np.array(series.idle)[waiting].sum()), int(np.array(series.broken)[waiting].sum())
