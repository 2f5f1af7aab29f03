"""Gangs start whole, where there is room, or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from muster.scheduling.plan import WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import Levels

from .cases import Job, Node, Outcome, Queue, rack, snapshot

pytestmark = pytest.mark.unit


def planned(nodes: list[Node], *jobs: Job, queues: tuple[Queue, ...] = (Queue(),)) -> Outcome:
    shot = snapshot(nodes, jobs, queues)
    return Outcome(shot, plan(shot))


def test_gang_that_fits_starts_whole() -> None:
    outcome = planned(rack(0, 4), Job("a", workers=4))
    assert sorted(outcome.nodes("a")) == [f"rack-0-host-{host}" for host in range(4)]


def test_gang_with_room_for_all_but_one_does_not_start() -> None:
    outcome = planned(rack(0, 3), *[Job("a", workers=4)])
    assert not outcome.admitted
    assert outcome.waiting["a"].reason is WaitReason.EXCEEDS_CLUSTER


def test_two_gangs_that_each_need_the_whole_cluster_go_one_after_the_other() -> None:
    outcome = planned(rack(0, 4), Job("late", workers=4, submitted=2), Job("early", workers=4, submitted=1))
    assert list(outcome.admitted) == ["early"]
    assert outcome.waiting["late"].reason is WaitReason.INSUFFICIENT_CAPACITY


def test_several_workers_share_a_node() -> None:
    outcome = planned(rack(0, 2), Job("a", workers=4, gpus=2))
    assert outcome.nodes("a") == ["rack-0-host-0"] * 4


def test_workers_with_a_host_port_never_share_a_node() -> None:
    outcome = planned(rack(0, 2), Job("a", workers=2, gpus=1, port=True))
    assert sorted(outcome.nodes("a")) == ["rack-0-host-0", "rack-0-host-1"]


def test_room_for_pods_counts() -> None:
    outcome = planned([Node("small", pods=1), Node("other", pods=1)], Job("a", workers=2, gpus=1))
    assert sorted(outcome.nodes("a")) == ["other", "small"]


def test_overdrawn_node_takes_nothing_that_it_lacks_but_what_it_has() -> None:
    overdrawn = Node("overdrawn", used_gpus=9)
    assert not planned([overdrawn], Job("gpu", gpus=1)).admitted
    assert planned([overdrawn], Job("cpu", gpus=0)).nodes("cpu") == ["overdrawn"]


def test_cordoned_node_takes_nothing() -> None:
    outcome = planned([Node("cordoned", usable=False), Node("ready")], Job("a"), Job("b", submitted=1))
    assert outcome.nodes("a") == ["ready"]
    assert "b" in outcome.waiting


def test_unconstrained_jobs_leave_whole_nodes_free() -> None:
    nodes = [Node("whole-0"), Node("broken-0", used_gpus=5), Node("broken-1", used_gpus=6), Node("whole-1")]
    outcome = planned(nodes, Job("a", workers=4, gpus=1))
    assert set(outcome.nodes("a")) == {"broken-0", "broken-1"}


def test_unconstrained_job_breaks_into_one_node_only_when_the_broken_ones_are_too_small() -> None:
    nodes = [Node("whole-0"), Node("broken", used_gpus=5), Node("whole-1")]
    outcome = planned(nodes, Job("a", workers=8, gpus=1))
    assert set(outcome.nodes("a")) == {"whole-0"}
    outcome = planned(nodes, Job("a", workers=10, gpus=1))
    assert set(outcome.nodes("a")) == {"broken", "whole-0"}


@pytest.mark.parametrize("closeness", [{}, {"preferred": "host"}, {"required": "rack"}])
def test_workers_without_accelerators_leave_the_gpu_nodes_alone(closeness: dict[str, str]) -> None:
    nodes = [Node("gpu-0"), Node("cpu", gpus=0), Node("gpu-full", used_gpus=8, used_cores=60), Node("gpu-1")]
    outcome = planned(nodes, Job("a", workers=4, gpus=0, cores=8, **closeness))
    assert set(outcome.nodes("a")) == {"cpu"}


def test_workers_without_accelerators_take_gpu_nodes_when_nothing_else_is_left() -> None:
    outcome = planned([Node("gpu"), Node("cpu", gpus=0, cores=8)], Job("a", workers=4, gpus=0, cores=4))
    assert sorted(outcome.nodes("a")) == ["cpu", "cpu", "gpu", "gpu"]


def test_empty_cluster_and_no_jobs_make_an_empty_plan() -> None:
    shot = snapshot([], [])
    assert plan(shot).admissions == ()
    assert plan(shot).waiting == ()


def test_job_in_a_cluster_without_nodes_waits_with_a_reason() -> None:
    waiting = planned([], Job("a")).waiting["a"]
    assert waiting.reason is WaitReason.NO_ELIGIBLE_NODES
    assert waiting.message == "the cluster has no nodes"


def test_cluster_without_topology_is_planned_all_the_same() -> None:
    shot = snapshot(rack(0, 2), [Job("a", workers=2), Job("near", preferred="aisle", submitted=1)])
    nodes = replace(shot.nodes, domains=np.empty((2, 0), dtype=np.int32))
    bare = replace(shot, levels=Levels((), ()), nodes=nodes)
    outcome = Outcome(bare, plan(bare))
    assert sorted(outcome.nodes("a")) == ["rack-0-host-0", "rack-0-host-1"]
    assert outcome.waiting["near"].reason is WaitReason.INSUFFICIENT_CAPACITY


def test_what_is_fixed_on_the_nodes_may_be_unknown() -> None:
    shot = snapshot(rack(0, 2), [Job("a", workers=3)])
    unknown = replace(shot, nodes=replace(shot.nodes, fixed=None))
    assert Outcome(unknown, plan(unknown)).waiting["a"].reason is WaitReason.EXCEEDS_CLUSTER


def test_memory_of_a_large_cluster_does_not_wrap_round() -> None:
    nodes = [Node(f"node-{index:03}", gib=2**20) for index in range(64)]
    outcome = planned(nodes, Job("a", workers=64, gib=2**20), Job("b", workers=65, gib=2**20))
    assert len(outcome.nodes("a")) == 64
    assert outcome.waiting["b"].reason is WaitReason.EXCEEDS_CLUSTER
