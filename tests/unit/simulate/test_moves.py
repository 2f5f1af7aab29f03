"""Elastic jobs and orders of capacity: what growing, shrinking and moving bring, and that they are charged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster.simulate.cluster import ClusterFile, build
from muster.simulate.engine import Outcome, simulate
from muster.simulate.errors import SimulationError
from muster.simulate.measures import measure
from muster.simulate.policies import policy_named
from muster.simulate.workload import Workload, assemble

from .samples import CALM, cluster, trace, workload

pytestmark = pytest.mark.unit

COSTS = {"checkpoint": 100, "grace": 20, "restart": 30, "unsaved": 0}
HOUR = 3600.0


def run(work: Workload, policy: str = "muster") -> Outcome:
    outcome = simulate(work, policy_named(policy, work), interval=10)
    assert outcome.never == ()
    np.testing.assert_array_equal(outcome.world.free, work.cluster.allocatable)
    return outcome


def useful(outcome: Outcome) -> list[float]:
    """GPU-seconds of work that each job kept."""
    runs = outcome.world.runs
    return np.bincount(runs.job, np.array(runs.kept) * np.array(runs.gpus)).tolist()


def test_a_worker_of_an_elastic_job_has_the_gpus_of_its_step() -> None:
    work = assemble(
        cluster(4),
        trace(
            {"gpus": 8, "min": 4, "max": 16, "step": 4},
            {"gpus": 32, "min": 16, "max": 64, "step": 16},
            {"gpus": 16, "min": 8, "max": 24},
            {"gpus": 12},
        ),
    )
    sizes = work.sizes
    assert sizes is not None
    assert (work.workers.tolist(), work.each.tolist()) == ([2, 4, 2, 2], [4, 8, 8, 6])
    assert list(zip(sizes.least.tolist(), sizes.most.tolist(), sizes.step.tolist(), strict=True)) == [
        (1, 4, 1), (2, 8, 2), (1, 3, 1), (2, 2, 1),
    ]  # fmt: skip
    assert sizes.partial.tolist() == [True, True, True, False]


def test_a_size_that_is_not_whole_workers_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"submit 0 and 16 GPUs: .* which have 8 GPUs .* multiple of 8, not 12"):
        workload({"gpus": 16, "min": 12, "max": 16})
    with pytest.raises(SimulationError, match=r"which have 6 GPUs .* give step a multiple of 6, not 11"):
        workload({"gpus": 12, "min": 12, "max": 23, "step": 11})


def test_an_elastic_job_grows_into_idle_nodes_and_ends_sooner() -> None:
    work = workload({"gpus": 8, "duration": 4 * HOUR, "min": 8, "max": 16}, nodes=2, costs=COSTS)
    grown, fixed = run(work), run(work, "muster-no-elastic")
    assert fixed.world.ended.tolist() == [4 * HOUR]
    # It has stood for ten minutes and more, saves for 20 s, starts for 30 s, and works twice as fast from then on.
    asked = grown.world.runs.stop[0] - 20
    assert asked >= 600
    assert grown.world.ended[0] == pytest.approx(asked + 50 + (4 * HOUR - asked) / 2)
    assert useful(grown) == pytest.approx(useful(fixed))
    assert grown.world.runs.gpus == [8, 16]
    assert measure(grown).lost > measure(fixed).lost


def test_an_elastic_job_starts_smaller_where_it_has_no_room_for_all_and_takes_longer() -> None:
    work = workload({"gpus": 16, "duration": HOUR, "min": 8, "max": 16}, nodes=1, costs=COSTS)
    assert run(work).world.ended.tolist() == [2 * HOUR]
    rigid = simulate(work, policy_named("muster-no-elastic", work))
    assert [job for job, _ in rigid.never] == [0]


def test_an_elastic_job_shrinks_for_one_that_ranks_before_it() -> None:
    jobs: list[dict[str, Any]] = [
        {"gpus": 16, "duration": 4 * HOUR, "min": 8, "max": 16},
        {"submit": 1000, "gpus": 8, "duration": 3 * HOUR, "priority": 1},
    ]
    work = workload(*jobs, nodes=2, costs=COSTS)
    elastic, rigid = run(work), run(work, "muster-no-elastic")
    assert elastic.world.queued.tolist() == pytest.approx([0, 20], abs=10)
    assert elastic.world.queued[0] < rigid.world.queued[0]
    assert 8 in [gpus for job, gpus in zip(elastic.world.runs.job, elastic.world.runs.gpus, strict=True) if job == 0]
    assert useful(elastic) == pytest.approx([16 * 4 * HOUR, 8 * 3 * HOUR])


SPOT_FIRST = {"capacity": "spot|on-demand", "gpus": 8, "duration": 4 * HOUR}
TWO_KINDS = [{"count": 1, "capacity": "spot"}, {"count": 1, "capacity": "on-demand"}]


def mixed(*jobs: dict[str, Any], **more: Any) -> Workload:
    file = {"nodes": TWO_KINDS, "faults": CALM, "costs": COSTS, **more}
    return assemble(build(ClusterFile.model_validate(file)), trace(*jobs))


@pytest.mark.parametrize("after", [120.0, 600.0])
def test_a_job_takes_its_second_kind_of_nodes_after_a_while(after: float) -> None:
    work = mixed({"capacity": "spot", "gpus": 8, "duration": 9 * HOUR}, SPOT_FIRST, fallbackAfter=after)
    outcome = run(work, "muster-no-preemption")
    assert outcome.world.first_start.tolist() == [0, after]
    assert outcome.world.ended[1] == after + 4 * HOUR
    assert run(work, "easy").world.first_start[1] == 9 * HOUR, "EASY knows partitions: the first kind alone"


def test_a_job_moves_back_to_the_kind_that_it_prefers() -> None:
    work = mixed({"capacity": "spot", "gpus": 8, "duration": HOUR}, SPOT_FIRST, fallbackAfter=0)
    promoted, stays = (run(work, f"muster-no-preemption{part}") for part in ("", "-no-promotion"))
    assert stays.world.ended[1] == 4 * HOUR
    assert stays.world.evictions.sum() == 0
    assert promoted.world.evictions.tolist() == [0, 1]
    assert promoted.world.ended[1] == pytest.approx(4 * HOUR + 50)


def test_a_third_job_gets_the_nodes_that_a_promotion_leaves() -> None:
    late = {"submit": HOUR + 1200, "capacity": "on-demand", "gpus": 8, "duration": HOUR}
    work = mixed({"capacity": "spot", "gpus": 8, "duration": HOUR}, SPOT_FIRST, late, fallbackAfter=0)
    promoted, stays = (run(work, f"muster-no-preemption{part}") for part in ("", "-no-promotion"))
    assert promoted.world.queued[2] < 100 < stays.world.queued[2]


def test_one_that_is_not_stopped_is_let_in_by_how_long_it_takes_with_its_fewest_workers() -> None:
    jobs = [
        {"submit": 0, "gpus": 8, "duration": 1000, "limit": 1000, "preemptible": 0},
        {"submit": 10, "gpus": 16, "duration": 100, "priority": 1},
        {"submit": 20, "gpus": 16, "min": 8, "step": 8, "duration": 800, "limit": 900, "preemptible": 0},
    ]
    queues = [{"name": "research", "gpus": 1000}]
    outcome = run(workload(*jobs, queues=queues, costs=COSTS))
    assert outcome.world.first_start.tolist() == [0.0, 1000.0, 1100.0]
