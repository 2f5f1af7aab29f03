"""TrainingQueues and Topologies, by kopf: `on.event` handlers that store what was seen and wake the loop, and nothing
else. TrainingJobs come by an informer: they are many, and kopf took more processor time for them than planning did.

kopf has no signal for "the first list is in", so it is compared with a list of our own. Nor does it tell of objects
that were deleted while its watch was away, nor how old its watch is, so names and versions are compared again once a
minute: an object whose newer version kopf does not show from one look to the next means that its watch is dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final

import kopf

from muster.api.common import API_VERSION
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable

Object = dict[str, Any]
Key = tuple[str, str]
Feed = Callable[[Key, Object | None], None]

GROUP, VERSION = API_VERSION.split("/")
PATHS: Final = {plural: f"/apis/{API_VERSION}/{plural}" for plural in ("trainingqueues", "topologies")}
SWEEP_SECONDS: Final = 60.0
FIRST_LIST_RETRY: Final = 1.0

log = logging.getLogger(__name__)


class Kinds:
    """Feeds the scheduling side with TrainingQueues and Topologies.

    Attributes:
        listed: set once all objects that existed at the start were seen.
        last_sweep: monotonic time of the last comparison with the API server.
        behind_since: monotonic time of the look that found a version which kopf still does not show, or None.
    """

    def __init__(self, api: Api, feeds: Mapping[str, Feed], *, sweep_seconds: float = SWEEP_SECONDS) -> None:
        self._api = api
        self._sweep_seconds = sweep_seconds
        self._feeds = feeds
        self._seen: dict[str, dict[Key, _Version]] = {plural: {} for plural in feeds}
        self._late: dict[tuple[str, Key], _Late] = {}
        self.listed = asyncio.Event()
        self.last_sweep = time.monotonic()

    @property
    def behind_since(self) -> float | None:
        return min((late.since for late in self._late.values()), default=None)

    def registry(self) -> kopf.OperatorRegistry:
        """kopf's registry with one handler a kind, for a kopf in another thread."""
        registry = kopf.OperatorRegistry()
        here = asyncio.get_running_loop()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.ConnectionInfo:
            await self._api.credentials.load()
            return kopf.ConnectionInfo(**self._api.credentials.connection())

        def handle(plural: str) -> None:
            @kopf.on.event(GROUP, VERSION, plural, id=plural, registry=registry)
            async def seen(event: Mapping[str, Any], **_: Any) -> None:
                here.call_soon_threadsafe(self.take, plural, event.get("type"), dict(event["object"]))

        for plural in self._feeds:
            handle(plural)
        return registry

    def take(self, plural: str, kind: str | None, raw: Object) -> None:
        """One event: type (None in kopf's own listing) and object."""
        key, version = _key(raw), _Version.of(raw)
        known = self._seen[plural].get(key)
        if kind == "DELETED":
            if known is not None and known.uid == version.uid:
                self._forget(plural, key)
            return
        if known is not None and known.uid != version.uid:
            self._forget(plural, key)
        self._seen[plural][key] = version
        self._feeds[plural](key, raw)

    def _forget(self, plural: str, key: Key) -> None:
        self._seen[plural].pop(key, None)
        self._late.pop((plural, key), None)
        self._feeds[plural](key, None)

    async def run(self) -> None:
        """Wait for the first list, then compare names now and then. Until cancelled."""
        while not self.listed.is_set():
            await asyncio.sleep(FIRST_LIST_RETRY)
            if await self.sweep() == 0:
                self.listed.set()
        while True:
            await asyncio.sleep(self._sweep_seconds)
            await self.sweep()

    async def sweep(self) -> int:
        """Drop what is gone; returns how many objects kopf has not shown yet, or -1 when the server did not answer."""
        missing = 0
        for plural in self._feeds:
            before = dict(self._seen[plural])
            try:
                pages = [page async for page in self._api.pages(PATHS[plural], metadata_only=True)]
            except (ApiError, ApiUnreachable) as error:
                log.warning("%s can't be listed: %s", plural, error)
                return -1
            there = {_key(raw): _Version.of(raw) for page in pages for raw in page.get("items") or ()}
            missing += self._compare(plural, before, there)
        self.last_sweep = time.monotonic()
        return missing

    def _compare(self, plural: str, before: Mapping[Key, _Version], there: Mapping[Key, _Version]) -> int:
        """What kopf had shown when the list was begun, and the list. Returns how many objects it does not show yet."""
        seen = self._seen[plural]
        for key, version in before.items():
            # What kopf has shown meanwhile is newer than the list.
            if seen.get(key) == version and (key not in there or there[key].uid != version.uid):
                log.info("%s %s/%s is gone; its watch had missed it", plural, *key)
                self._forget(plural, key)
        late: dict[tuple[str, Key], _Late] = {}
        for key, version in there.items():
            shown = seen.get(key)
            if shown is not None and shown.uid == version.uid and shown.resource_version == version.resource_version:
                continue
            old = self._late.get((plural, key))
            stands_still = old is not None and old.shown == shown
            late[plural, key] = old if old is not None and stands_still else _Late(shown, time.monotonic())
        self._late = {key: one for key, one in self._late.items() if key[0] != plural} | late
        return sum(1 for key, version in there.items() if key not in seen or seen[key].uid != version.uid)


@dataclass(frozen=True, slots=True)
class _Version:
    uid: str
    resource_version: str

    @classmethod
    def of(cls, raw: Object) -> _Version:
        metadata = raw["metadata"]
        return cls(metadata.get("uid", ""), metadata.get("resourceVersion", ""))


@dataclass(frozen=True, slots=True)
class _Late:
    """What kopf showed of an object when a look found it newer, and since when it has shown nothing else."""

    shown: _Version | None
    since: float


def settings(watch_seconds: int) -> kopf.OperatorSettings:
    """kopf's settings: no writes, no scanning, no peering, and bounds on every wait."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.scanning.disabled = True
    chosen.networking.request_timeout = 30
    chosen.networking.connect_timeout = 5
    chosen.networking.error_backoffs = _Backoffs()
    # A watch that outlives its time, or brings neither event nor bookmark, is dead, whatever TCP thinks.
    chosen.watching.server_timeout = watch_seconds
    chosen.watching.client_timeout = watch_seconds * 1.25
    chosen.watching.inactivity_timeout = watch_seconds * 1.2
    chosen.watching.connect_timeout = 5
    chosen.watching.chunk_size = 500
    chosen.queueing.idle_timeout = 1
    # There is no handler of changes here: what kopf copies of each object to tell them would be for nobody.
    chosen.persistence.diffbase_storage = _NoEssence()
    return chosen


class _NoEssence(kopf.DiffBaseStorage):
    """Remembers nothing of any object, so that there is nothing to compare."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _Backoffs:
    """Seconds between kopf's tries, for ever: its own grow, and it would be blind for so long after an outage."""

    def __iter__(self) -> Iterator[float]:
        return chain((0.5, 1.0), repeat(2.0))


def _key(raw: Object) -> Key:
    metadata = raw.get("metadata") or {}
    return metadata.get("namespace", ""), metadata.get("name", "")
