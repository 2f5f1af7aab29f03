"""The cluster file, and the planner's queues from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from muster.scheduling.snapshot import NONE, UNLIMITED, Preempts
from muster.simulate import cluster as clusters
from muster.simulate.cluster import GPU, ClusterFile, build, queue_shares
from muster.simulate.errors import SimulationError
from muster.simulate.shares import Usage, half_lives, planner_queues
from muster.simulate.workload import assemble

from .samples import cluster, trace

pytestmark = pytest.mark.unit

TWO_KINDS = {
    "nodes": [
        {"count": 5, "nodesPerRack": 2, "racksPerBlock": 2},
        {"count": 2, "gpus": 4, "gpuType": "A100", "capacity": "spot", "nodesPerRack": 2},
    ],
    "queues": [
        {"name": "research", "gpus": {"H100/on-demand": 30, "A100/spot": 4}, "cohort": "all", "weight": 2},
        {"name": "other", "gpus": 10, "cohort": "all", "borrowingLimit": 3, "lendingLimit": 0},
        {"name": "alone", "gpus": 5},
    ],
}


def test_racks_and_blocks_are_filled_in_order_and_hold_one_group() -> None:
    built = build(ClusterFile.model_validate(TWO_KINDS))
    assert built.domains[:, 1].tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert built.domains[:, 0].tolist() == [0, 0, 0, 0, 1, 2, 2]
    assert built.flavours == ("", "H100/on-demand", "A100/spot")
    assert built.gpus_of_flavours.tolist() == [0, 40, 8]
    assert [len(names) for names in built.levels.domain_names] == [3, 4, 7]


def test_queues_become_the_planners() -> None:
    built = build(ClusterFile.model_validate(TWO_KINDS))
    queues = planner_queues(built, queue_shares(built, ["research"]))
    assert queues.names == ("research", "other", "alone", "all")
    assert queues.parents.tolist() == [3, 3, NONE, NONE]
    assert queues.nominal[:, 1:, GPU].tolist() == [[30, 4], [10, 0], [5, 0], [0, 0]]
    assert queues.borrowing[:2, 1, GPU].tolist() == [UNLIMITED, 3]
    assert queues.lending[:2, 1, GPU].tolist() == [UNLIMITED, 0]
    assert queues.weights.tolist() == [2, 1, 1, 1]


def test_without_queues_each_gets_the_same_share() -> None:
    shares = queue_shares(cluster(4), ["a", "b"])
    assert [(share.name, share.gpus, share.cohort) for share in shares] == [
        ("a", {"H100/on-demand": 16}, "all"),
        ("b", {"H100/on-demand": 16}, "all"),
    ]


def test_shares_that_are_not_whole_add_up_to_the_cluster() -> None:
    shares = queue_shares(cluster(2), ["a", "b", "c"])
    assert [share.gpus for share in shares] == [{"H100/on-demand": gpus} for gpus in (6, 5, 5)]


def test_use_counts_half_after_its_half_life() -> None:
    built = cluster(2)
    day, week = 86_400.0, 7 * 86_400.0
    usage = Usage(built, np.array([1, 2, NONE], dtype=np.int32), [day, day, week])
    using, idle = np.array([[0, 8], [0, 0], [0, 0]]), np.zeros((3, 2), dtype=np.int64)
    assert usage.until(0, using).tolist() == [0, 0, 0]
    above = 0.5 * (1 - 0.5 ** (1 / 7))
    assert usage.until(day, idle).tolist() == pytest.approx([0.25, 0.25, above])
    assert usage.until(2 * day, idle).tolist() == pytest.approx([0.125, 0.125, above * 0.5 ** (1 / 7)])


def test_a_half_life_is_the_operators_unless_the_queue_or_the_file_says_another() -> None:
    queues = [{"name": "a", "gpus": 8, "cohort": "all"}, {"name": "b", "gpus": 8, "halfLife": 60}]
    for said, week in (({}, 7 * 86_400.0), ({"halfLife": 30}, 30.0)):
        built = cluster(2, queues=queues, **said)
        assert half_lives(built, queue_shares(built, ["a"]), 3) == (week, 60.0, week)


TREE = [
    {"name": "all", "gpus": 0, "maxPriority": 5},
    {"name": "vision", "gpus": 8, "parent": "all", "preemption": {"reclaim": "lowerPriority", "withinQueue": "never"}},
    {"name": "speech", "gpus": 8, "parent": "all", "maxPriority": 9, "preemption": {"whenBorrowing": "lowerPriority"}},
]


def test_a_tree_of_queues_becomes_the_planners() -> None:
    built = cluster(2, queues=TREE)
    queues = planner_queues(built, queue_shares(built, ["vision"]))
    assert queues.parents.tolist() == [NONE, 0, 0]
    assert queues.priorities_max.tolist() == [5, 5, 5]
    assert queues.within.tolist() == [Preempts.LOWER_PRIORITY, Preempts.NEVER, Preempts.LOWER_PRIORITY]
    assert queues.reclaim.tolist() == [Preempts.ANY, Preempts.LOWER_PRIORITY, Preempts.ANY]
    assert queues.borrower.tolist() == [Preempts.NEVER, Preempts.NEVER, Preempts.LOWER_PRIORITY]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"parent": "al"}, r"queue late has the parent al; .*all"),
        ({"parent": "late"}, r"in a circle \(late -> late\); take one of them out"),
        ({"parent": "all", "cohort": "x"}, "queue late has a parent and a cohort; a queue has one place: keep one"),
    ],
)
def test_parents_that_are_no_tree_are_refused(more: dict[str, str], told: str) -> None:
    built = cluster(2, queues=[*TREE, {"name": "late", "gpus": 1, **more}])
    with pytest.raises(SimulationError, match=told):
        queue_shares(built, ["vision"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must name the nodes"),
        ("nodes: []", "nodes: at least one entry is needed"),
        ("nodes: [{count: 0}]", "nodes.0.count"),
        ("nodes: [{cuont: 3}]", r"nodes.0.cuont: there is no such field \(did you mean count\?\); docs/simulator.md"),
        ("nodes: [{count: 1, nodesPerRak: 3}]", r"no such field \(did you mean nodesPerRack\?\)"),
        ("nods: [{count: 1}]", r"nods: there is no such field \(did you mean nodes\?\)"),
        ("{nodes: [{count: 1}], costs: {restarts: 9}}", r"costs.restarts: there is no such .* mean restart\?"),
        ("nodes: [{count: 1, colour: red}]", "nodes.0.colour: there is no such field"),
        ("nodes: [{count: 1, capacity: free}]", "'on-demand', 'reserved' or 'spot'"),
        ("{nodes: [{count: 1}], halfLife: 0}", "halfLife: it must be above 0, not 0;"),
        (
            "nodes: [{count: 1}]\nqueues: [{name: a, gpus: 1, preemption: {recliam: any}}]",
            r"queues.0.preemption.recliam: there is no such field \(did you mean reclaim\?\)",
        ),
        (
            "nodes: [{count: 1}]\nqueues: [{name: a, gpus: 1, preemption: {withinQueue: any}}]",
            "queues.0.preemption.withinQueue: it must be 'never' or 'lowerPriority', not 'any';",
        ),
        ("{nodes: [{count: 1}], fallbackAfter: -1}", "fallbackAfter: it must be at least 0, not -1;"),
        ("{nodes: [{count: 1}], windows: {late: 3}}", "windows.late: it must be fields with values"),
        (
            "{nodes: [{count: 1}], windows: {late: {start: at ten, duration: 60}}}",
            "windows.late: start: 'at ten' is no cron expression: .*; write minute, hour, day of month, month",
        ),
        (
            "{nodes: [{count: 1}], windows: {late: {start: 0 0 31 2 *, duration: 60}}}",
            "windows.late: start: '0 0 31 2 .' never comes; name a day that the calendar has",
        ),
        (
            "{nodes: [{count: 1}], windows: {late: {start: 0 20 * * *, duration: 60, timeZone: Berlin}}}",
            "windows.late: timeZone: there is no time zone 'Berlin'; use a name such as Europe/Berlin",
        ),
        (
            "{nodes: [{count: 1}], windows: {late: {start: 0 20 * * *, duration: 10h}}}",
            "windows.late.duration: it must be a whole number, not '10h';",
        ),
        (
            "{nodes: [{count: 1}], windows: {late: {start: 0 20 * * *, duration: 60, atEnd: kill}}}",
            "windows.late.atEnd: it must be 'stop' or 'finish', not 'kill';",
        ),
        (
            "{nodes: [{count: 1}], windows: {late: {start: 0 20 * * *, duration: 60, atend: stop}}}",
            r"windows.late.atend: there is no such field \(did you mean atEnd\?\)",
        ),
        ("{nodes: [{count: 1}], begins: now}", "begins: it must be a moment like 2026-01-05T00:00:00Z, not 'now';"),
        ("{nodes: [{count: 1}], begins: 1066-10-14}", "begins: it must be between 1970 and 2100, not in 1066"),
        ("nodes: [", "is not YAML"),
        ("nodes: 3", "nodes: it must be a list, each entry on a line behind '- ', not 3;"),
        ("nodes: [8]", r"nodes.0: it must be fields with values, like {count: 64, gpus: 8}, not 8;"),
        ("nodes: [{count: many}]", "nodes.0.count: it must be a whole number, not 'many';"),
        ("nodes: [{count: 2.5}]", "nodes.0.count: it must be a whole number, not 2.5;"),
        ("nodes: [{count: 1000000}]", "nodes.0.count: it must be at most 100,000, not 1000000;"),
        ("nodes: [{count: 1, gpuType: H100/spot}]", "nodes.0.gpuType: it must be a short name such as H100, without"),
        (
            "nodes: [{count: 1, gpuType: 4090}]",
            "nodes.0.gpuType: it must be text: put it into quotation marks, not 4090",
        ),
        ("nodes: [{count: 1}]\nqueues: [{name: a, gpus: -1}]", "queues.0.gpus: it must be at least 0, not -1;"),
        ("nodes: [{count: 1}]\nqueues: [{name: a, gpus: {H100: x}}]", "queues.0.gpus.H100: it must be a whole number,"),
        ("nodes: [{count: 1}]\nqueues: [{name: a, gpus: 1, weight: 0}]", "queues.0.weight: it must be above 0, not 0;"),
        ("nodes: [{count: 1}]\norder: fifo", "order: it must be 'submitTime' or 'shortestExpected', not 'fifo';"),
        ("nodes: [{count: 1}]\nbegins: 2026-02-30T00:00:00Z", "line 2: there is no date 2026-02-30T00:00:00Z: "),
        ("nodes: [{count: 1}]\nnodes: [{count: 2}]", "line 2: 'nodes' stands in line 1 already; leave one of them"),
        (
            "{nodes: [{count: 1}], windows: {late: {start: 0 0 20 * * *, duration: 60}}}",
            "windows.late: start: '0 0 20 . . .' is no cron expression: Wrong number of fields",
        ),
        ("nodes: [{count: 1}]\nfaults: {failures: 1.0e+9}", "faults.failures: it must be at most 1,000,000, not "),
        ("nodes: [{count: 1}]\nfaults: {absence: 0.001}", "faults.absence: it must be at least 1, not 0.001;"),
        ("nodes: [{count: 1}]\nfaults: {failures: .inf}", "faults.failures: it must be a number, not inf;"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(SimulationError, match=told):
        clusters.read(path)


def test_a_file_in_another_encoding_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes:\n- {count: 4}\n# caf\u00e9\n", encoding="latin-1")
    with pytest.raises(SimulationError, match=r"cluster.yaml, line 3: it is not in UTF-8; save it in UTF-8$"):
        clusters.read(path)


def test_the_example_is_a_cluster() -> None:
    example = Path(__file__).parents[3] / "examples" / "simulator" / "cluster.yaml"
    assert clusters.read(example).gpus.sum() == 512


def test_the_page_shows_a_file_that_is_read_and_the_defaults() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text()
    shown = ClusterFile.model_validate(yaml.safe_load(page.split("```yaml\n")[1].split("```")[0]))
    plain = ClusterFile.model_validate({"nodes": [{"count": shown.nodes[0].count}]})
    for field in ("nodes", "half_life", "fallback_after", "order", "costs", "faults"):
        assert getattr(shown, field) == getattr(plain, field), field


def test_a_queue_that_the_file_lacks_is_named() -> None:
    built = build(ClusterFile.model_validate(TWO_KINDS))
    with pytest.raises(SimulationError, match=r"queue vision is not among .* \(alone, other, research\)"):
        queue_shares(built, ["vision"])


def test_a_queue_that_is_there_twice_is_named() -> None:
    built = cluster(1, queues=[{"name": "research", "gpus": 8}, {"name": "research", "gpus": 4}])
    with pytest.raises(SimulationError, match="more than one queue research; leave one of them"):
        queue_shares(built, ["research"])


def test_a_flavour_that_no_node_has_is_named() -> None:
    built = cluster(1, queues=[{"name": "research", "gpus": {"B200/spot": 1}}])
    with pytest.raises(SimulationError, match="B200/spot, which no node has; name H100/on-demand"):
        queue_shares(built, ["research"])


@pytest.mark.parametrize(
    ("gpus", "workers", "each"), [(1, 1, 1), (8, 1, 8), (9, 2, 5), (12, 2, 6), (16, 2, 8), (64, 8, 8)]
)
def test_gpus_are_spread_over_workers_of_equal_size(gpus: int, workers: int, each: int) -> None:
    work = assemble(cluster(8), trace({"gpus": gpus}))
    assert (work.workers[0], work.each[0]) == (workers, each)
    assert work.requests[0, GPU] == each
