"""Of the live jobs with one `checkpoint.uri` a single one trains; the others are told whom they wait for."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.effective import effective_spec
from muster.api.names import EventReason, Reason
from muster.api.trainingjob import TrainingJob
from muster.cluster.views import NamespaceView
from muster.controllers.places import Places, place_of
from muster.controllers.records import Record

from .loops import World, world

pytestmark = pytest.mark.unit

RUN = {"uri": "s3://models/llama"}
CONFLICT = Reason.CHECKPOINT_PATH_CONFLICT.value


def told(place: World, name: str) -> tuple[str, str]:
    """Reason and message of the job's condition Admitted."""
    found = [one for one in place.status(name).get("conditions", ()) if one["type"] == "Admitted"]
    return (found[0]["reason"], found[0]["message"]) if found else ("", "")


async def in_conflict(place: World, name: str) -> str:
    """The job's message, once it says that it waits for another on its uri."""
    await place.until(lambda: told(place, name)[0] == CONFLICT)
    assert not place.placed(name)
    return told(place, name)[1]


async def runs(place: World, name: str) -> None:
    await place.until(lambda: sum(pod.startswith(f"{name}-g") for pod in place.server.pods) == 2)
    for pod in place.server.pods:
        place.show(pod, phase="Running")


async def test_a_second_job_on_a_uri_does_not_start_and_is_told_of_the_first() -> None:
    async with world(cpu="8") as place:
        place.submit("first", checkpoint=RUN)
        await runs(place, "first")
        place.submit("second", checkpoint={"uri": "s3://models/llama/"})
        place.submit("elsewhere", checkpoint={"uri": "s3://models/llama/deeper"})
        message = await in_conflict(place, "second")
        assert message.startswith(
            "TrainingJob ns/first saves to s3://models/llama/, which is this job's checkpoint.uri"
        )
        assert "starts by itself when that one has ended, or is deleted or suspended" in message
        assert "checkpoint.from: s3://models/llama/ begins it with what lies there" in message
        assert place.status("second")["queue"]["reason"] == CONFLICT, "muster status shows it"
        (note,) = [note for name, note in place.notes if name == "second"]
        assert (note.reason, note.warning, note.message) == (EventReason.QUEUED, True, message)
        await place.until(lambda: place.placed("elsewhere"))
        assert place.server.calls["REHEARSE pods"] <= 2, "what can't start is not rehearsed"


@pytest.mark.parametrize("how", ["deleted", "ended", "suspended"])
async def test_it_starts_by_itself_when_the_first_is_gone_with_its_pods(how: str) -> None:
    async with world(cpu="8") as place:
        place.submit("first", checkpoint=RUN)
        await runs(place, "first")
        place.submit("second", checkpoint=RUN)
        await in_conflict(place, "second")
        if how == "deleted":
            place.cache.on_job(("ns", "first"), None)
        elif how == "suspended":
            place.edit("first", suspend=True)
            await place.until(lambda: place.server.calls["DELETE pods"] >= 2)
        if how != "ended":
            for _ in range(3):  # its last checkpoint may be on its way
                place.cache.on_world()
                await place.until(lambda: not place.cache.wake.is_set())
            assert not place.placed("second")
            place.gone("first")
        else:
            for name in [name for name in place.server.pods if name.startswith("first")]:
                place.show(name, phase="Succeeded")
        await place.until(lambda: place.placed("second"))


async def test_a_job_that_is_resumed_while_another_lives_there_waits() -> None:
    async with world(cpu="8") as place:
        place.submit("first", checkpoint=RUN)
        await runs(place, "first")
        place.edit("first", suspend=True)
        await place.until(lambda: place.server.calls["DELETE pods"] >= 2)
        place.gone("first")
        await place.until(lambda: place.status("first").get("phase") == "Suspended")
        place.submit("second", at="12:30:00", checkpoint=RUN)
        await runs(place, "second")
        place.edit("first", suspend=False)
        assert "ns/second saves to" in await in_conflict(place, "first")
        place.cache.on_job(("ns", "second"), None)
        place.gone("second")
        await place.until(lambda: place.placed("first"))


async def test_the_older_of_two_that_wait_has_the_place_whoever_could_start() -> None:
    async with world(cpu="2") as place:
        place.submit("younger", workers=1, at="12:00:01", checkpoint=RUN)
        place.submit("older", workers=3, checkpoint=RUN)
        message = await in_conflict(place, "younger")
        assert "TrainingJob ns/older came before this one, and waits to train on s3://models/llama" in message
        place.edit("younger", checkpoint={"uri": "s3://models/other"})
        await place.until(lambda: place.placed("younger"))


async def test_nobody_waits_for_an_older_job_that_has_something_to_be_mended_first() -> None:
    async with world(cpu="8") as place:
        place.submit("older", queue="nowhere", checkpoint=RUN)
        await place.until(lambda: told(place, "older")[0] == Reason.QUEUE_NOT_FOUND.value)
        place.submit("younger", at="12:30:00", checkpoint=RUN)
        await runs(place, "younger")
        place.edit("older", queue="q")
        assert "ns/younger saves to" in await in_conflict(place, "older")


async def test_a_gang_that_is_placed_keeps_its_place_from_a_job_that_is_older() -> None:
    async with world(cpu="8") as place:
        place.submit("younger", at="12:30:00", checkpoint=RUN)
        await runs(place, "younger")
        place.submit("older", checkpoint=RUN)
        assert "ns/younger saves to" in await in_conflict(place, "older")


async def test_a_new_operator_decides_as_the_one_before() -> None:
    async with world(cpu="8") as place:
        for name, at in (("c", "12:30:00"), ("b", "12:00:00"), ("a", "12:00:00")):
            place.submit(name, at=at, checkpoint=RUN)
        await runs(place, "a")
        for name in ("b", "c"):
            assert "ns/a " in await in_conflict(place, name)
        jobs, pods = place.server.jobs, place.server.pods
    async with world(cpu="8") as place:
        place.server.pods = pods
        for name in pods:
            place.show(name, phase="Running")
        for raw in sorted(jobs.values(), key=lambda raw: str(raw["metadata"]["name"]), reverse=True):
            place.feed(raw)
        place.submit("plain")
        await place.until(lambda: place.placed("plain"))
        assert not place.placed("b")
        assert not place.placed("c")


async def test_a_job_of_another_namespace_is_named_with_it() -> None:
    async with world(cpu="8") as place:
        place.cache._namespaces.items["team"] = NamespaceView("team", {}, False)  # type: ignore[attr-defined]
        place.submit("first", checkpoint=RUN)
        await runs(place, "first")
        place.submit("second", checkpoint=RUN)
        raw = place.server.jobs["second"]
        other = {**raw, "metadata": {**raw["metadata"], "name": "theirs", "uid": "uid-of-theirs", "namespace": "team"}}
        place.server.jobs["theirs"] = other
        place.cache.on_job(("team", "theirs"), TrainingJob.from_raw(other))
        await place.until(lambda: "TrainingJob ns/first saves to" in told(place, "theirs")[1])


def record(name: str = "a", at: str = "12:00:00", **spec: Any) -> Record:
    raw = {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": f"2026-03-01T{at}Z"},
        "spec": {"queue": "q", "image": "i", "command": ["x"], "workers": {"replicas": 1}, **spec},
    }
    return Record.of(TrainingJob.from_raw(raw))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"uri": "s3://models/llama/"}, True),
        ({"uri": "s3://models/llama-2"}, False),
        ({"uri": "s3://models/llama/step-1"}, False),
        ({"uri": "s3://model/llama"}, False),
        ({"uri": "s3://models/llama", "endpoint": "https://s3.eu-west-1.amazonaws.com"}, True),
        ({"uri": "s3://models/llama", "endpoint": "http://minio:9000"}, False),
    ],
)
def test_which_uris_are_one_place(other: dict[str, str], same: bool) -> None:
    assert (place_of(record(checkpoint=RUN).spec) == place_of(record(checkpoint=other).spec)) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://minio:9000", "http://MinIO:9000/", True),
        ("https://s3.example.com", "https://s3.example.com:443", True),
        ("http://s3.example.com:9000", "http://s3.example.com", False),
        ("http://s3.example.com:99999", "http://s3.example.com", False),
        ("http://[::1:9000", "http://[::1:9000", True),
        ("http://[::1:9000", "http://[::1]:9000", False),
    ],
)
def test_which_endpoints_are_one_server(one: str, other: str, same: bool) -> None:
    by_field = record(checkpoint={**RUN, "endpoint": one}).spec
    by_env = record(checkpoint=RUN, env=[{"name": "AWS_ENDPOINT_URL_S3", "value": other}]).spec
    assert (place_of(by_field) == place_of(by_env)) is same


def test_a_job_without_checkpoints_or_with_a_uri_of_no_use_has_no_place() -> None:
    assert place_of(record().spec) is None
    assert place_of(effective_spec(record(checkpoint={"uri": "s3://models/a/../b"}).job.spec)) is None


def test_who_has_the_place_does_not_depend_on_the_order_of_news() -> None:
    jobs = [record("b", checkpoint=RUN), record("a", checkpoint=RUN), record("c", at="11:59:59", checkpoint=RUN)]
    for order in (jobs, jobs[::-1], [jobs[1], jobs[2], jobs[0]]):
        freed: list[str] = []
        places = Places(freed.append)
        for each in order:
            places.update(each, living=False)
        assert [places.other(name) for name in "abc"] == ["c", "c", ""]
        places.update(jobs[0], living=True)
        assert [places.other(name) for name in "abc"] == ["b", "", "b"]
        freed.clear()
        places.drop("b")
        assert (freed, places.other("a"), places.other("c")) == (["c"], "c", "")
        places.drop("a")
        assert freed == ["c"], "it had not the place"
