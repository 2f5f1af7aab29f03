"""FIFO and EASY do what their papers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from muster.simulate.baselines import Baseline
from muster.simulate.engine import Outcome, simulate
from muster.simulate.synthetic import Recipe, make
from muster.simulate.workload import assemble

from .samples import cluster, workload

pytestmark = pytest.mark.unit


def run(*jobs: dict[str, Any], backfill: bool, nodes: int = 2) -> Outcome:
    work = workload(*jobs, nodes=nodes)
    return simulate(work, Baseline("baseline", work, backfill=backfill), interval=1.0)


FIRST = {"gpus": 8, "duration": 100, "limit": 100}
HEAD = {"submit": 1, "gpus": 16, "duration": 50, "limit": 50}


def starts(outcome: Outcome) -> list[float]:
    return np.round(outcome.world.first_start).tolist()


def test_fifo_stops_at_the_first_that_does_not_fit() -> None:
    assert starts(run(FIRST, HEAD, {"submit": 2, "gpus": 1, "duration": 5, "limit": 5}, backfill=False)) == [
        0,
        100,
        150,
    ]


def test_easy_lets_in_what_ends_before_the_first_can_start() -> None:
    assert starts(run(FIRST, HEAD, {"submit": 2, "gpus": 8, "duration": 90, "limit": 90}, backfill=True)) == [0, 100, 2]


def test_easy_keeps_out_what_may_end_later_even_if_it_would_not() -> None:
    assert starts(run(FIRST, HEAD, {"submit": 2, "gpus": 8, "duration": 5, "limit": 99}, backfill=True)) == [
        0,
        100,
        150,
    ]


def test_easy_keeps_out_what_has_no_limit() -> None:
    assert starts(run(FIRST, HEAD, {"submit": 2, "gpus": 8, "duration": 5}, backfill=True)) == [0, 100, 150]


def test_easy_lets_in_what_leaves_enough_for_the_first() -> None:
    jobs = (FIRST, {**HEAD, "gpus": 12}, {"submit": 2, "gpus": 2, "duration": 1000, "limit": 1000})
    assert starts(run(*jobs, backfill=True)) == [0, 100, 2]


def test_easy_counts_what_it_let_in_beside_the_reservation() -> None:
    beside = {"submit": 2, "gpus": 2, "duration": 1000, "limit": 1000}
    # The head leaves 2 GPUs of each node: one of these fits beside it now, one when the first has ended, one after it.
    assert starts(run(FIRST, {**HEAD, "gpus": 12}, beside, beside, beside, backfill=True)) == [0, 100, 2, 100, 150]


def test_without_known_ends_there_is_no_moment_to_keep_free() -> None:
    jobs = ({"gpus": 8, "duration": 100}, HEAD, {"submit": 2, "gpus": 1, "duration": 200})
    assert starts(run(*jobs, backfill=True)) == [0, 202, 2]


def test_easy_knows_the_limits_of_jobs_that_start_in_the_same_decision() -> None:
    """The second cannot start before the first has ended, which starts with it in view; the third would delay it."""
    first, third = {**FIRST, "submit": 0}, {"gpus": 8, "duration": 500, "limit": 500}
    assert starts(run(first, {**HEAD, "submit": 0}, third, backfill=True)) == [0, 100, 150]


@pytest.mark.parametrize("backfill", [False, True])
def test_starts_are_those_of_a_naive_scheduler(backfill: bool) -> None:
    """On one node, where nothing is fragmented, at many random traces."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        jobs: list[dict[str, Any]] = [
            {
                "submit": float(submit),
                "gpus": int(rng.choice([1, 2, 4, 8])),
                "duration": float(rng.choice([30, 60, 100, 1000])),
                "limit": float(rng.choice([50, 100, 1000, np.inf])),
                "priority": int(rng.choice([0, 0, 1])),
            }
            for submit in np.sort(rng.choice([0, 30, 60, 61, 500, 1000], size=rng.integers(2, 13)))
        ]
        work = workload(*jobs, nodes=1)
        came = simulate(work, Baseline("baseline", work, backfill=backfill), interval=60.0)
        assert came.world.first_start.tolist() == naive(jobs, backfill=backfill), seed


def naive(jobs: Sequence[dict[str, Any]], *, backfill: bool) -> list[float]:
    """When each starts on 8 GPUs, by the papers' words: every minute, from the beginning."""
    start: dict[int, float] = {}
    in_order = sorted(range(len(jobs)), key=lambda job: (-jobs[job]["priority"], job))
    now = 0.0
    while len(start) < len(jobs):
        lasts = {job: min(jobs[job]["duration"], jobs[job]["limit"]) for job in start}
        running = [job for job in start if start[job] + lasts[job] > now]
        free = 8 - sum(jobs[job]["gpus"] for job in running)
        waiting = [job for job in in_order if job not in start and jobs[job]["submit"] <= now]
        while waiting and jobs[waiting[0]]["gpus"] <= free:
            job = waiting.pop(0)
            start[job] = now
            free -= jobs[job]["gpus"]
            running.append(job)
        reserved, beside, then = np.inf, free, free
        for job in sorted(running, key=lambda job: start[job] + jobs[job]["limit"]) if waiting else ():
            then += jobs[job]["gpus"]
            end = start[job] + jobs[job]["limit"]
            if end < np.inf and end <= reserved and then >= jobs[waiting[0]]["gpus"]:
                reserved, beside = end, then - jobs[waiting[0]]["gpus"]
        for job in waiting[1:] if backfill else ():
            gpus, in_time = jobs[job]["gpus"], now + jobs[job]["limit"] <= reserved
            if gpus <= (free if in_time else min(free, beside)):
                start[job] = now
                free -= gpus
                beside -= 0 if in_time else gpus
        now += 60
    return [start[job] for job in range(len(jobs))]


def test_easy_keeps_the_room_of_who_is_asked_to_stop_for_the_first() -> None:
    """A window closes on a job on one of two nodes. The first that waits needs both, and has them after the grace."""
    six = 6 * 3600.0
    work = workload(
        {"gpus": 8, "duration": 9e4, "window": "nights"},
        {"submit": six + 1, "gpus": 16, "duration": 100, "limit": 100},
        {"submit": six + 2, "gpus": 8, "duration": 5000, "limit": 5000},
        windows={"nights": {"start": "0 20 * * *", "duration": 36_000}},
        costs={"grace": 600},
    )
    outcome = simulate(work, Baseline("easy", work, backfill=True))
    assert outcome.world.first_start.tolist() == [0, six + 600, six + 720]


def test_a_higher_priority_goes_first() -> None:
    jobs = ({"gpus": 16}, {"submit": 1, "gpus": 16}, {"submit": 2, "gpus": 16, "priority": 1})
    for backfill in (False, True):
        assert starts(run(*jobs, backfill=backfill)) == [0, 200, 100]


def test_small_jobs_go_where_least_is_free() -> None:
    outcome = run({"gpus": 6}, {"gpus": 1}, {"gpus": 8}, backfill=False)
    assert starts(outcome) == [0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_backfill_never_delays_the_first_beyond_its_reservation(seed: int) -> None:
    """With exact limits and all jobs there at once, FIFO's first waiting job starts no later under EASY."""
    made = make(Recipe(jobs=60, gpus=64, seed=seed))
    built = cluster(8)
    at_once = assemble(built, type(made)(**{**vars(made), "submit": np.zeros(60), "limit": made.duration}))
    fifo, easy = (
        simulate(at_once, Baseline("baseline", at_once, backfill=backfill), interval=1.0).world.first_start
        for backfill in (False, True)
    )
    in_order = at_once.rank.argsort()
    first = next((job for job in in_order if fifo[job] > 0), None)
    assert first is not None
    assert easy[first] <= fifo[first] + 1
