"""FIFO and EASY do what their papers say."""

from __future__ import annotations

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
