"""What an outcome is judged by.

* wait: seconds without a placement, from submission to the end, each requeueing included.
* completion: from submission to the end.
* bounded slowdown: completion / work, both at least 60 s, and never below 1 (D. Feitelson, "Metrics for Parallel Job
  Scheduling and Their Convergence", JSSPP '01), so that jobs of seconds do not rule the mean.
* utilisation: GPU-seconds in use over those of nodes that are there, from the first submission to the last: what
  follows is a cluster that drains, and is counted only where all jobs are submitted at once. useful: the same of work
  that was kept; lost are grace, restarts and work done twice.
* fairness: R. Jain's index (Σx)² / nΣx² over each user's mean bounded slowdown: 1 when all users wait alike for their
  work, 1/n when one of n has all the waiting. even speeds: the same over each user's mean speed, which is work /
  completion and so what a user gets; the index was made for such quantities, where more is better (R. Jain, D. Chiu,
  W. Hawe, "A Quantitative Measure of Fairness", DEC TR-301, 1984).
* deadlines: met when the job ended in time; told at once where its limit and its window leave no time for it from its
  submission on, whoever else is there: then the operator's condition says so at its first look.
* wait in windows: of jobs with a window, that part of the wait in which theirs was open.
* fragmentation: of the GPU-seconds that were idle behind decisions that left jobs waiting, the share on nodes that were
  partly in use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from muster.scheduling.snapshot import FOREVER, NONE, Int, Mask, Seconds
from muster.simulate.engine import Outcome
from muster.simulate.workload import Workload
from muster.simulate.world import State

BOUND = 60.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One policy on one trace. Seconds unless said otherwise; shares from 0 to 1.

    Means and percentiles over jobs are of those that ended, and None where none did.
    """

    policy: str
    jobs: int
    never: int
    mean_completion: float | None = None
    mean_wait: float | None = None
    median_wait: float | None = None
    p90_wait: float | None = None
    p99_wait: float | None = None
    mean_slowdown: float | None = None
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
    failed: int | None = None
    """Of those that never ended, the ones that never got past their next fault; None for nobody."""
    deadlines: int | None = None
    """Jobs with one; None for nobody, and so for the two below."""
    deadlines_met: int | None = None
    deadlines_told: int | None = None
    """Of those that were not met: which could not be from the start."""
    mean_wait_in_windows: float | None = None
    """Of jobs with a window that ended; None for nobody."""
    window_stops: int | None = None
    """How often a window closed on a job that ran; None where no job has one."""

    def as_dict(self) -> dict[str, float | int | str]:
        """For JSON: what is None is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


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
    median, most, nearly_all = np.percentile(wait, [50, 90, 99]).tolist() if wait.size else (None, None, None)
    used, useful, there = _gpu_seconds(outcome)
    all_used, kept = _totals(outcome)
    lost = max(0.0, all_used - kept)  # sums of both are rounded
    return Figures(
        policy=outcome.policy,
        jobs=len(trace),
        never=int((~ended).sum()),
        mean_completion=_mean(completion),
        mean_wait=_mean(wait),
        median_wait=median,
        p90_wait=most,
        p99_wait=nearly_all,
        mean_slowdown=_mean(slow),
        fairness=jain(by_user.slowdown),
        even_speeds=jain(by_user.speed),
        utilisation=used / there if there else 0.0,
        useful=useful / there if there else 0.0,
        lost=lost / all_used if all_used else 0.0,
        lost_gpu_hours=lost / 3600,
        fragmentation=outcome.idle_broken / outcome.idle if outcome.idle else 0.0,
        makespan=float(world.ended[ended].max(initial=0.0)),
        evictions=int(world.evictions.sum()),
        most_stops=int(world.stops.max(initial=0)),
        crashes=int(world.crashes.sum()),
        plans=outcome.plans,
        planning_seconds=outcome.planning,
        seconds=outcome.seconds,
        failed=int((world.state == State.FAILED).sum()) or None,
        **_deadlines(outcome),
        **_windows(outcome),
    )


def missed(outcome: Outcome) -> Int:
    """Jobs that did not end by their deadline, or never."""
    deadline = outcome.world.workload.trace.deadline
    if deadline is None:
        return np.empty(0, dtype=np.int64)
    late: Int = np.flatnonzero((deadline < FOREVER) & ~(outcome.world.ended <= deadline))
    return late


def told_at_once(workload: Workload) -> Mask:
    """J, whether a job's limit and window leave no time for its deadline, whoever else is there."""
    trace = workload.trace
    hopeless = np.zeros(len(trace), dtype=np.bool_)
    if trace.deadline is None:
        return hopeless
    for job in np.flatnonzero(trace.deadline < FOREVER).tolist():
        submit, limit, window = float(trace.submit[job]), float(trace.limit[job]), workload.window_of(job)
        takes = limit if limit < FOREVER else 0.0  # without one, nothing but its window tells
        restart = workload.cluster.file.costs.restart
        end = submit + takes if window is None else window.earliest_end(submit, takes, restart)
        hopeless[job] = end > trace.deadline[job]
    return hopeless


def _deadlines(outcome: Outcome) -> dict[str, int]:
    deadline = outcome.world.workload.trace.deadline
    if deadline is None:
        return {}
    count, late = int((deadline < FOREVER).sum()), missed(outcome)
    told = int(told_at_once(outcome.world.workload)[late].sum())
    return {"deadlines": count, "deadlines_met": count - len(late), "deadlines_told": told}


def _windows(outcome: Outcome) -> dict[str, Any]:
    world = outcome.world
    if world.workload.window is None:
        return {}
    ended = np.isfinite(world.ended) & (world.workload.window != NONE)
    return {
        "mean_wait_in_windows": _mean((world.queued - world.shut)[ended]),
        "window_stops": int(world.window_stops.sum()),
    }


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


def _mean(values: Seconds) -> float | None:
    return float(values.mean()) if values.size else None


def _gpu_seconds(outcome: Outcome) -> tuple[float, float, float]:
    """In use, useful, and of nodes that are there, from the first submission to the last; if all come at once, until
    the last run's end."""
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
    """GPU-seconds of nodes that are there: on one that is reclaimed jobs run on until its notice is over."""
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
