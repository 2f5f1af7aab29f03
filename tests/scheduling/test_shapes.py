"""Slices, balance and spares through the whole planner: where such gangs start, and what they are told when not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from muster.scheduling.gangs import Gang
from muster.scheduling.kinds import Kinds
from muster.scheduling.plan import WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import Shape

from .cases import LEVELS, Job, Node, Outcome, rack, snapshot

pytestmark = pytest.mark.unit

BLOCK, RACK = LEVELS.index("block"), LEVELS.index("rack")


def planned(nodes: list[Node], job: Job, **shape: object) -> Outcome:
    shot = snapshot(nodes, [job])
    terms = replace(shot.jobs.terms, shapes=(Shape(**shape),))  # type: ignore[arg-type]
    shot = replace(shot, jobs=replace(shot.jobs, terms=terms))
    return Outcome(shot, plan(shot))


def racks(outcome: Outcome) -> list[str]:
    return [name.partition("-host")[0] for name in outcome.nodes("a")]


def test_each_slice_lies_in_one_rack() -> None:
    nodes = rack(0, 3) + rack(1, 4) + rack(2, 3)
    outcome = planned(nodes, Job("a", workers=6, required="block"), slices=((2, RACK),))
    found = racks(outcome)
    assert len(found) == 6
    assert all(found[at] == found[at + 1] for at in (0, 2, 4))


def test_gang_whose_slices_do_not_fit_is_told_how_many_workers_would() -> None:
    nodes = rack(0, 3) + rack(1, 3) + rack(2, 3, used_gpus=8)
    waiting = planned(nodes, Job("a", workers=6, required="block"), slices=((2, RACK),)).waiting["a"]
    assert waiting.reason is WaitReason.TOPOLOGY_UNSATISFIED
    assert waiting.placeable == 4
    assert waiting.message == (
        "needs 6 workers × 8 nvidia.com/gpu in one block, each 2 of them in one rack; the best block, block-0, has "
        "room for 4; one by one 6 would fit, but not in this shape"
    )


def test_balanced_gang_fills_racks_alike() -> None:
    outcome = planned(rack(0, 5) + rack(1, 3), Job("a", workers=6, required="block"), balanced=RACK)
    assert racks(outcome) == ["rack-0"] * 3 + ["rack-1"] * 3


def test_balanced_gang_that_cannot_be_is_told_so() -> None:
    nodes = rack(0, 5) + rack(1, 3)
    waiting = planned(nodes, Job("a", workers=8, required="block"), balanced=RACK).waiting["a"]
    assert waiting.reason is WaitReason.EXCEEDS_CLUSTER
    assert "as many in each rack as in any other" in waiting.message


def test_an_elastic_balanced_gang_starts_though_its_least_is_never_even() -> None:
    """Five workers are even on no racks of four; eight are."""
    shot = snapshot(rack(0, 4) + rack(1, 4), [Job("a", workers=8)])
    jobs = shot.jobs
    sizes = replace(jobs.sizes, least=jobs.sizes.least - 3, partial=~jobs.sizes.partial)
    terms = replace(jobs.terms, shapes=(Shape(balanced=RACK),))
    shot = replace(shot, jobs=replace(jobs, sizes=sizes, terms=terms))
    assert len(Outcome(shot, plan(shot)).nodes("a")) == 8
    full = replace(shot, nodes=replace(shot.nodes, free=shot.nodes.free * 0))
    waiting = Outcome(full, plan(full)).waiting["a"]
    assert waiting.reason is WaitReason.INSUFFICIENT_CAPACITY, "it waits for those who are there"


def test_of_the_sizes_of_a_balanced_gang_none_is_tried_beyond_the_first_that_is_possible() -> None:
    """There may be hundreds, and it is done in every plan."""
    shot = snapshot(rack(0, 4) + rack(1, 4), [Job("a", workers=8)])
    jobs = shot.jobs
    sizes = replace(jobs.sizes, least=jobs.sizes.least - 6, partial=~jobs.sizes.partial)
    shapes = replace(jobs.terms, shapes=(Shape(balanced=RACK),))
    kinds = Kinds(replace(shot, jobs=replace(jobs, sizes=sizes, terms=shapes)), np.array([0]))
    tried: list[int] = []

    def possible(gang: Gang) -> bool:
        tried.append(gang.size)
        return gang.size in (4, 8)

    kinds.limit_sizes(possible)
    assert (tried, kinds.kinds[0].sizes) == ([2, 3, 4], (8, 7, 6, 5, 4))


def test_spares_start_with_the_gang_and_are_part_of_what_it_needs() -> None:
    job = Job("a", workers=3, required="rack")
    assert len(planned(rack(0, 4), job, spares=1).nodes("a")) == 4
    waiting = planned(rack(0, 3), job, spares=1).waiting["a"]
    assert waiting.message.startswith(
        "needs (3 workers + 1 spare) × 8 nvidia.com/gpu in one rack; the best rack, rack-0"
    )
