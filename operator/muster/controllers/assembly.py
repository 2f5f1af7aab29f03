"""Puts the scheduling side together: informers, cache, executor, loop. Whoever runs it brings the API and our kinds.

Queues and the Topology are fed from outside (`queue`, `topology`): by kopf's handlers in the operator, by informers in
tests. Nothing is planned before they and the informers' first lists are there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from muster.api.common import API_VERSION, Condition
from muster.api.names import ConditionType, QueueConditionType, Reason
from muster.api.topology import Topology
from muster.api.trainingjob import TrainingJob
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.events import News
from muster.cluster.executor import Executor, job_path
from muster.cluster.informer import EVENT_DELAY, Informer
from muster.cluster.launchers import DirectTransport, Launchers, ProxyTransport, Transport
from muster.cluster.pods import PodSettings, token_tag
from muster.cluster.provisioning import Asking
from muster.cluster.reading import read_job, read_queue
from muster.cluster.views import NamespaceView, NodeView, PodView, PriorityClassView, VersionView
from muster.controllers.cache import Cache, Key
from muster.controllers.chronicle import Chronicle
from muster.controllers.lifecycle.turn import Decision, Note
from muster.controllers.listening import Listening
from muster.controllers.loop import Loop
from muster.controllers.observing import Observing
from muster.controllers.progress import Progress
from muster.controllers.provisioning import Provisioning
from muster.controllers.quarantine import Rules
from muster.controllers.quarantining import Quarantining
from muster.controllers.records import Record
from muster.controllers.reliability import Reliability
from muster.controllers.situations import PATIENCE, Patience
from muster.controllers.uncollected import Uncollected
from muster.controllers.work import Worker, utc_now
from muster.scheduling.policy import DEFAULT, Policy
from muster.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from muster.telemetry.history.writer import Writer

Object = dict[str, Any]
Tell = Callable[[Record, Note], None]
log = logging.getLogger(__name__)

JOBS: Final = f"/apis/{API_VERSION}/trainingjobs"
PODS: Final = "/api/v1/pods"
NODES: Final = "/api/v1/nodes"
NAMESPACES: Final = "/api/v1/namespaces"
PRIORITY_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"

FETCH_AGAIN: Final = 2.0
"""Seconds between two tries to read the nodes of a large placement."""

JOBS_AT_ONCE: Final = 32
"""Jobs whose objects are written at the same time; each writes up to 16 pods at once."""


class Scheduling:
    """Everything between the API server and the planner.

    Attributes:
        informers: of TrainingJobs and of other people's kinds, for health checks.
        loop: the scheduling loop; `loop.records` are the live jobs.
        reliability: how often nodes fail, as the jobs show.
        quarantining: taints nodes; None where the platform doesn't want that.
    """

    def __init__(
        self,
        api: Api,
        *,
        settings: PodSettings,
        token_key: bytes,
        tell: Tell,
        through_proxy: bool = False,
        carry: Transport | None = None,
        patience: Patience = PATIENCE,
        event_delay: float = EVENT_DELAY,
        watch_seconds: int = 60,
        prices: Mapping[str, float] | None = None,
        asking: Asking | None = None,
        quarantine: Rules | None = None,
        tell_node: Callable[[News], None] = lambda news: None,
        show: Callable[[Key, Mapping[str, Any] | None], None] | None = None,
        executor: Callable[[Api, bytes], Executor] = Executor,
        observing: Observing | None = None,
        history: Writer | None = None,
        currency: str = "",
        policy: Policy = DEFAULT,
    ) -> None:
        """
        Args:
            carry: takes requests to launchers; None: by the pods' IPs, or `through_proxy`, the API server's.
            watch_seconds: how long one watch is held open; a dead one is noticed a quarter of that later.
            prices: money for an hour of one GPU, by flavour like `H100/on-demand`.
            asking: how an autoscaler is asked for nodes; None: it is not.
            quarantine: when nodes are tainted; None: they are not.
            tell_node: takes Events on nodes.
            observing: counts what happens; None: for nobody.
            show: is given every TrainingJob that is seen, or None when it is gone.
            history: writes what becomes of jobs; None: nobody does.
            currency: of `prices`, as a code of ISO 4217; "" where nobody told.
            policy: what plans may do.
        """
        watched: dict[str, Any] = {"watch_seconds": watch_seconds, "patience": watch_seconds / 4}
        self.jobs = Informer(api, JOBS, VersionView.from_raw, **watched)
        self.pods = Informer(api, PODS, PodView.from_raw, delay=event_delay, **watched)
        self.nodes = Informer(api, NODES, NodeView.from_raw, delay=event_delay, **watched)
        self.namespaces = Informer(api, NAMESPACES, NamespaceView.from_raw, **watched)
        self.priorities = Informer(api, PRIORITY_CLASSES, PriorityClassView.from_raw, **watched)
        self.cache = Cache(
            pods=self.pods, nodes=self.nodes, namespaces=self.namespaces, priority_classes=self.priorities
        )
        if show is not None:
            self.jobs.on_object(lambda name, raw: show(_key(name), raw))
        self.jobs.on_object(self.job)
        self.pods.on_change(lambda key: self.cache.on_pod(key, self.pods.items.get(key)))
        self.nodes.on_change(lambda name: self.cache.on_node(name, self.nodes.items.get(name)))
        chronicle = self._chronicle = Chronicle(self.cache, history) if history is not None else None
        if chronicle is not None:
            self.pods.on_change(lambda key: chronicle.on_pod(self.pods.items.get(key), utc_now()))
            self.nodes.on_change(lambda _: chronicle.on_node())
        self.namespaces.on_change(self.cache.on_world)
        self.priorities.on_change(self.cache.on_world)
        observing = observing or Observing(Metrics(), {})
        self._telling: set[asyncio.Task[None]] = set()
        self._fetching: dict[Key, asyncio.Task[None]] = {}
        self._direct = None if carry or through_proxy else DirectTransport()
        launchers = Launchers(carry or self._direct or ProxyTransport(api.proxy), token_key)
        settings = replace(settings, token_tag=token_tag(token_key))
        self.reliability = Reliability(settings.node_hours, lambda: self.loop.stays())
        self._worker = Worker(
            executor(api, token_key),
            settings,
            tell,
            asyncio.Semaphore(JOBS_AT_ONCE),
            node_hours=self.reliability.hours,
            wrote=observing.wrote,
        )
        self._progress = Progress(self.cache, launchers, node_hours=self.reliability.hours)
        self._listening = Listening(api, self.cache)
        self._uncollected = Uncollected(self.cache, self._worker.executor)
        self._provisioning = Provisioning(api, self.cache, asking, settings) if asking else None
        self.cache.grows = asking is not None
        self.quarantining = (
            Quarantining(api, self.cache, quarantine, lambda: self.loop.faults(), tell_node) if quarantine else None
        )
        self.loop = Loop(
            self.cache,
            self._worker,
            self._progress,
            patience=patience,
            prices=prices,
            currency=currency,
            planned=observing.planned,
            chronicle=chronicle,
            policy=policy,
        )

    @property
    def informers(self) -> tuple[Informer[Any], ...]:
        return self.jobs, self.pods, self.nodes, self.namespaces, self.priorities

    async def synced(self) -> None:
        """Wait for the informers' first lists."""
        for informer in self.informers:
            await informer.synced.wait()

    async def run(self, ready: asyncio.Event) -> None:
        """Watch at once; plan when the caches are full and `ready` is set: queues and the Topology are listed."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers:
                tasks.create_task(informer.run(), name=f"informer {informer.path}")
            await self.synced()
            await ready.wait()
            while self._fetching:  # nothing is planned before every placement is known
                await asyncio.wait(list(self._fetching.values()))
            tasks.create_task(self._listening.run(self.loop.records), name="listening")
            tasks.create_task(self._uncollected.run(), name="what the garbage collector leaves")
            tasks.create_task(self._progress.run(self.loop.records, self._write), name="progress")
            if self._provisioning is not None:
                tasks.create_task(self._provisioning.run(self.loop.records), name="provisioning")
            if self.quarantining is not None:
                tasks.create_task(self.quarantining.run(), name="quarantine of nodes")
            if self._chronicle is not None:
                tasks.create_task(self._chronicle.run(), name="history")
            tasks.create_task(self.loop.run(), name="scheduling loop")

    async def close(self) -> None:
        if self._direct is not None:
            await self._direct.close()

    # -- our own kinds -----------------------------------------------------------------------------------------------

    def job(self, name: str, raw: Mapping[str, Any] | None) -> None:
        """The TrainingJob `namespace/name` was seen, or (None) is gone. One that can't be read is left alone, and says
        so."""
        key = _key(name)
        if (fetching := self._fetching.pop(key, None)) is not None:
            fetching.cancel()  # of what the job was before: it would come last, and count
        if raw is None:
            self.cache.on_job(key, None)
            return
        if self.loop.knows(raw):
            return
        self.cache.on_uid(key, raw["metadata"]["uid"])
        try:
            job = read_job(raw)
        except ValidationError as error:
            self._unreadable("TrainingJob", job_path(*key), ConditionType.ADMITTED.value, raw, error)
            return
        whole = self._worker.executor.chunks.unpack(job)
        if whole is not None:
            self.cache.on_job(key, whole)
        else:
            task = self._fetching[key] = asyncio.create_task(self._fetch(key, job))
            task.add_done_callback(lambda _: self._fetching.pop(key, None) if self._fetching.get(key) is task else None)

    async def _fetch(self, key: Key, job: TrainingJob) -> None:
        """Read the chunks of a large job's placement: at the start of an operator, for later it knows its own."""
        while True:
            try:
                self.cache.on_job(key, await self._worker.executor.chunks.fetch(job))
                return
            except (ApiError, ApiUnreachable) as error:
                log.warning("TrainingJob %s/%s: its placement: %s; trying again", *key, error)
                await asyncio.sleep(FETCH_AGAIN)

    def queue(self, key: Key, raw: Object | None) -> None:
        """A TrainingQueue was seen, or (None) is gone. One that can't be read says so, and stays as it was known."""
        try:
            self.cache.on_queue(key[1], None if raw is None else read_queue(raw))
        except ValidationError as error:
            assert raw is not None
            self.cache.on_unreadable_queue(key[1])
            path = f"/apis/{API_VERSION}/trainingqueues/{key[1]}"
            self._unreadable("TrainingQueue", path, QueueConditionType.READY.value, raw, error)

    def topology(self, key: Key, raw: Object | None) -> None:
        """A Topology was seen, or (None) is gone."""
        try:
            self.cache.on_topology(key[1], None if raw is None else Topology.from_raw(raw))
        except ValidationError as error:
            log.error("Topology %s does not fit this operator's version: %s", key[1], error)

    def _unreadable(self, kind: str, path: str, type_: str, raw: Mapping[str, Any], error: ValidationError) -> None:
        """Tell it in the log and, once, in the condition `type_`."""
        first, whole = error.errors()[0], f"{kind} {'/'.join(filter(None, _names(raw)))}"
        where = ".".join(str(part) for part in first["loc"])
        what = "job" if kind == "TrainingJob" else "queue"
        message = (
            f"this operator can't read the {what}: {where}: {first['msg']}; correct the field, or upgrade the operator"
        )
        log.error("%s: %s", whole, message)
        conditions = (raw.get("status") or {}).get("conditions") or []
        if any(
            item.get("reason") == Reason.INVALID_SPEC.value and item.get("message") == message for item in conditions
        ):
            return
        condition = Condition(
            type=type_,
            status="False",
            reason=Reason.INVALID_SPEC.value,
            message=message,
            last_transition_time=utc_now(),
            observed_generation=raw["metadata"].get("generation", 0),
        )
        task = asyncio.create_task(self._tell_unreadable(whole, path, raw, condition))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_unreadable(self, whole: str, path: str, raw: Mapping[str, Any], condition: Condition) -> None:
        try:
            await self._worker.executor.tell_unreadable(path, raw, condition)
        except (ApiError, ApiUnreachable) as error:
            log.warning("%s: %s", whole, error)

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def _write(self, record: Record, status: Any) -> None:
        self.loop.start(record, self._worker.carry_out(record, Decision(status=status)))


def _names(raw: Mapping[str, Any]) -> Key:
    return raw["metadata"].get("namespace", ""), raw["metadata"]["name"]


def _key(name: str) -> Key:
    namespace, _, own = name.partition("/")
    return namespace, own
