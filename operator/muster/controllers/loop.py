"""The scheduling loop: woken by changes, it gives every changed job its turn, then plans those that wait.

One loop, one thread: between two awaits nothing else touches the records. A job that is being worked on (a task) has no
turn until the task is over; what the task has promised (an assumed placement) is counted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from muster.api.trainingjob import TrainingJob
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.status import finished
from muster.controllers import dropped
from muster.controllers.alarms import Alarms, Clocks
from muster.controllers.books import Tally
from muster.controllers.cache import Cache
from muster.controllers.chronicle import Chronicle
from muster.controllers.claims import Claims
from muster.controllers.lifecycle.reconcile import reconcile
from muster.controllers.lifecycle.replacement import shrinks_at
from muster.controllers.lifecycle.turn import TERMINAL, Decision
from muster.controllers.places import Places
from muster.controllers.plans import Plans
from muster.controllers.pricing import Pricing
from muster.controllers.progress import Progress
from muster.controllers.quarantine import Fault, faults_of
from muster.controllers.records import ASK_AGAIN, MADE_PATIENCE, Ended, Record, deadline
from muster.controllers.reliability import Stay, stay_of
from muster.controllers.roster import Roster
from muster.controllers.situations import PATIENCE, Patience, Situations
from muster.controllers.work import Incomplete, Worker, utc_now
from muster.scheduling.policy import DEFAULT, Policy

log = logging.getLogger(__name__)

COALESCE: Final = 0.05
"""Seconds that the loop waits at least between two rounds, to let changes gather: a gang's pods come in a burst. What
comes after a longer silence is looked at without delay."""

LONGEST_RETRY: Final = 30.0
"""Seconds between two turns of a job that keep failing; doubled up to here."""

FIRST_WORD: Final = 3.0
"""Seconds that a new job waits for the planner's word before it says that it was seen."""

LONGEST_REST: Final = 0.25
"""Seconds between two rounds, at most: longer ones are those that also explain, and they are rare."""

LONGEST_SLEEP: Final = 5.0
"""Seconds; the loop shows that it lives at least this often."""


class Loop:
    """Owns the records. `run` until cancelled.

    Attributes:
        records: live jobs by UID.
        ended: what is kept of jobs that have ended and hold nothing.
    """

    def __init__(
        self,
        cache: Cache,
        worker: Worker,
        progress: Progress,
        *,
        patience: Patience = PATIENCE,
        prices: Mapping[str, float] | None = None,
        currency: str = "",
        planned: Callable[[float], None] = lambda seconds: None,
        chronicle: Chronicle | None = None,
        policy: Policy = DEFAULT,
    ) -> None:
        """
        Args:
            prices: money for an hour of one GPU, by flavour like `H100/on-demand`.
            currency: of `prices`; "" where nobody told.
            planned: is told what each plan took.
            chronicle: keeps the history; None: nobody does.
            policy: what plans may do.
        """
        self._cache = cache
        self._worker = worker
        self._pricing = Pricing(cache, prices or {}, currency)
        self._chronicle = chronicle
        self._must_plan = True
        self.records: dict[str, Record] = {}
        self.ended: dict[str, Ended] = {}
        self._roster = Roster()
        self._alarms = Alarms()
        self._clocks = Clocks(utc_now(), time.monotonic())
        self.last_tick = time.monotonic()
        self.turn_errors = 0
        self._claims = Claims(cache.mark)
        self._places = Places(self._freed)
        self._plans = Plans(
            cache,
            worker,
            self.records,
            self._roster,
            self._claims,
            self._places,
            start=self.start,
            trouble=self._trouble,
            prices=prices or {},
            currency=currency,
            planned=planned,
            policy=policy,
        )
        self._situations = Situations(cache, progress, self._claims, self._plans.inputs, patience)

    @property
    def tally(self) -> Tally | None:
        """What queues held when the planner last looked at everything; None before it first did."""
        return self._plans.books.tally

    def stays(self) -> Iterator[Stay]:
        """What the jobs that exist have seen of their nodes."""
        now = utc_now()
        for record in self.records.values():
            yield stay_of(record.job, record.spec.kinds, now)
        for ended in self.ended.values():
            yield ended.stay

    def faults(self) -> Iterator[Fault]:
        """What the jobs that exist say against their nodes."""
        for record in self.records.values():
            yield from faults_of(record.job)
        for ended in self.ended.values():
            yield from ended.faults

    async def run(self) -> None:
        """Tick for ever. An exception in one job's turn is that job's; one in planning is logged, and tried again."""
        while True:
            await self._sleep()
            self.last_tick = time.monotonic()
            self.absorb()
            self.turns()
            if self._chronicle is not None:
                self._chronicle.all_seen()
            if self._must_plan or self._plans.due():
                self._must_plan = False
                await self._plan_guarded()
            self._plans.books.write_due()

    async def _sleep(self) -> None:
        # Planning gets no more than half of the time.
        await asyncio.sleep(min(self._plans.round_seconds, LONGEST_REST))
        now = asyncio.get_running_loop().time()
        known = [at for at in (self._plans.due_at, self._alarms.next) if at is not None]
        timeout = max(0.0, min([LONGEST_SLEEP, *(at - now for at in known)]))
        try:
            # Not wait_for: before Python 3.12 it may lose a cancellation that comes together with the wake.
            async with asyncio.timeout(timeout):
                await self._cache.wake.wait()
        except TimeoutError:
            return
        waited = asyncio.get_running_loop().time() - now
        if waited < COALESCE:
            await asyncio.sleep(COALESCE - waited)
        self._cache.wake.clear()

    def knows(self, raw: Mapping[str, Any]) -> bool:
        """Whether the object is as the answer to our own last write was: then it need not be read again."""
        metadata = raw["metadata"]
        record = self.records.get(metadata.get("uid", ""))
        return record is not None and record.job.metadata.resource_version == metadata.get("resourceVersion")

    # -- what has changed --------------------------------------------------------------------------------------------

    def absorb(self) -> None:
        """Take over changed jobs from the cache; forget those that are gone with all their pods."""
        for job in self._cache.take_jobs():
            self._take(job)
        for uid in self._cache.take_deleted():
            self.ended.pop(uid, None)
            record = self.records.get(uid)
            if record is None and self._chronicle is not None:
                self._chronicle.forget_ended(uid, utc_now())
            elif record is not None:
                record.deleted = True
                self._cache.dirty.add(uid)
        for owner, pods in self._cache.take_gone().items():
            record = self.records.get(owner[1])
            if record is not None and record.owner == owner:
                record.gone |= pods
        if templates := self._cache.take_new_templates():
            queued = (record for record in self.records.values() if record.job.spec.queue in templates)
            self._cache.dirty |= {record.uid for record in queued}
        if self._cache.take_world_changed():
            self._must_plan = True

    def _take(self, job: TrainingJob) -> None:
        self._plans.inputs.starts.see(job)
        uid, version = job.metadata.uid, int(job.metadata.resource_version or 0)
        record, ended = self.records.get(uid), self.ended.get(uid)
        if record is None:
            if ended is not None and version <= ended.version:
                return  # what the watch shows is older than our own last write
            self.ended.pop(uid, None)
            record = self.records[uid] = Record.of(job)
            record.ring = self._alarms.at
        elif version and version == int(record.job.metadata.resource_version or 0):
            return  # the watch shows what we wrote
        else:
            record.take(job)
        self._roster.touched.add(uid)
        self._cache.dirty.add(uid)

    # -- turns -------------------------------------------------------------------------------------------------------

    def turns(self) -> None:
        """Give every job its turn that has changed or whose time has come."""
        now = asyncio.get_running_loop().time()
        due = self._rung(now)
        if self._clocks.stepped(utc_now(), time.monotonic()):
            due |= self.records.keys()
        self._must_plan = self._must_plan or bool(due)
        dirty, self._cache.dirty = self._cache.dirty | due, set()
        for uid in sorted(dirty):
            record = self.records.get(uid)
            if record is None or record.task is not None:
                continue  # its task marks it dirty when it is over
            try:
                self._turn(record)
            except Exception as error:  # noqa: BLE001 - one job's trouble must not stop the others
                self._trouble(record, error)

    def _rung(self, now: float) -> set[str]:
        """UIDs of the jobs whose time has come. For what comes later each has its alarm set anew."""
        due = set()
        for record in filter(None, map(self.records.get, self._alarms.ring(now))):
            for moment in filter(None, (record.wake_at, record.retry_at)):
                if moment <= now:
                    due.add(record.uid)
                else:
                    self._alarms.at(record.uid, moment)
        return due

    def _turn(self, record: Record) -> None:
        monotonic, now = asyncio.get_running_loop().time(), utc_now()
        record.fill(self._cache.template_of(record.job.spec.queue))
        pods = self._cache.pods_of(record.owner)
        self._roster.touched.add(record.uid)
        record.see(pods, monotonic)
        if self._chronicle is not None:
            self._chronicle.see(record, pods, now)
        self._index(record)
        record.wake_at = None
        if record.retry_at is not None and record.retry_at <= monotonic:
            record.retry_at = None
        if record.made:
            # Each time anew, for a turn that was asked for sooner takes the place of a later one. A pod that came and
            # went unseen would hold its room for ever, and with the job gone nothing else would give the record a turn.
            record.ask(min(made.at for made in record.made.values()) + MADE_PATIENCE)
        if record.unsure:
            self.start(record, self._worker.settle(record))
            return
        if record.deleted:
            record.plannable = False
            if not record.made and not any(pod.phase not in TERMINAL for pod in pods):
                del self.records[record.uid]
                self._places.drop(record.uid)
                self._worker.executor.chunks.drop(record.job)
                if self._chronicle is not None:
                    self._chronicle.forget(record, now)
            self._must_plan = True
            return
        self._pricing.price(record)
        record.edit = self._plans.judge_edit(record)
        decision = reconcile(self._situations.of(record, pods, now, monotonic))
        record.plannable = decision.plannable
        if not record.plannable:
            record.waiting = None
        record.wake_at = deadline(decision.wake_at, now, monotonic)
        if record.wake_at is not None:
            self._alarms.at(record.uid, record.wake_at)
        self._compare(record, now)
        if decision.make and self._cache.terminating(record.identity.namespace):
            decision = Decision(decision.status, decision.delete, (), decision.notes, decision.delete_job)
        decision = self._withhold_first_word(record, _unasked(record, decision, monotonic), monotonic)
        decision = dropped.without_vain(record, decision)
        if decision.status or decision.delete or decision.make or decision.delete_job:
            self.start(record, self._worker.carry_out(record, decision))
        elif finished(record.job.status) and not record.holds(pods) and record.due_at is None:
            self.ended[record.uid] = Ended.of(record, now)
            del self.records[record.uid]  # until the watch shows something new of it
            self._places.drop(record.uid)

    def _index(self, record: Record) -> None:
        """Take over what the record says of others' room, and of its checkpoints' place."""
        self._claims.update(record)
        self._places.update(record, living=bool(self._plans.inputs.living(record.owner)))

    def _freed(self, uid: str) -> None:
        """The job has got its checkpoints' place, perhaps from another that was there before: it may be planned."""
        self._roster.touched.add(uid)
        self._must_plan = True

    def _withhold_first_word(self, record: Record, decision: Decision, monotonic: float) -> Decision:
        """A new job's first status is the planner's word, which comes in a moment: that spares a write in each job's
        life. Where the planner can't have it, for its pod's rehearsal gets no answer, it says so itself."""
        if not decision.plannable or record.job.status.phase is not None or decision.status is None:
            return decision
        if record.seen_at is None:
            record.seen_at = monotonic
        if record.judgement is None:
            if monotonic - record.seen_at >= FIRST_WORD:
                return decision
            record.ask(record.seen_at + FIRST_WORD)
        return replace(decision, status=None)

    def _compare(self, record: Record, now: datetime) -> None:
        """Plan anew when something has changed that a plan looks at; progress and wording are no such things."""
        status = record.job.status
        placed = status.placement.generation if status.placement else 0
        judged = record.judgement if record.plannable else None
        avoided = tuple(item.node for item in status.avoided)
        replacing = status.placement is not None and (status.placement.attempts, status.placement.replacing)
        ending = (status.stop is None, status.promise is None, finished(status), record.leaves_for_good, replacing)
        bounded = record.spec.max_runtime is not None and status.running_since  # before, it might have started later
        size = _size_may_change(record, now)
        stand = (record.plannable, placed, ending, record.spec, judged, avoided, bounded, size)
        if stand != record.stand:
            record.stand = stand
            self._must_plan = True

    def start(self, record: Record, work: Awaitable[None]) -> None:
        """Run `work` as the record's task; when it is over the job gets another turn."""
        self._roster.touched.add(record.uid)

        async def guarded() -> None:
            try:
                await work
                record.errors = 0
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - one job's trouble must not stop the others
                self._trouble(record, error)
            finally:
                record.task = None
                record.leaving = False
                if not record.unsure:
                    record.assumed, record.assumed_promise = None, None
                self._index(record)
                self._roster.touched.add(record.uid)
                if record.errors == 0:
                    self._cache.mark(record.uid)
                else:
                    self._cache.wake.set()

        record.task = asyncio.create_task(guarded(), name=f"{record.identity.namespace}/{record.identity.name}")

    def _trouble(self, record: Record, error: Exception) -> None:
        record.errors += 1
        self.turn_errors += 1
        record.retry_at = None  # what it asked for before may have rung unheard while its task was at work
        record.ask(asyncio.get_running_loop().time() + min(2.0 ** min(record.errors, 6), LONGEST_RETRY))
        known = isinstance(error, (ApiError, ApiUnreachable, Incomplete))
        log.warning(
            "%s/%s: %s; trying again", record.identity.namespace, record.identity.name, error, exc_info=not known
        )

    async def _plan_guarded(self) -> None:
        try:
            await self._plans.make()
        except Exception:
            log.exception("planning failed")
            self.turn_errors += 1
            self._must_plan = True
            await asyncio.sleep(1.0)


def _size_may_change(record: Record, now: datetime) -> tuple[bool, int]:
    """Whether an elastic gang may go on without lost workers by now; and of one that could be larger the step of its
    last checkpoint, for to stop and grow costs least right after a commit."""
    status, spec = record.job.status, record.spec
    if not spec.elastic or status.placement is None:
        return False, 0
    shrinks = shrinks_at(status, spec)
    grows = status.checkpoint is not None and status.placement.workers < spec.max_replicas
    return shrinks is not None and shrinks <= now, status.checkpoint.step if grows and status.checkpoint else 0


def _unasked(record: Record, decision: Decision, now: float) -> Decision:
    """`decision` without deletions that were asked for a moment ago: the watch needs time to show them."""
    fresh = tuple((name, uid) for name, uid in decision.delete if now - record.asked.get(uid, -ASK_AGAIN) >= ASK_AGAIN)
    delete_job = decision.delete_job and now - record.asked.get(record.uid, -ASK_AGAIN) >= ASK_AGAIN
    if len(fresh) < len(decision.delete) or delete_job != decision.delete_job:
        record.ask(now + ASK_AGAIN)
    record.asked |= dict.fromkeys((uid for _, uid in fresh), now) | ({record.uid: now} if delete_job else {})
    return replace(decision, delete=fresh, delete_job=delete_job)
