"""How often a job's own objects are written, by the real loop: on a clock that jumps from one moment to the next."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from muster.api.names import EventReason
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.controllers import dropped, words
from muster.controllers.situations import Patience

from .loops import World, compressed, world

pytestmark = pytest.mark.unit

MEETS = Patience(launcher=0.5)
"""Of gangs without launchers: they have met at their barrier half a second after their pods are there."""
AT_MOST = 5
"""Writes of a job's status, its Service and its Events, from its submit to its end."""


def writes(place: World, *names: str) -> Counter[str]:
    """What was written for these jobs so far, and for all jobs of Services and Secrets; pods are counted apart."""
    calls = place.server.calls
    return Counter(
        status=sum(name in names for name, _ in place.server.written),
        events=sum(name in names and not note.logged for name, note in place.notes),
        service=calls["POST services"],
        secret=calls["POST secrets"],
        pods=calls["POST pods"] + calls["DELETE pods"],
        rehearsals=calls["REHEARSE pods"],
    )


def counted(spent: Counter[str]) -> int:
    return spent["status"] + spent["events"] + spent["service"]


async def fill(place: World) -> None:
    """A job runs on all that there is."""
    place.submit("ahead")
    await place.until(lambda: len(place.server.pods) == 2)
    for pod in place.server.pods:
        place.show(pod, "Running")
    await place.until(lambda: place.status("ahead")["phase"] == "Running")


async def run_to_its_end(place: World, name: str) -> None:
    """Its pods start, it trains, and they end well."""
    pods = [pod for pod in place.server.pods if pod.startswith(f"{name}-g")]
    for pod in pods:
        place.show(pod, "Running")
    await place.until(lambda: place.status(name)["phase"] == "Running")
    for pod in pods:
        place.show(pod, "Succeeded")
    await place.until(lambda: place.status(name)["phase"] == "Succeeded")


@pytest.mark.parametrize("waits", [False, True])
def test_a_life_without_trouble_takes_five_writes_at_most(waits: bool) -> None:
    """Submitted, told why it waits, placed, started, run and succeeded."""

    async def test() -> None:
        async with world(cpu="2", patience=MEETS) as place:
            if waits:
                await fill(place)
                before = writes(place, "a")
                place.submit("a")
                await place.until(lambda: place.status("a").get("queue"))
                assert place.status("a")["queue"]["reason"] == "InsufficientCapacity"
                await asyncio.sleep(600)
                await run_to_its_end(place, "ahead")
                place.gone("ahead")
            else:
                before = writes(place, "a")
                place.submit("a")
            await place.until(lambda: len([pod for pod in place.server.pods if pod.startswith("a-g")]) == 2)
            await run_to_its_end(place, "a")
            await asyncio.sleep(600)
            spent = writes(place, "a") - before
            assert spent["service"] == 1
            assert spent["status"] == 3 + waits, place.server.written
            assert counted(spent) <= AT_MOST, spent
            (start,) = [note for name, note in place.notes if name == "a" and note.reason is EventReason.ADMITTED]
            assert start.logged == waits, "who waited for it, and where it started, is in the log at least"
            assert spent["pods"] == 2
            assert spent["secret"] + spent["rehearsals"] <= 2

    compressed(test())


def held(place: World, policy: str) -> None:
    raw = {"metadata": {"name": "q", "uid": "q"}, "spec": {"stopPolicy": policy}}
    place.cache.on_queue("q", TrainingQueue.from_raw(raw))


def gaps(place: World, name: str, since: float) -> list[float]:
    """Seconds between its status writes after a moment."""
    moments = [at for job, at in place.server.moments if job == name and at >= since]
    return [later - at for at, later in pairwise(moments)]


def test_a_reason_that_changes_in_every_round_is_written_every_ten_seconds_at_most() -> None:
    """Its queue is held and opened again, as soon as the planner has seen it, for two minutes."""

    async def test() -> None:
        async with world(cpu="2", patience=MEETS) as place:
            await fill(place)
            place.submit("a")
            await place.until(lambda: place.status("a").get("queue"))
            clock = asyncio.get_running_loop().time
            began, before, changes = clock(), writes(place, "a"), 0
            (record,) = [each for each in place.loop.records.values() if each.identity.name == "a"]
            while clock() - began < 120:
                policy, reason = ("none", "InsufficientCapacity") if changes % 2 else ("hold", "QueueClosed")
                held(place, policy)
                await place.until(lambda: record.waiting is not None and record.waiting.reason.value == reason)  # noqa: B023
                changes += 1
            assert changes > 20
            spent = writes(place, "a") - before
            assert 2 <= spent["status"] <= (clock() - began) / words.REFRESH + 1
            assert min(gaps(place, "a", began)) >= words.REFRESH - 0.01, "two words within ten seconds"
            held(place, "hold")
            await place.until(lambda: place.status("a")["queue"]["reason"] == "QueueClosed", seconds=words.REFRESH + 2)

    compressed(test())


def test_nothing_is_written_for_a_job_that_merely_waits() -> None:
    """For half an hour, in which the planner looks again and again and other jobs come behind it."""

    async def test() -> None:
        made: list[float] = []
        async with world(cpu="2", patience=MEETS, planned=made.append) as place:
            await fill(place)
            place.submit("a")
            await place.until(lambda: place.status("a").get("queue"))
            before, looks = writes(place, "a"), len(made)
            for number in range(6):
                place.submit(f"behind-{number}")
                await asyncio.sleep(300)
            assert len(made) - looks > 6
            spent = writes(place, "a") - before
            assert not counted(spent), spent

    compressed(test())


def test_an_edit_is_answered_at_once_however_lately_it_was_told_why_it_waits() -> None:
    async def test() -> None:
        async with world(cpu="2", patience=MEETS) as place:
            place.submit("a", workers=3)
            await place.until(lambda: place.status("a").get("queue"))
            spec: dict[str, Any] = place.server.jobs["a"]["spec"]
            place.edit("a", queue="nowhere", image=spec["image"])
            await place.until(lambda: place.status("a")["queue"]["reason"] == "QueueNotFound", seconds=3)

    compressed(test())


@pytest.mark.parametrize("error", [ApiUnreachable("refused"), ApiError(409, "Conflict", "somebody wrote meanwhile")])
def test_a_word_whose_write_came_to_nothing_is_said_again(error: Exception) -> None:
    """Though the reason is the one that was told before, and what is wrong merely has another name."""

    async def test() -> None:
        async with world(cpu="2", patience=MEETS) as place:
            place.submit("a", queue="nowhere")
            await place.until(lambda: "nowhere" in place.status("a").get("queue", {}).get("message", ""))
            failed: list[str] = []

            def once(name: str, status: dict[str, Any]) -> None:
                if "elsewhere" in status["queue"]["message"] and not failed:
                    failed.append(name)
                    raise error

            place.server.before_status = once
            place.edit("a", queue="elsewhere")
            await place.until(lambda: "elsewhere" in place.status("a")["queue"]["message"], seconds=2 * words.REFRESH)
            assert failed == ["a"]

    compressed(test())


def test_a_gang_below_its_wish_is_told_once_why_and_no_more_when_it_has_it() -> None:
    async def test() -> None:
        async with world(cpu="3", patience=MEETS) as place:
            place.submit("a", workers=4, each={"min": 2, "step": 2}, checkpoint={"uri": "s3://b/a"})
            await place.until(lambda: place.status("a").get("growth"))
            growth = place.status("a")["growth"]
            assert (growth["reason"], growth["workers"]) == ("InsufficientCapacity", 4)
            assert growth["lacking"] == {"resource": "cpu", "amount": "1", "placeable": 1}
            assert "notBefore" in growth, "a young placement does not grow"
            assert place.status("a")["workers"] == "2/4"
            for pod in list(place.server.pods):
                place.show(pod, "Running")
            await place.until(lambda: place.status("a")["phase"] == "Running")
            before = writes(place, "a")
            await asyncio.sleep(1800)
            assert not counted(writes(place, "a") - before), "nothing has changed"
            workers = place.server.jobs["a"]["spec"]["workers"]
            place.edit("a", workers={**workers, "replicas": 2, "max": 4})
            await place.until(lambda: "growth" not in place.status("a"))

    compressed(test())


@pytest.mark.parametrize("field", ["gpus", "selector", "observedGeneration"])
def test_what_an_older_crd_drops_from_a_status_is_not_written_again_and_again(
    field: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped, "_told", set())

    async def test() -> None:
        async with world(cpu="4", patience=MEETS) as place:
            keep = place.server.update_status

            async def drop(path: str, body: dict[str, Any]) -> dict[str, Any]:
                return await keep(path, {**body, "status": {k: v for k, v in body["status"].items() if k != field}})

            monkeypatch.setattr(place.server, "update_status", drop)
            place.submit("a")
            place.submit("b")
            await place.until(lambda: len(place.server.pods) == 4)
            for pod in place.server.pods:
                place.show(pod, "Running")
            await place.until(lambda: place.status("a")["phase"] == place.status("b")["phase"] == "Running")
            await asyncio.sleep(1)
            before = len(place.server.written), len(place.notes)
            await asyncio.sleep(600)
            assert (len(place.server.written), len(place.notes)) == before
            place.edit("a", suspend=True)
            await place.until(lambda: (place.status("a").get("stop") or {}).get("reason") == "Suspended")

    compressed(test())
    told = [record.getMessage() for record in caplog.records if "does not keep" in record.getMessage()]
    assert len(told) == 1
    assert f"does not keep status.{field}: its CRDs" in told[0]


def test_a_slow_api_server_keeps_no_job_without_a_word_for_long() -> None:
    """Many are new at once, and each status takes longer than a word may: every one is told why it waits all the same,
    and then what has changed."""

    async def test() -> None:
        async with world(cpu="2", patience=MEETS, pace=1e30) as place:
            await fill(place)
            names = [f"new-{number}" for number in range(60)]
            for name in names:
                place.submit(name)

            def told(reason: str) -> bool:
                return all((place.status(name).get("queue") or {}).get("reason") == reason for name in names)

            await place.until(lambda: told("InsufficientCapacity"), seconds=40)
            held(place, "hold")
            await place.until(lambda: told("QueueClosed"), seconds=40)

    compressed(test())
