"""One round of planning: who may be planned, the snapshot, the plan, and what it means for each job."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from muster.api.names import DEFAULT_TOPOLOGY
from muster.cluster.gpus import gpu_type_of
from muster.cluster.hindrances import bars
from muster.cluster.jobs import JobInput
from muster.cluster.snapshot import Masks, build
from muster.cluster.status import goes_on
from muster.cluster.topologies import Detector
from muster.controllers import admission, planning, refusals
from muster.controllers.accounts import Budgets, Spent, closed
from muster.controllers.books import Books
from muster.controllers.cache import Cache
from muster.controllers.claims import Claims
from muster.controllers.decisions import Decisions, Names, Start
from muster.controllers.garbage import no_looks
from muster.controllers.inputs import Inputs
from muster.controllers.lifecycle import renewal
from muster.controllers.lifecycle.turn import NO_EDIT, Edit
from muster.controllers.places import Places, conflict
from muster.controllers.queues import queue_inputs, why_drained
from muster.controllers.records import Record
from muster.controllers.roster import FIRST, Roster, exhausted
from muster.controllers.sentences import Sentences
from muster.controllers.telling import Word
from muster.controllers.words import EXPLAIN_EVERY, Words
from muster.controllers.work import Worker, clock, utc_now
from muster.scheduling.fallback import next_fallback
from muster.scheduling.plan import Plan
from muster.scheduling.planner import plan
from muster.scheduling.policy import DEFAULT, Policy
from muster.scheduling.snapshot import Snapshot

log = logging.getLogger(__name__)

EXPLAIN_SHARE: Final = 0.1
"""Part of the time that rounds which explain may take; under load, jobs start faster than anybody reads."""

EXPLAIN_AT_LAST: Final = 15.0
"""Seconds between two rounds that explain, at most."""

REVIEW: Final = 60.0
"""Seconds between two rounds, at most, while there are jobs: who may be asked for room, and who may move, changes with
time alone, and nothing else need happen in a cluster for hours."""

ALIKE_JUDGED: Final = 0.5
"""Seconds that the rehearsal of another job's pod may take, which is like this one's."""
FIRST_REHEARSALS: Final = 5.0
"""Seconds that an operator's first plan waits at most for the rehearsals of those that it finds waiting."""

THREAD_SIZE: Final = 200_000
"""Nodes x waiting jobs from which on a plan is made in a thread, so that health checks are answered meanwhile."""

Trouble = Callable[[Record, Exception], None]


class Plans:
    """Plans over the loop's records.

    Attributes:
        inputs: what is made of records for the planner.
        books: status of queues and of the Topology.
        round_seconds: what the last round took, all in.
        again_at: monotonic time of another round without any change, for words that were held back, or for what time
            alone changes; None for none.
    """

    def __init__(
        self,
        cache: Cache,
        worker: Worker,
        records: Mapping[str, Record],
        roster: Roster,
        claims: Claims,
        places: Places,
        *,
        start: Start,
        trouble: Trouble,
        prices: Mapping[str, float] | None = None,
        currency: str = "",
        planned: Callable[[float], None] = lambda seconds: None,
        policy: Policy = DEFAULT,
    ) -> None:
        """
        Args:
            prices: money for an hour of one GPU, by flavour like `H100/on-demand`.
            currency: of `prices`; "" where nobody told.
            planned: is told what each plan took, snapshot not included.
            policy: what plans may do; those between two that explain leave that out.
        """
        self._cache = cache
        self._worker = worker
        self._records = records
        self._roster = roster
        self._places = places
        self._trouble = trouble
        self._masks = Masks()
        self._detector = Detector()
        self._queue_errors: dict[str, str] = {}
        self._prices = prices or {}
        self._planned = planned
        self._explaining, self._deciding = policy, replace(policy, explain=False)
        self._budgets = Budgets()
        self._spent: dict[str, Spent] = {}
        self.inputs = Inputs(cache, worker.settings, claims, self._prices)
        self._decisions = Decisions(
            worker,
            records,
            claims,
            start,
            why_drained=lambda queue: why_drained(queue, cache.queues, self._spent.get(queue)),
            stranded=cache.stranded,
        )
        self.books = Books(cache, worker.executor, self._prices, currency)
        self._words = Words(worker, records, roster.holders, start, self._later)
        self._looked: tuple[object, ...] = ()
        self._begun = False
        self.round_seconds = 0.0
        self.again_at: float | None = None

    async def make(self) -> None:
        """Freeze a snapshot, plan it, and start what the plan admits."""
        began = clock()
        self.again_at = None
        self._words.begin(began)
        explains = began >= self._words.explain_at
        world, now = self._world(), utc_now()
        if not self._begun:
            await self._rehearse_first(world)
        whole = self._changed(world) or explains
        count = FIRST
        while True:
            waiting, cut = self._everybody(world, now) if whole else self._first(world, now, count)
            snapshot = self._snapshot(world, waiting, now)
            decided = await self._plan(snapshot, self._explaining if explains else self._deciding, len(waiting))
            started = {one.uid for one in decided.admissions} | {one.uid for one in decided.promises}
            if not exhausted(cut, started):
                break
            count *= 4  # with fewer shown than could start, the order would be another one
        self._apply(snapshot, decided)
        if whole:
            self.books.keep(snapshot, self._records, self._queue_errors, self._spent, utc_now())
        if snapshot.jobs.uids:
            wait = min(REVIEW, next_fallback(snapshot) - now.timestamp())
            self._later(clock() + max(wait, self.round_seconds))
        self.round_seconds = clock() - began
        if explains:
            rest = min(max(EXPLAIN_EVERY, self.round_seconds / EXPLAIN_SHARE), EXPLAIN_AT_LAST)
            self._words.explain_at = clock() + rest
        else:
            self._later(self._words.explain_at)

    async def _rehearse_first(self, world: admission.World) -> None:
        """Wait, before an operator's first plan, for the rehearsals of all that wait. Who is left out of a plan holds
        no room: after each change of leader later jobs would take that of earlier ones."""
        self._begun = True
        for record in self._records.values():
            self._candidate(record, world)
        rehearsals = [record.judging for record in self._records.values() if record.judging is not None]
        if rehearsals:
            await asyncio.wait(rehearsals, timeout=FIRST_REHEARSALS)

    async def _plan(self, snapshot: Snapshot, policy: Policy, waiting: int) -> Plan:
        began = time.monotonic()
        with no_looks():
            if len(snapshot.nodes.names) * waiting >= THREAD_SIZE:
                decided = await asyncio.to_thread(plan, snapshot, policy)
            else:
                decided = plan(snapshot, policy)
        self._planned(time.monotonic() - began)
        return decided

    def due(self) -> bool:
        """Whether it is time for another plan without any change in the cluster: a queue's budget is used up, or a new
        month has opened it again, since the last plan; words were held back; or jobs are to be looked at again."""
        if self.again_at is not None and clock() >= self.again_at:
            return True
        return self._budgets.spent(self._cache.queues, utc_now()) != self._spent

    @property
    def due_at(self) -> float | None:
        """Monotonic time from which on one is `due`, as far as is known; None if only a change brings one about."""
        moments = [] if self.again_at is None else [self.again_at]
        if self._budgets.change is not None:
            moments.append(clock() + (self._budgets.change - utc_now()).total_seconds())
        return min(moments, default=None)

    def _later(self, moment: float) -> None:
        """Have another round at `moment` at the latest."""
        self.again_at = moment if self.again_at is None else min(self.again_at, moment)

    def _world(self) -> admission.World:
        nodes = self._cache.nodes()
        topology = self._cache.topologies.get(DEFAULT_TOPOLOGY)
        self._spent = self._budgets.spent(self._cache.queues, utc_now())
        return admission.World(
            queues=self._cache.queues,
            namespaces=self._cache.namespaces(),
            priorities=self._cache.priorities(),
            levels=planning.levels_of(topology) if topology else self._detector.levels(nodes),
            has_topology=topology is not None,
            gpu_types=sorted({gpu_type_of(node.labels) for node in nodes} - {""}),
            products=admission.products(nodes),
            grows=self._cache.grows,
            gangs_priority=self._worker.settings.priority_class,
            spent={name: found.message for name, found in self._spent.items()},
            unreadable=self._cache.unreadable,
        )

    def _changed(self, world: admission.World) -> bool:
        """Whether something has changed on which it depends who may be planned, and which jobs ask for the same."""
        looked = (
            {name: (queue.metadata.uid, queue.metadata.generation) for name, queue in world.queues.items()},
            world.namespaces,
            world.products,
            world.spent,
            world.unreadable,
        )
        changed = looked != self._looked
        self._looked = looked
        return self.inputs.look(world, self._cache.nodes()) or changed

    def _everybody(self, world: admission.World, now: datetime) -> tuple[list[JobInput], list[list[str]]]:
        """Inputs of all jobs that the planner may have now."""
        found = [job for record in self._records.values() if (job := self._pending(record, world, now)) is not None]
        self._roster.keep(found)
        self._roster.touched.clear()
        self._roster.holders.update(self._records)
        return found, []

    def _first(self, world: admission.World, now: datetime, count: int) -> tuple[list[JobInput], list[list[str]]]:
        """Inputs of the first of each class, and the UIDs of those of each class of which not all were taken."""
        touched = set(self._roster.touched)
        for uid in touched:
            record = self._records.get(uid)
            job = self._pending(record, world, now) if record is not None else None
            if job is None:
                self._roster.drop(uid)
            else:
                self._roster.put(job)
                self._roster.touched.discard(uid)
        self._roster.holders.update(touched)

        def look(uid: str) -> JobInput | None:
            record = self._records.get(uid)
            return None if record is None else self._pending(record, world, now)

        return self._roster.first(count, look)

    def _pending(self, record: Record, world: admission.World, now: datetime) -> JobInput | None:
        return self.inputs.pending(record, world, now) if self._candidate(record, world) else None

    def _candidate(self, record: Record, world: admission.World) -> bool:
        """Whether the planner may have the job now; tells why not, and has its pod rehearsed first."""
        if not record.plannable or self._cache.terminating(record.identity.namespace):
            return False
        if record.task is not None:
            record.stand = ()  # so that its next turn asks for a new plan
            return False
        ranked = record.job.status.priority is not None
        found = admission.obstacle(record.identity.namespace, record.spec, world, ranked=ranked)
        found = found or self._conflict(record)
        if found is None:
            found = self._judged(record)
            if found is None and not self._known(record):
                return False
        record.obstacle = found
        if found is not None:
            record.waiting = None  # what a plan said no longer holds: no nodes are asked for
            if not goes_on(record.job.status):  # it does not queue: a closed queue goes on with what ran
                self._words.waits(record, Word(found.reason.value, found.message))
            return False
        return True

    def _conflict(self, record: Record) -> admission.Obstacle | None:
        """What another job's hold on the place of this one's checkpoints means for it."""
        other = self._records.get(self._places.other(record.uid))
        return None if other is None else conflict(record, other)

    def _judged(self, record: Record) -> admission.Obstacle | None:
        """The obstacle that the last rehearsal met. Starts a rehearsal when there is none that holds, and now and then
        for a job that fits nowhere: nobody tells of volumes, webhooks and limits of its namespace that have changed."""
        now, judgement = clock(), record.judgement
        known = self._known(record)
        if judgement is not None and known:
            if judgement.obstacle is None and (now < judgement.retry_at or not _barred(record)):
                return None
            if now < judgement.retry_at:
                if judgement.retry_at != float("inf"):
                    record.ask(judgement.retry_at)
                return judgement.obstacle
        if judgement is None or (known and judgement.obstacle is None):
            alike = self._worker.rehearsed(record)
            if alike is not None:
                record.judgement = alike
                return None
        if record.judging is None and self._worker.claim_rehearsal(record):
            record.judging = asyncio.create_task(self._judge(record))
        return judgement.obstacle if judgement is not None and known else None

    def judge_edit(self, record: Record) -> Edit:
        """What becomes of the pods of the spec as it is now, where the job's gang runs and was placed for another one.
        Asks for a rehearsal when there is none yet."""
        status = record.job.status
        if not (renewal.whole(status) and renewal.edited(status, record.spec, record.placement_hash)):
            return NO_EDIT  # whether it runs first: of those that wait no spec need be hashed
        found = self._judged(record)
        if found is None and not self._known(record) and record.judging is None:
            record.ask(clock() + ALIKE_JUDGED)
        if found is None or refusals.counts_pods(found.message):  # the gang's own are there as yet
            return Edit(judged=self._known(record))
        return Edit(reason=found.reason.value, message=found.message)

    def _known(self, record: Record) -> bool:
        """Whether what a rehearsal made of its pod is of the spec that it has now."""
        judgement = record.judgement
        return judgement is not None and judgement.key == record.template_key(self._worker.settings)

    async def _judge(self, record: Record) -> None:
        try:
            await self._worker.judge(record)
        except Exception as error:  # noqa: BLE001 - tried again at the job's next turn
            self._trouble(record, error)
        finally:
            record.judging = None
            if record.judgement is not None:
                self._cache.mark(record.uid)

    def _snapshot(self, world: admission.World, waiting: Iterable[JobInput], now: datetime) -> Snapshot:
        queues, self._queue_errors = queue_inputs(self._cache.queues.values(), now, world.gpu_types)
        if world.unreadable:  # whose cohort and parent they name is not known, nor what they lend there
            queues = [replace(queue, certain=False) for queue in queues]
        jobs = {job.uid: job for job in waiting}
        for uid in list(self._roster.holders):
            record = self._records.get(uid)
            standing = self.inputs.standing(record, world, now) if record is not None else None
            if standing is None:
                self._roster.holders.discard(uid)
            else:
                jobs.setdefault(uid, standing)
        orphans = self.inputs.orphans(self._records, world)
        return build(
            nodes=self._cache.nodes(),
            pods=self._cache.pods(),
            jobs=[*jobs.values(), *orphans],
            queues=closed(queues, self._spent),
            levels=world.levels,
            masks=self._masks,
            now=now.timestamp(),
            prices=self._prices,
        )

    def _apply(self, snapshot: Snapshot, decided: Plan) -> None:
        names = Names(self._records)
        self._decisions.carry_out(snapshot, decided, names)
        nodes, queues = self._cache.nodes(), self._cache.queues
        sentences = Sentences(snapshot, names, nodes, queues, self._queue_errors, self._spent, utc_now())
        self._words.tell(decided, sentences, names, self.inputs.starts.typical)


def _barred(record: Record) -> bool:
    """Whether it waits for what only a change of its pods or of the cluster mends."""
    return record.job.status.queue is not None and bars(record.job.status.queue.reason)
