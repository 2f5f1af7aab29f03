"""Synthetic traces with the shapes that were published of real GPU clusters.

What each shape rests on:

* Durations are log-normal. Q. Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
  Datacenters" (SC '21, the Helios traces): half of the GPU jobs end within about 200 s, their mean is about 6,700 s; a
  log-normal with these two has sigma = sqrt(2 ln(mean / median)) = 2.6. M. Jeon et al., "Analysis of Large-Scale
  Multi-Tenant GPU Clusters for DNN Training Workloads" (ATC '19, the Philly traces) has longer jobs (mean about
  28,000 s) and the same spread. Part of the spread lies between users, since people submit the same kind of job again.
* GPUs are powers of two. More than half of the Helios jobs and most of Philly's use one; few use more than a node, yet
  these use most of the GPU time. Larger jobs run longer. A. Kokolis et al., "Revisiting Reliability in Large-Scale
  Machine Learning Research Clusters" (HPCA '25): over 90 % of jobs fit one node of 8, in less than 10 % of the time.
* Load follows the day and the week (Helios: fewer submissions at night and at weekends). People submit several alike at
  once (Q. Weng et al., "MLaaS in the Wild", NSDI '22, the Alibaba traces: few users and recurring tasks make most).
* Users differ widely: weights by Zipf's law (Helios: the top 5 % of users take about half of the GPU time).
* Limits are no multiple of the runtime: D. Tsafrir, "Using Inaccurate Estimates Accurately" (JSSPP '10) shows that this
  tells a scheduler too much and favours short jobs. D. Tsafrir et al., "Modeling User Runtime Estimates" (JSSPP '05):
  20 values make 90 % of the estimates, and the longest that is allowed is always popular. So here: a menu, and a share
  of jobs that takes the longest.

The numbers below are round ones within these findings, chosen once and before any policy was run on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.scheduling.snapshot import Int, Seconds
from muster.simulate.cells import LATEST
from muster.simulate.errors import SimulationError
from muster.simulate.trace import Trace, in_order

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIZE_SHARES: Final = (0.57, 0.12, 0.10, 0.13, 0.045, 0.02, 0.01, 0.004, 0.001)
MEDIAN: Final = 206.0
"""Seconds that a job of one GPU takes in the middle."""
GROWTH: Final = 0.25
"""A job of k GPUs takes k to this power times as long in the middle."""
SIGMA_USERS: Final = 1.2
SIGMA_JOBS: Final = 2.3
"""Spread between users and within one; together sigma 2.6."""
SHORTEST: Final = 10.0
LONGEST: Final = 5 * DAY
MENU: Final = tuple(HOUR * h for h in (0.25, 0.5, 1, 2, 4, 8, 12, 24, 48, 72, 120))
"""Limits that people ask for."""
SLACK: Final = 4.0
"""They ask for the next value of the menu above their runtime times something between 1 and this."""
LAZY: Final = 0.25
"""Share of jobs that ask for the longest limit."""
URGENT: Final = 0.05
"""Share of jobs with priority 1; the others have 0."""
PREEMPTIBLE: Final = 0.9
"""Share of the jobs of at most a node that may be asked to stop; larger ones all save checkpoints. What may not be
asked to stop may not borrow either, so a large one would wait for ever in a queue with less quota than that."""
BURST: Final = 3.0
"""Jobs that are submitted together, in the mean (geometric)."""
TEAMS: Final = 16
USERS: Final = 160
ZIPF: Final = 1.1
NIGHT: Final = 0.35
"""Least load of a day, and WEEKEND of a day without work, relative to the busiest hour."""
WEEKEND: Final = 0.6

LOADS: Final = (0.7, 0.9, 1.1)
SEEDS: Final = tuple(range(1, 11))
"""What policies are compared on: all of it, fixed before any of them was tuned."""


@dataclass(frozen=True)
class Recipe:
    """
    Attributes:
        jobs: how many.
        gpus: of the cluster's nodes that the jobs take, which name no kind of them.
        load: GPU-seconds asked for over GPU-seconds there are, until the last submission.
    """

    jobs: int = 10_000
    gpus: int = 2048
    load: float = 0.9
    seed: int = 1


def make(recipe: Recipe) -> Trace:
    """Draw a trace. The same recipe always gives the same one.

    Raises:
        SimulationError: the recipe asks for nothing, for no cluster, or for more time than a trace may have.
    """
    if recipe.jobs < 1 or recipe.gpus < 1 or not recipe.load > 0:
        raise SimulationError("a trace needs at least one job, a cluster of at least one GPU and a load above 0")
    rng = np.random.default_rng([recipe.seed, 20_240_607])
    count = recipe.jobs
    weights = 1.0 / np.arange(1, USERS + 1) ** ZIPF
    bursts = rng.geometric(1 / BURST, count)
    burst_of = np.repeat(np.arange(count), bursts)[:count]
    user = rng.choice(USERS, size=count, p=weights / weights.sum())[burst_of]
    # No job asks for more than an eighth of the cluster, or small clusters could never start it.
    sizes = np.array(SIZES)[np.array(SIZES) <= max(1, recipe.gpus // 8)]
    shares = np.array(SIZE_SHARES)[: len(sizes)]
    gpus = rng.choice(sizes, size=count, p=shares / shares.sum())[burst_of]
    habit = rng.normal(0.0, SIGMA_USERS, USERS)
    median = MEDIAN * gpus**GROWTH * np.exp(habit[user])
    duration = np.clip(median * np.exp(rng.normal(0.0, SIGMA_JOBS, count)), SHORTEST, LONGEST)
    team_of = rng.permutation(USERS) % TEAMS
    span = float((duration * gpus).sum()) / (recipe.load * recipe.gpus)
    if span > LATEST:
        raise SimulationError(
            f"with a load of {recipe.load:g} the last of {count:,} jobs would come after {span / WEEK / 52:,.0f} "
            "years: give a higher load or fewer jobs"
        )
    return in_order(
        Trace(
            submit=_submissions(rng, burst_of, span),
            duration=duration,
            limit=_limits(rng, duration),
            gpus=gpus.astype(np.int32),
            priority=(rng.random(count) < URGENT).astype(np.int32),
            preemptible=(rng.random(count) < PREEMPTIBLE) | (gpus > 8),
            queue=team_of[user].astype(np.int32),
            user=user.astype(np.int32),
            kind=np.zeros(count, dtype=np.int32),
            queues=tuple(f"team-{team:02}" for team in range(TEAMS)),
            users=tuple(f"user-{number:03}" for number in range(USERS)),
        )
    )


def intensity(moment: Seconds) -> Seconds:
    """Relative load at a moment; moment 0 is Monday, midnight. 1 at most."""
    hour = moment % DAY / HOUR
    day = NIGHT + (1 - NIGHT) * (0.5 - 0.5 * np.cos(2 * np.pi * (hour - 4) / 24))
    relative: Seconds = day * np.where(moment % WEEK >= 5 * DAY, WEEKEND, 1.0)
    return relative


def _submissions(rng: np.random.Generator, burst_of: Int, span: float) -> Seconds:
    """Moments in [0, span], as many in an hour as its load says; jobs of a burst within a minute of each other."""
    grid = np.linspace(0.0, span, max(2, int(span / 600) + 1))
    running = np.concatenate([[0.0], np.cumsum((intensity(grid[1:]) + intensity(grid[:-1])) / 2)])
    moments = np.interp(rng.random(int(burst_of.max()) + 1) * running[-1], running, grid)
    together: Seconds = np.minimum(moments[burst_of] + rng.random(len(burst_of)) * 60, span)
    return together


def _limits(rng: np.random.Generator, duration: Seconds) -> Seconds:
    menu = np.array(MENU)
    wanted = duration * (1 + rng.random(len(duration)) * (SLACK - 1))
    chosen = menu[np.minimum(np.searchsorted(menu, wanted), len(menu) - 1)]
    limits: Seconds = np.where(rng.random(len(duration)) < LAZY, menu[-1], chosen)
    return limits
