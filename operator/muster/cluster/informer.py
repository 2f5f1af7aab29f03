"""Keeps the newest view of every object of one kind: lists once, then watches, and lists again only when it must.

A watch can end in four ways: the server ends it (go on from the last resourceVersion), the connection breaks (the
same), the resourceVersion is too old (list afresh), or it dies without a word. For the last, every watch is short, and
one that outlives its time is given up; bookmarks keep the resourceVersion fresh meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from muster.cluster.answers import WatchEvent, version_of
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable

Object = Mapping[str, Any]
log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.2
LAST_PAUSE: Final = 5.0
"""Seconds between two tries while the API server does not answer: doubled each time, with jitter."""

SAY_EVERY: Final = 30.0
"""Seconds between two log lines about the same trouble."""

SHORTEST_WATCH: Final = 0.5
"""Seconds. API servers hold a watch open for as long as they were asked to: nothing was heard in one that ends sooner,
and to begin the next without a pause would be thousands of requests a second."""

EVENT_DELAY: Final = float(os.environ.get("MUSTER_WATCH_DELAY", "0") or "0")
"""Seconds by which every event is held back. For tests of what the operator does while it does not know the newest."""


class View(Protocol):
    @property
    def key(self) -> str: ...


T = TypeVar("T", bound=View)

Take = Callable[[str, Object | None], None]
"""Takes a key and the object as it came, or None when it is gone."""

_UNREADABLE: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What reading an object raises that is not what it should be."""


class Informer(Generic[T]):
    """
    Attributes:
        items: by key: `namespace/name`, or `name` of a cluster-scoped kind. Never replaced, only changed.
        synced: set after the first list.
        last_event_at: monotonic time of the last list, event, bookmark or proper end of a watch.
        lists, events, failures: counts since the start.
        trouble: the present error in a sentence, or "".
    """

    def __init__(
        self,
        api: Api,
        path: str,
        parse: Callable[[Object], T],
        *,
        watch_seconds: int = 60,
        patience: float = 15.0,
        delay: float = EVENT_DELAY,
        **selectors: str,
    ) -> None:
        self._api = api
        self._parse = parse
        self._watch_seconds = watch_seconds
        self._patience = patience
        self._delay = delay
        self._selectors = selectors
        self._subscribers: list[Callable[[str], None]] = []
        self._takers: list[Take] = []
        self._resource_version = ""
        self._held: deque[tuple[float, WatchEvent]] = deque()
        self._release: asyncio.TimerHandle | None = None
        self._said: tuple[str, float] = ("", 0.0)
        self.path = path
        self.items: dict[str, T] = {}
        self.synced = asyncio.Event()
        self.last_event_at = time.monotonic()
        self.lists = 0
        self.events = 0
        self.failures = 0
        self.trouble = ""

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the key of everything that comes, changes or goes, from now on."""
        self._subscribers.append(callback)

    def on_object(self, take: Take) -> None:
        """Pass everything that comes or changes on whole, and the keys of what goes: for views that keep only part."""
        self._takers.append(take)

    @property
    def age(self) -> float:
        """Seconds since the API server was last heard of."""
        return time.monotonic() - self.last_event_at

    async def run(self) -> None:
        """List and watch until cancelled."""
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    if not self._resource_version:
                        await self._list()
                    await self._watch()
                    pause = FIRST_PAUSE
                except (ApiError, ApiUnreachable) as error:
                    heard = time.monotonic() - self.last_event_at < LAST_PAUSE
                    pause = FIRST_PAUSE if heard else min(pause * 2, LAST_PAUSE)
                    self._failed(error)
                    await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        finally:
            self._drop_held()

    async def _list(self) -> None:
        # Each page is shown as it comes, so that a large list is never held whole. What went is known after the last.
        listed: set[str] = set()
        version = ""
        async for page in self._api.pages(self.path, self._selectors):
            self._drop_held()  # the list is newer than what was held back
            version = version_of(page)
            for raw in page.get("items") or ():
                listed.add(self._show(raw))
        self._resource_version = version
        self.lists += 1
        self._heard()
        for key in [key for key in self.items if key not in listed]:
            self._drop(key)
        self.synced.set()

    async def _watch(self) -> None:
        began, before = time.monotonic(), self.events
        events = self._api.watch(
            self.path,
            resource_version=self._resource_version,
            seconds=self._watch_seconds,
            patience=self._patience,
            **self._selectors,
        )
        async for event in events:
            self._resource_version = version_of(event.object)
            self._heard()
            self.events += 1
            if event.type == "BOOKMARK":
                continue
            if self._delay:
                self._hold(event)
            else:
                self._apply(event)
        if self.events == before and time.monotonic() - began < SHORTEST_WATCH:
            raise ApiUnreachable(
                f"watch of {self.path} ended at once, without an event: what closes it, a proxy or load balancer?"
            )
        self._heard()

    def _apply(self, event: WatchEvent) -> None:
        if event.type != "DELETED":
            self._show(event.object)
            return
        view = self._view(event.object)
        self._drop(view.key if view is not None else _key(event.object))

    def _show(self, raw: Object) -> str:
        """Take over the object's view, and return its key; whoever listens is told when it is new."""
        view = self._view(raw)
        if view is None:
            return _key(raw)
        if self.items.get(view.key) != view:
            self.items[view.key] = view
            self._tell(view.key, raw)
        return view.key

    def _drop(self, key: str) -> None:
        if self.items.pop(key, None) is not None:
            self._tell(key, None)

    def _view(self, raw: Object) -> T | None:
        try:
            return self._parse(raw)
        except _UNREADABLE:
            self._cannot_read(_key(raw))
            return None

    def _tell(self, key: str, raw: Object | None) -> None:
        for callback in self._subscribers:
            callback(key)
        for take in self._takers:
            try:
                take(key, raw)
            except _UNREADABLE:
                self._cannot_read(key)

    def _cannot_read(self, key: str) -> None:
        """One bad object stops nobody. Call it where the exception is at hand."""
        log.exception("%s %s cannot be read, and is left as it was", self.path, key)
        self.failures += 1

    def _heard(self) -> None:
        self.last_event_at = time.monotonic()
        self.trouble = ""

    def _failed(self, error: ApiError | ApiUnreachable) -> None:
        self.failures += 1
        if isinstance(error, ApiError) and (error.gone or error.status == 404):
            self._resource_version = ""  # of a kind that went, nothing is there when it is back
        if isinstance(error, ApiError) and error.gone:
            log.info("watch of %s is too old to go on: listing afresh", self.path)
            return
        self.trouble = _sentence(self.path, error)
        said, at = self._said
        if said != self.trouble or time.monotonic() - at > SAY_EVERY:
            self._said = (self.trouble, time.monotonic())
            log.warning("%s; trying again", self.trouble)

    # -- events held back, for tests -------------------------------------------------------------------------------

    def _hold(self, event: WatchEvent) -> None:
        self._held.append((time.monotonic() + self._delay, event))
        if self._release is None:
            self._release = asyncio.get_running_loop().call_later(self._delay, self._release_due)

    def _release_due(self) -> None:
        self._release = None
        while self._held and self._held[0][0] <= time.monotonic():
            self._apply(self._held.popleft()[1])
        if self._held:
            wait = max(0.0, self._held[0][0] - time.monotonic())
            self._release = asyncio.get_running_loop().call_later(wait, self._release_due)

    def _drop_held(self) -> None:
        self._held.clear()
        if self._release is not None:
            self._release.cancel()
            self._release = None


def _key(raw: Object) -> str:
    """Of an object that can't be read: so it is neither lost with the next list, nor kept when it is gone."""
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    if not isinstance(metadata, Mapping):
        return ""
    namespace, name = metadata.get("namespace") or "", metadata.get("name") or ""
    return f"{namespace}/{name}" if namespace else str(name)


def _sentence(path: str, error: ApiError | ApiUnreachable) -> str:
    if isinstance(error, ApiUnreachable):
        return str(error)
    if error.status == 403:
        return f"the operator may not list and watch {path}: {error.message}; grant it by the chart's ClusterRole"
    if error.status == 404:
        return f"the API server has no {path}: {error.message}"
    return f"list or watch of {path} failed: {error}"
