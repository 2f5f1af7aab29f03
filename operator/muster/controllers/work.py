"""The work of one job between two turns: carry out a decision, write a placement, rehearse a pod.

Each function is one task; a job has at most one at a time. Whatever a call raises, the job gets another turn: what was
done is seen again by the watch, what was not is decided again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Final

from muster.api.names import EventReason, Reason
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster import interpod, pods
from muster.cluster.eligibility import filter_of_pod
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.executor import Executor, MadePod, refusal
from muster.cluster.overrides import TemplateRefused
from muster.cluster.pods import PodSettings
from muster.cluster.status import goes_on
from muster.cluster.views import PodView
from muster.controllers import refusals
from muster.controllers.admission import Obstacle
from muster.controllers.lifecycle.failure import allowed_in_place
from muster.controllers.lifecycle.runtime import remaining_seconds
from muster.controllers.lifecycle.turn import NO_FACTS, Decision, Made, Note, Refusal
from muster.controllers.records import MADE_PATIENCE, Judgement, Record
from muster.controllers.reliability import NodeHours
from muster.scheduling.amounts import amount

log = logging.getLogger(__name__)

FIRST_RETRY: Final = 10.0
LAST_RETRY: Final = 300.0
"""Seconds between two rehearsals of a pod that was refused: doubled each time."""
LAST_RETRY_AWAY: Final = 60.0
"""The same where nobody has judged it, for the webhook that should is away."""

_REFUSED: Final = frozenset({Reason.POD_UNSCHEDULABLE.value, Reason.SCHEDULING_REFUSED.value})
"""Why a gang was withdrawn whose pod kube-scheduler or a kubelet would not have."""

REHEARSED: Final = 120.0
"""Seconds that the rehearsal of a pod holds for other jobs that are alike."""


@dataclass
class Pace:
    """How long the API server takes for a status write of late, in seconds: a mean in which each new one weighs a
    tenth."""

    seconds: float = 0.01

    def took(self, seconds: float) -> None:
        self.seconds += (seconds - self.seconds) / 10


class Incomplete(Exception):
    """Some of a gang's objects could not be made, for a reason that may pass."""


Tell = Callable[[Record, Note], None]


@dataclass(frozen=True)
class Worker:
    """What the tasks need.

    Attributes:
        tell: sends an Event about a job; never fails.
        parallel: bounds how many jobs are worked on at once.
        rehearsals: when a pod was last taken, and as what, by namespace and what it is made from.
        rehearsing: of what pods are being rehearsed for the first time in a while: one is enough.
        pace: of status writes.
        wrote: is told the status that a job had before each write, once its record has the new one.
        node_hours: hours between two failures of one worker, as this cluster shows; None: as `settings` suppose.
    """

    executor: Executor
    settings: PodSettings
    tell: Tell
    parallel: asyncio.Semaphore
    rehearsals: dict[tuple[str, str], tuple[float, Judgement]] = field(default_factory=dict)
    rehearsing: set[tuple[str, str]] = field(default_factory=set)
    pace: Pace = field(default_factory=Pace)
    node_hours: Callable[[], NodeHours] | None = None
    wrote: Callable[[Record, TrainingJobStatus], None] = lambda record, before: None

    async def carry_out(self, record: Record, decision: Decision) -> None:
        """Status first, then deletions, then new pods, then words."""
        async with self.parallel:
            stopping = record.job.status.stop
            if decision.status is not None and not await self.write(record, decision.status):
                return
            stop = record.job.status.stop
            if stopping is None and stop is not None and stop.reason in _REFUSED:
                # The pod has other demands by now, it may be, than when it was rehearsed, and its volumes may be bound.
                self.forget(record)
            for note in decision.notes:
                self.tell(record, note)
            if decision.delete:
                gone = await self.executor.delete_pods(record.identity.namespace, decision.delete, decision.hurried)
                for name in gone:
                    record.made.pop(name, None)
            if decision.delete_job:
                await self.executor.delete_job(record.job)
            elif decision.make:
                await self._make(record, decision.make, decision.runtime_image)

    async def place(self, record: Record, status: TrainingJobStatus, note: Note) -> None:
        """Write a placement, which `note` tells; the next turn makes its pods."""
        async with self.parallel:
            if await self.write(record, status):
                record.shown = frozenset()
                record.refusal, record.unmade, record.facts = None, "", NO_FACTS
                self.tell(record, note)

    async def write(self, record: Record, status: TrainingJobStatus) -> bool:
        """Write a status over the one that was decided on. False: somebody wrote in between; decide again."""
        began, before = time.monotonic(), record.job.status
        try:
            record.take(await self.executor.write_status(record.job, status))
            record.vain = (status, record.job.status) if record.job.status != status else None
            self.pace.took(time.monotonic() - began)
        except ApiError as error:
            record.unsure, record.told = True, ()  # why it waits may be unsaid
            await self.settle(record)
            if error.status not in (404, 409):
                raise
            return False
        except ApiUnreachable:
            record.unsure, record.told = True, ()  # it may have been written
            await self.settle(record)
            raise
        finally:
            if not record.unsure:
                self.wrote(record, before)
        return True

    async def settle(self, record: Record) -> None:
        """Read the job again, and know what the last write came to."""
        found = await self.executor.read(record.job)
        record.unsure = False
        if found is None:
            record.deleted = True
        else:
            record.take(found)

    async def _make(self, record: Record, indexes: tuple[int, ...], runtime_image: str) -> None:
        placement = record.job.status.placement
        if placement is None:
            return
        # What is observed is no part of the settings that `template_key` is made of: no rehearsal is about it.
        settings = replace(self.settings, node_hours=self.node_hours()) if self.node_hours else self.settings
        # The ranks of a gang exchange what only their own version understands, so an operator that was upgraded since
        # brings its runtime with the next placement, and into no gang that has another.
        settings = replace(settings, runtime_image=runtime_image or settings.runtime_image)
        try:
            template = pods.template(record.identity, record.spec, settings)
        except TemplateRefused as error:
            if placement.replacing is not None:
                raise Incomplete(str(error)) from error
            record.refusal = Refusal(placement.generation, str(error))
            return
        spec, status, today = record.spec, record.job.status, datetime.now(timezone.utc)
        outcome = await self.executor.make(
            record.identity,
            template,
            placement,
            indexes,
            max_runtime=remaining_seconds(spec, status),
            in_place=allowed_in_place(spec, status, today),
            reached=status.progress.step if status.progress is not None else 0,
        )
        record.unmade = outcome.incomplete
        now = asyncio.get_running_loop().time()
        for made in outcome.made:
            if made.name not in record.shown:
                record.made[made.name] = Made(made.name, made.uid, placement.generation, made.index, now)
                record.ask(now + MADE_PATIENCE)
        if outcome.refused and placement.replacing is not None:
            raise Incomplete(outcome.refused)  # a quota may count the lost pod still; the time for it is limited
        if outcome.refused:
            record.refusal = Refusal(placement.generation, outcome.refused)
            self.forget(record)
        elif outcome.incomplete:
            raise Incomplete(outcome.incomplete)
        else:
            _compare(record, placement.generation, outcome.made)
            if record.judgement is None:
                self.forget(record)

    def rehearsed(self, record: Record) -> Judgement | None:
        """What a moment ago became of a pod like the job's in its namespace, or None: of a thousand jobs that are alike
        one is rehearsed."""
        found = self.rehearsals.get(self._kind(record))
        if found is None or asyncio.get_running_loop().time() - found[0] > REHEARSED:
            return None
        return found[1]

    def claim_rehearsal(self, record: Record) -> bool:
        """False when a pod like the job's is being rehearsed already. `judge` gives the claim back."""
        kind = self._kind(record)
        if kind in self.rehearsing:
            return False
        self.rehearsing.add(kind)
        return True

    def _kind(self, record: Record) -> tuple[str, str]:
        key, template = record.template_key(self.settings), record.spec.pod_template
        own = template is not None and interpod.names_a_job(template.to_raw().get("spec") or {})
        return record.identity.namespace, f"{key}/{record.identity.name}" if own else key

    def forget(self, record: Record) -> None:
        """The rehearsal was proved wrong."""
        record.judgement = None
        self.rehearsals.pop(self._kind(record), None)

    async def judge(self, record: Record) -> None:
        """Rehearse the job's pod by a server-side dry run, as admission would treat it in the job's namespace."""
        kind = self._kind(record)
        try:
            await self._judge(record)
        finally:
            self.rehearsing.discard(kind)

    async def _judge(self, record: Record) -> None:
        async with self.parallel:
            key = record.template_key(self.settings)
            before = record.judgement.tries if record.judgement and record.judgement.key == key else 0
            tries, now = before + 1, asyncio.get_running_loop().time()
            try:
                template = pods.template(record.identity, record.spec, self.settings)
                raw, lenient = await self._rehearse(record, template)
            except TemplateRefused as error:
                obstacle = Obstacle(Reason.INVALID_POD_TEMPLATE, str(error))
                record.judgement = Judgement(key, obstacle=obstacle, retry_at=float("inf"), tries=tries)
                return
            except ApiError as error:
                away = refusals.webhook_away(error)
                if not refusal(error) and not away:
                    raise
                longest = LAST_RETRY_AWAY if away else LAST_RETRY
                retry_at = now + min(FIRST_RETRY * 2 ** min(before, 10), longest)
                reason = Reason.INVALID_POD_TEMPLATE if refusals.invalid(error) else Reason.POD_REFUSED
                namespace, own = record.identity.namespace, self.settings.priority_class
                obstacle = Obstacle(reason, refusals.sentence(error, namespace, record.spec, own, template))
                record.judgement = Judgement(key, obstacle=obstacle, retry_at=retry_at, tries=tries)
                return
            added = next(interpod.problems(raw["metadata"], raw["spec"], "spec"), "")
            if added:
                retry_at = now + min(FIRST_RETRY * 2 ** min(before, 10), LAST_RETRY)
                obstacle = Obstacle(Reason.POD_REFUSED, f"a webhook changes the job's pods: {added}")
                record.judgement = Judgement(key, obstacle=obstacle, retry_at=retry_at, tries=tries)
                return
            view = PodView.from_raw(raw)
            volumes = await self.executor.volumes(record.identity.namespace, raw["spec"])
            node_filter = filter_of_pod(raw["spec"], volumes=volumes)
            record.judgement = Judgement(
                key, requests=view.requests, node_filter=node_filter, retry_at=now + LAST_RETRY
            )
            for one in [one for one, found in self.rehearsals.items() if now - found[0] > REHEARSED]:
                del self.rehearsals[one]
            if not lenient:
                self.rehearsals[self._kind(record)] = (now, record.judgement)
            record.errors = 0

    async def _rehearse(self, record: Record, template: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """The job's pod as admission makes it. Fields that no pod has are refused, but for a gang that ran without them
        and goes on (`True`): the room that it keeps is not to stand empty for what an older operator let through."""
        try:
            return await self.executor.rehearse(record.identity, template, strict=True), False
        except ApiError as error:
            unknown = refusals.unknown(error, record.spec, template)
            if not unknown or not goes_on(record.job.status):
                raise
        told = f"the gang goes on without what it never had, and is refused for it when it next waits: {unknown}"
        self.tell(record, Note(EventReason.RESTARTING, told, warning=True))
        return await self.executor.rehearse(record.identity, template, strict=False), True


def _compare(record: Record, generation: int, made: list[MadePod]) -> None:
    """Withdraw a gang whose pods ask for more than was planned for: admission changed its mind since the rehearsal."""
    if record.judgement is None or record.judgement.obstacle is not None:
        return
    planned = dict(record.judgement.requests)
    for pod in made:
        more = [
            f"{amount(name, number)} instead of {amount(name, planned.get(name, 0))}"
            for name, number in pod.requests
            if number > planned.get(name, 0)
        ]
        if more:
            asked = ", ".join(more)
            message = f"admission made pod {pod.name} ask for more than was planned for: {asked}"
            record.refusal = Refusal(generation, message)
            record.judgement = None
            return


def utc_now() -> datetime:
    """Now, in UTC, to the microsecond."""
    return datetime.now(timezone.utc)


def clock() -> float:
    """The event loop's monotonic seconds, by which it is woken."""
    return asyncio.get_running_loop().time()
