"""How a pod's part of the gang ends, or one incarnation of it: what is told of that, and written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from muster_protocol import exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.goodput import Spent
from muster_protocol.launcher_status import Phase
from muster_protocol.messages import Ended, GangState
from muster_protocol.numerics import TEXT_LEFT, Numerics
from muster_runtime.launch import termination, verdict
from muster_runtime.launch.config import Config
from muster_runtime.launch.follower import Follower
from muster_runtime.launch.leader import Leader
from muster_runtime.launch.progress import Progress
from muster_runtime.launch.ranks import Rank, Ranks, beside
from muster_runtime.launch.spending import how_ended
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import State
from muster_runtime.launch.stopping import Stopping
from muster_runtime.launch.termination import say
from muster_runtime.launch.verdict import Failure
from muster_runtime.telemetry.goodput import End

ECHO_SECONDS: Final = 1.0
"""How long a failure that looks like an echo waits for another of this pod's ranks to be its cause."""


class Endings:
    """`hear` takes in what the ranks have reported; `spent` tells where the time went."""

    def __init__(
        self,
        config: Config,
        gang: Leader | Follower,
        ranks: Ranks,
        state: State,
        standing: Standing,
        progress: Progress,
        stopping: Stopping,
        hear: Callable[[], None],
        spent: Callable[[], Spent | None],
    ) -> None:
        self._config, self._gang, self._ranks, self._state = config, gang, ranks, state
        self._standing, self._progress, self._stopping = standing, progress, stopping
        self._hear, self._spent = hear, spent
        self._oom_kills = termination.oom_kills()

    def begin(self) -> None:
        """Ranks are about to start."""
        self._oom_kills = termination.oom_kills()

    def starts_again(self) -> bool:
        """Whether the gang was asked to go on as an incarnation after that of the ranks here."""
        return self._state.restart is not None and self._state.restart.incarnation > self._standing.incarnation

    def how(self) -> End:
        """The ranks have ended, as the goodput's ledger tells it."""
        first = self._state.restart.first if self.starts_again() and self._state.restart else self._state.first
        return how_ended((rank.exit_code for rank in self._ranks.all), first)

    async def failed(self, failed: list[Rank]) -> ExitFacts | None:
        """Ranks here have failed. None: the gang starts again."""
        own = await self._first_failure(failed)
        self._hear()
        done = [rank.rank for rank in self._ranks.all if rank.exit_code == 0]
        if own.echo and done:  # the script lets a rank leave before the others
            message = f"rank {done[0]} {verdict.LEFT_EARLY}; {own.message}"
            own = replace(own, crash=False, message=message, signature=verdict.ONE_LEFT)
        if own.cause is Cause.STORAGE and self.committed() is not None:
            own = verdict.refused_since(own)
        if not self._standing.may_be_known_again(self._step(), self._state.clock()):
            own = replace(own, signature="")
        say(own.message)
        facts = verdict.facts_of(own)
        self.leave_word(facts)
        ended = verdict.ended(self._config.index, self.complete(facts), echo=own.echo, crash=own.crash)
        telling = asyncio.ensure_future(self._report(ended))
        await self._stopping.end(self.starts_again)
        gang = await telling
        if self.starts_again():
            return None
        if gang is not None and gang.stop is not None and gang.ended is None:  # a stop was on its way here
            return verdict.stopped(gang.stop, own, killed=(), committed_step=self.committed())
        return self._seen(verdict.failed(own, gang.ended if gang is not None else None, self._config.index))

    async def _first_failure(self, failed: list[Rank]) -> Failure:
        """Of this pod's failed ranks the first whose failure is its own; an echo only when no other comes soon."""
        judged: dict[int, Failure] = {}
        until = self._state.clock() + ECHO_SECONDS
        while True:
            for rank in failed:
                if rank.rank not in judged:
                    judged[rank.rank] = await self._judge(rank)
                    if not judged[rank.rank].echo:
                        return judged[rank.rank]
            if self._state.clock() >= until or not self._ranks.running:
                return next(iter(judged.values()))
            await self._state.wait(until - self._state.clock())
            failed = [rank for rank in self._ranks.all if rank.exit_code]

    async def _judge(self, rank: Rank) -> Failure:
        await beside(rank.drain)
        risen = termination.oom_kills() > self._oom_kills
        out, err = rank.tails()
        return verdict.failure(rank.rank, rank.exit_code or 0, err, out, killed_for_memory=risen)

    async def stopped(self) -> ExitFacts | None:
        """The stop path. The script saves and exits 75, or ends by SIGTERM, within the grace. None: the only pod that
        was told is lost, and the gang starts again."""
        assert self._state.stop is not None
        stop = self._state.stop
        say(f"asked to stop ({stop.reason.value}), grace {stop.grace_seconds:g} s")
        self._standing.phase = Phase.STOPPING
        killed = await self._stopping.drive()
        self._hear()
        if self._state.stop is None:
            return None
        if self._stopping.finished_by_themselves():
            return await self.succeeded()
        bad = [rank for rank in self._ranks.all if rank.exit_code not in (0, exits.EXIT_PREEMPTED)]
        failed = await self._first_failure(bad) if bad else None
        lost = failed  # that the others have left before it could begin is no failure to be told
        if failed is not None and failed.echo and not any(self._stopping.had_begun(rank) for rank in bad):
            lost = None
        facts = verdict.stopped(stop, lost, killed=killed, committed_step=self.committed())
        if failed is not None and failed.echo and stop.told not in (None, self._config.index):
            self.leave_word(facts)
            own = self.complete(verdict.facts_of(failed))
            await self._report(verdict.ended(self._config.index, own, echo=True, crash=failed.crash))
            if self._state.stop is None:
                return None
        return await self.tell(facts)

    async def succeeded(self) -> ExitFacts:
        """All ranks have exited with 0."""
        self._hear()  # a rank's last words may lie unread when its end is known already
        return await self.tell(verdict.succeeded(self._progress.nothing_left))

    async def followed(self) -> ExitFacts:
        """The gang has failed elsewhere, and the ranks here were ended."""
        index = self._config.index
        facts = verdict.followed(self._state.first, index)
        self.leave_word(facts)
        gang = await self._report(verdict.ended(index, self.complete(facts)))
        return self._seen(verdict.followed(gang.ended if gang is not None and gang.ended else self._state.first, index))

    async def tell(self, facts: ExitFacts) -> ExitFacts:
        """To whoever reads the termination message, and to index 0; returns the same facts."""
        self.leave_word(facts)
        await self._report(verdict.ended(self._config.index, self.complete(facts)))
        return facts

    async def _report(self, ended: Ended) -> GangState | None:
        gang = await self._gang.report(ended)
        if gang is not None and gang.restart is not None:
            self._state.ask_restart(gang.restart)
        return gang

    async def with_gang(self, facts: ExitFacts) -> ExitFacts:
        """Returns when index 0 needs this launcher no more, and as index 0 when the others have ended."""
        gang = await self._gang.finish(facts)
        self._standing.phase = Phase.ENDED
        if facts.cause is Cause.SUCCEEDED and gang.ended is not None and self._config.leads:
            facts = self.complete(self._seen(verdict.followed(gang.ended, self._config.index)))
            self.leave_word(facts)
        return facts

    def _seen(self, facts: ExitFacts) -> ExitFacts:
        """Index 0 bears witness for a worker that is lost and can't speak for itself."""
        first = self._state.first
        if self._config.leads and first is not None and first.is_loss and facts.cause is Cause.PEER:
            return replace(facts, cause=Cause.INFRASTRUCTURE, message=first.message)
        return facts

    def leave_word(self, facts: ExitFacts) -> None:
        """Writes the termination message before anything that may take long: kubelet may end the grace meanwhile."""
        termination.write(self._config.termination_log, self.complete(facts))

    def complete(self, facts: ExitFacts) -> ExitFacts:
        """With how far the run is."""
        tally = self._standing.tally
        return replace(
            facts,
            committed_step=self.committed(),
            stored=self._progress.stored,
            step=self._step(),
            loss=self._progress.loss,
            incarnation=self._standing.incarnation,
            restarts=tally.restarts,
            failures=tally.failures,
            memory_failures=tally.memory_failures,
            spent=self._spent(),
            numerics=self._numerics() if self._config.leads else None,
        )

    def _numerics(self) -> Numerics | None:
        told = self._progress.numerics
        return None if told is None else replace(told, last=told.last[:TEXT_LEFT])

    def _step(self) -> int | None:
        """Where the ranks stand, or where they began."""
        return self._progress.resumed_from if self._progress.step is None else self._progress.step

    def committed(self) -> int | None:
        """The step of the newest checkpoint that a rank has told of."""
        self._hear()  # a rank's last words may lie unread when its end is known already
        return self._progress.checkpoint.step if self._progress.checkpoint is not None else None
