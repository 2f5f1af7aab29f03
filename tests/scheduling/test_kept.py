"""What is worked out from a snapshot is kept with it: that must change no plan, and no copy may have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduling.packing import fill_broken_first, pack
from muster.scheduling.planner import plan
from muster.scheduling.ranks import AGE_STEP, ages
from muster.scheduling.snapshot import JobState, Snapshot

from .cases import Job, Node, snapshot
from .standing import standing
from .worlds import contended

pytestmark = pytest.mark.unit

thorough = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def told(world: Snapshot) -> str:
    made = plan(world)
    return repr(replace(made, waiting=tuple(made.waiting)))


@thorough
@given(st.one_of(contended(), standing(elastic=True, jobs=12)))
def test_plan_is_the_same_when_the_snapshot_was_planned_before(world: Snapshot) -> None:
    first, again, anew = told(world), told(world), told(replace(world, jobs=replace(world.jobs)))
    assert first == again == anew


def test_copy_of_a_snapshot_with_another_moment_has_other_ages() -> None:
    world = snapshot([Node("node")], [Job("one")])
    before = ages(world)
    assert ages(world) is before
    assert ages(replace(world, now=world.now + AGE_STEP)).tolist() == [before[0] + 1]


def test_copy_of_jobs_with_other_states_has_other_masks() -> None:
    jobs = snapshot([Node("node")], [Job("one")]).jobs
    assert jobs.pending.tolist() == [True]
    moved = replace(jobs, states=np.array([JobState.HOLDING], dtype=np.int32))
    assert (moved.pending.tolist(), moved.holding.tolist(), moved.reserved.tolist()) == ([False], [True], [False])


@thorough
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_single_worker_goes_where_the_first_of_a_gang_would(places: list[tuple[int, bool]]) -> None:
    room = np.array([slots for slots, _ in places], dtype=np.int64)
    whole = np.array([untouched for _, untouched in places], dtype=np.bool_)
    if not room.any():
        return
    broken = np.where(whole, 0, room)
    expected = pack(broken if broken.any() else room, 1)
    assert fill_broken_first(room, whole, 1).tolist() == expected.tolist()
