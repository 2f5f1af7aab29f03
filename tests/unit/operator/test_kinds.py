"""Our own kinds: what kopf shows, compared with what the API server has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.controllers.handlers import PATHS, Kinds
from muster.telemetry.health import stale

pytestmark = pytest.mark.unit

Object = dict[str, Any]


class Server:
    """Lists what a test has put into it."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}

    async def pages(self, path: str, *, metadata_only: bool = False) -> AsyncIterator[Object]:
        assert metadata_only
        yield {"items": list(self.objects.values()) if path == PATHS["trainingqueues"] else []}


def job(uid: str, version: str, name: str = "a") -> Object:
    return {"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": version}}


class Scene:
    def __init__(self) -> None:
        self.server = Server()
        self.fed: list[tuple[str, str | None]] = []
        self.kinds = Kinds(self.server, {"trainingqueues": self.feed})  # type: ignore[arg-type]

    def feed(self, key: tuple[str, str], raw: Object | None) -> None:
        self.fed.append((key[1], raw["metadata"]["uid"] if raw else None))

    def show(self, kind: str | None, raw: Object) -> None:
        self.kinds.take("trainingqueues", kind, raw)


async def test_it_is_listed_only_when_kopf_has_shown_everything() -> None:
    scene = Scene()
    scene.server.objects = {"a": job("1", "5"), "b": job("2", "6", "b")}
    assert await scene.kinds.sweep() == 2
    scene.show(None, job("1", "5"))
    assert await scene.kinds.sweep() == 1
    scene.show(None, job("2", "6", "b"))
    assert await scene.kinds.sweep() == 0
    assert scene.kinds.behind_since is None


async def test_an_object_that_went_while_the_watch_was_away_is_dropped() -> None:
    scene = Scene()
    scene.show(None, job("1", "5"))
    assert await scene.kinds.sweep() == 0
    assert scene.fed == [("a", "1"), ("a", None)]


def test_an_object_made_anew_under_its_name_is_first_gone() -> None:
    scene = Scene()
    scene.show("ADDED", job("1", "5"))
    scene.show("MODIFIED", job("2", "9"))
    assert scene.fed == [("a", "1"), ("a", None), ("a", "2")]


def test_a_late_word_of_the_old_ones_deletion_does_not_drop_the_new() -> None:
    scene = Scene()
    scene.show("ADDED", job("2", "9"))
    scene.show("DELETED", job("1", "8"))
    assert scene.fed == [("a", "2")]


async def test_a_watch_that_shows_nothing_newer_from_one_look_to_the_next_is_behind_since_the_first() -> None:
    scene = Scene()
    scene.show(None, job("1", "5"))
    scene.server.objects = {"a": job("1", "6")}
    await scene.kinds.sweep()
    since = scene.kinds.behind_since
    assert since is not None
    scene.server.objects = {"a": job("1", "7")}
    await scene.kinds.sweep()
    assert scene.kinds.behind_since == since
    scene.show("MODIFIED", job("1", "7"))
    await scene.kinds.sweep()
    assert scene.kinds.behind_since is None


async def test_a_watch_that_is_only_a_moment_behind_a_busy_object_is_not_dead() -> None:
    scene = Scene()
    scene.show(None, job("1", "5"))
    scene.server.objects = {"a": job("1", "6")}
    await scene.kinds.sweep()
    first = scene.kinds.behind_since
    scene.show("MODIFIED", job("1", "6"))
    scene.server.objects = {"a": job("1", "7")}
    await scene.kinds.sweep()
    second = scene.kinds.behind_since
    assert first is not None
    assert second is not None
    assert second > first


def test_health_names_what_is_silent() -> None:
    assert stale({"watch /api/v1/pods": 200.0, "scheduling loop": 1.0}, 180.0) == [
        "watch /api/v1/pods: no sign of life for 200 s"
    ]
