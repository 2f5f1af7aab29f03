"""Hears what kubelet says in Events alone: volumes that don't mount, sandboxes that can't be made, images being pulled.

Such a pod stands in ContainerCreating and its status says nothing more; or kubelet's words come and go with its tries,
as those of a Secret that is not there do. So for a gang that hangs there the Events of one pod are asked for, now and
then; all others cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from muster.api.names import ConditionType
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.hindrances import CONTAINER, KUBELET
from muster.cluster.status import is_true
from muster.cluster.views import PodView
from muster.controllers.cache import Cache
from muster.controllers.lifecycle.hindrance import PULLING, Heard
from muster.controllers.records import Record
from muster.controllers.work import utc_now

log = logging.getLogger(__name__)

ROUND: Final = 5.0
"""Seconds between two looks for gangs that hang."""
PATIENCE: Final = 20.0
"""Seconds after which a pod that is still being created is asked about."""
AGAIN: Final = 30.0
"""Seconds between two questions about one job."""
AT_ONCE: Final = 4
"""Questions in one round, over all jobs."""
FORBIDDEN: Final = 600.0
"""Seconds until it is tried again without the right to list Events."""

_CREATING: Final = frozenset({"ContainerCreating", "PodInitializing"})
_NO_CONTAINER: Final = "CreateContainerConfigError"
"""Kubelet's word in the status for what its Events call Failed."""
_CONFIG: Final = re.compile(
    r"Error: .*(secret|configmap).*(not found|couldn't find key)|Error: couldn't find key", re.I
)
_OF_IMAGES: Final = frozenset({PULLING, "Pulled", "Failed", "BackOff", "Started"})
_LONGEST: Final = 400
"""Characters of kubelet's message that are passed on."""


class Listening:
    """Sets `Record.heard`. `run` until cancelled."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache
        self._asked: dict[str, float] = {}

    async def run(self, records: Mapping[str, Record]) -> None:
        """Look for gangs that hang, and ask about them."""
        while True:
            await asyncio.sleep(ROUND)
            try:
                await self._round(records)
            except ApiError as error:
                log.warning("Events of pods can't be listed, so what they say is not told: %s", error)
                await asyncio.sleep(FORBIDDEN if error.status == 403 else ROUND)
            except ApiUnreachable as error:
                log.info("Events of pods: %s", error)

    async def _round(self, records: Mapping[str, Record]) -> None:
        now, hanging = asyncio.get_running_loop().time(), dict[str, PodView]()
        for uid, record in records.items():
            pod = self._hangs(record)
            if pod is not None:
                hanging[uid] = pod
            elif record.heard is not None:
                self._tell(record, None)
        self._asked = {uid: at for uid, at in self._asked.items() if uid in hanging}
        due = [uid for uid in hanging if now - self._asked.get(uid, float("-inf")) >= AGAIN]
        for uid in sorted(due, key=lambda uid: self._asked.get(uid, float("-inf")))[:AT_ONCE]:
            self._asked[uid] = now
            pod = hanging[uid]
            path = f"/api/v1/namespaces/{pod.namespace}/events"
            found = await self._api.list(path, fieldSelector=f"involvedObject.uid={pod.uid}")
            if uid in records:
                self._tell(records[uid], newest(pod, found))

    def _hangs(self, record: Record) -> PodView | None:
        """The first pod of a gang that starts, if it is being created for long."""
        status = record.job.status
        if status.placement is None or status.stop is not None or is_true(status, ConditionType.PODS_READY):
            return None
        pods = sorted(self._cache.pods_of(record.owner), key=lambda pod: pod.index)
        return next((pod for pod in pods if pod.generation == status.placement.generation and hangs(pod)), None)

    def _tell(self, record: Record, heard: Heard | None) -> None:
        if record.heard != heard:
            record.heard = heard
            self._cache.mark(record.uid)


def hangs(pod: PodView, now: datetime | None = None) -> bool:
    """Whether kubelet has had the pod for a while, and its status gives no reason why it does not run, or one that goes
    away between two tries."""
    if not pod.bound or pod.phase != "Pending" or pod.terminating or pod.created is None:
        return False
    if any(item.reason in CONTAINER for item in pod.waiting):
        return True
    age = ((now or utc_now()) - pod.created).total_seconds()
    return age >= PATIENCE and all(item.reason in _CREATING for item in pod.waiting)


def newest(pod: PodView, events: Iterable[Mapping[str, Any]]) -> Heard | None:
    """The last trouble that kubelet told of a pod, or the image that it pulls; None for neither, also when it has
    started a container since."""
    known = list(events)
    told = [(event, reason) for event in known if (reason := _trouble(event))]
    if not told:
        return _pulls(pod, known)
    last, reason = max(told, key=lambda item: _moment(item[0]))
    if any(event.get("reason") == "Started" and _moment(event) > _moment(last) for event in known):
        return None
    return Heard(pod.name, reason, str(last.get("message") or "").removeprefix("Error: ")[:_LONGEST])


def _pulls(pod: PodView, events: Iterable[Mapping[str, Any]]) -> Heard | None:
    """A pull that has begun and not ended."""
    steps = [event for event in events if event.get("reason") in _OF_IMAGES]
    last = max(steps, key=_moment, default=None)
    if last is None or last.get("reason") != PULLING:
        return None
    return Heard(pod.name, PULLING, str(last.get("message") or "").removeprefix("Pulling ")[:_LONGEST])


def _trouble(event: Mapping[str, Any]) -> str:
    """The word for it, or "" where the Event tells of none that we know."""
    reason = str(event.get("reason") or "")
    if reason == "Failed" and _CONFIG.match(str(event.get("message") or "")):
        return _NO_CONTAINER
    return reason if reason in KUBELET else ""


def _moment(event: Mapping[str, Any]) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")
