"""What would help: a change that a waiting job is told starts it, if it is made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduling.plan import Change, ChangeKind, Waiting
from muster.scheduling.planner import plan
from muster.scheduling.snapshot import Shape, Sizes, Snapshot, TopologyMode

from .cases import Job, Node, Outcome, Queue, rack, snapshot
from .worlds import contended

pytestmark = pytest.mark.unit


def firm(world: Snapshot, *uids: str) -> Snapshot:
    """The world in which these jobs are not preemptible."""
    preemptible = np.array([uid not in uids for uid in world.jobs.uids], dtype=np.bool_)
    return replace(world, jobs=replace(world.jobs, terms=replace(world.jobs.terms, preemptible=preemptible)))


def helps(world: Snapshot, uid: str) -> tuple[str, ...]:
    return tuple(change.text for change in Outcome(world, plan(world)).waiting[uid].changes)


def changed(world: Snapshot, waiting: Waiting, change: Change) -> Snapshot:
    """The world in which a job does what it was told would help."""
    row, jobs = world.jobs.uids.index(waiting.uid), world.jobs
    if change.kind is ChangeKind.WORKERS:
        workers = jobs.workers.copy()
        workers[row] = int(change.value)
        return replace(world, jobs=replace(jobs, workers=workers, sizes=Sizes.fixed(workers)))
    modes, levels = jobs.modes.copy(), jobs.levels.copy()
    if change.kind is ChangeKind.MODE:
        modes[row] = TopologyMode[change.value.upper()]
    else:
        levels[row] = world.levels.names.index(change.value)
    return replace(world, jobs=replace(jobs, modes=modes, levels=levels))


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(contended(), st.integers(0, 2**32 - 1))
def test_whoever_does_what_would_help_starts(world: Snapshot, seed: int) -> None:
    draw = np.random.default_rng(seed)
    world = firm(world, *(uid for uid in world.jobs.uids if draw.random() < 0.5))
    for waiting in plan(world).waiting:
        for change in waiting.changes:
            admitted = {admission.uid for admission in plan(changed(world, waiting, change)).admissions}
            assert waiting.uid in admitted, f"{waiting.uid} was told: {change}"


def test_room_that_is_kept_for_a_job_ahead_is_no_help_to_one_that_would_not_give_it_back() -> None:
    jobs = [Job("head", workers=3), Job("behind", workers=3, submitted=1.0)]
    nodes = rack(0, 2) + rack(0, 1, first=2, used_gpus=8)
    assert helps(snapshot(nodes, jobs), "head") == ("2 workers instead of 3 would find room now",)
    assert helps(snapshot(nodes, jobs), "behind") == ("2 workers instead of 3 would find room now",), "it would yield"
    assert helps(firm(snapshot(nodes, jobs), "head", "behind"), "head") == (
        "2 workers instead of 3 would find room now",
    )
    assert helps(firm(snapshot(nodes, jobs), "behind"), "behind") == ()


def test_fewer_workers_are_no_help_to_one_that_has_no_quota_either() -> None:
    nodes = [Node("a"), Node("b")]
    alone = snapshot(nodes, [Job("large", workers=3)], [Queue(gpus=24)])
    assert helps(alone, "large") == ("2 workers instead of 3 would find room now",)
    short = snapshot(nodes, [Job("large", workers=3)], [Queue(gpus=8)])
    assert helps(short, "large") == ()


@pytest.mark.parametrize(
    ("workers", "least", "step", "told"),
    [
        (12, 6, 2, ("4 workers instead of 6 would find room now",)),
        (12, 6, 3, ("3 workers instead of 6 would find room now",)),
        (12, 6, 6, ()),  # they are one replica of the model
        (7, 7, 2, ("5 workers instead of 7 would find room now",)),
        (7, 7, 7, ()),  # its training can go on with as many only
    ],
)
def test_fewer_workers_are_told_in_whole_steps(workers: int, least: int, step: int, told: tuple[str, ...]) -> None:
    world = snapshot(rack(0, 5), [Job("a", workers=workers)])
    sizes = [np.array([each], dtype=np.int32) for each in (least, workers, step)]
    world = replace(world, jobs=replace(world.jobs, sizes=Sizes(*sizes, partial=np.ones(1, dtype=np.bool_))))
    assert helps(world, "a") == told


def shaped(world: Snapshot, shape: Shape) -> Snapshot:
    """The world in which all jobs have one shape."""
    terms = replace(world.jobs.terms, shapes=(shape,) * len(world.jobs.uids))
    return replace(world, jobs=replace(world.jobs, terms=terms))


@pytest.mark.parametrize(
    ("shape", "nodes", "told"),
    [
        (Shape(balanced=1), rack(0, 9) + rack(1, 3), ("9 workers instead of 12 would find room now",)),
        (Shape(balanced=1), rack(0, 5) + rack(1, 5), ("10 workers instead of 12 would find room now",)),
        (
            Shape(balanced=1, slices=((2, 1),)),
            rack(0, 5) + rack(1, 5),
            ("8 workers instead of 12 would find room now",),
        ),
        (Shape(slices=((4, 1),), spares=1), rack(0, 5) + rack(1, 4), ("8 workers instead of 12 would find room now",)),
        (Shape(slices=((4, 1),), spares=3), rack(0, 5) + rack(1, 4), ("4 workers instead of 12 would find room now",)),
        (Shape(slices=((4, 1),)), rack(0, 6) + rack(1, 5), ("8 workers instead of 12 would find room now",)),
        (Shape(spares=2), rack(0, 10), ("8 workers instead of 12 would find room now",)),
        (Shape(slices=((6, 1),)), rack(0, 5) + rack(1, 5), ()),
    ],
)
def test_fewer_workers_are_told_in_the_shape_that_the_gang_has_to_have(
    shape: Shape, nodes: list[Node], told: tuple[str, ...]
) -> None:
    assert helps(shaped(snapshot(nodes, [Job("a", workers=12)]), shape), "a") == told


def test_a_wider_level_is_told_to_a_gang_with_slices() -> None:
    nodes = rack(0, 3) + rack(1, 3)
    world = shaped(snapshot(nodes, [Job("a", workers=4, required="rack")]), Shape(slices=((2, 2),)))
    assert helps(world, "a") == ()
    world = shaped(snapshot(nodes, [Job("a", workers=8, gpus=4, required="rack")]), Shape(slices=((2, 2),)))
    assert helps(world, "a") == (
        "6 workers instead of 8 would find room now",
        "there is room now if block were required instead of rack",
    )
