"""Time passes, nodes fail, jobs are asked to leave: what is charged, and that all work is done in the end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from muster.cli.simulate import never_told
from muster.scheduling.plan import Eviction, MoveReason, Plan, Promise
from muster.scheduling.snapshot import NONE
from muster.simulate.cluster import ClusterFile, build
from muster.simulate.engine import REFRESH, Outcome, simulate
from muster.simulate.errors import SimulationError
from muster.simulate.measures import measure
from muster.simulate.policies import NAMES, parts, policy_named
from muster.simulate.synthetic import Recipe, make
from muster.simulate.workload import Workload, assemble
from muster.simulate.world import HOPELESS, State, World

from .samples import Scripted, admit, cluster, trace, workload

pytestmark = pytest.mark.unit

COSTS = {"checkpoint": 100, "grace": 20, "restart": 30, "unsaved": 0}
WORN = {"failures": 20_000, "repair": 600}
"""A failure of each node every hour and a bit."""


def kept(outcome: Outcome, job: int) -> float:
    runs = outcome.world.runs
    return sum(useful for one, useful in zip(runs.job, runs.kept, strict=True) if one == job)


def test_policies_decide_at_multiples_of_the_interval_and_only_when_something_changed() -> None:
    work = workload({"submit": 10}, {"submit": 70}, {"submit": 80}, {"submit": 5000})
    policy = Scripted(Plan((admit(work, 0, 0),), ()), Plan((admit(work, 1, 0), admit(work, 2, 1)), ()))
    outcome = simulate(work, policy, interval=60)
    assert policy.moments[:3] == [60, 120, 5040]
    assert outcome.world.ended[:3].tolist() == [160, 220, 220]
    assert [job for job, _ in outcome.never] == [3]


def test_an_evicted_job_keeps_its_work_and_pays_for_grace_and_restart() -> None:
    work = workload({"duration": 250}, {"submit": 50, "duration": 100}, nodes=1, costs=COSTS)
    policy = Scripted(
        Plan((admit(work, 0, 0),), ()),
        Plan((), (), evictions=(Eviction(work.uids[0], MoveReason.PREEMPTED, work.uids[1]),)),
        Plan((admit(work, 0, 0), admit(work, 1, 0)), ()),
    )
    outcome = simulate(work, policy, interval=10)
    # 50 s of work, asked at 50, gone at 70, placed at 70, works again at 100, 200 s are left.
    assert outcome.world.ended.tolist() == [300, 170]
    assert kept(outcome, 0) == 250
    assert outcome.world.evictions.tolist() == [1, 0]


def test_an_eviction_without_its_last_checkpoint_loses_what_came_after_the_periodic_one() -> None:
    work = workload({"duration": 250}, {"submit": 150}, nodes=1, costs={**COSTS, "unsaved": 1})
    policy = Scripted(
        Plan((admit(work, 0, 0),), ()),
        Plan((), (), evictions=(Eviction(work.uids[0], MoveReason.PREEMPTED),)),
        Plan((admit(work, 0, 0), admit(work, 1, 0)), ()),
    )
    outcome = simulate(work, policy, interval=10)
    # 100 s are safe; placed again at 170, works at 200, 150 s are left.
    assert outcome.world.ended[0] == 350


def test_a_job_that_ends_within_its_grace_is_done() -> None:
    work = workload({"duration": 60}, {"submit": 50}, nodes=1, costs=COSTS)
    policy = Scripted(
        Plan((admit(work, 0, 0),), ()),
        Plan((), (), evictions=(Eviction(work.uids[0], MoveReason.PREEMPTED),)),
        Plan((admit(work, 1, 0),), ()),
    )
    assert simulate(work, policy, interval=10).world.ended.tolist() == [60, 160]


def test_a_promise_is_shown_until_it_is_kept() -> None:
    work = workload({"duration": 500, "gpus": 8}, {"submit": 50, "gpus": 8}, nodes=1, costs=COSTS)
    policy = Scripted(
        Plan((admit(work, 0, 0),), ()),
        Plan(
            (),
            (),
            promises=(Promise(work.uids[1], np.array([0], dtype=np.int32)),),
            evictions=(Eviction(work.uids[0], MoveReason.PREEMPTED, work.uids[1]),),
        ),
        Plan((admit(work, 1, 0),), ()),
        Plan((admit(work, 0, 0),), ()),
    )
    outcome = simulate(work, policy, interval=10)
    assert outcome.world.first_start.tolist() == [0, 70]
    assert outcome.world.ended[1] == 170
    assert outcome.world.ended[0] == 170 + 30 + 450


def test_a_failed_node_ends_its_jobs_and_loses_their_work_since_the_checkpoint() -> None:
    faults = {"failures": 1e6, "repair": 50}
    work = workload({"duration": 400}, nodes=1, costs={**COSTS, "checkpoint": 40}, faults=faults)
    outcome = simulate(work, policy_named("fifo", work), interval=1)
    runs = outcome.world.runs
    assert outcome.world.crashes[0] >= 1
    assert all(useful % 40 == 0 for useful in runs.kept[:-1])
    assert kept(outcome, 0) == pytest.approx(400)
    assert outcome.world.ended[0] > 400


def test_who_is_asked_to_stop_saves_nothing_that_it_would_have_done_since() -> None:
    work = workload({"duration": 400}, nodes=1, costs={**COSTS, "grace": 200})
    world = World(work, 1)
    world.submit(0, 0.0)
    world.start(0, np.array([0], dtype=np.int32), 0.0)
    world.ask_to_leave(0, NONE, 150.0)
    world.crash(0, 0, 300.0)  # the node's notice was shorter than the grace
    assert world.left[0] == 300, "a checkpoint of every 100 seconds: that at 200 was never made"


def test_a_reclaimed_node_gives_notice() -> None:
    work = workload({"duration": 4000}, nodes=1)
    file = {"nodes": [{"count": 1, "capacity": "spot"}], "faults": {"failures": 0, "reclaims": 1e5}, "costs": COSTS}
    work = assemble(build(ClusterFile.model_validate(file)), work.trace)
    outcome = simulate(work, policy_named("easy", work), interval=1)
    assert outcome.world.evictions[0] >= 1
    assert outcome.world.crashes[0] == 0
    assert kept(outcome, 0) == pytest.approx(4000)


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_does_all_the_work_despite_failures(name: str) -> None:
    made = make(Recipe(jobs=400, gpus=128, seed=2))
    work = assemble(cluster(16, faults=WORN), made)
    outcome = simulate(work, policy_named(name, work), seed=5)
    assert outcome.never == ()
    assert outcome.world.crashes.sum() > 10
    for job in range(len(made)):
        assert kept(outcome, job) == pytest.approx(made.duration[job])
    assert (outcome.world.ended >= made.submit + made.duration - 1e-6).all()
    np.testing.assert_array_equal(outcome.world.free, work.cluster.allocatable)


@pytest.mark.parametrize(
    ("name", "completion", "wait", "useful", "evictions", "plans"),
    [
        ("fifo", 8162.219687968793, 67.69181094379174, 0.515570022563858, 0, 167),
        ("easy", 8133.869687968793, 39.341810943791735, 0.5159818814480983, 0, 171),
        ("muster-no-replacement", 8124.269687968793, 34.50687866418703, 0.5151228614895399, 3, 161),
    ],
)
def test_rigid_jobs_come_out_as_they_did_before_there_were_elastic_ones(
    name: str, completion: float, wait: float, useful: float, evictions: int, plans: int
) -> None:
    """The figures are of the simulator before it knew sizes, orders of capacity and replacements."""
    worn = build(
        ClusterFile.model_validate({"nodes": [{"count": 16}], "faults": {"failures": 500}, "halfLife": 86_400})
    )
    work = assemble(worn, make(Recipe(jobs=400, gpus=128, load=1.1, seed=7)))
    came = measure(simulate(work, policy_named(name, work), seed=7))
    assert (came.mean_completion, came.mean_wait, came.useful) == pytest.approx((completion, wait, useful), rel=1e-12)
    assert (came.evictions, came.plans) == (evictions, plans)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_never_gets_past_its_next_failure_fails_and_holds_nobody_up(name: str) -> None:
    """Sixteen nodes fail each hour: all stand for an hour, which a checkpoint takes, once in nine million times."""
    worn = {"nodes": [{"count": 16}], "faults": {"failures": 24_000, "repair": 60}, "costs": {"checkpoint": 3600}}
    work = assemble(
        build(ClusterFile.model_validate(worn)),
        trace({"gpus": 128, "duration": 40_000, "priority": 1}, {"submit": 60, "gpus": 8, "duration": 500}),
    )
    outcome = simulate(work, policy_named(name, work))
    assert outcome.world.state.tolist() == [State.FAILED, State.DONE]
    assert outcome.world.fruitless[0] == HOPELESS
    assert outcome.plans < 5_000
    np.testing.assert_array_equal(outcome.world.free, work.cluster.allocatable)
    ((job, reason),) = outcome.never
    assert (job, measure(outcome).never) == (0, 1)
    assert "100 runs in a row, of " in reason
    assert "save more often, give it fewer nodes, or lower the faults" in reason
    told = f"{name}: 1 job failed, the first with submit 0, 128 GPUs and queue research: 100 runs in a row"
    assert never_told(outcome).startswith(told)


def test_work_that_was_saved_begins_the_count_of_runs_in_vain_anew() -> None:
    worn = {"nodes": [{"count": 1}], "faults": {"failures": 500_000, "repair": 60}, "costs": {"checkpoint": 100}}
    work = assemble(build(ClusterFile.model_validate(worn)), trace({"gpus": 8, "duration": 6_000}))
    outcome = simulate(work, policy_named("easy", work), interval=10)
    assert outcome.never == ()
    assert outcome.world.crashes[0] > HOPELESS


class _Pesters(Scripted):
    """Stops the first job for the second, and starts it again, so many times."""

    def __init__(self, work: Workload, times: int) -> None:
        super().__init__()
        self._work, self._times = work, times

    def decide(self, world: World, now: float) -> Plan:
        one, two = self._work.uids
        if world.state[0] == State.RUNNING and self._times:
            self._times -= 1
            return Plan((), (), evictions=(Eviction(one, MoveReason.PREEMPTED, two),))
        waits = [job for job in (0, 1) if world.state[job] == State.PENDING and (job == 0 or not self._times)]
        return Plan(tuple(admit(self._work, job, job) for job in waits), ())


def test_who_is_stopped_for_another_in_vain_does_not_fail_for_it() -> None:
    work = workload({"duration": 5_000}, {}, costs={**COSTS, "restart": REFRESH + 100})
    outcome = simulate(work, _Pesters(work, HOPELESS + 9), interval=10)
    assert outcome.world.stops[0] == HOPELESS + 9
    assert outcome.world.state.tolist() == [State.DONE, State.DONE]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_outcome(name: str) -> None:
    work = assemble(cluster(16, faults=WORN), make(Recipe(jobs=300, gpus=128, seed=2)))
    one, again = (simulate(work, policy_named(name, work), seed=5) for _ in range(2))
    np.testing.assert_array_equal(one.world.ended, again.world.ended)
    assert one.series == again.series


def test_all_policies_meet_the_same_failures() -> None:
    work = assemble(cluster(16, faults=WORN), make(Recipe(jobs=300, gpus=128, seed=2)))
    fifo, easy = (simulate(work, policy_named(name, work), seed=5).away for name in ("fifo", "easy"))
    shared = min(len(fifo), len(easy))
    assert shared > 10
    assert fifo[:shared] == easy[:shared]


@pytest.mark.parametrize("name", NAMES)
def test_what_can_never_start_is_told(name: str) -> None:
    work = workload({"gpus": 800}, {"submit": 10, "gpus": 1, "priority": 1})
    outcome = simulate(work, policy_named(name, work))
    assert [job for job, _ in outcome.never] == [0]
    assert outcome.world.ended[1] > 0


@pytest.mark.parametrize("repair", [40_000.0, 400_000.0])
def test_a_job_that_is_submitted_while_its_node_is_away_waits_for_it(repair: float) -> None:
    broken = {"failures": 20_000, "reclaims": 0, "repair": repair}
    late = workload({"submit": 1_000_000.0, "gpus": 8}, nodes=1, faults=broken)
    outcomes = [simulate(late, policy_named("easy", late), seed=seed) for seed in range(1, 6)]
    assert [outcome.never for outcome in outcomes] == [()] * 5
    assert any(outcome.world.queued[0] > REFRESH for outcome in outcomes), "in one of them the node was away"


def test_muster_says_why_a_job_never_starts() -> None:
    work = workload({"gpus": 800})
    assert "800" in simulate(work, policy_named("muster", work)).never[0][1].replace("100 workers × 8", "800")


def test_a_policy_that_overbooks_is_caught() -> None:
    work = workload({"gpus": 8}, {"gpus": 8})
    with pytest.raises(SimulationError, match="where there is no room"):
        simulate(work, Scripted(Plan((admit(work, 0, 0), admit(work, 1, 0)), ())))


def test_a_policy_that_splits_a_gang_is_caught() -> None:
    work = workload({"gpus": 16})
    with pytest.raises(SimulationError, match="part of its gang"):
        simulate(work, Scripted(Plan((admit(work, 0, 0),), ())))


@pytest.mark.parametrize("interval", [0, 1e-310, math.nan, math.inf, 100_000])
def test_an_interval_that_never_passes_or_never_ends_is_refused(interval: float) -> None:
    work = workload({})
    with pytest.raises(SimulationError, match=r"between 0\.001 and 86,400 seconds, not"):
        simulate(work, Scripted(), interval=interval)


def test_an_unknown_policy_or_part_is_told_the_known_ones() -> None:
    with pytest.raises(SimulationError, match="there are: easy, fifo, muster, and muster-no-PART"):
        policy_named("best", workload({}))
    with pytest.raises(SimulationError, match=r"no part 'luck' to leave out; there are: .*preemption"):
        policy_named("muster-no-luck", workload({}))


def test_parts_of_muster_can_be_left_out() -> None:
    work = workload({"gpus": 8})
    for part in parts():
        outcome = simulate(work, policy_named(f"muster-no-{part}", work))
        assert (outcome.policy, outcome.never) == (f"muster-no-{part}", ())
    assert simulate(work, policy_named("muster-no-preemption-no-backfill", work)).never == ()


def test_nodes_fail_from_a_day_before_the_first_job_also_where_seconds_count_from_1970() -> None:
    worn = {"failures": 20_000, "repair": 600}

    def after(submit: float) -> Outcome:
        work = workload({"submit": submit, "gpus": 8, "duration": 40_000}, faults=worn)
        return simulate(work, policy_named("fifo", work))

    early, epoch = after(172_800.0), after(1_699_999_200.0)
    assert 0 < len(epoch.away) == len(early.away) < 100
    assert (early.begins, epoch.begins) == (86_400.0, 1_699_999_200.0 - 86_400.0)
    assert measure(epoch).mean_completion == pytest.approx(measure(early).mean_completion)
    assert after(3_600.0).begins == 0.0


def test_an_end_that_rounding_puts_a_hair_behind_a_decision_comes() -> None:
    end = float(np.nextafter(600.0, math.inf))
    work = workload({"gpus": 8, "duration": end}, {"gpus": 8, "duration": 100.0}, nodes=1)
    outcome = simulate(work, policy_named("fifo", work))
    assert outcome.world.ended.tolist() == [end, end + 100.0]
