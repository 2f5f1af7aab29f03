"""Keeps the books of queues and of the Topology: who uses how much, and what is wrong with them, in their status.

Nothing is decided here. Each object is written at most every few seconds, and only when something has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from muster.api.common import Condition, find_condition, set_condition
from muster.api.jobparts import CapacityKind
from muster.api.names import DEFAULT_TOPOLOGY, QueueConditionType, Reason, TopologyConditionType
from muster.api.topology import Topology, TopologyStatus
from muster.api.trainingqueue import (
    MAX_FLAVOURS,
    FlavourUse,
    ResourceUse,
    TrainingQueue,
    TrainingQueueStatus,
)
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.executor import Executor, refusal
from muster.cluster.quantities import format_amount
from muster.cluster.views import NodeView
from muster.controllers import sliced
from muster.controllers.accounts import Held, Spent, account
from muster.controllers.cache import Cache
from muster.controllers.queues import Ground, Standing, fair_share, standings
from muster.controllers.records import Record
from muster.scheduling.amounts import few
from muster.scheduling.fairness import dominant_shares
from muster.scheduling.hierarchy import by_depth
from muster.scheduling.snapshot import NONE, ONE_A_NODE, UNLIMITED, Int, JobState, Seconds, Snapshot
from muster.sizing.slices import device_price

log = logging.getLogger(__name__)

WRITE_EVERY: Final = 5.0
"""Seconds between two writes of one object."""

AT_ONCE: Final = 2
"""Writes under way: they are news for people, and must not compete with placements while the API server is slow."""

_SHOWN: Final = 3
GPUS: Final = ("nvidia.com/gpu", "amd.com/gpu")

Status = TrainingQueueStatus | TopologyStatus
Name = tuple[str, str]
"""(plural of the kind, name)."""


class Books:
    """The newest status that each object should have, and the writing of it.

    Attributes:
        tally: of the last round that was kept; None before the first.
    """

    def __init__(
        self,
        cache: Cache,
        executor: Executor,
        prices: Mapping[str, float] = MappingProxyType({}),
        currency: str = "",
    ) -> None:
        """`prices`: money for an hour of one GPU, by flavour; in `currency`, "" where nobody told."""
        self._cache = cache
        self._prices, self._currency = prices, currency
        self._executor = executor
        self._wanted: dict[Name, Status] = {}
        self._written: dict[Name, float] = {}
        self._sent: dict[Name, tuple[object, Status]] = {}
        """What was written last, and the object as it was shown before."""
        self._seen: dict[str, tuple[TrainingQueue, Standing, tuple[object, ...]]] = {}
        self._tasks: dict[Name, asyncio.Task[None]] = {}
        self._refused: dict[Name, str] = {}
        """With which words the last write was refused."""
        self.tally: Tally | None = None

    def keep(
        self,
        snapshot: Snapshot,
        records: Mapping[str, Record],
        errors: Mapping[str, str],
        spent: Mapping[str, Spent],
        now: datetime,
    ) -> None:
        """Take over what a round of planning has seen. `errors`: what is wrong with a queue's spec, by its name;
        `spent`: the budgets that are used up, by the names of the queues that they close."""
        queues = self._cache.queues
        tally = self.tally = Tally.of(snapshot, count_waiting(records.values()))
        self._forget_gone(queues)
        self._sent = {name: sent for name, sent in self._sent.items() if queues.get(name[1]) is sent[0]}
        ground = Ground.of(snapshot, self._cache.nodes())
        for name, standing in standings(queues, errors, spent, ground).items():
            # A thousand queues are there: nothing dear is done for those of which nothing has changed.
            seen = (queues[name], standing, tally.mark(name))
            before = self._seen.get(name)
            if before != seen:
                self._seen[name] = seen
                if before is not None and before[0].metadata.uid != queues[name].metadata.uid:
                    self._wanted.pop(("trainingqueues", name), None)  # that was of another queue of this name
                known = self._with_newest(queues[name])
                new = queue_status(known, tally, standing, now, self._prices, self._currency)
                self._wanted["trainingqueues", name] = new
        topology = self._cache.topologies.get(DEFAULT_TOPOLOGY)
        if topology is not None:
            self._wanted["topologies", DEFAULT_TOPOLOGY] = topology_status(topology, self._cache.nodes(), now)

    def _forget_gone(self, queues: Mapping[str, TrainingQueue]) -> None:
        """What is kept of queues that are gone: one that is made again under the name begins at nothing."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in queues}
        for kept in (self._wanted, self._written, self._refused):
            for gone in [name for name in kept if name[0] == "trainingqueues" and name[1] not in queues]:
                del kept[gone]

    def _with_newest(self, queue: TrainingQueue) -> TrainingQueue:
        """With the status that is to be written, or that the watch does not show yet: an account goes on from there, or
        what was held since would be lost."""
        name = "trainingqueues", queue.metadata.name
        shown, sent = self._sent.get(name, (None, None))
        status = self._wanted.get(name) or (sent if shown is queue else None)
        return queue if status is None else queue.model_copy(update={"status": status})

    def write_due(self) -> None:
        """Start the writes whose time has come."""
        now = asyncio.get_running_loop().time()
        for name, status in list(self._wanted.items()):
            if len(self._tasks) >= AT_ONCE:
                return
            plural, key = name
            known: Mapping[str, TrainingQueue | Topology] = (
                self._cache.queues if plural == "trainingqueues" else self._cache.topologies
            )
            found = known.get(key)
            if found is None or found.status == status:
                del self._wanted[name]
            elif name not in self._tasks and now - self._written.get(name, float("-inf")) >= WRITE_EVERY:
                del self._wanted[name]
                self._written[name], self._sent[name] = now, (found, status)
                self._tasks[name] = asyncio.create_task(self._write(name, found, status))

    async def _write(self, name: Name, found: TrainingQueue | Topology, status: Status) -> None:
        try:
            await self._executor.write_book(name[0], found, status)
            self._refused.pop(name, None)
        except (ApiError, ApiUnreachable) as error:
            self._tell_refused(name, error)
            self._wanted.setdefault(name, status)
            self._sent.pop(name, None)
        finally:
            del self._tasks[name]
        self.write_due()

    def _tell_refused(self, name: Name, error: ApiError | ApiUnreachable) -> None:
        """In the log, once. All but a refusal passes: the next round brings the write again. What is refused stays as
        it was, and what a queue has used of its budgets is nowhere else."""
        if not isinstance(error, ApiError) or error.status == 404 or not refusal(error):
            log.debug("status of %s/%s: %s", *name, error)
        elif self._refused.get(name) != error.message:
            self._refused[name] = error.message
            mend = "the chart's ClusterRole grants it" if error.status == 403 else "apply crds/ of this version"
            log.warning("status of %s/%s is refused and stays old: %s; %s", *name, error, mend)


def count_waiting(records: Iterable[Record]) -> dict[str, int]:
    """Jobs by queue that would run if they could."""
    waiting: dict[str, int] = {}
    for record in records:
        if record.waits:
            waiting[record.spec.queue] = waiting.get(record.spec.queue, 0) + 1
    return waiting


@dataclass(frozen=True)
class Tally:
    """What each queue and those below it hold. Rows and columns are those of the snapshot's queues.

    Attributes:
        held: Q x V x R.
        nominal: Q x V x R, sums of what the quotas name; UNLIMITED where none names it.
        running, waiting: Q.
        slices: of GPUs, by row.
        shares: Q, the part of the cluster.
    """

    snapshot: Snapshot
    rows: Mapping[str, int]
    held: Int
    nominal: Int
    running: Int
    waiting: Int
    shares: Seconds
    slices: Mapping[int, Mapping[sliced.Kind, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: Snapshot, waiting: Mapping[str, int]) -> Tally:
        """`waiting`: jobs by name of the queue."""
        jobs, queues = snapshot.jobs, snapshot.queues
        mine = np.flatnonzero((jobs.states == JobState.HOLDING) & (jobs.queues != NONE))
        held = np.zeros_like(queues.nominal)
        np.add.at(held, (jobs.queues[mine], jobs.flavours[mine]), jobs.held[mine])
        named = queues.nominal < UNLIMITED
        nominal = np.where(named, np.minimum(queues.nominal, UNLIMITED // (2 * len(queues.names) + 1)), 0)
        whole = mine[~np.isin(mine, list(jobs.bases))]  # workers beyond a base are no job of their own
        running = np.bincount(jobs.queues[whole], minlength=len(queues.names))
        waits = np.array([waiting.get(name, 0) for name in queues.names], dtype=np.int64)
        for depth in reversed(by_depth(queues.parents)[1:]):
            above = queues.parents[depth]
            for amounts in (held, nominal, running, waits):
                np.add.at(amounts, above, amounts[depth])
            np.logical_or.at(named, above, named[depth])
        rows = {name: row for row, name in enumerate(queues.names)}
        nominal = np.where(named, nominal, UNLIMITED)
        slices = sliced.by_queue(snapshot, mine)
        return cls(snapshot, rows, held, nominal, running, waits, dominant_shares(snapshot), slices)

    def mark(self, name: str) -> tuple[object, ...]:
        """Changes when something that is told of the queue does."""
        row = self.rows.get(name, NONE)
        if row == NONE:
            return ()
        counts = int(self.running[row]), int(self.waiting[row]), tuple(sorted(self.slices.get(row, {}).items()))
        return *counts, self.held[row].tobytes(), self.nominal[row].tobytes(), float(self.shares[row])

    def gpus(self, row: int) -> tuple[int, int | None]:
        """GPUs in use; of how many, where the quotas limit all that are."""
        columns = gpu_columns(self.snapshot)
        held, nominal = self.held[row][:, columns], self.nominal[row][:, columns]
        named = nominal < UNLIMITED
        used = int(held.sum())
        if not named.any() or held[~named].any():
            return used, None
        return used, int(nominal[named].sum())


def gpu_columns(snapshot: Snapshot) -> list[int]:
    """Of the resources those that are whole GPUs."""
    return [column for column, resource in enumerate(snapshot.resources) if resource in GPUS]


def queue_status(
    queue: TrainingQueue,
    tally: Tally,
    standing: Standing,
    now: datetime,
    prices: Mapping[str, float] = MappingProxyType({}),
    currency: str = "",
) -> TrainingQueueStatus:
    """What the queue's jobs and those below it hold, and what is to be said of it. `prices`: of one GPU by flavour, in
    `currency`."""
    row = tally.rows.get(queue.metadata.name, NONE)
    usage = _usage(tally, row) if row != NONE else ()
    generation = queue.metadata.generation
    used, of = tally.gpus(row) if row != NONE else (0, None)
    return TrainingQueueStatus(
        conditions=_queue_conditions(queue, standing, now),
        observed_generation=generation,
        running=int(tally.running[row]) if row != NONE else 0,
        waiting=int(tally.waiting[row]) if row != NONE else 0,
        used_gpus=used,
        gpus=str(used) if of is None else f"{used}/{of}",
        usage=usage[:MAX_FLAVOURS],
        fair_share=fair_share(queue, float(tally.shares[row]) if row != NONE else 0.0, now),
        # Of a queue that has come since the snapshot was taken nothing is known: its account stays as it is.
        month=account(queue, _held(tally, row, prices), now, currency) if row != NONE else queue.status.month,
    )


def _held(tally: Tally, row: int, prices: Mapping[str, float]) -> dict[str, Held]:
    """GPUs and slices of GPUs that are held, by their type."""
    snapshot, held = tally.snapshot, dict[str, Held]()
    columns = gpu_columns(snapshot)
    for flavour, name in enumerate(snapshot.flavours):
        gpus, kind = int(tally.held[row, flavour, columns].sum()), name.partition("/")[0]
        if gpus:
            price = Decimal(0) if snapshot.prices is None else Decimal(str(snapshot.prices[flavour]))
            _take(held, kind, gpus, price)
    for (kind, capacity), count in tally.slices.get(row, {}).items():
        _take(held, kind, count, Decimal(str(device_price(prices, f"{kind}/{capacity}") or 0)))
    return held


def _take(held: dict[str, Held], kind: str, count: int, price: Decimal) -> None:
    before = held.get(kind, Held(0, Decimal(0)))
    held[kind] = Held(before.gpus + count, before.hourly + count * price)


def _usage(tally: Tally, row: int) -> tuple[FlavourUse, ...]:
    usage = []
    for flavour, name in enumerate(tally.snapshot.flavours):
        uses = []
        for column, resource in enumerate(tally.snapshot.resources):
            used, nominal = int(tally.held[row, flavour, column]), int(tally.nominal[row, flavour, column])
            if resource == "pods" or resource.startswith(ONE_A_NODE) or not used:
                continue
            over = max(0, used - nominal) if nominal < UNLIMITED else 0
            borrowed = format_amount(resource, over) if over else None
            uses.append(ResourceUse(name=resource, used=format_amount(resource, used), borrowed=borrowed))
        if uses:
            gpu_type, _, capacity = name.partition("/")
            kind = CapacityKind(capacity) if capacity else CapacityKind.ON_DEMAND
            usage.append(FlavourUse(gpu_type=gpu_type, capacity=kind, resources=tuple(uses)))
    return tuple(usage)


def _queue_conditions(queue: TrainingQueue, standing: Standing, now: datetime) -> tuple[Condition, ...]:
    """Those of the queue, untouched where there is nothing new."""
    told = [(QueueConditionType.READY, standing.ready, standing.reason, standing.message)]
    found = standing.parent_reason
    if found is not None:
        told.append((QueueConditionType.PARENT_FOUND, found is Reason.PARENT_FOUND, found, standing.parent_message))
    conditions = tuple(
        condition
        for condition in queue.status.conditions
        if found is not None or condition.type != QueueConditionType.PARENT_FOUND.value
    )
    for type_, true, reason, message in told:
        new = Condition(
            type=type_.value,
            status="True" if true else "False",
            reason=reason.value,
            message=message,
            last_transition_time=now,
            observed_generation=queue.metadata.generation,
        )
        conditions = _with(conditions, new)
    return conditions


def topology_status(topology: Topology, nodes: Iterable[NodeView], now: datetime) -> TopologyStatus:
    """How many nodes have the labels of every level, and which have not."""
    labels = [level.label for level in topology.spec.levels]
    bare: list[str] = []
    whole = 0
    for node in nodes:
        missing = [label for label in labels if not node.labels.get(label)]
        whole += not missing
        if missing and node.ready and not node.unschedulable:
            bare.append(f"{node.name} lacks {missing[0]}")
    shown = few(sorted(bare)[:_SHOWN], len(bare))
    ready = Condition(
        type=TopologyConditionType.READY.value,
        status="False" if bare else "True",
        reason=(Reason.NODES_NOT_LABELLED if bare else Reason.READY).value,
        message=f"nodes that take no job which asks for the level: {shown}"
        if bare
        else "every usable node is labelled",
        last_transition_time=now,
        observed_generation=topology.metadata.generation,
    )
    return TopologyStatus(
        conditions=_with(topology.status.conditions, ready),
        observed_generation=topology.metadata.generation,
        nodes=whole,
    )


def _with(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """The old conditions, untouched when `new` brings nothing new: then nothing is written."""
    old = find_condition(conditions, new.type)
    same: dict[str, Any] = {"last_transition_time": old.last_transition_time} if old else {}
    if old is not None and old == new.model_copy(update=same):
        return conditions
    return set_condition(conditions, new)
