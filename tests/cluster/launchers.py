"""Launchers without training, as far as the operator talks to them: each pod of a corner answers at its own address.

They behave as real ones do when a member is lost: index 0 notices, all wait, and the gang comes together again when a
membership names pods that are all there and every launcher has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from hack.scheduling import Raw

from muster.cluster.informer import Informer
from muster_protocol import launcher_api as protocol
from muster_protocol.env import DEFAULT_PORT, WORKERS
from muster_protocol.launcher_status import Phase, Status
from muster_protocol.messages import Membership
from muster_protocol.wire import decode, encode

from .gangs import Corner

Object = dict[str, Any]


@dataclass
class Gang:
    """One placement of one job.

    Attributes:
        living: UID by index and attempt of the launchers that answer.
        released: UID by index of those whose ranks run, or ran last.
        told: the newest membership that each launcher has, by UID.
    """

    generation: int
    workers: int
    living: dict[tuple[int, int], str] = field(default_factory=dict)
    released: dict[int, str] = field(default_factory=dict)
    told: dict[str, Membership] = field(default_factory=dict)
    incarnation: int = 0

    def lost(self) -> tuple[int, ...]:
        """Indexes whose ranks can't go on."""
        newest = max(self.told.values(), key=lambda one: one.incarnation, default=None)
        members = {member.index: member.pod_uid for member in newest.members} if newest else {}
        return tuple(
            index
            for index, uid in sorted(self.released.items())
            if uid not in self.living.values() or members.get(index, uid) != uid
        )

    def join(self) -> None:
        """Start the ranks if everybody is there whom the membership names."""
        if self.released and not self.lost():
            return
        memberships = [self.told.get(uid) for uid in self.living.values()]
        first = memberships[0] if memberships else None
        if first is None or len(memberships) < self.workers or any(one != first for one in memberships):
            return
        members = {member.index: member.pod_uid for member in first.members}
        if set(members.values()) == set(self.living.values()):
            self.incarnation = max(self.incarnation, first.incarnation) + 1 if self.released else 1
            self.released = members

    def status(self, index: int) -> Status:
        phase = Phase.RUNNING if self.released and not self.lost() else Phase.JOINING
        return Status(phase, self.generation, self.incarnation, index, lost=self.lost() if self.released else ())


@dataclass(frozen=True)
class _Server:
    """What answers for one pod, which is (index, attempt) `place` of its gang."""

    runner: web.AppRunner
    gang: Gang
    place: tuple[int, int]


class Launchers:
    """All launchers of a corner.

    Attributes:
        joins: asked for each new launcher's pod; False: it answers nobody.
        says: makes of each status what is told.
        gangs: by the job's UID and generation.
    """

    def __init__(self, place: Corner) -> None:
        self._place = place
        self.joins: Callable[[Object], bool] = lambda pod: True
        self.says: Callable[[Status], Status] = lambda status: status
        self.gangs: dict[tuple[str, int], Gang] = {}
        self._servers: dict[str, _Server] = {}
        self._lock = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()
        self._informer = Informer(place.api, f"/api/v1/namespaces/{place.namespace}/pods", Raw, delay=0.0)
        self._informer.on_change(self._changed)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[Launchers]:
        """Until the block ends."""
        watch = asyncio.create_task(self._informer.run())
        try:
            yield self
        finally:
            watch.cancel()
            await asyncio.gather(watch, *self._work, return_exceptions=True)
            for server in self._servers.values():
                await server.runner.cleanup()

    def _changed(self, key: str) -> None:
        task = asyncio.create_task(self._follow(key))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _follow(self, key: str) -> None:
        """Answer for a pod while it runs on a node that is there."""
        async with self._lock:
            pod = self._informer.items.get(key)
            lives = pod is not None and pod["status"].get("phase") == "Running" and "podIP" in pod["status"]
            if pod is not None and lives and key not in self._servers and self.joins(pod):
                self._servers[key] = await self._serve(pod)
            elif not lives and key in self._servers:
                await self._end(key)

    def look_again(self) -> None:
        """At every pod: `joins` has changed, or a node is back."""
        for key in list(self._informer.items):
            self._changed(key)

    async def lose_node(self, name: str) -> None:
        """Nothing on that node answers any more."""
        async with self._lock:
            for key, pod in list(self._informer.items.items()):
                if pod["spec"].get("nodeName") == name and key in self._servers:
                    await self._end(key)

    async def _end(self, key: str) -> None:
        server = self._servers.pop(key)
        del server.gang.living[server.place]
        await server.runner.cleanup()

    async def _serve(self, pod: Object) -> _Server:
        labels = {name.rpartition("/")[2]: value for name, value in pod["metadata"]["labels"].items()}
        workers = next(one["value"] for one in pod["spec"]["containers"][0]["env"] if one["name"] == WORKERS)
        generation, index, uid = int(labels["generation"]), int(labels["index"]), pod["metadata"]["uid"]
        gang = self.gangs.setdefault((labels["job-uid"], generation), Gang(generation, int(workers)))
        place = (index, int(labels["attempt"]))

        async def status(request: web.Request) -> web.Response:
            gang.join()
            return web.Response(body=encode(self.says(gang.status(index))))

        async def membership(request: web.Request) -> web.Response:
            pushed, held = decode(Membership, await request.read()), gang.told.get(uid)
            if held is not None and pushed.incarnation < held.incarnation:
                return web.Response(status=409)
            gang.told[uid] = pushed
            gang.join()
            return web.Response(status=204)

        app = web.Application()
        app.add_routes([web.get(protocol.STATUS_PATH, status), web.put(protocol.MEMBERSHIP_PATH, membership)])
        gang.living[place] = uid
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, pod["status"]["podIP"], DEFAULT_PORT).start()
        return _Server(runner, gang, place)
