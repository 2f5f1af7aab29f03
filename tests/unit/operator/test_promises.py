"""Promises, stops and moves as the loop carries them out: in which order they are written, and what a cut leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.api.common import format_time
from muster.api.names import EventReason
from muster.api.topology import Topology
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.views import NodeView, PodView
from muster.controllers import plans
from muster.controllers.work import utc_now
from muster.scheduling.plan import Eviction, MoveReason, Plan, Promise
from muster.scheduling.planner import plan
from muster.scheduling.policy import Policy
from muster.scheduling.snapshot import NONE, JobState, Snapshot

from .loops import World, world

pytestmark = pytest.mark.unit

LOW, HIGH = "uid-of-low", "uid-of-high"


def _row(snapshot: Snapshot, uid: str) -> int:
    return snapshot.jobs.uids.index(uid) if uid in snapshot.jobs.uids else -1


def _nodes(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.int32)


def preempting(snapshot: Snapshot, policy: Policy) -> Plan:
    """The planner, which besides takes the room of `low` for `high` when it can."""
    decided = plan(snapshot)
    low, high = _row(snapshot, LOW), _row(snapshot, HIGH)
    jobs = snapshot.jobs
    if min(low, high) < 0 or jobs.states[high] != JobState.PENDING or jobs.states[low] != JobState.HOLDING:
        return decided
    if jobs.runs.leaving[low] or HIGH in {admission.uid for admission in decided.admissions}:
        return decided
    return Plan(
        decided.admissions,
        tuple(waiting for waiting in decided.waiting if waiting.uid != HIGH),
        promises=(Promise(HIGH, _nodes(2)),),
        evictions=(Eviction(LOW, MoveReason.PREEMPTED, HIGH, lost=120.4),),
    )


def shrinking(snapshot: Snapshot, policy: Policy) -> Plan:
    """The planner, which besides takes the room of one of `low`'s workers for `high` when it can."""
    decided = preempting(snapshot, policy)
    if not decided.evictions:
        return decided
    promises = (Promise(LOW, _nodes(1)), Promise(HIGH, _nodes(1)))
    return replace(decided, promises=promises, evictions=(Eviction(LOW, MoveReason.SHRUNK, HIGH, lost=5.0),))


def once(uid: str, eviction: Eviction, promise: Promise | None = None) -> Callable[[Snapshot], Plan]:
    """The planner, which besides ends the first placement of `uid`."""
    done: list[bool] = []

    def decide(snapshot: Snapshot, policy: Policy) -> Plan:
        decided, row = plan(snapshot), _row(snapshot, uid)
        if row >= 0 and snapshot.jobs.runs.leaving[row]:
            done.append(True)
        if done or row < 0 or snapshot.jobs.states[row] != JobState.HOLDING:
            return decided
        promises = (promise,) if promise else ()
        return Plan(decided.admissions, decided.waiting, promises=promises, evictions=(eviction,))

    return decide


async def running(place: World, name: str, workers: int = 2, **more: Any) -> None:
    place.submit(name, workers=workers, **more)
    await place.until(lambda: len(place.server.pods) == workers)
    for pod in list(place.server.pods):
        place.show(pod)


async def test_the_promise_is_written_before_the_victim_is_told_and_kept_until_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "plan", preempting)
    async with world(cpu="2") as place:
        await running(place, "low")
        place.submit("high")
        await place.until(lambda: place.status("low").get("stop"))
        names = [
            name
            for name, status in place.server.written
            if status.get("promise") or (name == "low" and status.get("stop"))
        ]
        assert names[0] == "high", "first the promise"
        promise = place.status("high")["promise"]
        victim = {"uid": LOW, "generation": 1, "reason": "Preempted", "lost": 120}
        assert promise["victims"] == [victim]
        assert place.status("low")["phase"] == "Preempting"
        assert place.status("low")["stop"]["beneficiary"] == HIGH
        assert "ns/high" in place.status("low")["stop"]["message"]
        assert "120 GPU-seconds" in place.status("low")["stop"]["message"]
        await place.until(lambda: place.server.calls["DELETE pods"] == 2)
        place.submit("other", workers=1)  # older or not: the room is not its
        await place.until(lambda: place.status("other"))
        assert not place.placed("high")
        assert not place.placed("other")
        place.gone("low")
        await place.until(lambda: place.placed("high") and len(place.server.pods) == 2)
        assert "promise" not in place.status("high")
        assert not place.placed("other")
        told = [note for name, note in place.notes if name == "high" and not note.logged]
        assert [note.reason for note in told] == [EventReason.PREEMPTING, EventReason.ADMITTED]
        await place.until(lambda: place.status("low").get("preemptions") == 1)
        low = place.status("low")
        assert low["phase"] == "Queued"
        assert low["submittedAt"] == "2026-03-01T12:00:00Z"
        assert low["lostGpuSeconds"] == 120
        assert len(low["preemptedAt"]) == 1


async def test_an_operator_that_was_cut_after_the_promise_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "plan", preempting)
    async with world(cpu="2") as place:
        await running(place, "low")
        place.server.silent = {"low"}  # whoever would stop it dies before
        place.submit("high")
        await place.until(lambda: place.status("high").get("promise"))
        jobs, shown = dict(place.server.jobs), dict(place.server.pods)
    assert not (jobs["low"].get("status") or {}).get("stop")
    async with world(cpu="2") as place:
        place.server.pods = shown
        for name in shown:
            place.show(name)
        for raw in jobs.values():
            place.feed(raw)
        await place.until(lambda: place.status("low").get("stop"))
        assert not place.placed("high")
        place.gone("low")
        await place.until(lambda: place.placed("high"))


async def test_a_gang_that_shrinks_for_another_is_told_by_the_others_promise_however_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Snapshot] = []

    def look(snapshot: Snapshot, policy: Policy) -> Plan:
        seen.append(snapshot)
        return shrinking(snapshot, policy)

    monkeypatch.setattr(plans, "plan", look)
    async with world(cpu="2") as place:
        await running(place, "low", each={"min": 1})
        place.server.silent = {"low"}  # nothing of it can be written now
        place.submit("high", workers=1)
        await place.until(lambda: place.status("high").get("promise"))
        (victim,) = place.status("high")["promise"]["victims"]
        assert (victim["uid"], victim["nodes"]) == (LOW, [{"node": "n", "indexes": "0"}])
        place.submit("other", workers=1)
        await place.until(lambda: place.status("other"))
        runs, row = seen[-1].jobs.runs, _row(seen[-1], LOW)
        assert (runs.leaving[row], runs.beneficiary[row], len(runs.promised_to(row))) == (True, row, 1)
        place.server.silent = set()
        await place.until(lambda: place.status("low").get("stop"))
        low = place.status("low")
        assert (low["stop"]["reason"], low["stop"]["beneficiary"]) == ("Shrunk", HIGH)
        assert low["promise"]["workers"] == 1
        place.gone("low")
        await place.until(lambda: place.placed("high") and place.placed("low") and len(place.server.pods) == 2)
        assert place.status("low")["placement"]["workers"] == 1
        assert not place.placed("other")


async def test_a_gang_that_moves_gets_stop_and_promise_in_one_write_and_starts_again_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grown = once(LOW, Eviction(LOW, MoveReason.GROWN, LOW, lost=3.0), Promise(LOW, _nodes(3)))
    monkeypatch.setattr(plans, "plan", grown)
    async with world(cpu="4") as place:
        await running(place, "low", each={"max": 3})
        await place.until(lambda: place.status("low").get("stop"))
        first = next(status for name, status in place.server.written if status.get("stop"))
        assert first["promise"]["workers"] == 3
        place.submit("other", workers=2)  # there is room for it now, but not beside the larger gang
        await place.until(lambda: place.status("other"))
        assert not place.placed("other")
        place.gone("low")
        await place.until(lambda: place.placed("low") and len(place.server.pods) == 3)
        low = place.status("low")
        assert low["placement"]["workers"] == 3
        assert low["placement"]["generation"] == 2
        assert "preemptions" not in low, "it was for its own good"
        assert not place.placed("other")


@pytest.mark.parametrize("nodes", [2, 1])
async def test_a_gang_that_was_let_in_before_its_turn_still_yields_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    moved = once(LOW, Eviction(LOW, MoveReason.SHRUNK, LOW), Promise(LOW, _nodes(nodes)))
    seen: list[tuple[JobState, bool]] = []

    def let_in(snapshot: Snapshot, policy: Policy) -> Plan:
        decided, row = moved(snapshot, policy), _row(snapshot, LOW)
        seen.append((JobState(snapshot.jobs.states[row]), bool(snapshot.jobs.runs.yields[row])))
        first = not snapshot.jobs.reserved.any()
        admissions = tuple(replace(each, yields=True) if first else each for each in decided.admissions)
        return replace(decided, admissions=admissions)

    monkeypatch.setattr(plans, "plan", let_in)
    async with world(cpu="4") as place:
        await running(place, "low", each={"min": 1})
        await place.until(lambda: place.status("low").get("stop"))
        assert place.status("low")["promise"]["yields"]
        place.gone("low")
        await place.until(lambda: place.placed("low") and len(place.server.pods) == nodes)
        assert place.status("low")["placement"]["generation"] == 2
        assert place.status("low")["placement"]["yields"]
    assert (JobState.RESERVED, True) in seen
    assert (JobState.RESERVED, False) not in seen


async def test_a_new_job_that_is_promised_what_is_free_does_not_start_in_a_held_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promised: list[bool] = []

    def promising(snapshot: Snapshot, policy: Policy) -> Plan:
        row = _row(snapshot, HIGH)
        if promised or row < 0 or snapshot.jobs.states[row] != JobState.PENDING:
            return plan(snapshot)
        promised.append(True)
        return Plan((), (), promises=(Promise(HIGH, _nodes(2)),))

    monkeypatch.setattr(plans, "plan", promising)
    async with world(cpu="2") as place:
        held = {"metadata": {"name": "q"}, "spec": {"stopPolicy": "hold"}}
        place.cache.on_queue("q", TrainingQueue.from_raw(held))
        place.submit("high")
        await place.until(lambda: (place.status("high").get("queue") or {}).get("reason") == "QueueClosed")
        assert promised
        told = next(note.message for _, note in place.notes if note.reason is EventReason.PROMISE_BROKEN)
        assert "any more: its queue takes no jobs now; it waits in its old order" in told
        assert not place.placed("high")


async def test_a_gang_that_is_stopped_for_nobody_queues_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "plan", once(LOW, Eviction(LOW, MoveReason.QUOTA_LOWERED)))
    async with world() as place:
        await running(place, "low")
        await place.until(lambda: place.status("low").get("stop"))
        assert place.status("low")["stop"]["reason"] == "QuotaLowered"
        told = "its queue uses more than it may since a limit was lowered, or a queue was moved or deleted"
        await place.until(lambda: any(told in note.message for _, note in place.notes))
        place.gone("low")
        await place.until(lambda: (place.status("low").get("placement") or {}).get("generation") == 2)
        assert place.status("low")["preemptions"] == 1


async def test_a_queue_is_drained_when_its_budget_is_used_up_though_nothing_else_happens() -> None:
    async with world() as place:
        spec = {"budgets": [{"gpuHours": 1, "atLimit": "drain"}]}
        queue = {"metadata": {"name": "q", "uid": "q-uid", "generation": 1}, "spec": spec}
        place.cache.on_queue("q", TrainingQueue.from_raw(queue))
        await running(place, "low")
        plans_ = place.loop._plans
        await place.until(lambda: not plans_.due())
        use = {"gpuType": "H100", "gpuSeconds": 3_600, "gpus": 10}
        month = {"until": format_time(utc_now()), "uses": [use]}
        place.cache.on_queue("q", TrainingQueue.from_raw({**queue, "status": {"month": month}}))
        assert plans_.due(), "or it waited for another round to come by"
        await place.until(lambda: place.status("low").get("stop"), seconds=20.0)
        stop = place.status("low")["stop"]
        assert stop["reason"] == "QueueDrained"
        assert stop["message"].startswith("its queue is drained (queue q has used its 1 GPU hours of ")
        place.gone("low")
        await place.until(lambda: not place.placed("low"))
        assert "preemptions" not in place.status("low"), "its disruption budget does not count it"


def node_of(name: str, *, cordoned: bool = False) -> NodeView:
    allocatable = {"cpu": "2", "memory": "8Gi", "pods": "110"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    return NodeView.from_raw({"metadata": {"name": name}, "spec": {"unschedulable": cordoned}, "status": status})


async def test_a_gang_whose_only_node_is_drained_breaks_no_promise_and_starts_elsewhere() -> None:
    async with world(node=node_of("n")) as place:
        await running(place, "low")
        add(place, node_of("n", cordoned=True), node_of("other"))
        evict(place, "low")
        await place.until(lambda: place.status("low").get("stop"))
        assert place.status("low")["promise"]["nodes"] == [{"node": "n", "indexes": "0-1"}]
        place.gone("low")
        await place.until(lambda: (place.status("low").get("placement") or {}).get("generation") == 2)
        assert place.status("low")["placement"]["nodes"] == [{"node": "other", "indexes": "0-1"}]
        told = [
            note for name, note in place.notes if note.reason in (EventReason.RESTARTING, EventReason.PROMISE_BROKEN)
        ]
        assert [(note.reason, note.warning) for note in told] == [(EventReason.RESTARTING, False)] * 2
        assert [note.logged for note in told] == [False, True], "one drain is one Event"
        assert told[1].message == "n can take no new pods (gone, cordoned or not ready): the gang is placed anew"


async def test_a_level_that_is_gone_stops_no_other_job_and_what_runs_stays() -> None:
    def topology(*levels: str) -> Topology:
        spec = {"levels": [{"name": level, "label": level} for level in levels]}
        return Topology.from_raw({"metadata": {"name": "default"}, "spec": spec})

    labelled = {"metadata": {"name": "n", "labels": {"rack": "r1", "host": "n"}}}
    allocatable = {"cpu": "8", "memory": "8Gi", "pods": "110"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    async with world(node=NodeView.from_raw({**labelled, "status": status})) as place:
        place.cache.on_topology("default", topology("rack", "host"))
        await running(place, "low", topology={"mode": "required", "level": "rack"})
        place.cache.on_topology("default", topology("host"))
        place.submit("later")
        await place.until(lambda: place.placed("later"), 10)
        assert not place.status("low").get("stop")


def gpu_node(name: str = "n", **labels: str) -> NodeView:
    resources = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "8Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True"}
    return NodeView.from_raw(
        {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": resources, "conditions": [ready]}}
    )


H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
SPOT = {"muster.dev/capacity": "spot"}


def add(place: World, *nodes: NodeView) -> None:
    for node in nodes:
        place.nodes.items[node.name] = node
        place.cache.on_node(node.name, node)


def quotas(place: World, *lines: dict[str, Any]) -> None:
    resources = [{"name": "nvidia.com/gpu", "nominal": 8}]
    spec = {"quotas": [{**line, "resources": resources} for line in lines]}
    place.cache.on_queue("q", TrainingQueue.from_raw({"metadata": {"name": "q", "generation": 2}, "spec": spec}))


def evict(place: World, job: str) -> None:
    """The nodes push the pods of a job out."""
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    for name, raw in place.server.pods.items():
        if name.startswith(f"{job}-g"):
            view = PodView.from_raw({**raw, "status": {"phase": "Running", "conditions": [evicted]}})
            place.pods.items[f"ns/{name}"] = view
            place.cache.on_pod(f"ns/{name}", view)


@pytest.mark.parametrize("asked", [{"gpuType": "H100"}, {}])
async def test_a_gang_whose_node_has_lost_its_gpu_labels_is_not_stopped_for_quota(
    asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans_: list[tuple[Snapshot, Plan]] = []

    def look(snapshot: Snapshot, policy: Policy) -> Plan:
        plans_.append((snapshot, plan(snapshot)))
        return plans_[-1][1]

    def check() -> None:
        shot, made = plans_[-1]
        assert [shot.flavours[flavour] for flavour in shot.jobs.flavours] == ["H100/on-demand"]
        assert made.evictions == ()

    monkeypatch.setattr(plans, "plan", look)
    async with world(node=gpu_node(**H100)) as place:
        quotas(place, {"gpuType": "H100"})
        await running(place, "low", workers=1, each={"gpusPerWorker": 8, **asked})
        add(place, gpu_node())
        await place.until(lambda: plans_[-1][0].nodes.flavours.tolist() == [NONE])
        check()
        written = place.server.jobs["low"]
    plans_.clear()
    async with world(node=gpu_node()) as place:  # a new operator has never seen the labels
        quotas(place, {"gpuType": "H100"})
        place.feed(written)
        await place.until(lambda: plans_ and plans_[-1][0].jobs.uids)
        check()


async def test_a_gang_on_its_second_kind_of_capacity_starts_again_there_though_the_first_has_no_quota_left() -> None:
    async with world(node=gpu_node(**H100)) as place:
        add(place, gpu_node("spot", **H100, **SPOT))
        quotas(place, {"gpuType": "H100"}, {"gpuType": "H100", "capacity": "spot"})
        await running(place, "first", workers=1, each={"gpusPerWorker": 8})
        order = {"order": ["on-demand", "spot"], "fallbackAfter": "1s"}
        place.submit("low", workers=1, each={"gpusPerWorker": 8}, capacity=order)
        await place.until(lambda: len(place.server.pods) == 2)
        for pod in list(place.server.pods):
            place.show(pod)
        evict(place, "low")
        await place.until(lambda: place.status("low").get("stop"))
        assert place.status("low")["promise"]["flavour"] == "H100/spot"
        place.gone("low")
        await place.until(lambda: (place.status("low").get("placement") or {}).get("generation") == 2)
        assert place.status("low")["placement"]["nodes"] == [{"node": "spot", "indexes": "0"}]
        assert EventReason.PROMISE_BROKEN not in {note.reason for _, note in place.notes}


async def test_a_gang_that_takes_any_gpu_starts_again_on_its_own_though_most_nodes_have_others_by_now() -> None:
    async with world(node=gpu_node(**H100)) as place:
        await running(place, "low", workers=1, each={"gpusPerWorker": 8})
        add(place, gpu_node("a1", **A100), gpu_node("a2", **A100))
        evict(place, "low")
        await place.until(lambda: place.status("low").get("stop"))
        place.gone("low")
        await place.until(lambda: (place.status("low").get("placement") or {}).get("generation") == 2)
        placement = place.status("low")["placement"]
        assert (placement["nodes"], placement["flavour"]) == ([{"node": "n", "indexes": "0"}], "H100/on-demand")


async def test_a_promise_ends_with_an_edit_and_its_victims_that_were_not_told_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "plan", preempting)
    async with world(cpu="2") as place:
        await running(place, "low")
        place.submit("high")
        await place.until(lambda: place.status("low").get("stop"))
        place.edit("high", suspend=True)
        await place.until(lambda: place.status("high").get("phase") == "Suspended")
        assert "promise" not in place.status("high")
        place.gone("low")
        await place.until(lambda: (place.status("low").get("placement") or {}).get("generation") == 2)


async def test_pods_of_a_job_that_was_deleted_meanwhile_hold_their_queues_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Snapshot] = []

    def look(snapshot: Snapshot, policy: Policy) -> Plan:
        seen.append(snapshot)
        return plan(snapshot)

    async with world() as place:
        await running(place, "low")
        pods = dict(place.server.pods)
    monkeypatch.setattr(plans, "plan", look)
    async with world() as place:
        place.server.pods = pods
        for name in pods:
            place.show(name)
        await place.until(lambda: seen)
        jobs = seen[-1].jobs
        assert jobs.uids == (LOW,)
        assert jobs.states.tolist() == [JobState.HOLDING]
        assert jobs.held[0, seen[-1].resources.index("cpu")] == 2000
        assert seen[-1].queues.names[jobs.queues[0]] == "q"


@pytest.mark.parametrize(
    ("each", "flavour"),
    [
        ({"gpusPerWorker": 8}, "H100/on-demand"),
        ({"resources": {"limits": {"nvidia.com/gpu.shared": 1}}}, ""),  # it has no GPU type, whatever its name
    ],
)
async def test_pods_of_a_deleted_job_draw_on_what_they_did_before(
    each: dict[str, Any], flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Snapshot] = []

    def look(snapshot: Snapshot, policy: Policy) -> Plan:
        if LOW in snapshot.jobs.uids:
            seen.append(snapshot)
        return plan(snapshot)

    def drawn_on() -> str:
        return seen[-1].flavours[seen[-1].jobs.flavours[_row(seen[-1], LOW)]]

    monkeypatch.setattr(plans, "plan", look)
    node = gpu_node(**H100)
    node = replace(node, allocatable=(*node.allocatable, ("nvidia.com/gpu.shared", 8)))
    async with world(node=node) as place:
        await running(place, "low", workers=1, each=each)
        place.submit("next", workers=1)
        await place.until(lambda: place.placed("next"))
        pods = {name: raw for name, raw in place.server.pods.items() if name.startswith("low-g")}
        assert drawn_on() == flavour
    seen.clear()
    async with world(node=node) as place:
        place.server.pods = pods
        for name in pods:
            place.show(name)
        await place.until(lambda: seen)
        assert drawn_on() == flavour


@pytest.mark.parametrize(
    ("fails", "written"),
    [
        (lambda: ApiError(409, "Conflict", "the object has been modified"), ["high", "high", "next"]),
        (lambda: ApiError(500, "InternalError", "etcd is slow"), ["high", "next"]),  # it rests for a while
        (lambda: ApiUnreachable("refused"), ["high", "next"]),
    ],
)
async def test_nobody_is_promised_what_victims_leave_over_where_the_promise_that_tells_them_was_not_written(
    fails: Callable[[], Exception], written: list[str]
) -> None:
    """What `low` leaves for `high` is enough for `next` as well, which asks it itself while `high` rests."""
    async with world(priorities={"high": 2, "next": 1}) as place:
        await running(place, "low", workers=4)
        tries: list[str] = []

        def fail_once(name: str, status: dict[str, Any]) -> None:
            if status.get("promise"):
                tries.append(name)
                if tries == ["high"]:
                    raise fails()

        place.server.before_status = fail_once
        for name in ("high", "next"):
            place.submit(name, priorityClassName=name)
        await place.until(lambda: place.status("next").get("promise"))
        place.gone("low")
        await place.until(lambda: place.placed("high") and place.placed("next"))
        assert tries == written
        assert EventReason.PROMISE_BROKEN not in {note.reason for _, note in place.notes}


def _promises(place: World, name: str) -> bool:
    """Whether a promise to a job is written, or on its way."""
    record = place.loop.records.get(f"uid-of-{name}")
    return record is not None and record.promise is not None


async def test_nobody_is_promised_what_victims_leave_over_while_it_is_not_known_whether_they_are_told() -> None:
    """The write of the promise for which `low` goes takes long, and fails. Another plan is made meanwhile, in which
    `next` asks `small` as well."""
    async with world(cpu="6", priorities={"high": 2, "next": 1}) as place:
        await running(place, "low", workers=4)
        place.submit("small")
        await place.until(lambda: len(place.server.pods) == 6)
        update, failed = place.server.update_status, asyncio.Event()

        async def fail_late(path: str, body: dict[str, Any]) -> dict[str, Any]:
            if path.rsplit("/", 1)[1] == "high" and body["status"].get("promise") and not failed.is_set():
                await failed.wait()
                raise ApiError(409, "Conflict", "the object has been modified")
            return await update(path, body)

        place.server.update_status = fail_late  # type: ignore[method-assign]
        for name in ("high", "next"):
            place.submit(name, workers=3, priorityClassName=name)
            await place.until(lambda: _promises(place, name))  # noqa: B023 - it is waited for in this turn
        assert not place.status("next").get("promise"), "low may never be told"
        failed.set()
        await place.until(lambda: place.status("high").get("promise") and place.status("next").get("promise"))
        for name in ("low", "small"):
            place.gone(name)
        await place.until(lambda: place.placed("high") and place.placed("next"))
        assert EventReason.PROMISE_BROKEN not in {note.reason for _, note in place.notes}
