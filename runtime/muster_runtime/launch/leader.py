"""Index 0's part in the gang: it holds the barrier, hears the heartbeats, finds out who failed first, decides whether
the gang starts again in its pods, and passes stops, restarts and ends on to all others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any, Final

from muster_protocol import exits
from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_api import Ended, GangState, Heartbeat, Member, Release, Restart, Stop, StopReason
from muster_runtime.launch import verdict
from muster_runtime.launch.config import Config
from muster_runtime.launch.http_client import Client
from muster_runtime.launch.liveness import PROBING_SECONDS, Silence, silent
from muster_runtime.launch.membership import Barrier, Refused, Roll
from muster_runtime.launch.ports import Ports
from muster_runtime.launch.restarts import Refusal, Restarts
from muster_runtime.launch.state import Over, State
from muster_runtime.launch.termination import say

SETTLE_SECONDS: Final = 2.0
"""How long a failure that looks like an echo waits for the one that caused it."""
LINGER_SECONDS: Final = 12.0
"""After a failure: how long the others have to end and to ask what was first."""
REJOIN_SECONDS: Final = 60.0
"""How long the barrier of a restart waits: every pod lives, and its ranks are killed after a few seconds."""
_BARRIER_PATIENCE: Final = 10.0
"""Between two calls a launcher counts as present for so long; it calls again at once."""
_SAY_AGAIN_SECONDS: Final = 10.0
_WELL: Final = frozenset({Cause.SUCCEEDED.value, Cause.PEER.value})
_ASKED: Final = frozenset({Cause.PREEMPTED.value, Cause.MAX_RUNTIME.value})


class Leader:
    def __init__(self, config: Config, client: Client, state: State, roll: Roll) -> None:
        self._config = config
        self._client = client
        self._state = state
        self._roll = roll
        self._own = config.member
        self._over: Ended | None = None
        self._members: dict[int, Member] = {}
        """Who was let go, once anybody was. A restart doesn't change it."""
        self._silence = Silence(config.heartbeat, state.clock())
        self._restarts = Restarts(config.restarts)
        self._not_before = 0.0
        self._ports = Ports(config.address)
        self._open_barrier(1)
        self.storage_errors: dict[int, str] = {}
        """What other workers found wrong with the storage, by index."""

    def _open_barrier(self, incarnation: int) -> None:
        """For the processes that will be this incarnation."""
        self._incarnation = incarnation
        self._barrier = Barrier(self._config.workers, patience=_BARRIER_PATIENCE)
        self._barrier.enter(self._own, self._state.clock())
        self._release: Release | None = None
        self._decided = asyncio.Event()
        """The barrier is over, well or not."""
        self._ended: dict[int, Ended] = {}
        self._failures: list[Ended] = []
        self._settled = False

    # ------------------------------------------------------------------------------------------------------ the barrier

    @property
    def joined(self) -> int:
        return len(self._members) if self._release else len(self._barrier.present(self._state.clock()))

    def members(self) -> tuple[Member, ...]:
        known = self._members if self._release else self._barrier.present(self._state.clock())
        return tuple(known[index] for index in sorted(known))

    def pushed(self) -> None:
        """A newer membership was pushed."""
        if self._release is None:
            self._barrier.keep(self._roll)
        self._state.tell()

    async def assemble(self, preflight: asyncio.Future[None] | None) -> Release:
        """Returns when every index is here and the storage is found well. Raises Over."""
        state, self._patience = self._state, REJOIN_SECONDS if self._members else self._config.ready_timeout
        deadline = self._state.clock() + self._patience + max(0.0, self._not_before - state.clock())
        say_at = state.clock() + 1.0
        try:
            while True:
                self._raise_if_over(preflight)
                now = state.clock()
                checked = (preflight is None or preflight.done()) and now >= self._not_before
                if checked and self._barrier.may_be_full and not self._barrier.missing(now):
                    return self._let_go()
                if now >= deadline:
                    raise Over(self._late(self._barrier.missing(now)))
                if now >= say_at and (missing := self._barrier.missing(now)):
                    here = self._config.workers - len(missing)
                    say(f"waiting for index {_some(missing)} ({here} of {self._config.workers} are here)")
                    say_at = now + _SAY_AGAIN_SECONDS
                until = min(deadline, self._not_before) if now < self._not_before else deadline
                await state.wait(min(1.0, until - now))
        except Over as over:
            facts = over.facts
            self._over = Ended(0, facts.exit_code, facts.cause.value, facts.message)
            self._decided.set()
            raise

    def _raise_if_over(self, preflight: asyncio.Future[None] | None) -> None:
        if self._state.stop is not None:
            message = f"stopped ({self._state.stop.reason.value}) before the gang was complete"
            raise Over(ExitFacts(Cause.PREEMPTED, exits.EXIT_PREEMPTED, message))
        if self._state.foreign:
            raise Over(ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, self._state.foreign))
        if self._state.ending:
            raise Over(verdict.followed(self._state.first))
        if preflight is not None and preflight.done():
            preflight.result()

    def _late(self, missing: list[int]) -> ExitFacts:
        limit = "the time of a restart in place" if self._members else "readyTimeout"
        waited = f"within {limit} ({self._patience:g} s)"
        message = f"index {_some(missing)} did not join {waited}; see why those pods are not running"
        if not missing:
            message = f"the checkpoint's storage could not be checked {waited}"
        return ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, message)

    def _let_go(self) -> Release:
        self._members = self._barrier.present(self._state.clock())
        self._incarnation = max(self._incarnation, self._roll.incarnation())
        self._release = Release(self._incarnation, self._config.address, self._ports.free())
        self._silence = Silence(self._config.heartbeat, self._state.clock())
        self._decided.set()
        return self._release

    async def join(self, member: Member, gone: asyncio.Event) -> Release | Ended | Refused | None:
        """One call of one launcher; None: not yet, ask again."""
        refused = self._roll.check(member)
        if refused is None and member.index == 0 and member.pod_uid != self._own.pod_uid:
            refused = Refused(403, f"index 0 is pod {self._own.pod_uid}")
        known = self._members.get(member.index)
        if refused is None and known is not None and known.pod_uid != member.pod_uid:
            refused = Refused(409, f"the gang runs already, with pod {known.pod_uid} as index {member.index}")
        if refused is None and self._release is not None:
            return self._release
        if refused is None and self._over is None:
            refused = self._barrier.enter(member, self._state.clock())
            if refused is None:
                return await self._hold(member, gone)
        return refused or self._over

    async def _hold(self, member: Member, gone: asyncio.Event) -> Release | Ended | None:
        if self._barrier.may_be_full:
            self._state.tell()
        either = [asyncio.ensure_future(self._decided.wait()), asyncio.ensure_future(gone.wait())]
        try:
            await asyncio.wait(either, timeout=api.JOIN_HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in either:
                one.cancel()
            self._barrier.leave(member, self._state.clock(), hung_up=gone.is_set())
        if self._release is not None and self._members[member.index].pod_uid != member.pod_uid:
            return None  # replaced by a newer attempt while it waited; its next call is refused
        return self._release or self._over

    # ---------------------------------------------------------------------------------------------------- while it runs

    def begin(self) -> None:
        """The ranks have started: watch the others, and the run's time."""
        self._background(self._watch())
        if not math.isinf(self._config.max_runtime):
            self._background(self._limit())

    def heartbeat(self, beat: Heartbeat) -> GangState | Refused:
        member = self._members.get(beat.index)
        if member is None or member.pod_uid != beat.pod_uid:
            return Refused(403, f"index {beat.index} of this gang is not pod {beat.pod_uid}")
        self._silence.heard(beat.index)
        self.storage_errors.pop(beat.index, None)
        if beat.storage_error:
            self.storage_errors[beat.index] = beat.storage_error
        return self._gang()

    async def report(self, ended: Ended) -> GangState:
        """A worker's ranks ended (also index 0's own); returns what that means for the gang."""
        if ended.incarnation and ended.incarnation < self._incarnation:
            return self._gang()  # old news; the answer says that the gang starts again
        self._record(ended)
        until = self._state.clock() + SETTLE_SECONDS + PROBING_SECONDS + 1
        while self._failures and not self._settled and self._state.clock() < until:
            await self._state.wait(until - self._state.clock())
        return self._gang()

    def spread(self) -> None:
        """Passes the stop that was asked here on to all others; heartbeats carry it too, should a call fail.

        Before the release there is nobody to call: those who wait at the barrier get it as their answer.
        """
        stop = self._state.stop_left()
        if stop is not None and self._release is not None:
            self._background(self._relay(api.STOP_PATH, stop))

    async def finish(self, facts: ExitFacts) -> GangState:
        """Serves until the others have ended, so that nobody takes this end for a failure."""
        if not self._members:
            until = self._state.clock() + (1.0 if self._config.workers > 1 else 0.0)  # held calls are answered at once
        elif facts.cause is Cause.SUCCEEDED:
            until = math.inf  # the others may have more to do; the watch ends the wait when they are lost
        elif self._state.stop is not None:
            until = self._state.stop_deadline - 1.0  # kubelet kills when the grace is over
        else:
            until = self._state.clock() + LINGER_SECONDS
        while self._unfinished() and self._state.clock() < until:
            if self._failures and until == math.inf:
                until = self._state.clock() + LINGER_SECONDS
            if self._state.stop is not None:
                until = min(until, max(self._state.stop_deadline, self._state.clock() + 1.0))
            await self._state.wait(min(1.0, until - self._state.clock()))
        self._state.end_tasks()
        return self._gang()

    def _unfinished(self) -> list[int]:
        if not self._members:
            return [index for index in self._barrier.present(self._state.clock()) if index != 0]
        return [index for index in self._members if index not in self._ended and index != 0]

    def _gang(self) -> GangState:
        return GangState(self._state.stop_left(), self._state.first, self._state.restart)

    # ------------------------------------------------------------------------------------------------- who failed first

    def _record(self, ended: Ended) -> None:
        if ended.index in self._ended or ended.index not in self._members:
            return
        self._ended[ended.index] = ended
        if ended.cause in _ASKED and self._state.stop is None:
            reason = StopReason.MAX_RUNTIME if ended.cause == Cause.MAX_RUNTIME.value else StopReason.PREEMPT
            self._state.ask_stop(Stop(reason, self._config.grace))
            self.spread()
        elif ended.cause not in _WELL and self._state.stop is None:
            self._failures.append(ended)
            if len(self._failures) == 1:
                self._background(self._settle())
        self._state.tell()

    async def _settle(self) -> None:
        until = self._state.clock() + SETTLE_SECONDS
        while self._state.clock() < until and not self._cause() and self._unfinished():
            await self._state.wait(until - self._state.clock())
        first = self._cause()
        if first is None:
            lost = await self._probe(self._unfinished())
            first = self._cause() or lost or self._failures[0]
        try:
            self._restart(first)
        except Refusal as refusal:
            self._settled = True
            self._state.end(replace(first, message="; ".join(filter(None, (first.message, str(refusal))))))
            await self._relay(api.STOP_PATH, Stop(StopReason.PEER, 0.0))
        else:
            await self._relay(api.RESTART_PATH, self._state.restart)

    def _restart(self, first: Ended) -> None:
        """Opens the barrier for the next incarnation of the gang. Refusal when it has to end instead."""
        somebody_is_done = any(ended.cause == Cause.SUCCEEDED.value for ended in self._ended.values())
        if self._state.stop is not None or self._state.ending or somebody_is_done:
            raise Refusal("")
        now = self._state.clock()
        self._not_before = now + self._restarts.pause(first, now)
        self._open_barrier(self._incarnation + 1)
        self._state.ask_restart(Restart(self._incarnation, first))

    def _cause(self) -> Ended | None:
        return next((one for one in self._failures if not one.secondary), None)

    async def _probe(self, indexes: Iterable[int]) -> Ended | None:
        """The first of `indexes` whose launcher does not answer, as an end by infrastructure."""
        found = await silent(self._client, {index: self._members[index].address for index in indexes})
        for index, why in found.items():
            return self._ended.setdefault(index, self._lost(index, f"its launcher does not answer: {why}"))
        return None

    def _lost(self, index: int, why: str) -> Ended:
        message = f"index {index} (pod {self._members[index].pod_uid}) is lost: {why}"
        return Ended(index, exits.EXIT_INFRASTRUCTURE, Cause.INFRASTRUCTURE.value, message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat)
            for index, seconds in self._silence.pass_to(self._state.clock(), self._unfinished()).items():
                self._record(self._lost(index, f"no heartbeat for {seconds:.0f} s; its node or network failed"))

    async def _limit(self) -> None:
        await asyncio.sleep(self._config.max_runtime)
        if self._state.ask_stop(Stop(StopReason.MAX_RUNTIME, self._config.grace)):
            self.spread()

    # ---------------------------------------------------------------------------------------------------- to the others

    async def _relay(self, path: str, message: Stop | Restart | None) -> None:
        """To all who have not ended; the next heartbeat tells those whom it doesn't reach."""
        hosts = [self._members[index].address for index in self._unfinished()]
        await self._client.tell_all(hosts, path, api.encode(message))

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        self._state.keep(asyncio.ensure_future(work))


def _some(indexes: list[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:8])
    return shown if len(indexes) <= 8 else f"{shown} and {len(indexes) - 8} more"
