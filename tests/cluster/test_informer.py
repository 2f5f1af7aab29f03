"""Informers against a real API server, and what they do when the way to it breaks."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hack.scheduling import connect

from muster.cluster.client import Api
from muster.cluster.errors import ApiError
from muster.cluster.informer import Informer
from muster.cluster.views import NodeView

from .conftest import ControlPlane
from .wire import through, wire_to

pytestmark = pytest.mark.cluster

NODES = "/api/v1/nodes"
PATIENCE = 30.0


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """Straight to the API server."""
    made = await connect(str(control_plane.kubeconfig))
    yield made
    await made.close()


@pytest.fixture
async def name(api: Api) -> AsyncIterator[str]:
    """A node's name; whatever has it in the end is deleted."""
    chosen = f"inf-{secrets.token_hex(4)}"
    yield chosen
    try:
        await api.delete(f"{NODES}/{chosen}")
    except ApiError as error:
        if error.status != 404:
            raise


async def add_node(api: Api, name: str, **labels: str) -> str:
    """UID of the new node."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    uid: str = (await api.create(NODES, body))["metadata"]["uid"]
    return uid


async def label(api: Api, name: str, value: str) -> None:
    await api.merge_patch(f"{NODES}/{name}", {"metadata": {"labels": {"mark": value}}})


@asynccontextmanager
async def watching(api: Api, **options: Any) -> AsyncIterator[Informer[NodeView]]:
    informer = Informer(api, NODES, NodeView.from_raw, **options)
    task = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.synced.wait(), PATIENCE)
        yield informer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(what: str, holds: Callable[[], object], timeout: float = PATIENCE) -> float:
    """Seconds until it held."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < timeout, f"{what}: not within {timeout} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - started


def mark(informer: Informer[NodeView], name: str) -> str:
    view = informer.items.get(name)
    return view.labels.get("mark", "") if view else ""


async def test_it_lists_and_then_follows(api: Api, name: str) -> None:
    await add_node(api, name, mark="first")
    async with watching(api) as informer:
        assert mark(informer, name) == "first"
        told: list[str] = []
        informer.on_change(told.append)
        await label(api, name, "second")
        await until("the new label", lambda: mark(informer, name) == "second")
        await api.delete(f"{NODES}/{name}")
        await until("the node's going", lambda: name not in informer.items)
        assert told.count(name) >= 2
        assert informer.lists == 1


async def test_many_pages_make_one_list(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    await asyncio.gather(
        *(
            api.create(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c-{n}"}})
            for n in range(25)
        )
    )
    pages = [page async for page in api.pages(path, limit=7)]
    assert len(pages) >= 4
    assert len({page["metadata"]["resourceVersion"] for page in pages}) == 1
    names = [item["metadata"]["name"] for page in pages for item in page["items"]]
    assert {f"c-{n}" for n in range(25)} <= set(names)
    assert len(names) == len(set(names))


async def test_a_watch_that_the_server_ends_goes_on_without_a_new_list(api: Api, name: str) -> None:
    async with watching(api, watch_seconds=1) as informer:
        await asyncio.sleep(2.5)
        await add_node(api, name)
        await until("the node", lambda: name in informer.items)
        assert informer.lists == 1
        assert informer.failures == 0
        assert informer.age < 5


async def test_events_held_back_come_late_and_in_order(api: Api, name: str) -> None:
    await add_node(api, name, mark="0")
    async with watching(api, delay=5.0) as informer:
        seen: list[str] = []
        informer.on_change(lambda key: seen.append(mark(informer, name)) if key == name else None)
        started = time.monotonic()
        for number in range(1, 4):
            await label(api, name, str(number))
        await asyncio.sleep(max(0.0, started + 4.5 - time.monotonic()))
        assert mark(informer, name) == "0", "nothing is shown before its time"
        await until("the last label", lambda: mark(informer, name) == "3")
        assert time.monotonic() - started >= 5.0
        # Controllers change the node too, so a label may be seen more than once.
        assert list(dict.fromkeys(label for label in seen if label != "0")) == ["1", "2", "3"]
        assert seen == sorted(seen)


async def test_a_watch_that_dies_without_a_word_is_noticed(
    control_plane: ControlPlane, tmp_path: Path, api: Api, name: str
) -> None:
    async with wire_to(control_plane.cluster.api_server).relaying() as wire:
        far = await connect(str(through(control_plane.kubeconfig, wire.port, tmp_path / "kubeconfig")))
        try:
            async with watching(far, watch_seconds=4, patience=2.0) as informer:
                await until("the watch", lambda: wire.connections >= 1)
                await asyncio.sleep(1.0)
                assert wire.swallow() >= 1
                await add_node(api, name)
                await asyncio.sleep(1.0)
                assert name not in informer.items, "the wire does not swallow"
                assert informer.age > 0.5
                took = await until("the node", lambda: name in informer.items, 15.0)
                assert took < 10.0
                assert informer.lists == 1, "it went on where the dead watch had stopped"
        finally:
            await far.close()


async def test_a_connection_that_breaks_is_made_again(
    control_plane: ControlPlane, tmp_path: Path, api: Api, name: str
) -> None:
    async with wire_to(control_plane.cluster.api_server).relaying() as wire:
        far = await connect(str(through(control_plane.kubeconfig, wire.port, tmp_path / "kubeconfig")))
        try:
            async with watching(far) as informer:
                await asyncio.sleep(0.5)
                wire.cut()
                await add_node(api, name)
                assert await until("the node", lambda: name in informer.items) < 5.0
                assert informer.lists == 1
        finally:
            await far.close()


async def test_a_node_added_again_under_its_name_while_nobody_watched_is_another_node(
    control_plane: ControlPlane, tmp_path: Path, api: Api, name: str
) -> None:
    old = await add_node(api, name)
    async with wire_to(control_plane.cluster.api_server).relaying() as wire:
        far = await connect(str(through(control_plane.kubeconfig, wire.port, tmp_path / "kubeconfig")))
        try:
            async with watching(far, watch_seconds=4, patience=2.0) as informer:
                assert informer.items[name].uid == old
                told: list[str] = []
                informer.on_change(told.append)
                wire.swallow()
                await api.delete(f"{NODES}/{name}")
                new = await add_node(api, name)
                await until("the new node", lambda: name in informer.items and informer.items[name].uid == new)
                assert name in told
        finally:
            await far.close()


async def test_the_api_server_may_be_restarted(control_plane: ControlPlane, api: Api, name: str) -> None:
    async with watching(api) as informer:
        await asyncio.to_thread(control_plane.cluster.stop_apiserver)
        await until("trouble", lambda: informer.trouble != "")
        assert "cannot be reached" in informer.trouble
        await asyncio.to_thread(control_plane.cluster.start_apiserver)
        await add_node(api, name)
        took = await until("the node", lambda: name in informer.items)
        assert took < 15.0
        await until("the end of trouble", lambda: informer.trouble == "")
