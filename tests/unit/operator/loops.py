"""The loop against an API server that is a handful of dicts, and fails when a test says so."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from muster.api.trainingjob import TrainingJob
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.errors import ApiUnreachable
from muster.cluster.executor import Executor
from muster.cluster.pods import PodSettings
from muster.cluster.views import NamespaceView, NodeView, PodView, PriorityClassView
from muster.controllers.cache import Cache
from muster.controllers.lifecycle.turn import Note
from muster.controllers.loop import Loop
from muster.controllers.progress import Progress
from muster.controllers.reliability import NodeHours
from muster.controllers.situations import PATIENCE, Patience
from muster.controllers.work import Pace, Worker

Object = dict[str, Any]


class _Hasty(selectors.DefaultSelector):
    """Does not wait for a moment that the loop waits for: it says how long it would have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout:
            self.skipped += timeout
        return ready


class Compressed(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next moment when nothing is left to do before it: an hour takes a second."""

    def __init__(self) -> None:
        self._hasty = _Hasty()
        super().__init__(self._hasty)

    def time(self) -> float:
        return super().time() + self._hasty.skipped


def worker_pod(
    job: str, index: int, *, owner: str, node: str, namespace: str = "ns", generation: int = 1, **metadata: str
) -> PodView:
    """A running worker of a job of the UID `owner`. `metadata`: more of it."""
    place = {"job": job, "generation": str(generation), "index": str(index), "attempt": "0"}
    reference = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": job, "uid": owner}
    return PodView.from_raw(
        {
            "metadata": {
                "namespace": namespace,
                "name": f"{job}-g{generation}-{index}-0",
                "uid": f"{owner}-{generation}-{index}",
                "labels": {f"muster.dev/{key}": value for key, value in place.items()},
                "ownerReferences": [reference | {"controller": True}],
                **metadata,
            },
            "spec": {"nodeName": node, "containers": [{"name": "trainer"}]},
            "status": {"phase": "Running"},
        }
    )


def compressed(test: Coroutine[Any, Any, None]) -> None:
    """Run a test on the compressed clock, which the wall clock does not follow."""
    with asyncio.Runner(loop_factory=Compressed) as runner:
        runner.run(test)


@dataclass
class Items:
    items: dict[str, Any] = field(default_factory=dict)


class Server:
    """The API server's answers. `fail` maps a call (`POST pods`) to what makes its error."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.jobs: dict[str, Object] = {}
        self.pods: dict[str, Object] = {}
        self.fail: dict[str, Callable[[], Exception]] = {}
        self.cut_off_at_placement = False
        self.silent: set[str] = set()
        self.before_status: Callable[[str, Object], None] = lambda name, status: None
        """Is told what is to be written of a job, and may raise."""
        self.written: list[tuple[str, Object]] = []
        self.moments: list[tuple[str, float]] = []
        """(name of the job, the loop's time) of each of `written`."""
        self.version = 10
        self.cache: Cache

    def _count(self, call: str) -> None:
        self.calls[call] += 1
        if call in self.fail:
            raise self.fail[call]()

    async def create(self, path: str, body: Object, *, dry_run: bool = False, strict: bool = False) -> Object:
        kind = path.rsplit("/", 1)[1]
        self._count(f"{'REHEARSE' if dry_run else 'POST'} {kind}")
        made = {**body, "metadata": {**body["metadata"], "uid": f"{body['metadata']['name']}-uid"}}
        if kind == "pods" and not dry_run:
            self.pods[body["metadata"]["name"]] = made
        return made

    async def get(self, path: str) -> Object:
        self._count("GET")
        return self.jobs[path.rsplit("/", 1)[1]]

    async def update_status(self, path: str, body: Object) -> Object:
        name = path.rsplit("/", 1)[1]
        if "/trainingjobs/" not in path:
            return body
        if name in self.silent:
            raise ApiUnreachable("refused")
        self.before_status(name, body["status"])
        self.version += 1
        metadata = {**self.jobs[name]["metadata"], "resourceVersion": str(self.version)}
        raw = self.jobs[name] = {**self.jobs[name], "metadata": metadata, "status": body["status"]}
        self._count("PUT status")
        self.written.append((name, body["status"]))
        self.moments.append((name, asyncio.get_running_loop().time()))
        if self.cut_off_at_placement and body["status"].get("placement"):
            self.cut_off_at_placement = False
            self.fail["GET"] = lambda: ApiUnreachable("refused")
            raise ApiUnreachable("the answer was lost")
        self.cache.on_job(("ns", name), TrainingJob.from_raw(raw))
        return raw

    async def delete(self, path: str, *, uid: str = "", grace: int | None = None) -> Object:
        self._count(f"DELETE {path.rsplit('/', 2)[1]}")
        return {}


@dataclass
class World:
    server: Server
    cache: Cache
    loop: Loop
    pods: Items
    nodes: Items
    notes: list[tuple[str, Note]] = field(default_factory=list)
    """Events that were told: (name of the job, Event)."""

    def submit(
        self, name: str, *, workers: int = 2, each: Object | None = None, at: str = "12:00:00", **spec: Any
    ) -> None:
        """A job of so many workers of one core each, and what else `each` of them has, submitted `at` that time."""
        raw = {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": f"uid-of-{name}",
                "generation": 1,
                "resourceVersion": "1",
                "creationTimestamp": f"2026-03-01T{at}Z",
            },
            "spec": {
                "queue": "q",
                "image": "i",
                "command": ["x"],
                "workers": {"replicas": workers, "resources": {"requests": {"cpu": "1"}}, **(each or {})},
                **spec,
            },
        }
        self.feed(raw)

    def feed(self, raw: Object) -> None:
        self.server.jobs[raw["metadata"]["name"]] = raw
        self.cache.on_job(("ns", raw["metadata"]["name"]), TrainingJob.from_raw(raw))

    def show(self, name: str, phase: str = "Pending") -> None:
        """The watch shows a pod; one that runs is ready."""
        ready = {"conditions": [{"type": "Ready", "status": "True"}]} if phase == "Running" else {}
        view = PodView.from_raw({**self.server.pods[name], "status": {"phase": phase, **ready}})
        self.pods.items[f"ns/{name}"] = view
        self.cache.on_pod(f"ns/{name}", view)

    def gone(self, job: str) -> None:
        """The watch shows that the pods of a job are gone."""
        for name in [name for name in self.server.pods if name.startswith(f"{job}-g")]:
            del self.server.pods[name]
            self.pods.items.pop(f"ns/{name}", None)
            self.cache.on_pod(f"ns/{name}", None)

    def status(self, name: str) -> Object:
        return self.server.jobs[name].get("status") or {}

    def edit(self, name: str, **spec: Any) -> None:
        raw = self.server.jobs[name]
        self.server.version += 1
        metadata = {
            **raw["metadata"],
            "generation": raw["metadata"]["generation"] + 1,
            "resourceVersion": str(self.server.version),
        }
        self.feed({**raw, "metadata": metadata, "spec": {**raw["spec"], **spec}})

    def placed(self, name: str) -> bool:
        return bool((self.server.jobs[name].get("status") or {}).get("placement"))

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the conditions are of many kinds
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(
    *,
    cpu: str = "4",
    node_hours: NodeHours = (("on-demand", 999.0),),
    node: NodeView | None = None,
    prices: dict[str, float] | None = None,
    currency: str = "",
    priorities: dict[str, int] | None = None,
    pace: float = 0.01,
    planned: Callable[[float], None] = lambda seconds: None,
    patience: Patience = PATIENCE,
) -> AsyncIterator[World]:
    """`node`: in place of one of so many cores. `priorities`: value by PriorityClass. `planned`: is told what each plan
    took."""
    pods, nodes, namespaces = Items(), Items(), Items()
    nodes.items["n"] = node or NodeView.from_raw(
        {
            "metadata": {"name": "n"},
            "status": {
                "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )
    namespaces.items["ns"] = NamespaceView("ns", {}, False)
    classes = Items({name: PriorityClassView(name, value) for name, value in (priorities or {}).items()})
    cache = Cache(pods=pods, nodes=nodes, namespaces=namespaces, priority_classes=classes)
    server = Server()
    server.cache = cache
    cache.on_queue("q", TrainingQueue.from_raw({"metadata": {"name": "q"}, "spec": {}}))
    executor = Executor(server, b"k" * 16)  # type: ignore[arg-type]  # it has all that is called
    notes: list[tuple[str, Note]] = []
    loop = Loop(
        cache,
        Worker(
            executor,
            PodSettings("runtime"),
            lambda record, note: notes.append((record.identity.name, note)),
            asyncio.Semaphore(32),
            pace=Pace(pace),
            node_hours=lambda: node_hours,
        ),
        Progress(cache, None),
        prices=prices,
        currency=currency,
        planned=planned,
        patience=patience,
    )
    task = asyncio.create_task(loop.run())
    try:
        yield World(server, cache, loop, pods, nodes, notes)
    finally:
        task.cancel()
        await asyncio.wait({task})
