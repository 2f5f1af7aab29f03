"""Nodes fail under gangs: who keeps the others, and what a spare costs and brings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster.scheduling.plan import Plan, Replacement
from muster.simulate.cluster import ClusterFile, build
from muster.simulate.engine import Outcome, simulate
from muster.simulate.errors import SimulationError
from muster.simulate.faults import Faults
from muster.simulate.measures import measure
from muster.simulate.policies import policy_named
from muster.simulate.workload import Workload, assemble

from .samples import Scripted, admit, trace, workload

pytestmark = pytest.mark.unit

COSTS = {"checkpoint": 600, "grace": 20, "restart": 30, "unsaved": 0}
HOUR = 3600.0


def worn(nodes: int, *jobs: dict[str, Any], faults: dict[str, Any], capacity: str = "on-demand") -> Workload:
    """Nodes that are away for days once they fail."""
    away = {"failures": 0, "reclaims": 0, "repair": 1e6, "absence": 1e6, **faults}
    file = {"nodes": [{"count": nodes, "capacity": capacity}], "faults": away, "costs": COSTS}
    return assemble(build(ClusterFile.model_validate(file)), trace(*jobs))


def run(work: Workload, policy: str, seed: int) -> Outcome:
    outcome = simulate(work, policy_named(policy, work), seed=seed, interval=10)
    assert outcome.never == ()
    np.testing.assert_array_equal(outcome.world.free, work.cluster.allocatable)
    return outcome


def useful(outcome: Outcome) -> list[float]:
    """GPU-seconds of work that each job kept."""
    runs = outcome.world.runs
    return np.bincount(runs.job, np.array(runs.kept) * np.array(runs.worked)).tolist()


GANG = {"gpus": 24, "duration": 10 * HOUR}
URGENT = {"submit": 60, "gpus": 32, "duration": 5 * HOUR, "priority": 1}
"""Waits for more nodes than are free beside the gang, but not more than there are when one of the gang's has failed."""
FAILS = {"failures": 400}


def seed_that_breaks(work: Workload, among: int) -> int:
    """One with which a single node fails or is reclaimed for as long as the test runs, between one hour and eight: one
    of the first `among`, which the gang's workers are on."""
    nodes = range(len(work.cluster.names))
    for seed in range(1, 5_000):
        faults = Faults(work.cluster, seed)
        moments = [fault[0] for node in nodes if (fault := faults.next(node, 0.0)) is not None]
        first = min(nodes, key=moments.__getitem__)
        rest = min(moments[node] for node in nodes if node != first)
        if first < among and HOUR < moments[first] < 8 * HOUR and rest > 50 * HOUR:
            return seed
    raise AssertionError("no seed breaks just one node of the gang")


def test_a_gang_that_loses_a_node_goes_on_with_another_at_once() -> None:
    work = worn(6, GANG, URGENT, faults=FAILS)
    seed = seed_that_breaks(work, 3)
    replaced, without = (run(work, f"muster-no-preemption{part}", seed) for part in ("", "-no-replacement"))
    assert replaced.world.crashes.tolist() == [1, 0]
    assert replaced.world.queued[0] <= 20 < HOUR < without.world.queued[0]
    assert replaced.world.ended[0] < without.world.ended[0]
    runs = replaced.world.runs
    assert runs.working[1] - runs.stop[0] == pytest.approx(30, abs=10)
    assert runs.kept[0] % 600 == 0
    assert useful(replaced) == pytest.approx(useful(without))


def test_an_elastic_gang_that_finds_no_other_node_goes_on_with_fewer() -> None:
    work = worn(3, {"gpus": 24, "duration": 10 * HOUR, "min": 8, "max": 24}, faults=FAILS)
    smaller = run(work, "muster", seed_that_breaks(work, 3))
    assert smaller.world.runs.gpus == [24, 16]
    assert smaller.world.queued[0] <= 10
    assert useful(smaller) == pytest.approx([24 * 10 * HOUR])


def test_a_spare_is_room_that_nobody_uses_until_a_node_breaks() -> None:
    spared = worn(4, {**GANG, "spares": 1}, faults={})
    outcome = run(spared, "muster", 1)
    assert (outcome.world.runs.gpus, outcome.world.runs.worked) == ([32], [24])
    figures = measure(outcome)
    assert (figures.useful, figures.lost) == pytest.approx((0.75, 0.25))
    assert run(spared, "easy", 1).world.runs.gpus == [24]


def test_a_gang_starts_again_on_its_spare_where_no_other_node_is_free() -> None:
    others = {"submit": 1, "gpus": 8, "duration": 30 * HOUR, "priority": 1}
    with_spare = worn(4, {**GANG, "spares": 1}, others, faults=FAILS)
    outcome = run(with_spare, "muster-no-preemption", seed_that_breaks(with_spare, 3))
    assert outcome.world.crashes.tolist() == [1, 0]
    assert outcome.world.runs.gpus[:2] == [32, 24]
    assert outcome.world.queued[0] <= 20


def test_a_gang_on_a_reclaimed_node_keeps_the_others() -> None:
    work = worn(6, GANG, URGENT, faults={"reclaims": 400, "notice": 120}, capacity="spot")
    seed = seed_that_breaks(work, 3)
    kept, without = (run(work, f"muster-no-preemption{part}", seed) for part in ("", "-no-replacement"))
    assert kept.world.queued[0] <= 10 < without.world.queued[0]
    assert kept.world.stops.tolist() == [0, 0], "nobody has stopped it for another job"


def test_a_spare_that_is_put_where_there_is_no_room_is_a_bug() -> None:
    work = workload({"gpus": 16, "spares": 1}, {"gpus": 8}, {"submit": 20}, nodes=4)
    onto = Replacement(work.uids[0], np.array([2], dtype=np.int32), np.array([2], dtype=np.int32))
    starts = Plan((admit(work, 0, 0, 1), admit(work, 1, 2)), ())
    policy = Scripted(starts, Plan((), (), replacements=(onto,)))
    policy.replaces = True
    with pytest.raises(SimulationError, match="where there is no room"):
        simulate(work, policy, interval=10)
