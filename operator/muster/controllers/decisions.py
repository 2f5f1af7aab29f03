"""Carries out a plan: placements, promises, stops and moves, each by one status write of the job that it is about.

A promise is written first, in its beneficiary's status, with its victims in it. They are stopped by their own turns,
when the promise stands written (`lifecycle.preemption`), so no cut leaves a victim stopped for nobody. A job that is
moved or resized gets its promise and its stop in one write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from typing import Final

import numpy as np

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import NodeWorkers, Placement, Promise, Stop, Victim, nodes_with_workers
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.jobs import JobInput
from muster.cluster.status import Draft, finished, reason_of
from muster.controllers import devices, planning, replacing, terms
from muster.controllers.cache import Key
from muster.controllers.claims import Claims
from muster.controllers.inputs import unmade
from muster.controllers.lifecycle import preemption
from muster.controllers.lifecycle.turn import Decision, Note, write_stop
from muster.controllers.ordered import Writes
from muster.controllers.queues import ceilings, priority_remark
from muster.controllers.records import Record
from muster.controllers.telling import hindered
from muster.controllers.work import Worker, utc_now
from muster.scheduling.amounts import few
from muster.scheduling.plan import Admission, Eviction, MoveReason, Plan, Replacement
from muster.scheduling.plan import Promise as Promised
from muster.scheduling.promises import BrokenBy, broken_by
from muster.scheduling.reliance import counted_on
from muster.scheduling.snapshot import NONE, Index, Snapshot

Start = Callable[[Record, Awaitable[None]], None]


class Names(Mapping[str, str]):
    """`namespace/name` by UID, made when it is asked for: of ten thousand jobs a few are named."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records

    def __getitem__(self, uid: str) -> str:
        identity = self._records[uid].identity
        return f"{identity.namespace}/{identity.name}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


class Decisions:
    """Starts the writes that a plan asks for. A job that is being worked on is left alone: the next plan decides."""

    def __init__(
        self,
        worker: Worker,
        records: Mapping[str, Record],
        claims: Claims,
        start: Start,
        why_drained: Callable[[str], str],
        stranded: Callable[[], Mapping[Key, int]],
    ) -> None:
        """`why_drained`: what a queue is drained for; `stranded`: as `Cache.stranded`."""
        self._worker, self._why_drained, self._stranded = worker, why_drained, stranded
        self._records = records
        self._claims, self._start = claims, start
        self._writes = Writes()

    def carry_out(self, snapshot: Snapshot, decided: Plan, names: Names) -> None:
        """Everything in the plan except its words to those that wait."""
        now = utc_now()
        promises = {promise.uid: promise for promise in decided.promises}
        evictions: dict[str, list[Eviction]] = defaultdict(list)
        alone: dict[str, Eviction] = {}
        for eviction in decided.evictions:
            if eviction.beneficiary and not eviction.for_itself:
                evictions[eviction.beneficiary].append(eviction)
            else:
                alone[eviction.uid] = eviction
        self._writes.plan(counted_on(snapshot, decided))
        for uid in self._writes.counts_on:
            if not self._writes.possible(uid):
                self._records[uid].stand = ()  # what it counts on isn't written: plan anew
            elif uid in alone:
                self._stop(snapshot, alone[uid], promises.get(uid), names, now)
            else:
                self._promise(snapshot, uid, promises, evictions[uid], names, now)
        for uid in decided.broken:
            self._break(snapshot, uid, now)
        starting = {admission.uid for admission in decided.admissions}
        for replacement in decided.replacements:
            if replacement.uid not in starting:  # the placement says it
                self._replace(snapshot, replacement, now)
        for promise in decided.reduced:
            if promise.uid not in starting:
                self._reduce(snapshot, promise, now)
        stranded = self._stranded() if decided.admissions else {}
        for admission in decided.admissions:
            self._admit(snapshot, admission, stranded, now)

    def _admit(self, snapshot: Snapshot, admission: Admission, stranded: Mapping[Key, int], now: datetime) -> None:
        record = self._records[admission.uid]
        if record.task is not None or not record.plannable:
            record.stand = ()  # its room is promised, but it can't start yet: plan anew after its next turn
            return
        before, identity = record.job.status, record.identity
        generation = max(before.placements or 0, stranded.get((identity.namespace, identity.name), 0)) + 1
        placement = planning.placement_of(
            snapshot,
            admission.nodes,
            generation,
            now,
            spares=_spares(record, admission),
            queue=record.spec.queue,
            flavour=_flavour(snapshot, admission.flavour),
            gpus_per_worker=record.spec.gpus_per_worker,
            spec=record.placement_hash,
            pods=record.pods_hash,
            base=admission.base or None,
            **_kinds(snapshot, admission, record),
            yields=admission.yields,
        )
        status = planning.admitted(
            record.job,
            placement,
            now,
            remark=priority_remark(record.planned[1], ceilings(snapshot)) if record.planned else "",
            defaults=record.defaults,
            priority=record.planned[1].priority if record.planned else None,
        )
        told = find_condition(status.conditions, ConditionType.ADMITTED.value)
        # A job's ordinary life takes five writes: who waited for its first turn had its word, and has no Event as well.
        # The log tells of it. But who was told by one that room is made for it is told, too, that it has it.
        ordinary = not (before.placements or before.promise or hindered(before)) and before.queue is not None
        note = Note(EventReason.ADMITTED, told.message if told else "", logged=ordinary)
        record.assumed, record.waiting, record.plannable, record.told = placement, None, False, ()
        self._start(record, self._worker.place(record, status, note))

    def _promise(
        self,
        snapshot: Snapshot,
        uid: str,
        promises: Mapping[str, Promised],
        evictions: list[Eviction],
        names: Names,
        now: datetime,
    ) -> None:
        """Write down whose room a waiting job gets; add to the victims of a promise that stands."""
        record, decided = self._records[uid], promises.get(uid)
        standing = record.job.status.promise
        if record.task is not None or (decided is None and standing is None):
            record.stand = ()  # plan anew after its next turn
            return
        found = [self._victim(snapshot, eviction, promises.get(eviction.uid)) for eviction in evictions]
        victims = tuple(victim for victim in found if victim is not None)
        if len(victims) < len(found):
            return  # somebody has begun to go by itself meanwhile: the next plan counts on that
        if decided is not None:
            promise = _written(record, snapshot, decided, victims, now)
        else:
            assert standing is not None
            asked = {victim.uid for victim in victims}
            others = tuple(victim for victim in standing.victims if victim.uid not in asked)
            promise = standing.model_copy(update={"victims": others + victims})
        status = planning.promised(record.job, promise, names, None, now, defaults=record.defaults)
        record.assumed_promise, record.waiting, record.plannable = promise, None, False
        self._claims.update(record)
        note = Note(EventReason.PREEMPTING, planning.promise_message(promise, names))
        self._tell(record, Decision(status=status, notes=(note,)), takes=True)

    def _victim(self, snapshot: Snapshot, eviction: Eviction, onward: Promised | None) -> Victim | None:
        record = self._records.get(eviction.uid)
        placement = record.placement if record is not None and not record.leaves_for_good else None
        if record is None or placement is None or record.job.status.stop is not None or finished(record.job.status):
            return None
        return Victim(
            uid=eviction.uid,
            generation=placement.generation,
            reason=eviction.reason.value,
            lost=max(0, round(eviction.lost)),
            **(_split(record, _names(snapshot, onward.nodes)) if onward is not None else {}),
        )

    def _stop(
        self, snapshot: Snapshot, eviction: Eviction, onward: Promised | None, names: Names, now: datetime
    ) -> None:
        """Stop a gang for nobody's sake, or so that it goes on elsewhere or with another size."""
        record = self._records.get(eviction.uid)
        if record is None or record.task is not None or record.job.status.stop is not None:
            if record is not None:
                record.stand = ()  # plan anew after its next turn
            return
        status = record.job.status
        if status.placement is None or finished(status) or record.leaves_for_good:
            return
        lost = max(0, round(eviction.lost))
        cause = self._why_drained(record.spec.queue) if eviction.reason is MoveReason.DRAINED else ""
        stop = Stop(
            reason=eviction.reason.value,
            message=preemption.said(
                eviction.reason, "", lost, onward is not None, cause, saves=record.spec.checkpoint is not None
            ),
            requested_at=now,
            beneficiary=record.uid if onward is not None else "",
            lost=lost,
        )
        record.leaving, record.plannable = True, False
        if onward is not None:
            promise = _written(record, snapshot, onward, (), now)
            record.assumed_promise = promise
            stopped = planning.promised(record.job, promise, names, stop, now, defaults=record.defaults)
        else:
            draft = Draft(record.job, now)
            write_stop(draft, stop)
            stopped = draft.done()
        self._tell(record, Decision(status=stopped, notes=(preemption.note_of(stop),)), takes=onward is not None)

    def _tell(self, record: Record, decision: Decision, *, takes: bool) -> None:
        def work() -> Awaitable[None]:
            return self._worker.carry_out(record, decision)

        def plan_anew() -> None:
            record.stand = ()  # after its next turn

        self._start(record, self._writes.begin(record.uid, work, lambda: _stands(record), plan_anew, takes=takes))

    def _replace(self, snapshot: Snapshot, replacement: Replacement, now: datetime) -> None:
        """Write down the new nodes of a promise, or of a running gang's lost workers and spares."""
        record = self._records[replacement.uid]
        moves, placement = dict(_moves(snapshot, replacement)), record.job.status.placement
        domain = None
        if placement is not None and record.promise is None:
            moved = {index for index in moves if index < placement.workers}
            if not moved <= set(unmade(record, ())):
                record.stand = ()  # one of them has its pod by now: plan anew
                return
            domain = _domain(snapshot, placement, moves) if moved else None
        if record.task is not None:
            record.stand = ()  # plan anew after its next turn
            return
        now = now.replace(microsecond=0)  # as it is written: a part of a second would be counted twice
        gpus = devices.held(placement, record.spec, record.gpu_type) if placement is not None else 0
        used = terms.used(record.job.status, gpus, record.price, now, record.currency)
        found = replacing.replaced(record.job, moves, record.spec.spares, now, used, domain=domain)
        if found is None:
            return
        record.plannable = False
        if found.status.promise is not None:
            record.assumed_promise = found.status.promise
        else:
            record.assumed = found.status.placement
        self._start(record, self._worker.carry_out(record, Decision(status=found.status, notes=(found.note,))))

    def _reduce(self, snapshot: Snapshot, promised: Promised, now: datetime) -> None:
        """Write down the promise of fewer workers of a job that starts again."""
        record = self._records[promised.uid]
        before = record.job.status.promise
        if record.task is not None or before is None:
            record.stand = ()  # plan anew after its next turn
            return
        promise = _written(record, snapshot, promised, (), now)
        draft = Draft(record.job, now)
        draft.set(promise=promise)
        lost, was = before.workers - promise.workers, before.workers
        gone = f"nodes of {lost} of {was} workers are gone, and there are none in their place"
        if lost == 1:
            gone = f"the node of 1 of {was} workers is gone, and there is none in its place"
        told = f"{MoveReason.WORKERS_LOST.value}: {gone}: the gang starts again with {promise.workers}"
        record.assumed_promise, record.plannable = promise, False
        decision = Decision(status=draft.done(), notes=(Note(EventReason.MOVED, told),))
        self._start(record, self._worker.carry_out(record, decision))

    def _break(self, snapshot: Snapshot, uid: str, now: datetime) -> None:
        record = self._records[uid]
        promise = record.job.status.promise
        if record.task is not None or promise is None:
            record.stand = ()  # plan anew after its next turn
            return
        draft = Draft(record.job, now)
        draft.set(promise=None)
        record.plannable = False
        note = _broken(snapshot, uid, record.job.status, promise)
        self._start(record, self._worker.carry_out(record, Decision(status=draft.done(), notes=(note,))))


_BROKEN_BY: Final = {
    BrokenBy.NO_QUEUE: "its queue is gone",
    BrokenBy.WINDOW: "its window has closed",
    BrokenBy.CLOSED: "its queue takes no jobs now",
    BrokenBy.UNSUITED: "a node of it suits the job no longer",
    BrokenBy.MOVED: "its nodes are in other domains by now, not as the job asks",
    BrokenBy.TAKEN: "other pods have taken it, or the job's queue may use less than before",
}


def _broken(snapshot: Snapshot, uid: str, status: TrainingJobStatus, promise: Promise) -> Note:
    """What is told of a promise that can't be kept. That a gang which starts again finds its own nodes drained is no
    trouble for it while there are others, so it is no warning."""
    usable = {name for name, usable in zip(snapshot.nodes.names, snapshot.nodes.usable.tolist(), strict=True) if usable}
    away = sorted({item.node for item in promise.nodes} - usable)
    cannot = f"{few(away[:3], len(away))} can take no new pods (gone, cordoned or not ready)"
    if away and reason_of(status, ConditionType.ADMITTED) == Reason.RESTARTING.value:
        # an Event has said that it starts again
        return Note(EventReason.RESTARTING, f"{cannot}: the gang is placed anew", logged=True)
    why = cannot if away else _BROKEN_BY[broken_by(snapshot, snapshot.jobs.uids.index(uid))]
    told = f"the room that was kept for the job can't be had any more: {why}; it waits in its old order"
    return Note(EventReason.PROMISE_BROKEN, told, warning=True)


def _stands(record: Record) -> bool:
    """Whether its stop or promise is written."""
    status = record.job.status
    return not record.unsure and (status.stop is not None or status.promise is not None)


def _written(
    record: Record, snapshot: Snapshot, promised: Promised, victims: tuple[Victim, ...], now: datetime
) -> Promise:
    nodes = _names(snapshot, promised.nodes)
    split, had = _split(record, nodes), record.placement or record.promise
    return Promise(
        workers=len(nodes) - record.spec.spares,
        nodes=split["nodes"],
        spares=split["spares"],
        victims=victims,
        queue=record.spec.queue,
        flavour=_flavour(snapshot, promised.flavour),
        spec=record.promise_hash,
        base=promised.base or None,
        yields=promised.yields or (had is not None and had.yields),
        promised_at=now,
    )


def _spares(record: Record, admission: Admission) -> int:
    """Of the nodes of a gang, how many are its spares'. Of a promise that has become smaller in this plan none are
    left over; one with a safe base has none, and may get workers beside those that were promised to it."""
    promise = record.job.status.promise
    if admission.base or promise is None:
        return record.spec.spares
    return max(0, len(admission.nodes) - promise.workers)


def _split(record: Record, nodes: list[str]) -> dict[str, tuple[NodeWorkers, ...]]:
    """The planner's nodes of a gang as they are written down: its workers', and its spares' behind them."""
    workers = len(nodes) - record.spec.spares
    return {"nodes": nodes_with_workers(nodes[:workers]), "spares": nodes_with_workers(nodes[workers:], workers)}


def _moves(snapshot: Snapshot, replacement: Replacement) -> Iterator[tuple[int, str]]:
    """(index, node) of those that get another node; "" for a spare that has none any more."""
    for index, node in zip(replacement.indexes.tolist(), replacement.nodes.tolist(), strict=True):
        yield index, "" if node == NONE else snapshot.nodes.names[node]


def _domain(snapshot: Snapshot, placement: Placement, moves: Mapping[int, str]) -> str:
    """The narrowest domain of a placement in which some workers have other nodes."""
    number = {name: index for index, name in enumerate(snapshot.nodes.names)}
    nodes = [moves.get(index, node) for index, node in enumerate(placement.node_of_index())]
    return planning.domain_of(snapshot, np.array([number.get(node, NONE) for node in nodes], dtype=np.int32))


def _flavour(snapshot: Snapshot, index: int) -> str:
    return "" if index == NONE else snapshot.flavours[index]


def _kinds(snapshot: Snapshot, admission: Admission, record: Record) -> dict[str, str]:
    """The kinds of capacity that a placement says: see `Placement.capacity` and `Placement.beyond`."""
    if not record.spec.kinds or record.planned is None:
        return {}
    planned, flavour = record.planned[1], _flavour(snapshot, admission.flavour)
    of_base = flavour.partition("/")[2] or _kind_passed(snapshot, admission, planned)
    more = planned.beyond if admission.base and len(admission.nodes) > admission.base else None
    return {"capacity": of_base, "beyond": more.node_filter.capacity[0] if more and more.node_filter.capacity else ""}


def _kind_passed(snapshot: Snapshot, admission: Admission, planned: JobInput) -> str:
    """Of a gang without GPUs, which has no flavour: the first of its kinds that all its nodes are of."""
    jobs, row = snapshot.jobs, snapshot.jobs.uids.index(admission.uid)
    filters = [int(jobs.filters[row]), *(other.filter for other in jobs.terms.alternatives[row])]
    asked = [planned.node_filter, *(other.node_filter for other in planned.terms.alternatives)]
    nodes = admission.nodes[: admission.base or len(admission.nodes)]
    found = (
        each.capacity for index, each in zip(filters, asked, strict=False) if snapshot.eligible[index, nodes].all()
    )
    return next((kinds[0] for kinds in found if kinds), "")


def _names(snapshot: Snapshot, nodes: Index) -> list[str]:
    return [snapshot.nodes.names[node] for node in nodes]
