"""Gangs start close together: the smallest domain that holds them, and ranks in the order of the tree."""

from __future__ import annotations

import pytest

from muster.scheduling.plan import WaitReason
from muster.scheduling.planner import plan

from .cases import Job, Node, Outcome, rack, snapshot

pytestmark = pytest.mark.unit


def planned(nodes: list[Node], *jobs: Job) -> Outcome:
    shot = snapshot(nodes, jobs)
    return Outcome(shot, plan(shot))


def racks_of(outcome: Outcome, uid: str) -> list[str]:
    return [name.rpartition("-host-")[0] for name in outcome.nodes(uid)]


def test_required_rack_holds_the_whole_gang() -> None:
    outcome = planned(rack(0, 2) + rack(1, 4) + rack(2, 3), Job("a", workers=4, required="rack"))
    assert set(racks_of(outcome, "a")) == {"rack-1"}


def test_tightest_rack_is_chosen_and_the_large_one_stays_whole() -> None:
    outcome = planned(rack(0, 8) + rack(1, 3) + rack(2, 5), Job("a", workers=3, required="rack"))
    assert set(racks_of(outcome, "a")) == {"rack-1"}


def test_among_equal_racks_the_one_in_the_fuller_block_is_chosen() -> None:
    nodes = rack(0, 2, block="wide") + rack(1, 2, block="wide") + rack(2, 2, block="narrow")
    outcome = planned(nodes, Job("a", workers=2, required="rack"))
    assert set(racks_of(outcome, "a")) == {"rack-2"}


def test_required_rack_is_not_broken_when_only_the_cluster_has_room() -> None:
    outcome = planned(rack(0, 3) + rack(1, 4, used_gpus=1) + rack(2, 3), Job("a", workers=4, required="rack"))
    assert outcome.waiting["a"].reason is WaitReason.TOPOLOGY_UNSATISFIED


def test_preferred_rack_climbs_to_the_block() -> None:
    nodes = rack(0, 3, block="east") + rack(1, 3, block="west") + rack(2, 2, block="west")
    outcome = planned(nodes, Job("a", workers=5, preferred="rack"))
    assert racks_of(outcome, "a") == ["rack-1"] * 3 + ["rack-2"] * 2


def test_preferred_rack_climbs_to_the_whole_cluster() -> None:
    nodes = rack(0, 3, block="east") + rack(1, 3, block="west")
    outcome = planned(nodes, Job("a", workers=5, preferred="rack"))
    assert racks_of(outcome, "a") == ["rack-0"] * 3 + ["rack-1"] * 2


def test_required_block_still_packs_into_one_rack() -> None:
    nodes = rack(0, 2) + rack(1, 4) + rack(2, 2)
    outcome = planned(nodes, Job("a", workers=4, required="block"))
    assert set(racks_of(outcome, "a")) == {"rack-1"}


def test_one_rack_of_a_large_block_goes_before_two_racks_of_a_tight_one() -> None:
    nodes = (
        rack(0, 2, block="tight") + rack(1, 2, block="tight") + rack(2, 4, block="large") + rack(3, 4, block="large")
    )
    outcome = planned(nodes, Job("a", workers=4, required="block"))
    assert set(racks_of(outcome, "a")) == {"rack-2"}


def test_gang_over_several_racks_fills_few_and_puts_the_rest_in_the_tightest() -> None:
    nodes = rack(0, 2) + rack(1, 6) + rack(2, 3) + rack(3, 5)
    outcome = planned(nodes, Job("a", workers=8, required="block"))
    assert racks_of(outcome, "a") == ["rack-0"] * 2 + ["rack-1"] * 6


def test_ranks_that_are_neighbours_share_the_node() -> None:
    nodes = rack(0, 2) + rack(1, 2)
    outcome = planned(nodes[::-1], Job("a", workers=8, gpus=4, preferred="rack"))
    hosts = outcome.nodes("a")
    assert hosts == sorted(hosts)
    assert all(hosts[rank] == hosts[rank + 1] for rank in range(0, 8, 2))


def test_nodes_without_the_label_belong_to_no_rack() -> None:
    nodes = [Node(f"loose-{index}", rack=None) for index in range(4)] + rack(0, 2)
    outcome = planned(nodes, Job("a", workers=4, required="rack"))
    assert outcome.waiting["a"].reason is WaitReason.EXCEEDS_CLUSTER


def test_nodes_without_the_label_are_the_last_resort_of_preferred() -> None:
    nodes = [Node(f"loose-{index}", block=None, rack=None) for index in range(4)] + rack(0, 2)
    assert set(racks_of(planned(nodes, Job("a", workers=2, preferred="rack")), "a")) == {"rack-0"}
    assert racks_of(planned(nodes, Job("a", workers=3, preferred="rack")), "a").count("rack-0") == 2


def test_racks_of_one_name_in_two_blocks_are_two_racks() -> None:
    nodes = [Node("a", block="east", rack="rack"), Node("b", block="west", rack="rack")]
    outcome = planned(nodes, Job("a", workers=2, required="rack"))
    assert outcome.waiting["a"].reason is WaitReason.EXCEEDS_CLUSTER


def test_required_host_puts_all_workers_on_one_node() -> None:
    outcome = planned(rack(0, 2, used_gpus=1) + rack(1, 1), Job("a", workers=4, gpus=2, required="host"))
    assert outcome.nodes("a") == ["rack-1-host-0"] * 4
