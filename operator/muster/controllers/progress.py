"""Asks the launchers how the training goes, and tells them who belongs to the gang.

What they say is for people: it sets Running and fills `status.progress` and `status.checkpoint`, and decides nothing
about who holds which room.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Final

from muster.api.names import ConditionType, Reason
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import CommittedCheckpoint, FixedSize, TrainingJobStatus
from muster.api.trainingjob_status import Progress as ProgressStatus
from muster.cluster.launchers import Launcher, LauncherError, Launchers, due
from muster.cluster.status import Draft, is_true
from muster.cluster.views import PodView
from muster.controllers.cache import Cache
from muster.controllers.lifecycle.turn import TERMINAL
from muster.controllers.records import Record
from muster_protocol.env import DEFAULT_PORT
from muster_protocol.launcher_api import Member, Membership
from muster_protocol.launcher_api import Status as LauncherStatus

log = logging.getLogger(__name__)

ROUND: Final = 1.0
"""Seconds between two rounds."""

JOINING_POLL: Final = 2.0
"""Seconds between two questions to a gang that has not passed its barrier yet."""

Write = Callable[[Record, TrainingJobStatus], None]
"""Hands a status to the loop, which writes it as the job's task."""


class Progress:
    """One background task for all jobs."""

    def __init__(self, cache: Cache, launchers: Launchers | None) -> None:
        self._cache = cache
        self._launchers = launchers
        self._asked: dict[str, float] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}

    def launcher_of(self, record: Record) -> LauncherStatus | None:
        """The last answer of the present placement's leader."""
        placement = record.job.status.placement
        if placement is None or record.launcher_generation != placement.generation:
            return None
        return record.launcher

    def silent_for(self, record: Record, now: float) -> float:
        """Seconds since the gang became whole without an answer from its leader."""
        if self.launcher_of(record) is not None:
            return 0.0
        pods = _gang(record, self._cache.pods_of(record.uid))
        if not pods or not all(pod.ready for pod in pods.values()):
            record.whole_since = None
            return 0.0
        record.whole_since = record.whole_since or now
        return now - record.whole_since

    async def run(self, records: Mapping[str, Record], write: Write) -> None:
        """Ask for ever."""
        if self._launchers is None:
            return
        last = time.monotonic()
        while True:
            await asyncio.sleep(ROUND)
            now = time.monotonic()
            self._round(records, write, now, now - last)
            last = now

    def _round(self, records: Mapping[str, Record], write: Write, now: float, since: float) -> None:
        gangs = {uid: record for uid, record in records.items() if _live(record)}
        for uid in [uid for uid in self._asked if uid not in gangs]:
            del self._asked[uid]
        joining = [uid for uid, record in gangs.items() if not is_true(record.job.status, ConditionType.RUNNING)]
        soon = [uid for uid in joining if now - self._asked.get(uid, float("-inf")) >= JOINING_POLL]
        for uid in {*soon, *due(self._asked, [uid for uid in gangs if uid not in set(joining)], now, since)}:
            if uid not in self._busy:
                self._asked[uid] = now
                self._busy[uid] = asyncio.create_task(self._visit(gangs[uid], write))

    async def _visit(self, record: Record, write: Write) -> None:
        try:
            pods = _gang(record, self._cache.pods_of(record.uid))
            placement = record.job.status.placement
            if placement is None or 0 not in pods or not pods[0].ip or pods[0].phase in TERMINAL:
                return
            if record.pushed_generation != placement.generation and len(pods) == placement.workers:
                await self._push(record, placement.generation, pods)
            await self._ask(record, placement.generation, pods[0], write)
        except LauncherError as error:
            log.debug("%s", error)
        except Exception:
            log.exception("asking %s/%s", record.identity.namespace, record.identity.name)
        finally:
            self._busy.pop(record.uid, None)

    async def _push(self, record: Record, generation: int, pods: Mapping[int, PodView]) -> None:
        assert self._launchers is not None
        if not all(pod.ip for pod in pods.values()):
            return
        membership = Membership(
            generation,
            1,
            tuple(Member(index, pod.uid, pod.ip, generation, pod.attempt) for index, pod in sorted(pods.items())),
        )
        errors = await self._launchers.push_membership([_launcher(pods[index], record) for index in pods], membership)
        if errors:
            log.debug("membership of %s: %d of %d: %s", record.identity.name, len(errors), len(pods), errors[0])
        else:
            record.pushed_generation = generation

    async def _ask(self, record: Record, generation: int, leader: PodView, write: Write) -> None:
        assert self._launchers is not None
        answer = await self._launchers.status(_launcher(leader, record))
        if answer.generation != generation:
            return
        before = self.launcher_of(record)
        record.launcher, record.launcher_generation = answer, generation
        if before is None or (before.phase, before.incarnation) != (answer.phase, answer.incarnation):
            self._cache.mark(record.uid)
        if is_true(record.job.status, ConditionType.RUNNING) and record.task is None and _live(record):
            status = progressed(record.job, answer, datetime.now(timezone.utc))
            if status is not None:
                write(record, status)


def progressed(job: TrainingJob, answer: LauncherStatus, now: datetime) -> TrainingJobStatus | None:
    """The status with the launcher's progress and checkpoint in it; None when they bring nothing new."""
    draft = Draft(job, now)
    old = job.status.progress
    if answer.step is not None and (old is None or old.step != answer.step or old.loss != answer.loss):
        draft.set(progress=_progress(answer, now))
    placement = job.status.placement
    if placement is not None and answer.step is not None:
        why = answer.fixed_size[:1024]
        draft.set(fixed_size=FixedSize(workers=placement.workers, message=why) if why else None)
    committed = answer.checkpoint
    if committed is not None and (job.status.checkpoint is None or job.status.checkpoint.step != committed.step):
        draft.set(
            checkpoint=CommittedCheckpoint(
                step=committed.step,
                uri=committed.uri if committed.uri.startswith("s3://") else None,
                committed_at=datetime.fromtimestamp(committed.committed_at, timezone.utc),
            )
        )
    if answer.storage_error:
        draft.condition(ConditionType.CHECKPOINT_STORAGE_READY, False, Reason.STORAGE_ERROR.value, answer.storage_error)
    elif not is_true(job.status, ConditionType.CHECKPOINT_STORAGE_READY) and job.spec.checkpoint is not None:
        told = f"{job.spec.checkpoint.uri} can be read and written"
        draft.condition(ConditionType.CHECKPOINT_STORAGE_READY, True, Reason.STORAGE_READY.value, told)
    status = draft.done()
    return None if status == job.status else status


def _progress(answer: LauncherStatus, now: datetime) -> ProgressStatus:
    step, total, rate = answer.step or 0, answer.total_steps, answer.steps_per_second
    left = max(0, total - step) / rate if total is not None and rate else None
    return ProgressStatus(
        step=step,
        total_steps=total,
        steps_per_second=None if rate is None else f"{rate:.4g}",
        loss=None if answer.loss is None else answer.loss[:32],
        eta=None if left is None or left > 10**8 else now + timedelta(seconds=left),
        updated_at=now,
    )


def _live(record: Record) -> bool:
    status = record.job.status
    return status.placement is not None and status.stop is None and status.finished_at is None and not record.deleted


def _gang(record: Record, pods: Iterable[PodView]) -> dict[int, PodView]:
    """Pods of the present placement by index, each index's present attempt."""
    placement = record.job.status.placement
    if placement is None:
        return {}
    found = {
        pod.index: pod
        for pod in pods
        if pod.generation == placement.generation and pod.attempt == placement.attempt_of(pod.index)
    }
    return found if len(found) == placement.workers else {}


def _launcher(pod: PodView, record: Record) -> Launcher:
    return Launcher(pod.namespace, pod.name, pod.ip, DEFAULT_PORT, record.uid)
