"""A small cluster by the second: gangs are placed, resized, preempted and restarted, lose workers that are replaced,
and are deleted, while operators are killed and the database is away. It knows what was held, and what could be seen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from muster.api.placement import Placement, Stop
from muster.api.trainingjob import TrainingJob
from muster.cluster.views import NodeView, PodView
from muster.controllers.chronicle import Chronicle
from muster.controllers.records import Record
from muster.telemetry.cost.intervals import Interval, PoolInterval
from muster.telemetry.history.writer import Writer

from ..operator.lifecycle.cases import pod_view
from .cases import Database, until

BEGINS = datetime(2026, 11, 30, 23, 58, 30, tzinfo=timezone.utc)
"""A minute and a half before a month ends, and the prices change."""
LENGTH = 200
PER_NODE = 8
FLAVOURS = (("H100", "on-demand"), ("H100", "spot"), ("A100", "on-demand"))

Key = tuple[str, int, int, int]
Worker = tuple[int, int]


def at(second: float) -> datetime:
    return BEGINS + timedelta(seconds=second)


@dataclass
class Hold:
    """One worker's hold of its GPUs, as it was.

    Attributes:
        ends: the second at which its containers ended, or its pod was gone without a word.
        word: its containers' end can be seen on the pod.
        told, written: an operator has seen the end; and it is in the database.
        put, begun: an operator has seen the hold; and it is in the database.
        shown_gone: an operator was there when the pod went without a word.
        replaced: the second at which another took its place.
        orphan: its job was deleted while no operator was there, before its end.
    """

    row: Interval
    ends: int | None = None
    word: bool = False
    told: bool = False
    written: bool = False
    put: bool = False
    begun: bool = False
    shown_gone: bool = False
    replaced: int | None = None
    orphan: bool = False


@dataclass
class Gang:
    """One job and its pods by worker."""

    job: TrainingJob
    pods: dict[Worker, PodView] = field(default_factory=dict)
    over: dict[Worker, int] = field(default_factory=dict)
    """When the containers of terminating pods will have ended."""
    attempts: dict[int, int] = field(default_factory=dict)
    deleted: bool = False
    record: Record | None = None

    @property
    def placement(self) -> Placement | None:
        return self.job.status.placement

    def change(self, **status: Any) -> None:
        raw = self.job.to_raw()
        version = int(raw["metadata"].get("resourceVersion", "0")) + 1
        raw["metadata"]["resourceVersion"] = str(version)
        raw["status"] = self.job.status.model_copy(update=status).to_raw()
        self.job = TrainingJob.from_raw(raw)


class Nodes:
    """What a Chronicle asks of the cache."""

    def __init__(self) -> None:
        self.names = {f"n{number}": FLAVOURS[number % len(FLAVOURS)] for number in range(9)}
        self._views = [self._view(name, *flavour) for name, flavour in self.names.items()]

    def nodes(self) -> list[NodeView]:
        return self._views

    def node(self, name: str) -> NodeView | None:
        return next((view for view in self._views if view.name == name), None)

    @staticmethod
    def _view(name: str, gpu_type: str, capacity: str) -> NodeView:
        labels = {"nvidia.com/gpu.product": gpu_type, "karpenter.sh/capacity-type": capacity}
        room = {"nvidia.com/gpu": str(PER_NODE)}
        return NodeView.from_raw(
            {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": room, "capacity": room}}
        )


class Telling(Writer):
    """Remembers up to when it was told of the cluster."""

    told = 0
    written_at: float | None = None

    def seen(self, moment: datetime) -> None:
        self.told, self.written_at = round((moment - BEGINS).total_seconds()), self.health.written_at
        super().seen(moment)

    def is_written(self) -> bool:
        health = self.health
        return health.written_at != self.written_at and not health.waiting and not health.trouble


class World:
    """`run` it; then `holds` is the truth, and the database what operators have made of it."""

    def __init__(self, seed: int, database: Database) -> None:
        self.chance, self.database = random.Random(seed), database
        self.now = 0
        self.nodes = Nodes()
        self.free = dict.fromkeys(self.nodes.names, PER_NODE // 2)  # the rest is for replacements
        self.gangs = [self._gang(number) for number in range(self.chance.randint(1, 4))]
        self.holds: dict[Key, Hold] = {}
        self.restarts = self.outages = 0
        self.seen_at = 0
        """Up to when the database knows of the cluster."""
        self.cuts: list[int] = []
        """What `seen_at` was when an operator took over."""
        self._away = False
        self._operators = 0
        self._chronicle: Chronicle | None = None
        self._writer: Telling | None = None
        self._back_at = 0
        self._all_back_at = 0

    def _gang(self, number: int) -> Gang:
        raw = {
            "metadata": {
                "name": f"j{number}",
                "namespace": "research",
                "uid": f"job-{number}",
                "resourceVersion": "1",
                "creationTimestamp": at(0).isoformat(),
            },
            "spec": {
                "image": "train:1",
                "command": ["train"],
                "queue": f"q{number % 2}",
                "workers": {"replicas": 2, "gpusPerWorker": self.chance.choice([1, 2, 4])},
            },
        }
        return Gang(TrainingJob.from_raw(raw))

    # -- time ----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._operator_starts()
        for self.now in range(1, LENGTH):
            self._faults()
            for gang in self.gangs:
                self._pods(gang)
                self._user(gang)
                if self._chronicle is not None:
                    self._decisions(gang)
            self._looks()
            if self.chance.random() < 0.08:
                self._written()
        self.now = LENGTH
        self._database_back()
        if self._chronicle is None:
            self._operator_starts()
        self._looks()
        self._written(beat=True)
        assert self._writer is not None
        self._writer.close(30)

    def _faults(self) -> None:
        if self._chronicle is not None and self.chance.random() < 0.015:
            self._operator_dies(in_peace=self.chance.random() < 0.3)
        elif self._chronicle is None and self.now >= self._back_at:
            self._operator_starts()
        if not self._away and self.chance.random() < 0.01:
            self.database.away()
            self._away, self._all_back_at = True, self.now + self.chance.randint(1, 40)
            self.outages += 1
        elif self._away and self.now >= self._all_back_at:
            self._database_back()

    def _database_back(self) -> None:
        if self._away:
            self.database.back()
            self._away = False
            self._written()

    def _operator_dies(self, *, in_peace: bool) -> None:
        """`in_peace`: it writes what it has, if it can."""
        assert self._writer is not None
        if in_peace and not self._away:
            self._written()
        away = self._away
        if not away:
            self.database.away()  # so that it takes along what it has not written
        self._writer.close(30)
        if not away:
            self.database.back()
        for hold in self.holds.values():
            hold.put = hold.told = hold.shown_gone = False
        for gang in self.gangs:
            gang.record = None
        self._chronicle = self._writer = None
        self._back_at = self.now + self.chance.choice([0, 1, 10, 30])
        self.restarts += 1

    def _operator_starts(self) -> None:
        self._operators += 1
        self.cuts.append(self.seen_at)
        self._writer = Telling(self.database.url, identity=f"operator-{self._operators}", first_wait=0.005)
        self._writer.start()
        self._chronicle = Chronicle(self.nodes, self._writer)  # type: ignore[arg-type]
        for gang in self.gangs:
            for pod in gang.pods.values():
                self._chronicle.on_pod(pod, at(self.now))
        self._looks()
        self._chronicle.all_seen()
        self._written(beat=True)

    # -- what happens to pods and jobs ---------------------------------------------------------------------------------

    def _pods(self, gang: Gang) -> None:
        for worker, pod in list(gang.pods.items()):
            if pod.finished is not None:
                if pod.terminating and self.chance.random() < 0.4:
                    self._gone(gang, worker)
            elif worker in gang.over:
                if self.now >= gang.over[worker]:
                    self._ends(gang, worker)
            elif pod.phase == "Pending":
                if self.chance.random() < 0.6:
                    self._show(gang, worker, phase="Running", ready=True)
            elif self.chance.random() < 0.004:
                self._ends(gang, worker)
            elif self.chance.random() < 0.003:
                self._gone(gang, worker)
        placement = gang.placement
        if placement is not None and gang.job.status.running_since is None and self._chronicle is not None:
            here = [gang.pods.get((index, gang.attempts.get(index, 0))) for index in range(placement.workers)]
            if all(pod is not None and pod.phase == "Running" for pod in here):
                gang.change(running_since=at(self.now))

    def _user(self, gang: Gang) -> None:
        if not gang.deleted and self.chance.random() < 0.003:
            gang.deleted = True
            self._stop(gang)

    def _stop(self, gang: Gang) -> None:
        """All pods are deleted; their containers end within some seconds."""
        for worker, pod in gang.pods.items():
            gang.pods[worker] = replace(pod, terminating=True)
            if pod.finished is None:
                gang.over.setdefault(worker, self.now + self.chance.randint(0, 4))

    def _ends(self, gang: Gang, worker: Worker) -> None:
        """Containers end, and kubelet says when."""
        hold = self._hold(gang, worker)
        hold.ends, hold.word = self.now, True
        self._show(gang, worker, phase="Failed", ready=False, finished=at(self.now))

    def _gone(self, gang: Gang, worker: Worker) -> None:
        hold = self._hold(gang, worker)
        if hold.ends is None:
            hold.ends = self.now
            hold.shown_gone = self._chronicle is not None
        del gang.pods[worker]
        gang.over.pop(worker, None)

    def _show(self, gang: Gang, worker: Worker, **changes: Any) -> None:
        gang.pods[worker] = replace(gang.pods[worker], **changes)
        if self._chronicle is not None:
            self._chronicle.on_pod(gang.pods[worker], at(self.now))

    # -- what the operator decides -------------------------------------------------------------------------------------

    def _decisions(self, gang: Gang) -> None:
        placement = gang.placement
        if placement is None:
            if not gang.deleted and not gang.pods and self.chance.random() < 0.15:
                self._place(gang)
            return
        if gang.job.status.stop is not None or gang.deleted:
            if not gang.pods and not gang.deleted:
                self._leave(gang)
            return
        if self.chance.random() < 0.01:
            gang.change(stop=_stop_at(self.now))
            self._stop(gang)
            return
        for index in range(placement.workers):
            pod = gang.pods.get((index, gang.attempts.get(index, 0)))
            lost = pod is None or pod.finished is not None
            if (lost and self.chance.random() < 0.3) or (not lost and self.chance.random() < 0.002):
                self._replace(gang, placement, index)

    def _place(self, gang: Gang) -> None:
        each = gang.job.spec.workers.gpus_per_worker
        room = [name for name, free in self.free.items() for _ in range(free // each)]
        size = self.chance.randint(1, 3)
        if len(room) < size:
            return
        nodes = self.chance.sample(room, size)
        placement = Placement.of((gang.job.status.placements or 0) + 1, nodes, placed_at=at(self.now))
        gang.change(placement=placement, placements=placement.generation, stop=None, running_since=None)
        gang.attempts.clear()
        for index, node in enumerate(nodes):
            self._make(gang, index, node)

    def _replace(self, gang: Gang, placement: Placement, index: int) -> None:
        """On the same node; the pod that is replaced may take its time."""
        old = (index, gang.attempts.get(index, 0))
        if old in gang.pods:
            self._hold(gang, old).replaced = self.now
            gang.pods[old] = replace(gang.pods[old], terminating=True)
            if gang.pods[old].finished is None:
                gang.over.setdefault(old, self.now + self.chance.randint(0, 4))
        gang.attempts[index] = old[1] + 1
        nodes = placement.node_of_index()
        gang.change(
            placement=Placement.of(placement.generation, nodes, attempts=gang.attempts, placed_at=placement.placed_at)
        )
        self._make(gang, index, nodes[index])

    def _make(self, gang: Gang, index: int, node: str) -> None:
        placement, number = gang.placement, gang.attempts.get(index, 0)
        assert placement is not None
        uid, each = gang.job.metadata.uid, gang.job.spec.workers.gpus_per_worker
        gang.pods[index, number] = pod_view(
            f"{uid}-g{placement.generation}-{index}-{number}",
            uid,
            node=node,
            generation=placement.generation,
            index=index,
            attempt=number,
            created=at(self.now),
        )
        row = Interval(uid, placement.generation, index, number, node, *self.nodes.names[node], each, at(self.now))
        self.holds[row.key] = Hold(row)
        self.free[node] -= each

    def _leave(self, gang: Gang) -> None:
        assert gang.placement is not None
        for node in gang.placement.node_of_index():
            self.free[node] += gang.job.spec.workers.gpus_per_worker
        gang.attempts.clear()
        gang.change(placement=None, stop=None, running_since=None)

    # -- what the operator sees ----------------------------------------------------------------------------------------

    def _looks(self) -> None:
        if self._chronicle is None:
            return
        for gang in list(self.gangs):
            pods, known = tuple(gang.pods.values()), gang.record is not None
            if gang.deleted and not known:  # before this operator began, which knows nothing of it
                for worker in gang.pods:
                    self._hold(gang, worker).orphan = True
                continue
            gang.record = gang.record or Record.of(gang.job)
            gang.record.job, gang.record.deleted = gang.job, gang.deleted
            self._chronicle.see(gang.record, pods, at(self.now))
            for worker, pod in gang.pods.items():
                hold = self._hold(gang, worker)
                hold.put, hold.told = True, hold.told or pod.finished is not None
            if gang.deleted and not any(pod.finished is None for pod in pods):
                self._chronicle.forget(gang.record, at(self.now))
                self._end_of(gang)

    def _end_of(self, gang: Gang) -> None:
        if gang.placement is not None:
            for node in gang.placement.node_of_index():
                self.free[node] += gang.job.spec.workers.gpus_per_worker
        self.gangs.remove(gang)

    def _written(self, *, beat: bool = False) -> None:
        """The operator hands on what it knows."""
        if self._chronicle is None or self._writer is None:
            return
        self._chronicle.write(at(self.now))
        if beat:
            self._writer.seen(at(self.now))
        self._settle()

    def _settle(self) -> None:
        """All that was handed on is in the database, if it can be."""
        writer = self._writer
        if writer is None or self._away or writer.wants_picture:
            return
        until("written", writer.is_written)
        self.seen_at = writer.told
        for hold in self.holds.values():
            hold.begun |= hold.put
            hold.written |= hold.told

    def _hold(self, gang: Gang, worker: Worker) -> Hold:
        pod = gang.pods[worker]
        return self.holds[(gang.job.metadata.uid, pod.generation, *worker)]

    def truth(self) -> Iterator[Interval]:
        for hold in self.holds.values():
            yield replace(hold.row, ends=None if hold.ends is None else at(hold.ends))

    def pools(self) -> list[PoolInterval]:
        number = len(self.nodes.names) // len(FLAVOURS) * PER_NODE
        return [PoolInterval(*flavour, number, BEGINS) for flavour in FLAVOURS]


def _stop_at(second: int) -> Stop:
    return Stop(reason="Suspended", message="by its owner", requested_at=at(second))
