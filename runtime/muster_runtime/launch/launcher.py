"""One launcher from start to end: join, start the ranks, watch them, perhaps start them again, end with the gang."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Final

from muster_protocol import env, exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Release, Stop, StopReason
from muster_protocol.uris import parse_uri
from muster_runtime import report
from muster_runtime.launch import environment, preflight, termination
from muster_runtime.launch.answers import Answers, samples
from muster_runtime.launch.api_handler import ApiHandler
from muster_runtime.launch.asked_saves import AskedSaves
from muster_runtime.launch.config import Config
from muster_runtime.launch.copies import Copies
from muster_runtime.launch.endings import Endings
from muster_runtime.launch.figures import Machine, gpus, measure
from muster_runtime.launch.follower import Follower
from muster_runtime.launch.hangs import Hangs
from muster_runtime.launch.http_client import Client
from muster_runtime.launch.http_server import Server
from muster_runtime.launch.leader import Leader
from muster_runtime.launch.membership import Roll
from muster_runtime.launch.metrics import Metrics
from muster_runtime.launch.node_hours import NodeHours
from muster_runtime.launch.profiles import Profiles
from muster_runtime.launch.progress import Progress
from muster_runtime.launch.ranks import CommandError, NoRoomError, Ranks, adopt_orphans, allow_open_files, beside
from muster_runtime.launch.run_folder import RunFolder
from muster_runtime.launch.spending import Spending
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import Over, State
from muster_runtime.launch.stopping import Stopping
from muster_runtime.launch.termination import say
from muster_runtime.launch.tracking import LAST_SECONDS, Tracking

_LOOK_SECONDS: Final = 1.0
"""Children are looked after at least this often, should a SIGCHLD have been missed."""


class Launcher:
    """`asked_early`: SIGTERM came before this was made."""

    def __init__(self, config: Config, environ: Mapping[str, str], asked_early: Callable[[], bool]) -> None:
        self._asked_early = asked_early
        self._config = config
        self._environ = environ
        self._state = State()
        self._standing = Standing()
        self._roll = Roll(config.generation, config.workers)
        self._progress = Progress()
        self._gpus = gpus()
        self._ranks = Ranks(self._state.tell)
        self._hangs = Hangs(config, self._ranks, self._state)
        self._metrics = Metrics(config, lambda: samples(self._hangs, self._gpus))
        self._client = Client(config.port, config.token, config.pod_uid, config.generation)
        self._gang: Leader | Follower = (
            Leader(config, self._client, self._state, self._roll, self._standing, self._hangs)
            if config.leads
            else Follower(config, self._client, self._state, self._roll, self._standing, self._progress, self._hangs)
        )
        self._stopping = Stopping(self._ranks, self._state)
        self._folder: RunFolder | None = None
        self._copies = Copies(config, self._roll, self._state)
        self._spending = Spending(config.reached, self._busy)
        self._profiles = Profiles(config)
        self._tracking = Tracking(config, environ)
        self._node_hours = NodeHours(config)
        self._asked_saves = AskedSaves(config, self._ranks, self._hangs)
        self._answers = Answers(
            config,
            self._standing,
            self._state,
            self._gang,
            self._ranks,
            self._progress,
            self._copies,
            self._hangs,
            self._spending,
            self._profiles,
            self._tracking,
            self._metrics,
        )
        self._ending = Endings(
            config,
            self._gang,
            self._ranks,
            self._state,
            self._standing,
            self._progress,
            self._stopping,
            self._hear,
            self._answers.spent,
        )
        self._signalled = False

    async def run(self) -> ExitFacts:
        """Runs the gang's part on this pod; returns with the termination message written. A launcher that fails itself
        leaves nothing behind either."""
        try:
            return await self._run()
        except BaseException:
            self._ranks.end_groups()
            raise
        finally:
            self._leave_folder()

    async def _run(self) -> ExitFacts:
        adopt_orphans()
        self._listen_to_signals()
        config = self._config
        parts = (self._state, self._roll, self._gang, self._answers)
        kept = (self._copies, self._hangs, self._profiles, self._tracking)
        handler = ApiHandler(config.member, config.token, *parts, *kept, self._node_hours, self._asked_saves)
        connections = 2 * self._config.workers + 256
        allow_open_files(connections)
        server = Server(handler, connections)
        try:
            port = await server.start(self._config.bind, self._config.port)
        except OSError as error:
            where = f"{self._config.bind or '*'}:{self._config.port}"
            message = (
                f"the launcher can't listen on {where}: {error.strerror or error}; with hostNetwork, free that port"
            )
            facts = ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, message)
            termination.write(self._config.termination_log, facts)
            return facts
        say(f"index {self._config.index} of {self._config.workers}, job {self._config.job}, API on port {port}")
        if self._gpus is not None:
            self._gpus.start()
        self._tracking.begin()
        facts = await self._join_and_train()
        self._spending.end(self._ending.how())
        facts = self._ending.complete(facts)
        self._ending.leave_word(facts)
        self._copies.end()
        if self._gpus is not None:
            self._gpus.end()
        facts = await self._ending.with_gang(facts)
        await self._end_tracking(facts)
        await server.close(patience=1.0)
        self._ranks.end_groups()
        await beside(self._ranks.drain)
        return facts

    # ------------------------------------------------------------------------------------------------------------ parts

    async def _join_and_train(self) -> ExitFacts:
        try:
            preflight = self._preflight()
            await self._look_at_node()
            release = await self._gang.assemble(preflight)
            while True:
                facts = await self._train(release)
                if facts is not None:
                    return facts
                self._copies.end()
                self._standing.copy = self._copies.holding
                release = await self._rejoin()
        except Over as over:
            return over.facts

    async def _train(self, release: Release) -> ExitFacts | None:
        """Runs one incarnation of the ranks. None: the gang starts again. Raises Over."""
        self._standing.tally = self._standing.tally.heard(release)
        await self._copies.begin(release)
        first_time = self._standing.incarnation == 0
        try:
            self._start_ranks(release)
        except CommandError as error:
            return await self._ending.tell(ExitFacts(Cause.CONFIG, exits.EXIT_CONFIG, str(error)))
        except NoRoomError as error:
            return await self._ending.tell(ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, str(error)))
        except OSError as error:
            where = f"it needs some kB below {env.MOUNT_PATH}"
            message = f"no folder for the launcher and its ranks to meet in ({error}); {where}"
            return await self._ending.tell(ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, message))
        self._standing.phase = Phase.RUNNING
        if first_time:
            self._gang.begin()
        return await self._watch()

    async def _rejoin(self) -> Release:
        """Ends this incarnation whole and waits for the next. Raises Over.

        Nothing of it may live when another starts: both would write to the same memory and the same checkpoint.
        """
        restart = self._state.restart
        assert restart is not None
        say(f"the gang starts again in place, as incarnation {restart.incarnation}: {restart.first.message}")
        if not restart.first.crash:
            self._standing.phase = Phase.JOINING
        if restart.first.cause == Cause.HANG.value:
            await self._stopping.kill()  # who hangs answers no SIGTERM, nor does who waits for it
        else:
            await self._stopping.end(lambda: True)
        await self._stopping.outlast()
        if self._ranks.running:
            raise Over(await self._ending.tell(_outlives(f"rank {self._ranks.running[0].rank}")))
        if left := await self._stopping.sweep(self._tracking.processes):
            raise Over(await self._ending.tell(_outlives(f"process {left[0]}, which a rank has left behind,")))
        await beside(self._ranks.drain)
        self._hear()
        self._spending.end(self._ending.how())
        self._ranks.forget()
        self._leave_folder()
        termination.clear(self._config.termination_log)
        self._progress.begin_anew()
        if restart.first.crash:
            self._standing.tally = self._standing.tally.after(restart.first)
            self._standing.restarted_after = restart.first.message
        return await self._gang.assemble(None)

    async def _look_at_node(self) -> None:
        """Measures the node, for index 0 to judge. A stop doesn't wait for it."""
        if not self._config.preflight:
            return
        work = asyncio.ensure_future(measure(Machine(), self._config.node))
        work.add_done_callback(lambda _: self._state.tell())
        while not work.done() and self._state.stop is None:
            await self._state.wait(_LOOK_SECONDS)
        if work.done():
            self._standing.figures = work.result()
        else:
            work.cancel()

    def _preflight(self) -> asyncio.Future[None] | None:
        if not self._config.leads or not self._config.checkpoint_uri.startswith("s3://"):
            return None
        if self._config.attempt:  # the pod that was here before has seen to it, and memory may do without the store
            return None
        self._standing.phase = Phase.PREFLIGHT

        def trouble(text: str) -> None:
            self._progress.storage_error = text
            if text:
                say(text)

        def done(_: object) -> None:
            self._standing.phase = Phase.JOINING
            self._state.tell()

        checked = preflight.start(parse_uri(self._config.checkpoint_uri), self._config.start_from, trouble)
        checked.add_done_callback(done)
        return checked

    def _start_ranks(self, release: Release) -> None:
        self._standing.incarnation = release.incarnation
        ranks, reached = self._config.processes, self._spending.reached
        self._folder = folder = RunFolder(
            self._config.run_roots, release.incarnation, self._hear, ranks=ranks, reached=reached
        )
        self._stopping.begin(folder.control, folder.pulse, fresh=release.incarnation == 1)
        self._hangs.begin(folder.path, folder.pulse)
        self._profiles.begin(folder.path, folder.control)
        self._node_hours.begin(folder.control)
        self._asked_saves.begin(folder.control)
        self._ending.begin()
        self._standing.started_at = self._state.clock()
        environments = [
            (
                self._config.rank(local),
                environment.for_rank(
                    self._environ, self._config, release, folder.path, local, self._copies.environment(local)
                ),
                self._copies.descriptors(local),
            )
            for local in range(self._config.processes)
        ]
        self._spending.begin(folder.pulse)
        self._standing.idleness = None
        self._ranks.start(self._config.command, environments, prefix=self._config.world_size > 1)

    async def _watch(self) -> ExitFacts | None:
        state = self._state
        while True:
            failed = [rank for rank in self._ranks.all if rank.exit_code]
            if state.stop is not None:
                return await self._ending.stopped()
            if self._ending.starts_again():
                return None
            if failed:
                return await self._ending.failed(failed)
            if not self._ranks.running:
                facts = await self._ending.succeeded()
                return None if self._ending.starts_again() else facts
            if state.ending:
                await self._stopping.end()
                return await self._ending.followed()
            if state.lost or state.foreign:
                await self._stopping.end()
                return ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, state.lost or state.foreign)
            await state.wait(_LOOK_SECONDS)
            self._ranks.reap()
            self._copies.look()
            self._standing.copy_error = self._copies.trouble
            self._hangs.look()
            self._spending.look()
            self._standing.idleness = self._spending.idleness
            self._tracking.look(self._gpus.gpus if self._gpus is not None else (), self._profiles.state)

    def _busy(self) -> float | None:
        """Which part of the time this pod's GPUs are at work, 0 to 1; None where that of one isn't known."""
        known = [gpu.utilization for gpu in self._gpus.gpus] if self._gpus is not None else []
        told = [part for part in known if part is not None]
        return fmean(told) if told and len(told) == len(known) else None

    async def _end_tracking(self, facts: ExitFacts) -> None:
        stop = self._state.stop
        seconds = LAST_SECONDS if stop is None else self._state.stop_deadline - self._state.clock() - 1.0
        reason = stop.reason if stop is not None else None
        await self._tracking.end(facts, reason, by_signal=self._signalled, seconds=max(0.0, seconds))

    # ---------------------------------------------------------------------------------------------- signals and reports

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked_by_signal, number)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, self._ranks.signal_processes, number)
        loop.add_signal_handler(signal.SIGCHLD, self._ranks.reap)
        if self._asked_early():
            self._asked_by_signal(signal.SIGTERM)

    def _asked_by_signal(self, number: int) -> None:
        again = number == signal.SIGINT and self._state.stop is not None
        self._signalled |= self._state.stop is None
        grace = 0.0 if again else self._config.grace
        if self._state.ask_stop(Stop(StopReason.PREEMPT, grace, told=self._config.index)):
            self._gang.spread()

    def _hear(self) -> None:
        for message in self._folder.messages() if self._folder is not None else ():
            if isinstance(message, report.Hello):
                rank = self._ranks.of_rank(message.rank)
                if rank is not None:
                    rank.session = True
            if isinstance(message, report.Stopped):
                rank = self._ranks.of_rank(message.rank)
                if rank is not None:
                    rank.stopped = True
            if isinstance(message, report.CheckpointCommitted):
                self._asked_saves.heard(message)
            if isinstance(message, report.Profiled):
                self._profiles.heard(message)
            self._progress.take(message)
            self._metrics.take(message)
            self._tracking.hear(message)
        if self._folder is not None and any(rank.exit_code for rank in self._ranks.all):
            self._progress.reach(self._folder.pulse.reached())

    def _leave_folder(self) -> None:
        self._hangs.end()
        self._profiles.end()
        self._node_hours.end()
        self._asked_saves.end()
        if self._folder is not None:
            self._folder.close()
            self._folder = None


def _outlives(who: str) -> ExitFacts:
    message = f"{who} outlives SIGKILL, so the gang can't start again in this pod"
    return ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, message)
