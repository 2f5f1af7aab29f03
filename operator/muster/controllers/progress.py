"""Asks the launchers how the training goes, and tells them who belongs to the gang.

What they say is for people: it sets Running and fills `status.progress` and `status.checkpoint`, and decides nothing
about who holds which room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Final

from muster.api.names import ConditionType
from muster.api.placement import Placement
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.launchers import Launcher, LauncherError, Launchers, Nonsense, NotAsked, UnknownToken
from muster.cluster.status import is_true
from muster.cluster.views import PodView
from muster.controllers import terms, tracking
from muster.controllers.cache import Cache
from muster.controllers.lifecycle.turn import TERMINAL
from muster.controllers.progressed import progressed
from muster.controllers.questions import Stand, due, longer
from muster.controllers.records import Record
from muster.controllers.reliability import NodeHours, hours_for, moved
from muster_protocol.env import DEFAULT_PORT
from muster_protocol.launcher_status import Phase
from muster_protocol.launcher_status import Status as LauncherStatus
from muster_protocol.messages import Member, Membership, Reliability

log = logging.getLogger(__name__)

ROUND: Final = 1.0
"""Seconds between two rounds."""

ASKED_ABOUT_LEADER: Final = 3
"""Launchers that are asked about a leader that doesn't answer; the first of them that answers counts."""

TELL_AGAIN: Final = 60.0
"""Seconds until a launcher is told again how often nodes fail; one that is older than the operator never knows."""

Write = Callable[[Record, TrainingJobStatus], None]
"""Hands a status to the loop, which writes it as the job's task."""


class Progress:
    """One background task for all jobs."""

    def __init__(
        self,
        cache: Cache,
        launchers: Launchers | None,
        *,
        node_hours: Callable[[], NodeHours] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`node_hours`: hours between two failures of one worker, as this cluster shows; None: gangs aren't told of
        them."""
        self._cache = cache
        self._clock = clock
        self._launchers = launchers
        self._node_hours = node_hours
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
        pods, placement = self._gang(record), record.job.status.placement
        if placement is None or sum(pod.ready for pod in pods.values()) < placement.workers:
            record.whole_since = None
            return 0.0
        record.whole_since = record.whole_since or now
        return now - record.whole_since

    def _gang(self, record: Record) -> dict[int, PodView]:
        """Pods of the present placement by index, each index's present attempt."""
        placement = record.job.status.placement
        if placement is None:
            return {}
        return {
            pod.index: pod
            for pod in self._cache.pods_of(record.owner)
            if pod.generation == placement.generation and pod.attempt == placement.attempt_of(pod.index)
        }

    def unanswered_for(self, record: Record) -> float:
        """Seconds between the first and the last question that the present placement's leader has left unanswered;
        infinite where nobody can be asked."""
        if self._launchers is None:
            return float("inf")
        return 0.0 if record.silence is None else record.silence.lasts

    async def run(self, records: Mapping[str, Record], write: Write) -> None:
        """Ask for ever."""
        if self._launchers is None:
            return
        last = self._clock()
        while True:
            await asyncio.sleep(ROUND)
            now = self._clock()
            self.ask_due(records, write, now, now - last)
            last = now

    def ask_due(self, records: Mapping[str, Record], write: Write, now: float, since: float) -> None:
        """Ask those whose turn it is `now` (monotonic), `since` seconds after the last call."""
        gangs = {uid: record for uid, record in records.items() if _live(record)}
        for uid in [uid for uid in self._asked if uid not in gangs]:
            del self._asked[uid]
        stands = {uid: _stands(record) for uid, record in gangs.items()}
        for uid in due(self._asked, stands, self._busy, now, since):
            self._asked[uid] = now
            self._busy[uid] = asyncio.create_task(self._visit(gangs[uid], write))

    async def _visit(self, record: Record, write: Write) -> None:
        try:
            pods, placement = self._gang(record), record.job.status.placement
            if placement is None:
                return
            generation, push = placement.generation, self._push(record, placement, pods)
            living = {
                index: pod
                for index, pod in pods.items()
                if pod.ip and pod.phase not in TERMINAL and not pod.outlived_since
            }
            if self.launcher_of(record) is None or record.silence is not None:
                # The dead let the push wait for its timeout; whether the leader lives is to be known before that.
                _, heard = await asyncio.gather(push, self._hears(record, generation, living, 0, write))
            else:
                heard = await self._hears(record, generation, living, await push, write)
            if not heard:
                self._not_answered(record, generation)
        except LauncherError as error:
            log.debug("%s", error)
        except Exception:
            log.exception("asking %s/%s", record.identity.namespace, record.identity.name)
        finally:
            self._busy.pop(record.uid, None)

    async def _hears(
        self, record: Record, generation: int, living: Mapping[int, PodView], told: int, write: Write
    ) -> bool:
        """Ask the leader, and where it does not answer others about it; whether anybody vouches for the gang. Raises
        NotAsked where that says nothing."""
        if 0 not in living:
            return False
        try:
            await self._ask(record, generation, living[0], told, write)
            await self._tell_tracker(record, living[0])
            await self._tell_node_hours(record, living[0])
        except NotAsked:
            raise
        except LauncherError as error:
            fresh = isinstance(error, Nonsense | UnknownToken) and record.refused != living[0].name
            log.log(logging.WARNING if fresh else logging.DEBUG, "%s", error)
            record.refused = living[0].name if fresh else record.refused
            return await self._vouched(record, generation, living)
        return True

    def _not_answered(self, record: Record, generation: int) -> None:
        placement = record.job.status.placement
        if placement is not None and placement.generation == generation:
            record.silence = longer(record.silence, self._clock(), doubtful=record.doubtful)
        if record.doubtful:
            self._cache.mark(record.uid)

    async def _push(self, record: Record, placement: Placement, pods: Mapping[int, PodView]) -> int:
        """Tell the launchers who belongs to the gang, each until it has answered. Returns the incarnation of the
        membership that all of them have now, 0 for none.

        A pod has its IP long before its image is there: of a large gang, thousands of requests would be refused each
        round.
        """
        assert self._launchers is not None
        if len(pods) < placement.workers or not all(pod.ip for pod in pods.values()):
            return 0
        membership = _membership(placement, pods)
        if record.membership != membership:
            record.membership, record.members_told = membership, frozenset()
        untold = {
            pod.name: pod for pod in pods.values() if pod.phase == "Running" and pod.uid not in record.members_told
        }
        if untold:
            errors = await self._launchers.push_membership(
                [_launcher(pod, record) for pod in untold.values()], membership
            )
            if record.membership != membership:
                return 0
            record.members_told |= {pod.uid for name, pod in untold.items() if name not in errors}
            for error in list(errors.values())[:1]:
                log.debug("membership of %s: %d of %d: %s", record.identity.name, len(errors), len(pods), error)
        return 0 if len(record.members_told) < placement.workers else membership.incarnation

    async def _ask(self, record: Record, generation: int, leader: PodView, told: int, write: Write) -> None:
        """Ask index 0 how the gang does; `told` is the incarnation of the membership that all launchers have."""
        assert self._launchers is not None
        answer = await self._launchers.status(_launcher(leader, record))
        if answer.generation != generation:
            raise LauncherError(f"pod {leader.name} answers for placement {answer.generation}, not {generation}")
        before = self.launcher_of(record)
        news = before is None or record.doubtful or _stand(before) != _stand(answer)
        record.launcher, record.launcher_generation = answer, generation
        record.launcher_at, record.launcher_told, record.silence = self._clock(), told, None
        record.missed = {index: record.missed.get(index, record.launcher_at) for index in answer.lost}
        if news:
            self._cache.mark(record.uid)
        if is_true(record.job.status, ConditionType.RUNNING) and record.task is None and _live(record):
            status = progressed(record.job, answer, datetime.now(timezone.utc))
            if status is not None:
                price = record.gpu_type, record.price, record.currency
                write(record, terms.with_rate(status, record.spec, *price))

    async def _tell_tracker(self, record: Record, leader: PodView) -> None:
        """Tell index 0 what the tracker of the run should know, when its image is known and now and then."""
        assert self._launchers is not None
        known, now = (leader.uid, leader.image), self._clock()
        if record.spec.tracking is None or not _runs(record):
            return
        if record.tracker_knows == known and now - record.tracker_told_at < tracking.FACTS_EVERY:
            return
        facts = tracking.facts(record, leader, datetime.now(timezone.utc))
        record.tracker_knows, record.tracker_told_at = known, now
        with contextlib.suppress(LauncherError):  # an older launcher has no such page; a word that is lost comes again
            await self._launchers.facts(_launcher(leader, record), facts)

    async def _tell_node_hours(self, record: Record, leader: PodView) -> None:
        """Tell index 0 how often nodes fail, when its pod is new and when that has moved: `interval: auto` goes by it.
        What the pod was made with may be months old."""
        assert self._launchers is not None
        hours = hours_for(record.spec, self._node_hours()) if self._node_hours is not None and _runs(record) else None
        pod, told = record.node_hours_told
        if hours is None or (pod == leader.uid and not moved(told, hours)):
            return
        if self._clock() - record.node_hours_told_at < TELL_AGAIN:
            return
        record.node_hours_told_at = self._clock()
        with contextlib.suppress(LauncherError):  # an older launcher has no such page; a word that is lost comes again
            await self._launchers.reliability(_launcher(leader, record), Reliability(hours))
            record.node_hours_told = (leader.uid, hours)

    async def _vouched(self, record: Record, generation: int, living: Mapping[int, PodView]) -> bool:
        """The leader does not answer the operator: ask some others whether they miss it, too. Where they train and do
        not (True), it is the way to the leader that is cut, and nobody is lost."""
        assert self._launchers is not None
        if not _runs(record):
            return False
        others = [_launcher(living[index], record) for index in sorted(living)[1 : 1 + ASKED_ABOUT_LEADER]]
        for answer in await asyncio.gather(*map(self._launchers.status, others), return_exceptions=True):
            if isinstance(answer, LauncherError):
                log.debug("%s", answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer.generation == generation:
                record.missed = {0: record.missed.get(0, self._clock())} if 0 in answer.lost else {}
                if record.missed:
                    self._cache.mark(record.uid)
                elif answer.phase is Phase.RUNNING:
                    record.silence = None
                    return True
                return False
        return False


def _stand(answer: LauncherStatus) -> tuple[object, ...]:
    """What of an answer a job's turn may depend on."""
    health = answer.lost, bool(answer.storage_error), answer.numerics, answer.stragglers
    return answer.phase, answer.incarnation, health, answer.profile, answer.warnings


def _membership(placement: Placement, pods: Mapping[int, PodView]) -> Membership:
    members = (
        Member(index, pod.uid, pod.ip, placement.generation, pod.attempt, node=pod.node)
        for index, pod in sorted(pods.items())
    )
    return Membership(placement.generation, placement.incarnation or 1, tuple(members))


def _live(record: Record) -> bool:
    status = record.job.status
    return status.placement is not None and status.stop is None and status.finished_at is None and not record.deleted


def _stands(record: Record) -> Stand:
    if record.doubtful:
        return Stand.DOUBTFUL
    return Stand.CALM if _runs(record) else Stand.JOINING


def _runs(record: Record) -> bool:
    return is_true(record.job.status, ConditionType.RUNNING)


def _launcher(pod: PodView, record: Record) -> Launcher:
    return Launcher(pod.namespace, pod.name, pod.ip, DEFAULT_PORT, record.uid)
