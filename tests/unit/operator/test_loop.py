"""The loop against an API server that fails: nothing is booked twice, repeated without pause, or forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from muster.api.common import format_time
from muster.api.names import EventReason
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.views import NodeView, parse_time
from muster.controllers import loop as loops
from muster.controllers import plans, records, work
from muster.controllers.asking import lacks_nodes
from muster.controllers.observing import Observing
from muster.controllers.situations import Patience
from muster.telemetry.metrics import Metrics

from .loops import Object, compressed, world

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "error",
    [
        lambda: ApiError(500, "InternalError", "failed calling webhook"),
        lambda: ApiError(429, "TooManyRequests", "slow down"),
        lambda: ApiUnreachable("refused"),
    ],
)
async def test_pods_that_cannot_be_made_are_tried_again_with_pauses(error: Callable[[], Exception]) -> None:
    async with world() as place:
        place.server.fail["POST pods"] = error
        place.submit("a")
        await place.until(lambda: [record.errors >= 2 for record in place.loop.records.values()] == [True])
        (record,) = place.loop.records.values()
        assert place.server.calls["POST pods"] <= 2 * (record.errors + 1), "each try backs off further"
        assert str(error()) in record.unmade
        place.server.fail.clear()
        await place.until(lambda: len(place.server.pods) == 2)
        await place.until(lambda: record.unmade == "")


async def test_a_deletion_is_not_asked_for_again_while_the_watch_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "ASK_AGAIN", 3600.0)  # however long the turns below take
    async with world() as place:
        place.submit("a", workers=4)
        await place.until(lambda: len(place.server.pods) == 4)
        for name in place.server.pods:
            place.show(name)
        place.edit("a", suspend=True)
        await place.until(lambda: place.server.calls["DELETE pods"] >= 4)
        record = next(iter(place.loop.records.values()))
        for _ in range(5):
            place.cache.mark(record.uid)
            await place.until(lambda: not place.cache.dirty)
        assert place.server.calls["DELETE pods"] == 4


async def test_a_refused_rehearsal_is_repeated_in_a_quiet_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FIRST_RETRY", 0.3)
    async with world() as place:
        place.server.fail["REHEARSE pods"] = lambda: ApiError(403, "Forbidden", "no such service account")
        place.submit("a")
        await place.until(lambda: place.server.calls["REHEARSE pods"] >= 1)
        place.server.fail.clear()
        await place.until(lambda: place.placed("a"))


async def test_a_job_takes_its_second_kind_of_nodes_in_a_quiet_cluster() -> None:
    """Nothing but time has changed by then."""
    async with world() as place:
        place.submit("a", capacity={"order": ["spot", "on-demand"], "fallbackAfter": "5s"})
        raw, began = place.server.jobs["a"], datetime.now(timezone.utc)
        place.feed({**raw, "metadata": {**raw["metadata"], "creationTimestamp": format_time(began)}})
        await place.until(lambda: place.status("a").get("queue"))
        later = format_time(began.replace(microsecond=0) + timedelta(seconds=5))
        told = place.status("a")["queue"]["message"]
        assert told.endswith(f"; from {later} on it takes on-demand nodes, too"), told
        await place.until(lambda: place.placed("a"))
        assert datetime.now(timezone.utc) - began > timedelta(seconds=3), "it waited for its first kind"


async def test_a_wall_clock_that_is_set_forward_wakes_who_waits_for_a_moment_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after the sleep of a machine, in which the monotonic clock stands still."""

    def reachable() -> set[str]:
        conditions = place.status("a").get("conditions", [])
        return {each["reason"] for each in conditions if each["type"] == "DeadlineReachable"}

    async with world() as place:
        deadline = datetime.now(timezone.utc) + timedelta(hours=1)
        place.submit("a", workers=99, deadline=format_time(deadline))
        await place.until(lambda: reachable() == {"CannotStart"} and place.status("a").get("queue"))
        (record,) = place.loop.records.values()
        await place.until(lambda: record.task is None and record.uid not in place.cache.dirty)
        monkeypatch.setattr(loops, "utc_now", lambda: datetime.now(timezone.utc) + timedelta(hours=2))
        await place.until(lambda: reachable() == {"DeadlinePassed"}, seconds=30)


async def test_a_quiet_cluster_is_looked_at_again_while_there_are_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "REVIEW", 0.2)
    made: list[float] = []
    async with world(planned=made.append) as place:
        await place.until(lambda: made)
        place.submit("a", workers=1)
        await place.until(lambda: place.server.pods)
        place.show(next(iter(place.server.pods)))
        before = len(made)
        await place.until(lambda: len(made) >= before + 10)


async def test_a_webhook_that_does_not_answer_is_told_to_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FIRST_RETRY", 0.3)
    said = 'Internal error occurred: failed calling webhook "mutate.kyverno.svc-fail": connect: connection refused'
    async with world() as place:
        place.server.fail["REHEARSE pods"] = lambda: ApiError(500, "InternalError", said)
        place.submit("a")
        await place.until(lambda: place.status("a").get("queue"), seconds=20)
        told = place.status("a")["queue"]
        assert told["reason"] == "PodRefused"
        assert 'admission webhook does not answer: "mutate.kyverno.svc-fail": connect' in told["message"]
        place.server.fail.clear()
        await place.until(lambda: place.placed("a"))


async def test_a_pod_that_admission_makes_larger_than_its_rehearsal_is_told_as_people_write_amounts() -> None:
    """A policy for pods of some names alone: the rehearsal's has another."""
    async with world() as place:
        create = place.server.create

        async def enlarged(path: str, body: Object, **how: Any) -> Object:
            made = await create(path, body, **how)
            if made["metadata"]["name"] == "a-g1-1-0":
                larger = {"requests": {"cpu": "2500m", "memory": "3Gi", "nvidia.com/gpu": "1"}}
                made = {**made, "spec": {**made["spec"], "containers": [{"name": "trainer", "resources": larger}]}}
            return made

        place.server.create = enlarged  # type: ignore[method-assign]
        place.submit("a")
        told = (
            "admission made pod a-g1-1-0 ask for more than was planned for: 2.5 cores instead of 1 core, "
            "3 GiB memory instead of 0 GiB memory, 1 nvidia.com/gpu instead of 0 nvidia.com/gpu"
        )
        await place.until(lambda: any(told in note.message for _, note in place.notes))


async def test_a_missing_priority_class_of_gangs_is_the_installations_matter() -> None:
    async with world() as place:
        refused = 'pods "a" is forbidden: no PriorityClass with name muster-gang was found'
        place.server.fail["REHEARSE pods"] = lambda: ApiError(403, "Forbidden", refused)
        place.submit("a")
        await place.until(lambda: place.status("a").get("conditions"))
        (admitted,) = [one for one in place.status("a")["conditions"] if one["type"] == "Admitted"]
        assert "have the chart make it (gangPriorityClass.create)" in admitted["message"]


async def test_a_rehearsal_that_met_no_api_server_is_repeated() -> None:
    async with world() as place:
        place.server.fail["REHEARSE pods"] = lambda: ApiUnreachable("refused")
        place.submit("a")
        await place.until(lambda: place.server.calls["REHEARSE pods"] >= 1)
        place.server.fail.clear()
        place.feed(place.server.jobs["a"])  # as a watch does that lists afresh
        await place.until(lambda: place.placed("a"))


async def test_a_placement_whose_answer_was_lost_keeps_its_room() -> None:
    async with world(cpu="2") as place:
        await place.until(lambda: place.loop.last_tick)
        place.server.cut_off_at_placement = True
        place.submit("a")
        await place.until(lambda: place.placed("a"))
        place.submit("b")
        await place.until(lambda: place.server.jobs["b"].get("status"))
        assert not place.placed("b")
        place.server.fail.clear()
        await place.until(lambda: len(place.server.pods) == 2)
        assert not place.placed("b")


async def test_a_pod_that_came_and_went_between_two_looks_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (records, work):
        monkeypatch.setattr(module, "MADE_PATIENCE", 0.5)
    monkeypatch.setattr(loops, "LONGEST_SLEEP", 0.2)
    async with world() as place:
        place.submit("a")
        await place.until(lambda: len(place.server.pods) == 2)
        place.show("a-g1-1-0")
        before = place.server.calls["POST pods"]
        await place.until(lambda: place.server.calls["POST pods"] > before)


async def test_a_deleted_job_gives_its_room_back_though_a_pod_of_it_came_and_went_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (records, work, loops):
        monkeypatch.setattr(module, "MADE_PATIENCE", 0.5)
    monkeypatch.setattr(loops, "LONGEST_SLEEP", 0.2)
    async with world(cpu="2") as place:
        place.submit("a")
        await place.until(lambda: len(place.server.pods) == 2)
        (record,) = place.loop.records.values()
        record.ask(0.0)  # a turn for another reason, before the pods' own moment has come
        place.cache.wake.set()
        await place.until(lambda: record.retry_at != 0.0)
        place.cache.on_job(("ns", "a"), None)
        place.submit("b")
        await place.until(lambda: place.placed("b"))
        assert record.uid not in place.loop.records


async def test_a_job_that_a_finalizer_holds_gives_its_room_back_when_its_pods_are_gone() -> None:
    async with world(cpu="2") as place:
        place.submit("a")
        await place.until(lambda: len(place.server.pods) == 2)
        for name in place.server.pods:
            place.show(name)
        place.submit("b")
        await place.until(lambda: place.status("b").get("queue"))
        raw = place.server.jobs["a"]
        metadata = {"deletionTimestamp": "2026-03-01T13:00:00Z", "finalizers": ["example.com/audit"]}
        place.feed({**raw, "metadata": {**raw["metadata"], **metadata, "resourceVersion": "99"}})
        await place.until(lambda: place.server.calls["DELETE pods"] == 2)
        assert not place.placed("b")
        place.gone("a")
        await place.until(lambda: place.placed("b"))


@pytest.mark.parametrize("node", [None, "bare"])
async def test_a_gang_costs_what_it_does_while_its_node_is_gone_or_has_lost_its_labels(node: str | None) -> None:
    def seen(**labels: str) -> NodeView:
        status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "8"}}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        return NodeView.from_raw({"metadata": {"name": "n", "labels": labels}, "status": {**status, **ready}})

    h100 = seen(**{"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    async with world(node=h100, prices={"H100/on-demand": 2.5}) as place:
        place.submit("a", workers=1, each={"gpusPerWorker": 8})
        await place.until(lambda: place.server.pods)
        (record,) = place.loop.records.values()
        await place.until(lambda: record.price == 2.5)
        place.nodes.items.pop("n")
        if node is not None:
            place.nodes.items["n"] = seen()
        place.cache.on_node("n", place.nodes.items.get("n"))
        record.price = 0.0  # as for an operator that has just started
        place.cache.mark(record.uid)
        await place.until(lambda: record.price == 2.5, seconds=10)


@pytest.mark.parametrize("flavour", ["H100/interruptible", f"{'H' * 100}/spot"])
async def test_a_placement_on_nodes_of_no_kind_that_there_is_stops_no_queues_books(flavour: str) -> None:
    async with world() as place:
        place.submit("a", workers=1)
        await place.until(lambda: place.server.pods)
        raw = place.server.jobs["a"]
        each = {"workers": {"replicas": 1, "gpusPerWorker": 8}}
        placement = {**raw["status"]["placement"], "flavour": flavour, "gpusPerWorker": 8, "spec": ""}
        metadata = {**raw["metadata"], "resourceVersion": "99"}
        place.feed({**raw, "metadata": metadata, "spec": {**raw["spec"], **each}, "status": {"placement": placement}})
        for weight in (2, 3):  # a round begins when the one before has kept its books
            before, spec = place.loop.tally, {"weight": weight}
            raw = {"metadata": {"name": "q", "generation": weight}, "spec": spec}
            place.cache.on_queue("q", TrainingQueue.from_raw(raw))
            await place.until(lambda before=before: place.loop.tally is not before)  # type: ignore[misc]
        assert place.loop.turn_errors == 0
        assert place.loop.tally is not None
        assert place.loop.tally.held.any()


async def test_a_gang_on_slices_costs_its_part_of_the_gpus_that_they_are_of() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A30"}
    status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9", "nvidia.com/mig-1g.6gb": "8"}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    node = NodeView.from_raw({"metadata": {"name": "n", "labels": labels}, "status": {**status, **ready}})
    async with world(node=node, prices={"A30/on-demand": 0.8}, currency="EUR") as place:
        slices = {"resources": {"limits": {"nvidia.com/mig-1g.6gb": "2"}}}
        place.submit("a", workers=3, each=slices)
        await place.until(lambda: place.server.pods)
        (record,) = place.loop.records.values()
        await place.until(lambda: record.price == 0.8)
        assert (record.gpu_type, record.currency) == ("A30", "EUR")
        metrics = Metrics()
        Observing(metrics, {"A30/on-demand": 0.8}).look(place.loop, place.cache)
        shown = {sample.name: sample.value for family in families(metrics.text().decode()) for sample in family.samples}
        assert (shown["muster_job_gpus"], shown["muster_job_cost_per_hour"]) == pytest.approx((1.5, 1.2))


async def test_a_gang_that_stops_holds_the_quota_of_its_gpus_whatever_its_job_asks_for_next() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9", "nvidia.com/gpu": "8"}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    node = NodeView.from_raw({"metadata": {"name": "n", "labels": labels}, "status": {**status, **ready}})
    async with world(node=node) as place:
        place.submit("a", workers=1, each={"gpusPerWorker": 8})
        await place.until(lambda: place.server.pods)
        assert place.status("a")["placement"]["gpusPerWorker"] == 8
        place.show("a-g1-0-0")
        workers = place.server.jobs["a"]["spec"]["workers"]
        place.edit("a", suspend=True, workers={**workers, "gpusPerWorker": 0})
        await place.until(lambda: place.status("a").get("stop"))
        seen = place.loop.tally
        await place.until(lambda: place.loop.tally is not seen, seconds=10)
        tally = place.loop.tally
        assert tally is not None
        flavour, gpu = (
            tally.snapshot.flavours.index("H100/on-demand"),
            tally.snapshot.resources.index("nvidia.com/gpu"),
        )
        assert tally.held[tally.rows["q"], flavour, gpu] == 8


async def test_a_pod_that_came_and_went_while_its_gang_was_made_holds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(cpu="2") as place:
        create = place.server.create

        async def create_and_lose(path: str, body: Object, *, dry_run: bool = False, strict: bool = False) -> Object:
            made = await create(path, body, dry_run=dry_run, strict=strict)
            if body["kind"] == "Pod" and not dry_run and body["metadata"]["name"].startswith("a-"):
                place.show(body["metadata"]["name"])  # before the answer to the POST
                place.cache.on_job(("ns", "a"), None)
                place.gone("a")
            return made

        monkeypatch.setattr(place.server, "create", create_and_lose)
        place.submit("a")
        await place.until(lambda: place.server.calls["POST pods"] == 2)
        place.submit("b")
        await place.until(lambda: place.placed("b"), seconds=records.MADE_PATIENCE / 2)


async def test_a_new_operator_plans_when_it_knows_of_all_that_wait_what_they_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as place:
        create, answers = place.server.create, asyncio.Event()

        async def slow(path: str, body: Object, *, dry_run: bool = False, strict: bool = False) -> Object:
            if dry_run and body["metadata"]["name"].startswith("older"):
                await answers.wait()
            return await create(path, body, dry_run=dry_run, strict=strict)

        monkeypatch.setattr(place.server, "create", slow)
        place.submit("older", workers=4)
        place.submit("younger", workers=1, command=["y"])
        with pytest.raises(TimeoutError):
            await place.until(lambda: place.placed("younger"), seconds=1.5)
        answers.set()
        await place.until(lambda: place.placed("older"))
        assert not place.placed("younger")


async def test_after_a_write_without_an_answer_a_turn_is_due_though_an_earlier_one_rang_meanwhile() -> None:
    async with world() as place:
        answer, moment = place.server.update_status, 0.0

        async def late(path: str, body: Object) -> Object:
            nonlocal moment
            if body["status"].get("placement") and not moment:
                (record,) = place.loop.records.values()
                moment = record.retry_at = asyncio.get_running_loop().time() + 0.05
                record.ring(record.uid, moment)
                await place.until(lambda: place.loop.last_tick > moment)
                raise ApiUnreachable("no answer")
            return await answer(path, body)

        place.server.update_status = late  # type: ignore[method-assign]
        place.submit("job")
        await place.until(lambda: any(record.errors for record in place.loop.records.values()))
        (record,) = place.loop.records.values()
        assert record.due_at is not None
        assert record.due_at > moment
        await place.until(lambda: place.placed("job"))


def test_turns_of_a_run_that_ends_in_weeks_leave_no_alarms_behind_and_it_ends_on_time() -> None:
    """The wall clock does not follow the compressed one, so the run's end is put off at each look at it."""

    async def story() -> None:
        async with world() as place:
            place.submit("job", workers=1, maxRuntime="7d")
            await place.until(lambda: place.placed("job"))
            (record,) = place.loop.records.values()
            turns = 100
            for _ in range(turns):
                before = place.loop.last_tick
                place.cache.mark(record.uid)
                await place.until(lambda: place.loop.last_tick > before and not place.cache.dirty)  # noqa: B023
            alarms = place.loop._alarms
            assert len(alarms) < turns / 4
            ends = record.wake_at
            assert ends is not None
            assert alarms.next is not None
            assert alarms.next <= ends
            record.retry_at = None
            record.ask(ends + 60.0)
            assert place.loop._rung(ends) == {record.uid}
            assert alarms.next == ends + 60.0, "what was asked for beside it still comes"

    compressed(story())


async def test_what_comes_after_a_silence_is_looked_at_without_delay_and_what_follows_is_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gather = 2.0
    monkeypatch.setattr(loops, "COALESCE", gather)
    monkeypatch.setattr(loops, "LONGEST_SLEEP", 60.0)
    async with world() as place:
        await place.until(lambda: place.loop.last_tick + gather < time.monotonic())
        began = time.monotonic()
        place.submit("first", workers=1)
        await place.until(lambda: place.loop.records)
        first = time.monotonic()
        assert first - began < gather
        place.submit("second", workers=1)
        await place.until(lambda: len(place.loop.records) == 2)
        assert time.monotonic() - first > 0.9 * gather


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            {"stopPolicy": "hold"},
            "its stopPolicy is hold: what runs goes on, nothing new starts until it is set to none",
        ),
        (
            {"parent": "lab"},
            "its parent, TrainingQueue 'lab', does not exist. Make it, or name another one in spec.parent",
        ),
    ],
)
async def test_a_job_of_a_closed_queue_is_told_why_it_is(spec: dict[str, Any], why: str) -> None:
    async with world() as there:
        there.cache.on_queue("shut", TrainingQueue.from_raw({"metadata": {"name": "shut"}, "spec": spec}))
        there.submit("waits", queue="shut")
        await there.until(lambda: there.status("waits").get("queue"))
        told = there.status("waits")["queue"]
        assert (told["reason"], told["message"]) == ("QueueClosed", f"queue shut takes no new jobs: {why}")


@pytest.mark.parametrize(
    ("demands", "why"),
    [
        ({"nodeSelector": {"pool": "nope"}}, "none has the label pool=nope (pool is cpu)"),
        ({"nodeSelector": {"rack": "r1"}}, "none has the label rack=r1"),
        (
            {"nodeSelector": {"pool": "cpu"}},
            "it does not tolerate the taints of those whose labels suit: own=x:NoSchedule",
        ),
    ],
)
async def test_a_job_that_suits_no_node_is_told_what_none_has(demands: dict[str, Any], why: str) -> None:
    node = {
        "metadata": {"name": "n", "labels": {"pool": "cpu"}},
        "spec": {"taints": [{"key": "own", "value": "x", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "4", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    async with world(node=NodeView.from_raw(node)) as there:
        there.submit("nowhere", **demands)
        await there.until(lambda: there.status("nowhere").get("queue"))
        told = there.status("nowhere")["queue"]
        assert told["reason"] == "NoEligibleNodes"
        assert told["message"].endswith(f"the job's kind of capacity, node labels and tolerations: {why}")


async def test_a_gang_that_starts_again_is_not_told_that_it_waits_for_its_queues_budget() -> None:
    """What ran goes on, and starts in the next plan."""
    async with world() as there:
        there.submit("a", restart={"backoff": "1s"})
        await there.until(lambda: len(there.server.pods) == 2)
        use = {"until": format_time(work.utc_now()), "uses": [{"gpuType": "H100", "gpuSeconds": 9999}]}
        raw = {"metadata": {"name": "q"}, "spec": {"budgets": [{"gpuHours": 1}]}, "status": {"month": use}}
        there.cache.on_queue("q", TrainingQueue.from_raw(raw))
        for name in list(there.server.pods):
            there.show(name, phase="Failed")
        await there.until(lambda: there.status("a").get("promise"))
        there.gone("a")
        await there.until(lambda: (there.status("a").get("placement") or {}).get("generation") == 2)
        assert EventReason.QUEUED not in [note.reason for _, note in there.notes]


async def test_a_job_that_waits_again_for_what_it_waited_for_before_it_ran_is_told_so_again() -> None:
    shut, opened = (
        TrainingQueue.from_raw({"metadata": {"name": "q", "uid": "u"}, "spec": {"stopPolicy": policy}})
        for policy in ("hold", "none")
    )
    async with world() as there:
        there.cache.on_queue("q", shut)
        there.submit("a")
        await there.until(lambda: there.status("a").get("queue"))
        before = there.status("a")["queue"]
        there.cache.on_queue("q", opened)
        await there.until(lambda: len(there.server.pods) == 2)
        there.cache.on_queue("q", shut)
        there.edit("a", env=[{"name": "LR", "value": "1e-3"}])
        await there.until(lambda: there.status("a").get("stop"))
        there.gone("a")
        await there.until(lambda: not there.placed("a"))
        assert there.status("a")["queue"]["reason"] == "Restarting"
        await there.until(lambda: there.status("a")["queue"] == before, seconds=20.0)
        assert there.status("a")["phase"] == "Queued"


async def test_what_only_a_change_can_mend_is_a_warning() -> None:
    """What waits for its turn has it in its status alone."""
    async with world(cpu="2") as there:
        there.submit("lost", queue="qq")
        there.submit("holds")
        await there.until(lambda: there.placed("holds"))
        there.submit("turn")
        there.submit("giant", workers=5)
        await there.until(lambda: {"lost", "giant"} <= {name for name, _ in there.notes})
        await there.until(lambda: there.status("turn").get("queue"))
        told = {name: note for name, note in there.notes if note.reason is EventReason.QUEUED}
        assert {name: note.warning for name, note in told.items()} == {"lost": True, "giant": True}
        assert "there is no TrainingQueue 'qq'; did you mean 'q'? There are: q" in told["lost"].message


@pytest.mark.parametrize("how", ["another queue", "the month's budget", "a window that never opens"])
async def test_what_keeps_a_job_from_the_plan_ends_its_wish_for_nodes(how: str) -> None:
    async with world(cpu="2") as place:
        place.submit("a", workers=3)
        await place.until(lambda: place.status("a").get("queue"))
        (record,) = place.loop.records.values()
        assert lacks_nodes(record.waiting)
        if how == "another queue":
            place.edit("a", queue="nowhere")
        elif how == "a window that never opens":
            place.edit("a", window={"start": "0 0 31 2 *", "duration": "1h"})
        else:
            use = {"gpuType": "H100", "gpuSeconds": 9999}
            raw = {
                "metadata": {"name": "q", "generation": 2},
                "spec": {"budgets": [{"gpuHours": 1}]},
                "status": {"month": {"until": format_time(work.utc_now()), "uses": [use]}},
            }
            place.cache.on_queue("q", TrainingQueue.from_raw(raw))
        await place.until(lambda: not lacks_nodes(record.waiting), seconds=10)


@pytest.mark.parametrize("there", [True, False])
async def test_nobody_is_stopped_while_a_queue_cannot_be_read_whose_quota_they_may_have_borrowed(there: bool) -> None:
    def queue(name: str) -> TrainingQueue:
        quotas = [{"resources": [{"name": "cpu", "nominal": 1}]}]
        return TrainingQueue.from_raw({"metadata": {"name": name}, "spec": {"cohort": "all", "quotas": quotas}})

    async with world() as place:
        place.cache.on_queue("q", queue("q"))
        place.cache.on_queue("lender", queue("lender"))
        for name in "ab":
            place.submit(name, workers=1)
        await place.until(lambda: place.placed("a") and place.placed("b"))
        await place.until(lambda: len(place.server.pods) == 2)
        place.cache.on_queue("lender", None)
        if there:
            place.cache.on_unreadable_queue("lender")  # as a new operator sees it, which has not known it before
        place.submit("c", workers=1)
        await place.until(lambda: place.status("c").get("queue"))
        assert sum("stop" in place.status(name) for name in "ab") == (0 if there else 1)


async def test_a_job_whose_queue_cannot_be_read_is_told_so() -> None:
    async with world() as place:
        place.cache.on_unreadable_queue("old")
        place.submit("a", queue="old")
        await place.until(lambda: place.status("a").get("queue"))
        assert "can't read TrainingQueue 'old'" in place.status("a")["queue"]["message"]
        place.cache.on_queue("old", TrainingQueue.from_raw({"metadata": {"name": "old"}, "spec": {}}))
        await place.until(lambda: place.placed("a"))


def of_kind(name: str, kind: str) -> NodeView:
    """A node with room for one worker."""
    return NodeView.from_raw(
        {
            "metadata": {"name": name, "labels": {"muster.dev/capacity": kind}},
            "status": {
                "allocatable": {"cpu": "1", "memory": "8Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


@pytest.mark.parametrize(
    ("capacity", "kinds"),
    [
        (None, {}),
        ({"order": ["spot"]}, {"capacity": "spot"}),
        ({"order": ["reserved", "on-demand"], "fallbackAfter": "0s"}, {"capacity": "on-demand"}),
        ({"order": ["spot"], "base": "on-demand"}, {"base": 1, "capacity": "on-demand", "beyond": "spot"}),
    ],
)
async def test_a_placement_says_of_which_kind_of_capacity_its_nodes_are(
    capacity: dict[str, Any] | None, kinds: dict[str, object]
) -> None:
    """Also without GPUs, which is where no flavour tells it."""
    async with world(node=of_kind("n", "on-demand")) as place:
        place.nodes.items["s"] = of_kind("s", "spot")
        sizes = {"min": 1, "max": 2} if kinds.get("base") else {}
        asked = {"capacity": capacity} if capacity else {}
        place.submit("a", workers=2 if kinds.get("base") else 1, each=sizes, **asked)
        await place.until(lambda: place.placed("a"))
        placement = place.status("a")["placement"]
        assert {key: placement[key] for key in ("base", "capacity", "beyond") if key in placement} == kinds


async def test_a_running_job_keeps_its_priority_while_its_class_is_not_there() -> None:
    async with world(priorities={"high": 10, "middle": 5}) as place:
        place.submit("first", workers=4, priorityClassName="high")
        await place.until(lambda: len(place.server.pods) == 4)
        for name in list(place.server.pods):
            place.show(name, "Running")
        assert place.status("first")["priority"] == 10
        place.edit("first", priorityClassName="hihg")
        await place.until(lambda: any(note.reason.value == "PriorityClassNotFound" for _, note in place.notes))
        place.submit("second", workers=4, priorityClassName="middle")
        await place.until(lambda: place.status("second").get("queue"))
        assert place.status("second")["queue"]["reason"] == "InsufficientCapacity"
        assert "stop" not in place.status("first")
        raw = place.server.jobs["first"]
    async with world(priorities={"high": 10, "middle": 5}) as later:
        status = {key: value for key, value in raw["status"].items() if key not in ("placement", "conditions")}
        later.feed({**raw, "status": status})
        await later.until(lambda: later.placed("first"))
        assert later.status("first")["priority"] == 10


async def test_who_waits_for_a_bounded_run_is_told_its_end_and_no_whole_ready_timeout_before() -> None:
    """The gang may take all of that to start, and hardly ever does."""
    async with world(patience=Patience(launcher=0.1)) as place:
        place.submit("first", workers=4, maxRuntime="10m", readyTimeout="30m")
        await place.until(lambda: len(place.server.pods) == 4)
        place.submit("second", workers=4, maxRuntime="10m")

        def told() -> tuple[str, float]:
            queue = place.status("second").get("queue", {})
            start = parse_time(queue.get("expectedStart"))
            now = datetime.now(timezone.utc)
            return queue.get("basis", ""), (start - now).total_seconds() if start is not None else 0.0

        await place.until(lambda: told()[1])
        basis, seconds = told()
        assert basis == "progress"
        assert seconds < 900
