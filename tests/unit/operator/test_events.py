from __future__ import annotations

import asyncio
import re
from datetime import datetime, timezone, tzinfo
from typing import Any

import pytest

from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.events import NOTE_LIMIT, About, EventRecorder, News

pytestmark = pytest.mark.unit

Object = dict[str, Any]
ABOUT = About("muster.dev/v1alpha1", "TrainingJob", "research", "train", "u1")


class Server:
    """Remembers writes; `trouble` is raised by the next one."""

    def __init__(self) -> None:
        self.created: list[Object] = []
        self.patched: list[tuple[str, Object]] = []
        self.trouble: Exception | None = None

    async def create(self, path: str, body: Object) -> Object:
        self._maybe_fail()
        self.created.append(body)
        return body

    async def merge_patch(self, path: str, patch: Object) -> Object:
        self._maybe_fail()
        self.patched.append((path, patch))
        return patch

    def _maybe_fail(self) -> None:
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble


async def write(server: Server, *news: News, before: Exception | None = None) -> EventRecorder:
    recorder = EventRecorder(server, "operator-1")  # type: ignore[arg-type]
    for one in news:
        recorder.tell(one)
    server.trouble = before
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0.05)
    assert recorder.waiting == 0
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return recorder


async def test_the_log_keeps_what_an_event_tells(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "muster.cluster.events"):
        await write(
            Server(), News(ABOUT, "Restarting", "rank 2 failed:\nValueError"), before=ApiError(500, "x", "away")
        )
    assert caplog.messages[0] == "TrainingJob research/train: Restarting: rank 2 failed: ValueError"


async def test_an_event_is_about_its_job() -> None:
    server = Server()
    await write(server, News(ABOUT, "Admitted", "4 workers on 2 nodes"))
    (event,) = server.created
    assert event["involvedObject"] == {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "namespace": "research",
        "name": "train",
        "uid": "u1",
    }
    assert (event["reason"], event["message"], event["type"]) == ("Admitted", "4 workers on 2 nodes", "Normal")


async def test_repetitions_become_a_series_and_other_words_another_event() -> None:
    server = Server()
    same = News(ABOUT, "Queued", "8 GPUs are missing")
    await write(server, same, same, same, News(ABOUT, "Queued", "9 GPUs are missing"))
    assert len(server.created) == 2
    assert [patch["series"]["count"] for _, patch in server.patched] == [2, 3]
    assert server.patched[0][0].endswith(server.created[0]["metadata"]["name"])


async def test_each_has_the_second_that_kubectl_describe_sorts_by(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(datetime(2026, 11, 25, 18, minute, 7, 250_000, timezone.utc) for minute in (0, 5))

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return next(moments)

    monkeypatch.setattr("muster.cluster.events.datetime", Clock)
    server = Server()
    recorder = EventRecorder(server, "operator-1")  # type: ignore[arg-type]
    same = News(ABOUT, "Queued", "a")
    await recorder.write(same)
    await recorder.write(same)
    (event,), ((_, patch),) = server.created, server.patched
    assert event["eventTime"] == "2026-11-25T18:00:07.250000Z"
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-11-25T18:00:07Z"
    assert patch["series"]["lastObservedTime"] == "2026-11-25T18:05:07.250000Z"
    assert patch["lastTimestamp"] == "2026-11-25T18:05:07Z"


@pytest.mark.parametrize("trouble", [ApiError(403, "Forbidden", "no"), ApiUnreachable("away")])
async def test_one_that_cannot_be_written_does_not_stop_the_next(trouble: Exception) -> None:
    server = Server()
    await write(server, News(ABOUT, "Queued", "a"), News(ABOUT, "Queued", "b"), before=trouble)
    assert [event["message"] for event in server.created] == ["b"]


async def test_a_series_whose_event_is_gone_begins_anew() -> None:
    server = Server()
    same = News(ABOUT, "Queued", "a")
    recorder = EventRecorder(server, "operator-1")  # type: ignore[arg-type]
    await recorder.write(same)
    server.trouble = ApiError(404, "NotFound", "gone")
    await recorder.write(same)
    assert len(server.created) == 2


async def test_a_long_note_is_cut_to_what_the_api_server_takes() -> None:
    server = Server()
    await write(server, News(ABOUT, "Failed", "ü" * 2000))
    note = server.created[0]["message"]
    assert len(note.encode()) <= NOTE_LIMIT
    assert note.endswith("…")


async def test_more_than_can_be_written_is_dropped_and_counted() -> None:
    recorder = EventRecorder(Server(), "operator-1")  # type: ignore[arg-type]
    for number in range(1100):
        recorder.tell(News(ABOUT, "Queued", str(number)))
    assert recorder.dropped == 100


async def test_an_event_about_a_node_with_a_long_name_has_a_name_that_is_taken() -> None:
    """253 characters at most, in parts that begin and end with a letter or a digit."""
    server, whole = Server(), ".".join(["a-" * 31 + "a"] * 4)
    names = [whole[:length] for length in range(225, 254) if whole[length - 1] == "a"]
    news = [News(About("v1", "Node", "", name, "u2"), "Quarantined", f"3 gangs failed: {name}") for name in names]
    await write(server, *news)
    made = [created["metadata"]["name"] for created in server.created]
    assert len(made) == len(names) > 10
    assert max(map(len, made)) <= 253
    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert all(re.fullmatch(rf"{part}(\.{part})*", name) for name in made), made
