"""The operator's process, from start to end.

Order matters: serve probes; wait for our CRDs; become the leader; only then list and watch (a list from before could be
another leader's past); plan once every cache is full. Whatever ends, ends the process: a new one starts clean. Losing
the Lease ends it at once, without any clean-up that could write.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.api.common import API_VERSION
from muster.api.kinds import KINDS
from muster.api.names import DEFAULT_TOPOLOGY
from muster.cli.settings import BadNodes, Settings
from muster.cluster.client import Api
from muster.cluster.credentials import Credentials, CredentialsError
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.events import About, EventRecorder, News
from muster.cluster.lease import Leadership, LeaseTimes, clock
from muster.cluster.pods import PodSettings
from muster.controllers import garbage, handlers, kopf_thread
from muster.controllers.assembly import Scheduling
from muster.controllers.chosen import (
    asking,
    history_of,
    history_writer,
    node_hours,
    price_catalogue,
    quarantine_rules,
    token_key,
)
from muster.controllers.lifecycle.turn import Note
from muster.controllers.observing import Observing
from muster.controllers.records import Record
from muster.controllers.situations import PATIENCE, Patience
from muster.scheduling.policy import Policy
from muster.server.board import Board
from muster.server.probes import Probes
from muster.server.replica import Replica, app_of, reached_at
from muster.server.serving import Server
from muster.telemetry import metrics_declared as declared
from muster.telemetry.metrics import Metrics
from muster_protocol.durations import parse_duration
from muster_protocol.metrics import Metric

if TYPE_CHECKING:
    from muster.telemetry.history.writer import Health, Writer

log = logging.getLogger(__name__)

EXIT_LEASE_LOST: Final = 1
CRD_RETRY: Final = 5.0
"""Seconds between two looks for our CRDs."""


class Operator:
    """One process. `run` returns its exit code."""

    def __init__(self, settings: Settings, *, assemble: Callable[..., Scheduling] = Scheduling) -> None:
        """`assemble` puts the scheduling side together; benchmarks bring one that makes no pods."""
        self._settings = settings
        self._assemble = assemble
        self._metrics = Metrics()
        self._prices = price_catalogue(settings)
        self._observing = Observing(self._metrics, self._prices.flat(datetime.now(timezone.utc)), self._prices.code)
        self._board = Board()
        self._past = history_of(settings, self._prices)
        self._scheduling: Scheduling | None = None
        self._kinds: handlers.Kinds | None = None
        self._events: EventRecorder | None = None
        self._history: Writer | None = None
        self._leadership: Leadership | None = None
        self._state = "starting"
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Raises CredentialsError when no API server is configured, OSError when the HTTP port is taken."""
        settings = self._settings
        allow_open_files()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        leadership = Leadership(
            lambda: connect(settings),
            namespace=settings.namespace,
            identity=settings.identity,
            on_lost=_end_at_once,
            times=LeaseTimes.of(settings.lease_seconds),
        )
        api = await connect(settings, guard=leadership.check, observe=self._metrics.request, wrote=self._metrics.wrote)
        probes = Probes(self._metrics_text, self.ages, self._not_ready, settings.stale_seconds)

        def observed(method: str, code: int, seconds: float) -> None:
            loop.call_soon_threadsafe(self._metrics.request, method, code, seconds)

        replica = Replica(
            self._board,
            settings.identity,
            connect=lambda: connect(settings, observe=observed),
            leading=lambda: leadership.leading,
            leader=lambda: leadership.leader_address,
            kept_seconds=settings.api_kept_seconds,
            history=self._past,
        )
        server = Server(app_of(probes, replica if settings.api else None))
        await server.start(settings.http_host, settings.http_port)
        leadership.address = reached_at(settings.api_host or settings.http_host, server.port)
        try:
            return await self._serve(api, leadership)
        finally:
            await leadership.stop()
            await server.stop()
            await api.close()

    async def _serve(self, api: Api, leadership: Leadership) -> int:
        if not await self._until(self._crds(api)):
            return 0
        self._state = "standby"
        self._leadership = leadership
        leadership.start()
        if not await self._until(leadership.acquired.wait()):
            return 0
        self._state = "syncing"
        self._metrics.leads()
        work = asyncio.create_task(self._lead(api), name="operator")
        stop = asyncio.create_task(self._stopping.wait(), name="stop")
        done, pending = await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await asyncio.wait({work, stop})
        if work in done and not work.cancelled() and work.exception() is not None:
            log.critical("the operator ends on an error", exc_info=work.exception())
            return 1
        return 0

    async def _lead(self, api: Api) -> None:
        settings = self._settings
        events = self._events = EventRecorder(api, settings.identity)
        self._history = history_writer(settings, self._past)
        if self._history is not None:
            self._history.start()

        def tell(record: Record, note: Note) -> None:
            if not scheduling.cache.terminating(record.identity.namespace):  # it takes no new objects
                events.tell(_news(record, note))

        scheduling = self._scheduling = self._assemble(
            api,
            settings=PodSettings(
                runtime_image=settings.runtime_image,
                priority_class=settings.priority_class,
                pull_policy=settings.runtime_pull_policy,
                node_hours=node_hours(settings),
            ),
            token_key=token_key(settings),
            tell=tell,
            through_proxy=settings.through_proxy,
            watch_seconds=settings.watch_seconds,
            prices=self._prices.flat(datetime.now(timezone.utc)),
            observing=self._observing,
            asking=asking(settings),
            quarantine=quarantine_rules(settings),
            tell_node=events.tell,
            show=self._board.job if settings.api else None,
            patience=Patience(bad_node=0.0) if settings.bad_nodes is BadNodes.IGNORE else PATIENCE,
            history=self._history,
            currency=self._prices.code,
            policy=Policy(settle=parse_duration(settings.settle_after)),
        )
        kinds = self._kinds = handlers.Kinds(
            api,
            {"trainingqueues": scheduling.queue, "topologies": scheduling.topology},
            sweep_seconds=min(handlers.SWEEP_SECONDS, settings.stale_seconds / 3),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(events.run(), name="events")
                tasks.create_task(scheduling.run(kinds.listed), name="scheduling")
                tasks.create_task(kinds.run(), name="kinds")
                tasks.create_task(self._announce_ready(), name="since ready")
                tasks.create_task(self._kopf(api, kinds), name="kopf")
        finally:
            await scheduling.close()
            if self._history is not None:
                await asyncio.to_thread(self._history.close)

    async def _kopf(self, api: Api, kinds: handlers.Kinds) -> None:
        """Run kopf. It fails when our CRDs go: then wait until they are back, and run it again."""
        while True:
            try:
                await kopf_thread.run(
                    kinds.registry(), handlers.settings(self._settings.watch_seconds), self._settings.identity
                )
            except Exception:
                if not await _missing_crds(api):
                    raise
            state = self._state
            await self._crds(api)
            self._state = state
            log.info("the CRDs are back: going on")

    async def _announce_ready(self) -> None:
        assert self._scheduling is not None
        assert self._kinds is not None
        await self._scheduling.synced()
        await self._kinds.listed.wait()
        self._state = "ready"
        log.info("caches are full: planning begins")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(garbage.keep_looks_short(), name="garbage")
            if self._settings.api:
                tasks.create_task(self._board.run(self._scheduling.cache, DEFAULT_TOPOLOGY), name="board")

    async def _crds(self, api: Api) -> None:
        """Wait until the API server serves our kinds."""
        told = ""
        while True:
            try:
                missing = await _missing_crds(api)
                problem = f"{missing}; apply crds/, or install the chart with crds.enabled=true" if missing else ""
            except (ApiError, ApiUnreachable) as error:
                problem = str(error)
            if not problem:
                return
            self._state = f"waiting: {problem}"
            if problem != told:
                log.warning(self._state)
            told = problem
            await asyncio.sleep(CRD_RETRY)

    async def _until(self, waited: object) -> bool:
        """Wait for a coroutine; False when the process is told to stop before."""
        stop = asyncio.create_task(self._stopping.wait())
        work = asyncio.ensure_future(waited)  # type: ignore[call-overload]
        done, pending = await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if work in done:
            await work
            return True
        return False

    # -- what probes and metrics ask -----------------------------------------------------------------------------------

    def ages(self) -> Mapping[str, float]:
        """Seconds since each part's last sign of life."""
        if self._scheduling is None or self._kinds is None:
            # A leader needs no watching: when it cannot renew, the Lease's thread ends the process.
            standby = self._leadership
            return {} if standby is None else {"Lease": clock() - standby.last_answer}
        now = time.monotonic()
        found = {f"watch {one.path}": now - one.last_event_at for one in self._scheduling.informers}
        found["list of our kinds"] = now - self._kinds.last_sweep
        if self._kinds.behind_since is not None:
            found["watch of our kinds"] = now - self._kinds.behind_since
        if self._state == "ready":
            found["scheduling loop"] = now - self._scheduling.loop.last_tick
        return found

    def _not_ready(self) -> str:
        return "" if self._state in ("ready", "standby") else self._state

    def _metrics_text(self) -> bytes:
        self._refresh()
        return self._metrics.text()

    def _refresh(self) -> None:
        scheduling, metrics = self._scheduling, self._metrics
        if scheduling is None:
            return
        now = time.monotonic()
        self._observing.look(scheduling.loop, scheduling.cache)
        informers = scheduling.informers
        metrics.show(
            {
                declared.RELISTS: {(one.path,): max(0, one.lists - 1) for one in informers},
                declared.WATCH_AGE: {(one.path,): now - one.last_event_at for one in informers},
                declared.FAILURE_FREE: {(kind,): hours * 3600 for kind, hours in scheduling.reliability.hours()},
                declared.EVENTS_DROPPED: {(): self._events.dropped if self._events is not None else 0},
            }
        )
        if self._history is not None:
            metrics.show(history_shown(self._history.health))
        quarantining = scheduling.quarantining
        if quarantining is not None:
            metrics.show(
                {
                    declared.QUARANTINED: {(node,): 1 for node in quarantining.held},
                    declared.SPARED: {(): len(quarantining.spared)},
                    declared.FAULTS: {(cause,): number for cause, number in quarantining.faults_by_cause().items()},
                }
            )


async def connect(settings: Settings, **options: Any) -> Api:
    """A client of the configured API server. Raises CredentialsError."""
    credentials = Credentials(Path(settings.kubeconfig) if settings.kubeconfig else None, settings.context or "")
    await credentials.load()
    if credentials.configuration.tls_server_name:
        raise CredentialsError(
            f"{credentials.source} sets tls-server-name, which kopf cannot use: name the API server in `server` as its "
            "certificate does"
        )
    if credentials.acts_as:
        raise CredentialsError(
            f"{credentials.source} has its user act as another (`as`), which kopf cannot: give it a user with "
            "the rights that it needs (docs/install.md, Rights)"
        )
    return Api(credentials, agent=settings.identity, **options)


async def _missing_crds(api: Api) -> str:
    """Which of our CRDs the API server lacks, as the beginning of a sentence, or ""."""
    try:
        found = await api.get(f"/apis/{API_VERSION}")
    except ApiError as error:
        if error.status != 404:
            raise
        return "the CRDs are not installed"
    missing = {kind.plural for kind in KINDS} - {item["name"] for item in found.get("resources") or []}
    return f"the CRDs of {', '.join(sorted(missing))} are not installed" if missing else ""


def allow_open_files() -> None:
    """As many as the hard limit lets: each launcher that is asked and each reader of the API takes a socket, and many
    systems begin with 1,024 for a process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _end_at_once(why: str) -> None:
    """Without any clean-up: that could write, and the next leader counts on our silence."""
    log.critical("%s: ending at once", why)
    os._exit(EXIT_LEASE_LOST)


def history_shown(health: Health) -> dict[Metric, dict[tuple[str, ...], float]]:
    """How the history does, as values of metrics."""
    return {
        declared.HISTORY_UP: {(): 0 if health.trouble else 1},
        declared.HISTORY_WAITING: {(): health.waiting},
        declared.HISTORY_WRITTEN: {(): health.written},
        declared.HISTORY_DROPPED: {(): health.dropped},
    }


def _news(record: Record, note: Note) -> News:
    metadata = record.job.metadata
    about = About(API_VERSION, "TrainingJob", metadata.namespace, metadata.name, metadata.uid)
    return News(about, note.reason.value, note.message, note.warning, logged=note.logged)
