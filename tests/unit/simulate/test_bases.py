"""Gangs with a safe base: their first workers on one kind of nodes, those beyond on another that is taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster.scheduling.plan import Plan
from muster.simulate import cluster as clusters
from muster.simulate import trace as traces
from muster.simulate.cluster import ClusterFile, build
from muster.simulate.engine import Outcome, simulate
from muster.simulate.errors import SimulationError
from muster.simulate.planned import Planned
from muster.simulate.policies import policy_named
from muster.simulate.workload import Workload, assemble
from muster.simulate.world import World

from .samples import CALM, Scripted, admit, trace

pytestmark = pytest.mark.unit

COSTS = {"checkpoint": 600, "grace": 20, "restart": 30, "unsaved": 0}
HOUR = 3600.0
GANG = {"gpus": 32, "duration": 10 * HOUR, "min": 16, "max": 48, "base": "on-demand", "capacity": "spot"}
"""Workers of 8 GPUs: two are the base, two more are wished, four there may be."""
EXAMPLES = Path(__file__).parents[3] / "examples" / "simulator"


def mixed(*jobs: dict[str, Any], sure: int = 4, spot: int = 4, **more: Any) -> Workload:
    """On-demand nodes first, then spot nodes."""
    kinds = [{"count": sure, "nodesPerRack": 2}, {"count": spot, "capacity": "spot", "nodesPerRack": 2}]
    file = {"nodes": kinds, "faults": CALM, "costs": COSTS, **more}
    return assemble(build(ClusterFile.model_validate(file)), trace(*jobs))


class Watched:
    """The planner, with the nodes of each placement that it has made."""

    def __init__(self, policy: Planned) -> None:
        self._policy, self.name, self.replaces = policy, policy.name, policy.replaces
        self.placed: list[tuple[str, list[int], int]] = []

    def decide(self, world: World, now: float) -> Plan:
        made = self._policy.decide(world, now)
        self.placed += [(each.uid, each.nodes.tolist(), each.base) for each in made.admissions]
        return made

    def reasons(self, world: World, now: float) -> dict[int, str]:
        return self._policy.reasons(world, now)


def run(work: Workload, policy: str = "muster", seed: int = 1) -> tuple[Outcome, list[list[int]]]:
    """The outcome, and the nodes of each placement of the first job."""
    planner = policy_named(policy, work)
    assert isinstance(planner, Planned)
    watched = Watched(planner)
    outcome = simulate(work, watched, seed=seed, interval=10)
    np.testing.assert_array_equal(outcome.world.free, work.cluster.allocatable)
    return outcome, [nodes for uid, nodes, _ in watched.placed if uid == work.uids[0]]


def test_a_gang_starts_on_its_base_with_what_it_wishes_beyond_it_and_grows_there_later() -> None:
    outcome, placed = run(mixed(GANG))
    assert [[node >= 4 for node in nodes] for nodes in placed] == [
        [False, False, True, True],
        [False, False, True, True, True, True],
    ]
    assert outcome.world.runs.gpus == [32, 48]
    assert outcome.world.ended[0] < 10 * HOUR, "half as many again work half as fast again"


@pytest.mark.parametrize(("sure", "spot", "workers"), [(2, 1, 3), (3, 4, 4), (2, 2, 4)])
def test_it_starts_with_what_there_is_beyond_its_base(sure: int, spot: int, workers: int) -> None:
    _, placed = run(mixed(GANG, sure=sure, spot=spot))
    assert len(placed[0]) == workers


def test_it_waits_for_its_base_whatever_spot_nodes_are_free() -> None:
    outcome, _ = run(mixed({**GANG, "submit": 10}, {"gpus": 24, "duration": HOUR, "capacity": "on-demand"}, sure=3))
    assert outcome.world.first_start.tolist() == [0, HOUR]


def test_each_part_draws_on_the_quota_of_its_kind() -> None:
    queues = [{"name": "research", "gpus": {"H100/on-demand": 16, "H100/spot": 8}}]
    outcome, placed = run(mixed(GANG, queues=queues))
    assert [len(nodes) for nodes in placed] == [3], "there is quota for one worker beyond the base"
    short = [{"name": "research", "gpus": {"H100/on-demand": 8, "H100/spot": 800}}]
    never, _ = run(mixed(GANG, queues=short))
    assert [job for job, _ in never.never] == [0]
    assert outcome.never == ()


@pytest.mark.parametrize("seed", range(1, 6))
def test_who_takes_spot_nodes_back_leaves_the_base_alone(seed: int) -> None:
    """A gang of the same sizes on spot nodes alone is stopped by reclaims, too, and waits for nodes."""
    faults = {"failures": 0, "reclaims": 4_000, "absence": 4 * HOUR}
    work = mixed({**GANG, "duration": 40 * HOUR}, faults=faults)
    outcome, placed = run(work, seed=seed)
    assert all(node < 4 for nodes in placed for node in nodes[:2]), "the base"
    assert all(node >= 4 for nodes in placed for node in nodes[2:])
    assert all(nodes[:2] == placed[0][:2] for nodes in placed), "it stays where it is"
    assert min(outcome.world.runs.gpus) >= 16
    assert len(set(outcome.world.runs.gpus)) > 1, "it has had several sizes"
    assert outcome.world.queued[0] <= 60 * len(placed), "it is never without nodes for longer than a stop takes"
    assert outcome.never == ()


def test_a_job_that_ranks_before_it_gets_what_is_beyond_the_base() -> None:
    urgent = {"submit": 1000, "gpus": 24, "duration": HOUR, "priority": 1, "capacity": "spot"}
    outcome, placed = run(mixed(GANG, urgent))
    assert [len(nodes) for nodes in placed] == [4, 6, 3, 6], "it leaves its base alone"
    assert outcome.world.queued[1] <= 40
    sure = {**urgent, "capacity": "on-demand"}
    ended, placed = run(mixed(GANG, sure))
    assert ended.world.queued[0] >= HOUR - 60, "one that asks for the base's nodes ends the gang"


def test_one_domain_holds_both_parts_where_it_is_required() -> None:
    kinds = [{"count": 2, "nodesPerRack": 2}, {"count": 2, "capacity": "spot", "nodesPerRack": 2}]
    file = ClusterFile.model_validate({"nodes": kinds, "faults": CALM, "costs": COSTS})
    for level, beyond in (("required:rack", 0), ("preferred:rack", 2)):
        _, placed = run(assemble(build(file), trace({**GANG, "topology": level})))
        assert len(placed[0]) == 2 + beyond, "racks hold nodes of one kind alone"


def test_fifo_and_easy_put_all_of_it_on_the_bases_kind() -> None:
    work = mixed(GANG)
    for policy in ("fifo", "easy"):
        outcome = simulate(work, policy_named(policy, work))
        assert outcome.world.ended.tolist() == [10 * HOUR]


def test_a_base_on_nodes_of_another_kind_is_the_policys_bug() -> None:
    work = mixed(GANG)
    with pytest.raises(SimulationError, match="on nodes of another kind"):
        simulate(work, Scripted(Plan((admit(work, 0, 0, 4, 5, 6),), ())))


def read(tmp_path: Path, *lines: str) -> traces.Trace:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(("submit,gpus,duration,queue,min,max,capacity,base", *lines, "")))
    return traces.read(path)


def test_bases_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = read(tmp_path, "0,32,100,q,16,48,spot,On-Demand", "0,8,100,q,,,spot,", "0,32,100,q,8,,reserved,spot")
    assert found.base is not None
    assert found.base.tolist() == [0, -1, 2]
    traces.write(found, tmp_path / "again.csv")
    np.testing.assert_array_equal(traces.read(tmp_path / "again.csv").base, found.base)
    assert read(tmp_path, "0,8,100,q,,,spot,").base is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0,32,100,q,,,spot,on-demand", "base is of elastic jobs: give min below gpus or max"),
        ("0,32,100,q,16,48,,on-demand", "base needs the one kind of the GPUs beyond it: name it in capacity"),
        ("0,32,100,q,16,48,spot|reserved,on-demand", "base needs the one kind of the GPUs beyond it"),
        ("0,32,100,q,16,48,spot,spot", "base must be another kind than that of the GPUs beyond it, spot"),
        ("0,32,100,q,16,48,spot,cheap", "base must be on-demand or reserved or spot, not 'cheap'"),
    ],
)
def test_a_base_that_no_job_could_have_is_refused_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(SimulationError, match=r"line 2: ") as error:
        read(tmp_path, line)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("spot", r"its base asks for H100/on-demand, which no node has; there are H100/spot"),
        ("on-demand", r"asks for H100/spot, which no node of the cluster has"),
    ],
)
def test_a_kind_of_nodes_that_there_is_not_is_refused(kind: str, problem: str) -> None:
    with pytest.raises(SimulationError, match=problem):
        assemble(build(ClusterFile.model_validate({"nodes": [{"count": 4, "capacity": kind}]})), trace(GANG))


def test_the_example_runs_and_its_gangs_keep_their_bases() -> None:
    work = assemble(clusters.read(EXAMPLES / "spot.yaml"), traces.read(EXAMPLES / "spot.csv"))
    outcome, placed = run(work)
    assert outcome.never == ()
    assert all(node < 32 for nodes in placed for node in nodes[:4])
    assert len({len(nodes) for nodes in placed}) > 1
