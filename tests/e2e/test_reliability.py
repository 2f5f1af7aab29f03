"""One seed of the rows of `make chaos` that cost least, on two gangs that train beside each other."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

import pytest
from hack.chaos import journal
from hack.chaos.measure import Losses, compare
from hack.chaos.recipe import Recipe
from hack.chaos.rows import REFERENCE_STEPS, ROWS
from hack.chaos.run import Struck, strike
from hack.chaos.stage import Stage
from hack.demo.kube import Json, Kube

if TYPE_CHECKING:
    from conftest import World

SEED = 1
GANG = Recipe(steps=100_000, pace=0.1, spec={"hang": {"step": "15s"}, "restart": {"limit": 2}})
"""It trains until it is deleted. Two of its faults at most are the script's."""
FAULTS = {
    "steady": ("operator-sigkill", "rank-sigkill", "rank-exception"),
    "shaken": ("rank-sigstop", "launcher-sigkill", "pod-deleted"),
}
"""Gang -> the rows that meet it, one after the other. A hang needs no operator: the first two of them come together,
the others when both are over."""


def background(world: World) -> list[Json]:
    return [stage_of(world).reference_document(REFERENCE_STEPS)]


def stage_of(world: World) -> Stage:
    return Stage(Kube(world.kube.cluster), world.namespace, world.bucket, version="e2e")


@pytest.fixture(scope="module")
def struck(world: World) -> Mapping[str, Struck]:
    """Row -> what came of it."""
    both = threading.Barrier(len(FAULTS), timeout=300)

    def meet(gang: str) -> dict[str, Struck]:
        stage, dice = stage_of(world), random.Random(f"{gang}/{SEED}")
        stage.start(gang, GANG)
        found = {}
        for place, row in enumerate(FAULTS[gang]):
            stage.until_stepped(gang, journal.highest(stage.lines(gang)) + dice.randrange(15, 35))
            found[row] = strike(stage, gang, ROWS[row], dice)
            if place == 0:
                both.wait()
        return found

    with ThreadPoolExecutor(len(FAULTS)) as pool:
        gangs = list(pool.map(meet, FAULTS))
    return {row: result for gang in gangs for row, result in gang.items()}


@pytest.mark.parametrize("row", ["rank-sigkill", "rank-exception", "rank-sigstop"])
def test_a_rank_that_falls_or_hangs_starts_again_in_the_pods_that_are_there(
    struck: Mapping[str, Struck], row: str
) -> None:
    assert struck[row].recovery.ended
    assert struck[row].recovery.resumed > 0, "it began anew"
    assert struck[row].new_pods == 0


def test_a_pod_whose_launcher_is_killed_is_replaced_alone(struck: Mapping[str, Struck]) -> None:
    assert struck["launcher-sigkill"].recovery.ended
    assert struck["launcher-sigkill"].recovery.resumed > 0, "it began anew"
    assert struck["launcher-sigkill"].new_pods == 1


def test_a_gang_that_loses_a_pod_by_kubectl_delete_loses_no_step(struck: Mapping[str, Struck]) -> None:
    assert struck["pod-deleted"].recovery.ended
    assert struck["pod-deleted"].recovery.steps_lost == 0


def test_a_gang_trains_on_when_the_operator_is_killed(struck: Mapping[str, Struck]) -> None:
    assert not struck["operator-sigkill"].recovery.ended
    assert struck["operator-sigkill"].new_pods == 0


def test_the_status_counts_what_happened_and_what_is_not_the_scripts_fault(
    struck: Mapping[str, Struck], world: World
) -> None:
    assert struck
    counts = {"steady": {"restartsInPlace": 2}, "shaken": {"restartsInPlace": 1, "replacements": 1, "breakdowns": 1}}
    for gang, wanted in counts.items():

        def told(job: Json, wanted: Mapping[str, int] = wanted) -> bool:
            return wanted.items() <= job["status"].items()

        job = world.until(gang, f"tells {wanted}", told, 60)
        assert not job["status"].get("failures", 0) > wanted["restartsInPlace"]


@pytest.mark.parametrize("gang", FAULTS)
def test_each_second_since_a_gang_was_submitted_belongs_to_one_part(
    struck: Mapping[str, Struck], world: World, gang: str
) -> None:
    assert struck
    job = stage_of(world).job(gang)
    goodput = job["status"]["goodput"]
    told = datetime.fromisoformat(goodput["until"]) - datetime.fromisoformat(job["metadata"]["creationTimestamp"])
    assert sum(goodput["seconds"].values()) == told.total_seconds()
    assert goodput["seconds"]["training"] > 0


@pytest.mark.parametrize("gang", FAULTS)
def test_the_losses_have_the_bits_of_a_run_without_faults(
    struck: Mapping[str, Struck], world: World, gang: str
) -> None:
    stage = stage_of(world)
    assert struck
    lines = settled(stage.lines(gang))
    reference = stage.reference(REFERENCE_STEPS)
    assert compare(lines, reference, journal.highest(lines) + 1) == (Losses.BITWISE, "")
    world.delete(gang, "--wait=false")


def settled(lines: Sequence[journal.Line]) -> tuple[journal.Line, ...]:
    """The lines of the steps that all ranks have done, as far as the run without faults goes."""
    done = min(journal.highest(line for line in lines if line.rank == rank) for rank in (0, 1))
    return tuple(line for line in lines if line.step <= min(done, REFERENCE_STEPS - 1))
