"""What the operator's metrics show: what has happened since the start, and how jobs, queues and fleet stand now.

Nothing is decided here. `wrote` and `planned` are called as things happen, `look` before each scrape, all of them in
the loop's thread. What has happened is counted by the difference that a status write has made.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from muster.api.common import find_condition
from muster.api.names import Phase, QueueConditionType, Reason
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.gpus import flavour_of
from muster.controllers import devices, standing
from muster.controllers.cache import Cache
from muster.controllers.loop import Loop
from muster.controllers.records import Record
from muster.controllers.work import utc_now
from muster.scheduling.plan import MoveReason, WaitReason
from muster.telemetry import metrics_declared as declared
from muster.telemetry.exposition import Labels
from muster.telemetry.metrics import Metrics
from muster.telling.budgets import budget_uses
from muster_protocol.metrics import Metric

Shown = dict[Metric, dict[Labels, float]]

UNKNOWN: Final = "(unknown)"
"""For all queues and priorities together that jobs name and that do not exist."""
_MOVES: Final = frozenset(reason.value for reason in MoveReason)
_MEANT: Final = frozenset(
    reason.value
    for reason in (
        WaitReason.QUEUE_CLOSED,
        WaitReason.WINDOW_CLOSED,
        Reason.QUEUE_NOT_FOUND,
        Reason.NAMESPACE_NOT_ALLOWED,
        Reason.BUDGET_EXHAUSTED,
        Reason.CHECKPOINT_PATH_CONFLICT,
        Reason.BACKOFF,
    )
)
"""Waits that somebody has decided, or that the job itself brings: more room would not end them, so nobody is paged."""
_FAULTS: Final = frozenset(
    reason.value for reason in (Reason.INVALID_SPEC, Reason.PARENT_NOT_FOUND, Reason.PARENT_CIRCLE)
)


class Observing:
    """Fills the metrics of one process."""

    def __init__(self, metrics: Metrics, prices: Mapping[str, float], currency: str = "") -> None:
        """`prices`: money for an hour of a GPU, by flavour like `H100/on-demand`. `currency`: "" where nobody told."""
        self._metrics = metrics
        self._prices: Mapping[tuple[str, ...], float] = {
            (*standing.flavour(name), currency): price for name, price in prices.items()
        }

    # -- what happens --------------------------------------------------------------------------------------------------

    def planned(self, seconds: float) -> None:
        """A plan has taken so long."""
        self._metrics.planned(seconds)

    def wrote(self, record: Record, before: TrainingJobStatus) -> None:
        """A job's status has become what the record has."""
        after, queue, store = record.job.status, record.spec.queue, self._metrics.store
        if after.placement is not None and (after.placements or 0) > (before.placements or 0):
            store.count(declared.ADMISSIONS, 1, queue)
            placed_at = after.placement.placed_at or utc_now()
            waited = _waited(record, before, placed_at)
            store.observe(declared.WAIT_SECONDS, waited, queue)
            store.observe(declared.PRIORITY_WAIT_SECONDS, waited, record.spec.priority_class)
        if after.stop is not None and before.stop is None and after.stop.reason in _MOVES:
            store.count(declared.PREEMPTIONS, 1, queue, after.stop.reason)
            store.count(declared.LOST, after.stop.lost, queue, after.stop.reason)
        for kind, number in _restarts(before, after):
            store.count(declared.RESTARTS, number, queue, kind, _cause(after))
        if after.finished_at is not None and before.finished_at is None:
            outcome = Phase.FAILED if after.phase is Phase.FAILED else Phase.SUCCEEDED
            store.count(declared.FINISHED, 1, queue, outcome.value)

    # -- what stands ---------------------------------------------------------------------------------------------------

    def look(self, loop: Loop, cache: Cache) -> None:
        """Put down how everything stands now."""
        now, records = utc_now(), loop.records.values()
        metrics = self._metrics
        owed = standing.owed(loop.tally) if loop.tally is not None else {}
        metrics.show(
            {declared.JOBS: _number(loop, cache)} | _jobs(records, cache) | _waiting(records, cache, owed, now)
        )
        metrics.show(standing.queues(loop.tally, cache.queues, now))
        if loop.tally is not None:
            metrics.show(standing.fleet(loop.tally.snapshot))
        metrics.show({declared.PRICE: self._prices})
        metrics.show({declared.BUDGET: dict(_budgets(cache, now))})
        waiting = len(cache.dirty)
        metrics.show(
            {
                declared.WORK_DEPTH: {(): waiting},
                declared.WORK_AGE: {(): time.monotonic() - loop.last_tick if waiting else 0.0},
                declared.AT_WORK: {(): sum(record.task is not None for record in records)},
                declared.RECONCILE_ERRORS: {(): loop.turn_errors},
            }
        )
        used = {record.spec.queue for record in records} | {ended.queue for ended in loop.ended.values()}
        metrics.store.forget("queue", cache.queues.keys() | used | {UNKNOWN})


def _waited(record: Record, before: TrainingJobStatus, placed_at: datetime) -> float:
    """Seconds in the queue. The account of goodput reaches up to the end of the last placement, or of a suspension."""
    since = before.goodput.until if before.goodput is not None else record.job.metadata.creation_timestamp
    return max(0.0, (placed_at - since).total_seconds()) if since is not None else 0.0


def _restarts(before: TrainingJobStatus, after: TrainingJobStatus) -> Iterator[tuple[str, int]]:
    """(kind, how many) of those that the write has told."""
    for kind, old, new in (
        ("gang", before.restarts, after.restarts),
        ("in-place", before.restarts_in_place, after.restarts_in_place),
        ("worker", before.replacements, after.replacements),
    ):
        if (more := (new or 0) - (old or 0)) > 0:
            yield kind, more


def _cause(status: TrainingJobStatus) -> str:
    """Of the newest failure."""
    if status.recent_failures:
        return status.recent_failures[-1].cause
    return status.failure.cause if status.failure is not None else ""


def _known(name: str, there: Container[str]) -> str:
    """What a job may name as it likes must not make a series for each name."""
    return name if name in there else UNKNOWN


def _number(loop: Loop, cache: Cache) -> dict[Labels, float]:
    there = cache.queues
    phases = Counter(
        (_known(record.spec.queue, there), (record.job.status.phase or Phase.QUEUED).value)
        for record in loop.records.values()
    )
    phases.update(
        (_known(ended.queue, there), ended.phase.value) for ended in loop.ended.values() if ended.phase is not None
    )
    return dict(phases.items())


def _jobs(records: Iterable[Record], cache: Cache) -> Shown:
    """Four series of each job that holds room."""
    info: dict[Labels, float] = {}
    gpus: dict[Labels, float] = {}
    phases: dict[Labels, float] = {}
    costs: dict[Labels, float] = {}
    for record in records:
        placement, spec, status = record.placement, record.spec, record.job.status
        if placement is None:
            continue
        job = (record.identity.namespace, record.identity.name)
        node = cache.node(placement.nodes[0].node) if placement.nodes else None
        flavour = standing.flavour(flavour_of(node.labels) if node is not None else "")
        held = float(devices.held(placement, spec, record.gpu_type))
        info[(*job, spec.queue, *flavour, spec.priority_class)] = 1
        gpus[job] = held
        phases[(*job, (status.phase or Phase.STARTING).value)] = 1
        costs[job] = held * record.price
    return {declared.JOB_INFO: info, declared.JOB_GPUS: gpus, declared.JOB_PHASE: phases, declared.JOB_COST: costs}


def _waiting(records: Iterable[Record], cache: Cache, owed: Mapping[str, str], now: datetime) -> Shown:
    """By queue; of those without waiting jobs there are zeros, so that alerts see them empty. `owed`: by `standing`."""
    jobs: dict[Labels, float] = defaultdict(float, {(name, ""): 0 for name in cache.queues})
    gpus: dict[Labels, float] = defaultdict(float, {(name,): 0 for name in cache.queues})
    oldest: dict[Labels, float] = defaultdict(float, {(name,): 0 for name in cache.queues})
    starved: dict[Labels, float] = defaultdict(float, {(name,): 0 for name in cache.queues})
    reasons: dict[Labels, float] = defaultdict(float)
    priorities = {"", *cache.priorities()}
    for record in records:
        spec, status = record.spec, record.job.status
        if not record.waits:
            continue
        queue = _known(spec.queue, cache.queues)
        jobs[queue, _known(spec.priority_class, priorities)] += 1
        gpus[queue,] += spec.gpus
        why = status.queue.reason if status.queue is not None else ""
        reasons[queue, why] += 1
        if why not in _MEANT or _broken(cache.queues.get(queue)):
            waited = _waited(record, status, now)
            oldest[queue,] = max(oldest[queue,], waited)
            owner = owed.get(record.identity.uid)
            if owner in cache.queues:
                starved[owner,] = max(starved[owner,], waited)
    return {
        declared.WAITING: jobs,
        declared.WAITING_GPUS: gpus,
        declared.WAITING_WHY: reasons,
        declared.OLDEST: oldest,
        declared.OWED: starved,
    }


def _broken(queue: TrainingQueue | None) -> bool:
    """Whether it takes no jobs because its spec is wrong, or the one above it is not there: nobody meant that."""
    if queue is None:
        return False
    ready = find_condition(queue.status.conditions, QueueConditionType.READY.value)
    return ready is not None and ready.reason in _FAULTS


def _budgets(cache: Cache, now: datetime) -> Iterator[tuple[Labels, float]]:
    for name, queue in cache.queues.items():
        for use in budget_uses(queue, now):
            for unit, ratio in use.parts():
                yield (name, use.budget.gpu_type, unit), ratio
