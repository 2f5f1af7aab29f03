"""Events on our objects, as `kubectl describe` shows them, repetitions gathered into series.

They are written by the core API. `kubectl describe` puts Events in order by `lastTimestamp`, which events.k8s.io/v1
does not take: written there, a failure and its restarts come in the order of their names, which is none.

They are news for people. One that can't be written is logged and let go: nothing ever waits for an Event.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final

from muster.api.common import format_time
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable, LeadershipLost

log = logging.getLogger(__name__)

CONTROLLER: Final = "muster.dev/operator"
NOTE_LIMIT: Final = 1024
"""Bytes of an Event's note; the API server refuses more."""
REMEMBERED: Final = 4096
"""Events that a repetition can still be added to."""
NAME_LIMIT: Final = 253
"""Characters of an object's name, an Event's as well as a node's that it is about."""
QUEUE_LIMIT: Final = 1000
"""Events that may wait to be written; more are dropped, and counted."""
SERIES_SECONDS: Final = 600.0
"""A repetition after so long is a new Event: the API server forgets the old one after an hour."""


@dataclass(frozen=True)
class About:
    """The object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class News:
    about: About
    reason: str
    note: str
    warning: bool = False
    action: str = ""
    logged: bool = False
    """No Event of it is written."""


@dataclass
class _Written:
    name: str
    count: int
    last: float


class EventRecorder:
    """`tell` never blocks and never fails; `run` writes in the background."""

    def __init__(self, api: Api, identity: str) -> None:
        self._api = api
        self._identity = identity[:128]
        self._queue: asyncio.Queue[News] = asyncio.Queue(QUEUE_LIMIT)
        self._written: OrderedDict[str, _Written] = OrderedDict()
        self.dropped = 0

    def tell(self, news: News) -> None:
        # Events are gone after an hour. The log, which platforms keep, tells at night what became of a job.
        about = news.about
        log.info("%s %s: %s: %s", about.kind, _name(about), news.reason, " ".join(news.note.split()))
        if news.logged:
            return
        try:
            self._queue.put_nowait(news)
        except asyncio.QueueFull:
            self.dropped += 1

    @property
    def waiting(self) -> int:
        """Events that are not written yet."""
        return self._queue.qsize()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            news = await self._queue.get()
            try:
                await self.write(news)
            except (ApiError, ApiUnreachable, LeadershipLost) as error:
                log.info("event %s on %s/%s not written: %s", news.reason, news.about.namespace, news.about.name, error)

    async def write(self, news: News) -> None:
        """Write one now. Raises ApiError, ApiUnreachable, LeadershipLost."""
        key = _key(news)
        now = asyncio.get_running_loop().time()
        before = self._written.get(key)
        path = f"/api/v1/namespaces/{news.about.namespace or 'default'}/events"
        if before is not None and now - before.last < SERIES_SECONDS:
            before.count, before.last = before.count + 1, now
            self._written.move_to_end(key)
            again = datetime.now(timezone.utc)
            series = {"count": before.count, "lastObservedTime": _micro_time(again)}
            try:
                await self._api.merge_patch(
                    f"{path}/{before.name}", {"series": series, "lastTimestamp": format_time(again)}
                )
                return
            except ApiError as error:
                if error.status != 404:
                    raise
        at = datetime.now(timezone.utc)
        name = _named(news.about.name, hashlib.sha256(f"{key}{_micro_time(at)}".encode()).hexdigest()[:16])
        await self._api.create(path, self._body(news, name, at))
        self._written[key] = _Written(name, 1, now)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    def _body(self, news: News, name: str, at: datetime) -> dict[str, Any]:
        about = news.about
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace or "default"},
            "eventTime": _micro_time(at),
            "firstTimestamp": format_time(at),
            "lastTimestamp": format_time(at),
            "reportingComponent": CONTROLLER,
            "reportingInstance": self._identity,
            "type": "Warning" if news.warning else "Normal",
            "reason": news.reason,
            "action": news.action or news.reason,
            "message": _cut(news.note),
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
        }


def _key(news: News) -> str:
    return "\0".join((news.about.uid, news.reason, str(news.warning), news.note))


def _name(about: About) -> str:
    return f"{about.namespace}/{about.name}" if about.namespace else about.name


def _named(about: str, tag: str) -> str:
    """An Event's name: `NAME.TAG`, of a long name its begin."""
    return f"{about[: NAME_LIMIT - len(tag) - 1].rstrip('-.')}.{tag}"


def _cut(note: str) -> str:
    data = note.encode()
    return note if len(data) <= NOTE_LIMIT else data[: NOTE_LIMIT - 3].decode(errors="ignore") + "…"


def _micro_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
