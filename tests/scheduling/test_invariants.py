"""The design's invariants, on random clusters in any state, against slow and obvious oracles."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.scheduling import room
from muster.scheduling.explain import Told
from muster.scheduling.plan import Admission, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.snapshot import NONE, Int, Snapshot, TopologyMode

from . import oracle
from .cases import LEVELS, Job, Node, apply, snapshot
from .worlds import contended, shares, worlds

pytestmark = pytest.mark.unit
thorough = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])

STRICT = Policy(fairness=False, backfill=False, preemption=False, heads=1_000)
"""Priority, then first submit; every job that waits for room keeps what it could ever use."""

NEVER_STARTS = {WaitReason.EXCEEDS_CLUSTER, WaitReason.NO_ELIGIBLE_NODES, WaitReason.EXCEEDS_QUOTA}


@thorough
@given(worlds())
def test_every_pending_job_is_admitted_whole_or_waits_with_a_reason(world: Snapshot) -> None:
    decided = plan(world)
    uids = [entry.uid for entry in (*decided.admissions, *decided.waiting)]
    assert sorted(uids) == sorted(world.jobs.uids[job] for job in oracle.pending(world))
    for job, nodes in oracle.admitted(world, decided):
        assert len(nodes) == world.jobs.workers[job]
    assert all(waiting.message for waiting in decided.waiting)


@thorough
@given(contended())
def test_the_columns_say_the_same_as_each_who_waits(world: Snapshot) -> None:
    waiting = plan(world).waiting
    assert isinstance(waiting, Told) or not waiting
    if isinstance(waiting, Told):
        assert waiting.reasons == [each.reason for each in waiting]
        assert waiting.positions.tolist() == [each.position for each in waiting]
        assert waiting.starts.tolist() == [each.expected for each in waiting]
        assert [world.jobs.uids[row] for row in waiting.rows] == [each.uid for each in waiting]


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(contended())
def test_a_plan_leaves_nothing_that_only_a_garbage_collector_frees(world: Snapshot) -> None:
    plan(world)  # what is imported at first use leaves some
    gc.disable()
    gc.freeze()  # what was there before is not looked at
    try:
        plan(world)
        assert gc.collect() == 0
    finally:
        gc.unfreeze()
        gc.enable()


@thorough
@given(contended())
def test_a_plan_is_the_same_when_only_nodes_with_room_and_one_of_those_alike_are_looked_at(world: Snapshot) -> None:
    whole = plan(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "_LARGE", 0)
        patch.setattr(room, "_SPARSE", 1.0)
        patch.setattr(room, "_VARIED", 0)
        part = plan(world)
    assert [(each.uid, each.nodes.tolist()) for each in part.admissions] == [
        (each.uid, each.nodes.tolist()) for each in whole.admissions
    ]
    assert part.waiting == whole.waiting


@thorough
@given(worlds())
def test_no_node_gives_more_than_it_has_of_anything(world: Snapshot) -> None:
    free = world.nodes.free.copy()
    for job, nodes in oracle.admitted(world, plan(world)):
        for node in nodes:
            assert world.nodes.usable[node]
            assert world.eligible[world.jobs.filters[job], node]
            asked = world.jobs.requests[job] > 0
            free[node] -= world.jobs.requests[job]
            assert (free[node][asked] >= 0).all()


@thorough
@given(worlds())
def test_required_is_never_broken(world: Snapshot) -> None:
    for job, nodes in oracle.admitted(world, plan(world)):
        if world.jobs.modes[job] == TopologyMode.REQUIRED:
            domains = set(world.nodes.domains[nodes, world.jobs.levels[job]].tolist())
            assert len(domains) == 1
            assert NONE not in domains


@thorough
@given(contended())
def test_quota_is_never_passed_and_closed_queues_admit_nothing(world: Snapshot) -> None:
    use = oracle.usage(world)
    for job, _ in oracle.admitted(world, plan(world)):
        assert world.queues.open[world.jobs.queues[job]]
        assert oracle.quota_allows(world, use, job)
        oracle.add(world, use, job)


@thorough
@given(shares())
def test_queues_use_exactly_what_their_quota_allows_in_order(world: Snapshot) -> None:
    started = dict(oracle.admitted(world, plan(world, STRICT)))
    use = oracle.usage(world)
    for job in oracle.pending(world):
        allowed = oracle.quota_allows(world, use, job)
        assert (job in started) == allowed
        if allowed:
            oracle.add(world, use, job)


@thorough
@given(worlds(jobs_at_most=1))
def test_job_alone_starts_exactly_if_any_valid_placement_and_quota_exist(world: Snapshot) -> None:
    jobs = world.jobs
    world = replace(world, jobs=replace(jobs, states=np.zeros_like(jobs.states), held=np.zeros_like(jobs.held)))
    assert oracle.pending(world) == [0]
    expected = (
        bool(world.queues.open[jobs.queues[0]])
        and bool(oracle.valid_domains(world, 0, world.nodes.free))
        and oracle.quota_allows(world, {}, 0)
    )
    assert bool(plan(world).admissions) == expected


@st.composite
def job_alone(draw: st.DrawFn) -> Snapshot:
    """One gang that wants GPUs near to each other, in a cluster where most nodes have some."""
    used = draw(st.lists(st.integers(0, 4), min_size=4, max_size=12))
    blocks = st.sampled_from(["a", "b", None])
    there = [
        Node(f"node-{index}", draw(blocks), draw(st.sampled_from(["r0", "r1", None])), gpus=4, used_gpus=gpus)
        for index, gpus in enumerate(used)
    ]
    level, required = draw(st.sampled_from(LEVELS)), draw(st.booleans())
    job = Job("job", draw(st.integers(1, 8)), draw(st.integers(1, 2)), required=level if required else None)
    return snapshot(there, [replace(job, preferred=None if required else level)])


@thorough
@given(job_alone())
def test_gang_gets_the_narrowest_domain_that_holds_it_and_the_tightest_of_those(world: Snapshot) -> None:
    decided = plan(world)
    size = int(world.jobs.workers[0])
    if not decided.admissions:
        return
    slots = np.array(oracle.slots_of(world, 0, world.nodes.free))
    nodes = decided.admissions[0].nodes
    for level in reversed(range(len(world.levels.names))):
        column = world.nodes.domains[:, level]
        rooms = {int(domain): int(slots[column == domain].sum()) for domain in set(column.tolist()) - {NONE}}
        holding = [room for room in rooms.values() if room >= size]
        if holding:
            chosen = set(column[nodes].tolist())
            assert len(chosen) == 1
            assert rooms[chosen.pop()] == min(holding)
            return


@thorough
@given(worlds())
def test_workers_of_a_domain_are_neighbours_in_index(world: Snapshot) -> None:
    for _, nodes in oracle.admitted(world, plan(world)):
        for level in (*range(len(world.levels.names)), None):
            ids = nodes if level is None else world.nodes.domains[nodes, level].tolist()
            runs = [each for at, each in enumerate(ids) if at == 0 or ids[at - 1] != each]
            labelled = [each for each in runs if each != NONE]
            assert len(labelled) == len(set(labelled))


@thorough
@given(worlds())
def test_same_snapshot_gives_the_same_plan(world: Snapshot) -> None:
    first, second = plan(world), plan(world)
    assert [(a.uid, a.nodes.tolist()) for a in first.admissions] == [
        (a.uid, a.nodes.tolist()) for a in second.admissions
    ]
    assert first.waiting == second.waiting


@thorough
@given(contended())
def test_plan_applied_to_its_own_snapshot_starts_nobody_whom_room_was_lacking(world: Snapshot) -> None:
    first = plan(world)
    after = apply(world, first)
    second = plan(after)
    assert {each.uid for each in second.admissions} == oracle.starts_later(world, first, second)
    if not second.admissions and not oracle.any_would_be_lent(after):
        # Who holds quota is told as it was before the plan.
        told = [[each._replace(holders=()) for each in decided.waiting] for decided in (first, second)]
        assert told[0] == told[1]


@settings(thorough, max_examples=1_000)
@given(contended())
def test_who_starts_is_exactly_what_the_rule_of_order_says(world: Snapshot) -> None:
    """The rule of `planner`'s docstring, in plain loops; only the choice of nodes is taken from the plan."""
    nodes_of = dict(oracle.admitted(world, plan(world, STRICT)))
    free, empty = world.nodes.free.copy(), oracle.empty_room(world)
    kept: dict[tuple[bytes, int, int], Int] = {}
    promised = oracle.usage(world)
    for job in oracle.pending(world):
        domains = oracle.valid_domains(world, job, empty)
        if (
            not world.queues.open[world.jobs.queues[job]]
            or not domains
            or not oracle.quota_allows(world, promised, job)
        ):
            assert job not in nodes_of
            continue
        oracle.add(world, promised, job)
        may_start = bool(oracle.valid_domains(world, job, free - sum(kept.values(), np.zeros_like(free))))
        assert (job in nodes_of) == may_start
        if may_start:
            np.subtract.at(free, nodes_of[job], world.jobs.requests[job])
        for node in {node for members in domains for node in members} if not may_start else ():
            worker = (world.jobs.requests[job].tobytes(), int(world.jobs.filters[job]), node)
            kept[worker] = np.zeros_like(free)
            kept[worker][node] = oracle.slots_of(world, job, empty)[node] * world.jobs.requests[job]


@thorough
@given(contended(), st.data())
def test_job_that_waits_for_room_is_never_delayed_by_those_behind_it(world: Snapshot, data: st.DataObject) -> None:
    """Whatever running pods end, it finds room exactly if it would had no job behind it started, and quota too."""
    decided = plan(world, STRICT)
    behind_in_rank = oracle.pending(world)
    with_all = apply(world, decided).nodes.free
    use_of_all = oracle.usage(apply(world, decided))
    for waiting in decided.waiting:
        if waiting.reason in NEVER_STARTS | {WaitReason.QUOTA_EXCEEDED, WaitReason.QUEUE_CLOSED}:
            continue
        job = oracle.job_index(world, waiting.uid)
        if not oracle.valid_domains(world, job, oracle.empty_room(world)):
            continue
        if not _quota_lets_it(world, job):
            continue
        assert oracle.quota_allows(world, use_of_all, job), "quota that it will need was taken"
        behind = set(behind_in_rank[behind_in_rank.index(job) + 1 :])
        taken_behind = _taken_by(world, decided.admissions, behind)
        ended = _some_that_ends(world, with_all, data)
        assert _open_domains(world, job, with_all + ended) == _open_domains(world, job, with_all + ended + taken_behind)


def _open_domains(world: Snapshot, job: int, room: Int) -> bool:
    return bool(oracle.valid_domains(world, job, room))


def _quota_lets_it(world: Snapshot, job: int) -> bool:
    """Whether the job is ahead of others: not behind in quota. Judged without the planner: jobs ahead of it count."""
    use = oracle.usage(world)
    order = oracle.pending(world)
    for ahead in order[: order.index(job)]:
        oracle.add(world, use, ahead)
    return oracle.quota_allows(world, use, job)


def _taken_by(world: Snapshot, admissions: tuple[Admission, ...], jobs: set[int]) -> Int:
    taken = np.zeros_like(world.nodes.free)
    for admission in admissions:
        job = oracle.job_index(world, admission.uid)
        if job in jobs:
            np.add.at(taken, admission.nodes, world.jobs.requests[job])
    return taken


def _some_that_ends(world: Snapshot, free: Int, data: st.DataObject) -> Int:
    """Room that comes back when all that runs now on some of the nodes ends, this plan's admissions not included."""
    running = np.maximum(oracle.empty_room(world) - world.nodes.free, 0)
    ends = data.draw(st.lists(st.booleans(), min_size=len(running), max_size=len(running)))
    ended: Int = running * np.array(ends, dtype=np.int64)[:, None]
    return ended
