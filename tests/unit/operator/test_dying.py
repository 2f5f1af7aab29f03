"""Whatever becomes of one write in the lives of two jobs, before it or after it, they come to the same end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pytest

from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.executor import Executor
from muster.cluster.pods import PodSettings
from muster.cluster.views import NamespaceView, NodeView, PodView
from muster.controllers import plans
from muster.controllers.cache import Cache
from muster.controllers.chronicle import ROUND, Chronicle
from muster.controllers.loop import Loop
from muster.controllers.progress import Progress
from muster.controllers.situations import Patience
from muster.controllers.work import Worker, utc_now
from muster.telemetry.history.rows import Attempt, Job, Preemption, Row
from muster.telemetry.history.upserts import Key, key_of

from .loops import Items, compressed
from .test_promises import preempting

pytestmark = pytest.mark.unit

Object = dict[str, Any]
LATE = 0.02
"""Seconds after which the watch shows a write."""
KUBELET = 0.05
"""Seconds between two looks of the kubelet, and of whoever acts on the jobs."""
MEETS = Patience(launcher=0.5)

DEATHS = ("it dies before", "it dies after")
REFUSED: dict[str, Callable[[], Exception]] = {
    "an error before": lambda: ApiError(500, "InternalError", "etcd has no leader"),
    "a conflict before": lambda: ApiError(409, "Conflict", "the object has been modified"),
    "too busy before": lambda: ApiError(429, "TooManyRequests", "come again"),
    "unreachable before": lambda: ApiUnreachable("refused"),
    "an error after": lambda: ApiError(504, "Timeout", "request did not complete within requested timeout"),
    "unreachable after": lambda: ApiUnreachable("no answer in time"),
}


NODE = NodeView.from_raw(
    {
        "metadata": {"name": "n"},
        "status": {
            "allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
)
QUEUE = TrainingQueue.from_raw({"metadata": {"name": "q", "uid": "q"}, "spec": {}})


class Store:
    """Of the history: rows that are committed, and an end for those of which a new operator's picture says nothing."""

    def __init__(self) -> None:
        self.rows: dict[Key, tuple[int, Row]] = {}
        self.term = 0


class Writer:
    """One operator's; what it has not committed when it dies is lost."""

    def __init__(self, store: Store) -> None:
        store.term += 1
        self._store, self._term, self.wants_picture = store, store.term, True
        self._rows: dict[Key, tuple[int, Row]] = {}

    def put(self, rows: Iterator[Row]) -> None:
        self._rows |= {key_of(row): (self._term, row) for row in rows}

    def picture(self, taken_at: datetime) -> None:
        for key, (term, row) in self._store.rows.items():
            if isinstance(row, Attempt) and row.ended_at is None:
                self._store.rows[key] = term, replace(row, ended_at=taken_at, estimated=True)
        self.wants_picture = False
        self.seen(taken_at)

    def seen(self, moment: datetime) -> None:
        self._store.rows |= self._rows
        self._rows.clear()


@dataclass
class Cluster:
    """An API server with its watch, a kubelet, and the operator of the moment. The write number `at` meets `mishap`."""

    mishap: str = ""
    at: int = 0
    jobs: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    writes: list[str] = field(default_factory=list)
    died: asyncio.Event = field(default_factory=asyncio.Event)
    store: Store = field(default_factory=Store)
    version: int = 10
    cache: Cache | None = None
    chronicle: Chronicle | None = None
    loop: Loop | None = None
    shown_pods: Items = field(default_factory=Items)
    made: list[str] = field(default_factory=list)
    goes: dict[str, float] = field(default_factory=dict)

    # -- the API server ----------------------------------------------------------------------------------------------

    async def _write(self, what: str, do: Callable[[], Object]) -> Object:
        self.writes.append(what)
        mishap = self.mishap if len(self.writes) == self.at else ""
        await self._meet(mishap, "before")
        found = do()
        await self._meet(mishap, "after")
        return found

    async def _meet(self, mishap: str, moment: str) -> None:
        if not mishap.endswith(moment):
            return
        if mishap in REFUSED:
            raise REFUSED[mishap]()
        self.died.set()
        await asyncio.Event().wait()

    def _changed(self, raw: Object) -> Object:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        return raw

    async def create(self, path: str, body: Object, *, dry_run: bool = False, strict: bool = False) -> Object:
        kind, name = path.rsplit("/", 1)[1], body["metadata"]["name"]
        body = json.loads(json.dumps(body))
        if dry_run:
            return body

        def do() -> Object:
            if kind != "pods":
                if f"{kind}/{name}" in self.others:
                    raise ApiError(409, "AlreadyExists", name)
                self.others.add(f"{kind}/{name}")
                return body
            if name in self.pods:
                raise ApiError(409, "AlreadyExists", name)
            self.made.append(name)
            body["metadata"] |= {"uid": f"{name}-{len(self.made)}", "creationTimestamp": _now()}
            self.pods[name] = {**body, "status": {"phase": "Pending"}}
            self._show_pod(name)
            return self.pods[name]

        return await self._write(f"create {kind}", do)

    async def get(self, path: str) -> Object:
        kind, name = path.rsplit("/", 2)[1:]
        if kind == "services":
            job = next(job for job in self.jobs.values() if job["metadata"]["name"] == name)
            return {"metadata": {"ownerReferences": [{"kind": "TrainingJob", "uid": job["metadata"]["uid"]}]}}
        found = (self.jobs if kind == "trainingjobs" else self.pods).get(name)
        if found is None:
            raise ApiError(404, "NotFound", path)
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    async def update_status(self, path: str, body: Object) -> Object:
        kind, name = path.rsplit("/", 2)[1:]
        if kind != "trainingjobs":
            return body

        def do() -> Object:
            raw = self.jobs[name]
            if raw["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", "the object has been modified")
            self.jobs[name] = self._changed({**json.loads(json.dumps(raw)), "status": body["status"]})
            self._show_job(name)
            return json.loads(json.dumps(self.jobs[name]))  # type: ignore[no-any-return]

        return await self._write(f"status {name}", do)

    async def delete(self, path: str, *, uid: str = "", grace: int | None = None) -> Object:
        name = path.rsplit("/", 1)[1]

        def do() -> Object:
            if name not in self.pods:
                raise ApiError(404, "NotFound", name)
            if self.pods[name]["metadata"]["uid"] != uid:
                raise ApiError(409, "Conflict", "another of this name")
            self.terminate(name)
            return {}

        return await self._write("delete pods", do)

    # -- the watch, which is late --------------------------------------------------------------------------------------

    def _show_job(self, name: str) -> None:
        raw, cache = json.loads(json.dumps(self.jobs[name])), self.cache

        def show() -> None:
            if cache is not None and cache is self.cache:
                cache.on_job(("ns", name), TrainingJob.from_raw(raw))

        asyncio.get_running_loop().call_later(LATE, show)

    def _show_pod(self, name: str) -> None:
        view = PodView.from_raw(self.pods[name]) if name in self.pods else None
        cache = self.cache

        def show() -> None:
            if cache is not None and cache is self.cache:
                self._take_pod(name, view)

        asyncio.get_running_loop().call_later(LATE, show)

    def _take_pod(self, name: str, view: PodView | None) -> None:
        assert self.cache is not None
        assert self.chronicle is not None
        if view is None:
            self.shown_pods.items.pop(f"ns/{name}", None)
        else:
            self.shown_pods.items[f"ns/{name}"] = view
        self.cache.on_pod(f"ns/{name}", view)
        self.chronicle.on_pod(view, utc_now())

    # -- the operator --------------------------------------------------------------------------------------------------

    async def operate(self) -> None:
        """One operator after the other, each until it dies."""
        while True:
            tasks = self._begin()
            running = [asyncio.create_task(task) for task in tasks]
            try:
                await self.died.wait()
            finally:
                mine = asyncio.current_task()
                assert self.loop is not None
                at_work = [record.task for record in self.loop.records.values() if record.task is not None]
                at_work += [record.judging for record in self.loop.records.values() if record.judging is not None]
                for task in (*running, *at_work):
                    task.cancel()
                await asyncio.wait({*running, *at_work} - {mine})
            self.died.clear()

    def _begin(self) -> tuple[Any, ...]:
        nodes, namespaces = Items({"n": NODE}), Items({"ns": NamespaceView("ns", {}, False)})
        self.shown_pods = Items()
        self.cache = Cache(pods=self.shown_pods, nodes=nodes, namespaces=namespaces, priority_classes=Items())
        self.chronicle = Chronicle(self.cache, Writer(self.store))  # type: ignore[arg-type]  # it has all that is called
        self.cache.on_queue("q", QUEUE)
        for name, raw in self.pods.items():
            self._take_pod(name, PodView.from_raw(raw))
        for name, raw in self.jobs.items():
            self.cache.on_job(("ns", name), TrainingJob.from_raw(json.loads(json.dumps(raw))))
        executor = Executor(self, b"k" * 16)  # type: ignore[arg-type]  # it has all that is called
        worker = Worker(executor, PodSettings("runtime"), lambda record, note: None, asyncio.Semaphore(32))
        self.loop = Loop(self.cache, worker, Progress(self.cache, None), patience=MEETS, chronicle=self.chronicle)
        return self.loop.run(), self.chronicle.run()

    # -- people and kubelet --------------------------------------------------------------------------------------------

    def submit(self, name: str) -> None:
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "generation": 1}
        workers = {"replicas": 2, "resources": {"requests": {"cpu": "1"}}}
        spec = {"queue": "q", "image": "i", "command": ["x"], "workers": workers}
        raw = {"metadata": {**metadata, "creationTimestamp": _now()}, "spec": spec, "status": {}}
        self.jobs[name] = self._changed(raw)
        self._show_job(name)

    def edit(self, name: str, **spec: Any) -> None:
        raw = json.loads(json.dumps(self.jobs[name]))
        raw["metadata"]["generation"] += 1
        self.jobs[name] = self._changed({**raw, "spec": {**raw["spec"], **spec}})
        self._show_job(name)

    def of(self, job: str) -> list[str]:
        return [name for name in self.pods if name.startswith(f"{job}-g")]

    def end(self, name: str, phase: str) -> None:
        self.pods[name]["status"] = {"phase": phase}
        self._show_pod(name)

    def lose(self, name: str) -> None:
        """By force, and without a word."""
        self.goes.pop(name, None)
        del self.pods[name]
        self._show_pod(name)

    def runs(self, name: str, placement: int) -> bool:
        """It trains in its placement of that number, or in a later one."""
        status = self.jobs[name]["status"]
        there = (status.get("placement") or {}).get("generation", 0) >= placement
        return there and status["phase"] == "Running" and "stop" not in status

    def terminate(self, name: str) -> None:
        """It ends in its grace, in which what has happened is committed to the history."""
        self.pods[name]["metadata"].setdefault("deletionTimestamp", _now())
        self.goes.setdefault(name, asyncio.get_running_loop().time() + 2 * ROUND)
        self._show_pod(name)

    def kubelet(self) -> None:
        for name, raw in list(self.pods.items()):
            if "deletionTimestamp" in raw["metadata"]:
                if asyncio.get_running_loop().time() < self.goes[name]:
                    continue
                del self.pods[name], self.goes[name]
            elif raw["status"]["phase"] == "Pending":
                raw["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            else:
                continue
            self._show_pod(name)

    def status(self, name: str) -> Object:
        found: Object = self.jobs[name]["status"]
        return found


def _now() -> str:
    return utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")


Step = tuple[Callable[[Cluster], Any], Callable[[Cluster], Any]]
"""What is waited for, and what is done then."""


def _finish(cluster: Cluster, job: str) -> None:
    for name in cluster.of(job):
        cluster.end(name, "Succeeded")


LIFE: tuple[Step, ...] = (
    (lambda c: True, lambda c: c.submit("low")),
    (lambda c: c.runs("low", 1), lambda c: c.lose(c.of("low")[-1])),
    (lambda c: c.runs("low", 2), lambda c: c.submit("high")),
    (lambda c: c.runs("high", 1), lambda c: _finish(c, "high")),
    (lambda c: c.runs("low", 3), lambda c: c.edit("low", suspend=True)),
    (lambda c: c.status("low")["phase"] == "Suspended", lambda c: c.edit("low", suspend=False)),
    (lambda c: c.runs("low", 4), lambda c: _finish(c, "low")),
    (lambda c: c.status("low")["phase"] == "Succeeded", lambda c: None),
)
"""Of `low`: it starts, loses a pod, starts again, gives way to `high`, is suspended, resumed, and succeeds."""


async def live(cluster: Cluster) -> None:
    operator = asyncio.create_task(cluster.operate())
    try:
        for number, (ready, act) in enumerate(LIFE):
            end = asyncio.get_running_loop().time() + 300
            while not ready(cluster):
                assert not operator.done(), operator.result()
                assert asyncio.get_running_loop().time() < end, (
                    number,
                    cluster.mishap,
                    cluster.at,
                    cluster.jobs,
                    cluster.writes,
                )
                await asyncio.sleep(KUBELET)
                cluster.kubelet()
            await asyncio.sleep(2 * ROUND)  # what has happened is in the history by then
            act(cluster)
        for _ in range(200):
            await asyncio.sleep(KUBELET)
            cluster.kubelet()
    finally:
        operator.cancel()
        await asyncio.wait({operator})


def judge(cluster: Cluster) -> None:
    """Both have succeeded, nothing is left of them, and everything that happened is counted once."""
    low, high = cluster.status("low"), cluster.status("high")
    assert (low["phase"], high["phase"]) == ("Succeeded", "Succeeded")
    living = [name for name, raw in cluster.pods.items() if raw["status"]["phase"] != "Succeeded"]
    assert living == [], "pods are left"
    assert not {"placement", "promise", "stop"} & (low.keys() | high.keys())
    counts = low["placements"], low["restarts"], low["preemptions"], high["placements"]
    assert counts == (4, 1, 1, 1)
    assert len(cluster.made) == len(set(cluster.made)) == 10, "a pod was made twice"
    rows = [row for _, row in cluster.store.rows.values()]
    attempts = {(row.job, row.attempt): row for row in rows if isinstance(row, Attempt)}
    assert sorted(attempts) == [("uid-of-high", 1), *(("uid-of-low", number) for number in (1, 2, 3, 4))]
    assert all(row.ended_at is not None for row in attempts.values())
    reasons = {key: row.reason for key, row in attempts.items() if not row.estimated}
    told = {1: "Restarting", 2: "Preempted", 3: "Suspended", 4: "Succeeded"}
    truth = {("uid-of-low", number): reason for number, reason in told.items()} | {("uid-of-high", 1): "Succeeded"}
    assert reasons.items() <= truth.items()
    assert [(row.job, row.attempt) for row in rows if isinstance(row, Preemption)] == [("uid-of-low", 2)]
    jobs = {row.name: row for row in rows if isinstance(row, Job)}
    assert {name: (row.phase, row.finished_at is not None) for name, row in jobs.items()} == {
        "low": ("Succeeded", True),
        "high": ("Succeeded", True),
    }


def lived(mishap: str, at: int) -> Cluster:
    cluster = Cluster(mishap, at)

    async def test() -> None:
        await live(cluster)
        judge(cluster)

    compressed(test())
    return cluster


MISHAPS = (*DEATHS, *REFUSED)
EACH = 1 if os.environ.get("MUSTER_THOROUGH") else len(MISHAPS)
"""Each write meets one of the mishaps, and all of them where there is time."""


@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_write_that_goes_wrong_changes_nothing_in_the_end(mishap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "plan", preempting)
    writes = lived("", 0).writes
    assert len(writes) > 40, writes
    for at in range(1 + MISHAPS.index(mishap) % EACH, len(writes) + 1, EACH):
        lived(mishap, at)
