"""Index 0's part in the gang: it hears the heartbeats, finds out who failed first, decides whether the gang meets again
at the barrier (`rendezvous.py`) in its pods or with others where pods were lost, and passes stops, restarts and ends on
to all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from muster_protocol import exits
from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.idleness import Idleness
from muster_protocol.launcher_status import Straggler
from muster_protocol.messages import Ended, GangState, Heartbeat, Member, Release, Restart, Stop, StopReason
from muster_protocol.wire import encode
from muster_runtime.launch import verdict
from muster_runtime.launch.alone import Joining
from muster_runtime.launch.config import Config
from muster_runtime.launch.hangs import Hangs, Search
from muster_runtime.launch.heard import Heard
from muster_runtime.launch.http_client import Client
from muster_runtime.launch.liveness import PROBING_SECONDS, Silence, silent
from muster_runtime.launch.membership import Refused, Roll
from muster_runtime.launch.rendezvous import Rendezvous
from muster_runtime.launch.restarts import Refusal, Restarts
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import State
from muster_runtime.launch.stragglers import Stragglers, told
from muster_runtime.launch.termination import say

SETTLE_SECONDS: Final = 2.0
"""How long a failure that looks like an echo waits for the one that caused it."""
LINGER_SECONDS: Final = 12.0
"""After a failure: how long the others have to end and to ask what was first."""
LATE_SECONDS: Final = 5.0
"""How long who comes late to the barrier is still told why there will be no start: more than a follower's longest
pause between two tries."""
_WELL: Final = frozenset({Cause.SUCCEEDED.value, Cause.PEER.value})
_FOUND_BY_INDEX_0: Final = frozenset({Cause.STORAGE, Cause.CONFIG})
"""At the barrier: what the others can't know, and none of them caused."""
_ASKED: Final = frozenset({Cause.PREEMPTED.value, Cause.MAX_RUNTIME.value})


class Leader:
    def __init__(
        self, config: Config, client: Client, state: State, roll: Roll, standing: Standing, hangs: Hangs
    ) -> None:
        self._config = config
        self._standing = standing
        self._client = client
        self._state = state
        self._roll = roll
        self._search = Search(hangs, client)
        self._hangs, self._paces = hangs, Stragglers(config.pace, state.clock())
        self._silence = Silence(config.heartbeat, state.clock())
        self._restarts = Restarts(config.restarts, config.memory_restarts, config.network_restarts)
        self._meeting = Rendezvous(config, state, roll, standing, self._restarts)
        self._heard = Heard()
        self._forget_ends()

    def _forget_ends(self) -> None:
        """Of this incarnation nobody has ended yet."""
        self._ended: dict[int, Ended] = {}
        self._failures: list[Ended] = []
        self._joining = Joining()
        self._settled = False

    # ------------------------------------------------------------------------------------------------- what it can tell

    @property
    def joined(self) -> int:
        return self._meeting.joined

    @property
    def lost(self) -> tuple[int, ...]:
        """The indexes that are lost and have no new pod at the barrier yet."""
        return self._meeting.missed

    def members(self) -> tuple[Member, ...]:
        return self._meeting.here()

    @property
    def failing_copy(self) -> str:
        return self._heard.failing_copy(self._standing.copy_error)

    @property
    def storage_errors(self) -> dict[int, str]:
        return self._heard.storage_errors

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        """Ranks that have been slower than the others for a while, the slowest first."""
        return self._paces.found

    @property
    def idleness_of_all(self) -> Idleness | None:
        return self._heard.idleness(self._standing.idleness, self._config.workers)

    def pushed(self) -> None:
        """A newer membership was pushed. Who has another's place is lost, whether it lives or not."""
        if self._config.replace_seconds:
            named = ((index, self._roll.of(index)) for index in self._meeting.members if index != 0)
            taken = ((index, one.pod_uid) for index, one in named if one)
            others = {index: uid for index, uid in taken if not self._meeting.is_member(index, uid)}
            self._lose({index: f"pod {uid} takes its place" for index, uid in others.items()})
        self._meeting.keep_named()
        self._state.tell()

    # ------------------------------------------------------------------------------------------------------ the barrier

    async def assemble(self, preflight: asyncio.Future[None] | None) -> Release:
        """Returns when every index is here and the storage is found well. Raises Over."""
        release = await self._meeting.assemble(preflight)
        self._heard.begin_anew()
        self._paces.begin_anew(self._state.clock())
        self._silence = Silence(self._config.heartbeat, self._state.clock())
        return release

    async def join(self, member: Member, gone: asyncio.Event) -> Release | Ended | Refused | None:
        """One call of one launcher; None: not yet, ask again."""
        refused, release = self._meeting.check(member), self._meeting.release
        if refused is None and release is not None and member.incarnation >= release.incarnation:
            refused = self._come_back(member)
        return refused or await self._meeting.join(member, gone)

    # ---------------------------------------------------------------------------------------------------- while it runs

    def begin(self) -> None:
        """The ranks have started: watch the others, and the run's time."""
        self._background(self._watch())
        if not math.isinf(self._config.max_runtime):
            self._background(self._limit())

    def heartbeat(self, beat: Heartbeat) -> GangState | Refused:
        refused = self._roll.check_pod(beat.index, beat.pod_uid)
        meeting = self._meeting
        taken = meeting.release is not None or beat.index in meeting.members  # else it was lost, or this index 0 is new
        if refused is None and taken and not meeting.is_member(beat.index, beat.pod_uid):
            refused = Refused(403, f"index {beat.index} of this gang is not pod {beat.pod_uid}")
        if refused is not None:
            return refused
        self._silence.heard(beat.index)
        self._search.heard(beat)
        self._paces.heard(beat.index, beat.paces)
        self._heard.take(beat)
        if beat.index not in self._ended:
            self._joining.heard(beat.index, beat.joining, beat.left, self._state.clock())
        return self._gang()

    async def report(self, ended: Ended) -> GangState:
        """A worker's ranks ended (also index 0's own); returns what that means for the gang."""
        if ended.incarnation and ended.incarnation < self._meeting.incarnation:
            return self._gang()  # old news; the answer says that the gang starts again
        self._record(ended)
        until = self._state.clock() + SETTLE_SECONDS + PROBING_SECONDS + 1
        while self._failures and not self._settled and self._state.clock() < until:
            await self._state.wait(until - self._state.clock())
        return self._gang()

    def spread(self) -> None:
        """Passes the stop that was asked here on to all others; heartbeats carry it too, should a call fail.

        At the barrier `finish` does so: those who wait there get it as their answer.
        """
        stop = self._state.stop_left()
        if stop is not None and self._meeting.release is not None:
            self._background(self._relay(api.STOP_PATH, stop))

    async def finish(self, facts: ExitFacts) -> GangState:
        """Serves until the others have ended, so that nobody takes this end for a failure."""
        if self._meeting.release is None:
            if self._meeting.members:  # who is not at the barrier yet ends by itself when it knows
                await self._relay(api.STOP_PATH, self._state.stop_left() or self._end_all)
            await self._meeting.tell_all(LATE_SECONDS if facts.cause in _FOUND_BY_INDEX_0 else 1.0)
            until = self._state.clock()
        elif facts.cause is Cause.SUCCEEDED:
            until = math.inf  # the others may have more to do; the watch ends the wait when they are lost
        elif self._state.stop is not None:
            until = self._state.stop_deadline - 1.0  # kubelet kills when the grace is over
            self._background(self._look_who_is_gone())
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

    async def _look_who_is_gone(self) -> None:
        """The ranks here have stopped. Who was killed before its own had can't say so, and nobody's GPUs are to wait
        until its heartbeats are missed."""
        await asyncio.sleep(SETTLE_SECONDS)
        while self._unfinished():
            gone = await self._unanswered()
            self._lose({index: gone[index] for index in self._unfinished() if index in gone})
            await asyncio.sleep(self._config.heartbeat)

    async def _unanswered(self) -> dict[int, str]:
        """Those who have told of no end and do not answer either, and how that shows."""
        hosts = {index: self._meeting.members[index].address for index in self._unfinished()}
        gone = await silent(self._client, hosts)
        return {index: f"its launcher does not answer: {why}" for index, why in gone.items()}

    def _unfinished(self) -> list[int]:
        return [index for index in self._meeting.members if index not in self._ended and index != 0]

    def _gang(self) -> GangState:
        return GangState(self._state.stop_left(), self._state.first, self._state.restart)

    # ------------------------------------------------------------------------------------------------- who failed first

    def _record(self, ended: Ended) -> None:
        if ended.index in self._ended or ended.index not in self._meeting.members:
            return
        self._ended[ended.index] = ended
        if ended.cause == Cause.SUCCEEDED.value:
            self._joining.ended_well(ended.index, self._state.clock())
        if ended.cause in _ASKED and self._state.stop is None:
            reason = StopReason.MAX_RUNTIME if ended.cause == Cause.MAX_RUNTIME.value else StopReason.PREEMPT
            self._state.ask_stop(Stop(reason, self._config.grace))
            self.spread()
        elif ended.cause not in _WELL and (self._state.stop is None or ended.secondary):
            self._failures.append(ended)
            if len(self._failures) == 1:
                self._background(self._settle())
        self._state.tell()

    async def _settle(self) -> None:
        until, incarnation = self._state.clock() + SETTLE_SECONDS, self._meeting.incarnation
        stopping = self._state.stop is not None
        while self._state.clock() < until and not self._cause() and self._unfinished():
            await self._state.wait(until - self._state.clock())
        if self._cause() is None:
            gone = await self._unanswered()
            if self._cause() is None and self._meeting.incarnation == incarnation:
                self._lose(gone)
        if self._meeting.incarnation != incarnation:
            return  # pods were lost, and the gang waits for others
        if stopping:
            self._settled = True  # who was told lives: its peers end with it
            self._state.tell()
            return
        first = self._cause() or self._nobodys(self._failures[0])
        try:
            self._restart(first)
        except Refusal as refusal:
            self._settled = True
            told = "; ".join(filter(None, (first.message, str(refusal))))
            self._state.end(replace(first, message=told, alike=self._restarts.alike))
            await self._relay(api.STOP_PATH, self._end_all)

    def _restart(self, first: Ended) -> None:
        """Opens the barrier for the next incarnation of the gang. Refusal when it has to end instead."""
        if not self._may_start_again():
            raise Refusal("")
        now = self._state.clock()
        self._meeting.not_before = now + self._restarts.pause(first, now)
        self._begin_anew(first)

    def _may_start_again(self, lost: Container[int] = ()) -> bool:
        """`lost`: the indexes that the gang has just lost."""
        return not (self._stops(lost) or self._state.ending or self._somebody_is_done())

    def _stops(self, lost: Container[int]) -> bool:
        """Whether the gang was asked to stop, by more than a pod that was told and is lost before anybody has saved."""
        stop = self._state.stop
        return stop is not None and (
            stop.told not in lost or any(ended.cause in _ASKED for ended in self._ended.values())
        )

    def _somebody_is_done(self) -> bool:
        return any(ended.cause == Cause.SUCCEEDED.value for ended in self._ended.values())

    def _nobodys(self, first: Ended) -> Ended:
        """Every failed rank lost another, and all launchers live: that is no rank's doing, unless one left early."""
        done = [index for index, ended in self._ended.items() if ended.cause == Cause.SUCCEEDED.value]
        if done:
            message = f"index {done[0]} {verdict.LEFT_EARLY}; {first.message}"
            known = self._standing.may_be_known_again(first.step, self._state.clock())
            return replace(first, message=message, signature=verdict.ONE_LEFT if known else "")
        if first.cause != Cause.USER.value or not first.crash:
            return first
        return replace(first, cause=Cause.NETWORK.value, message=f"{first.message}; {verdict.LOST_EACH_OTHER}")

    def _begin_anew(self, first: Ended) -> None:
        if self._meeting.release is not None:
            self._meeting.open(self._meeting.incarnation + 1)
            self._forget_ends()
        self._state.ask_restart(Restart(self._meeting.incarnation, first))
        self._background(self._relay(api.RESTART_PATH, self._state.restart))

    def _cause(self) -> Ended | None:
        return next((one for one in self._failures if not one.secondary), None)

    # ---------------------------------------------------------------------------------------------------- who was lost

    def _lose(self, why: Mapping[int, str]) -> None:
        """These indexes' pods are lost: others are waited for in their places, or the gang ends."""
        lost = {index: self._loss(index, reason) for index, reason in why.items()}
        if not self._config.replace_seconds or not self._may_start_again(lost):
            for ended in lost.values():
                self._record(ended)
        elif lost:
            self._meeting.lose(lost)
            for index in lost:
                self._heard.forget(index)
                self._joining.forget(index)
            told = self._state.stop.told if self._state.stop is not None else None
            self._begin_anew(lost[told] if told is not None else next(iter(lost.values())))

    def _come_back(self, member: Member) -> Refused | None:
        """It has ended its ranks of this incarnation, because it did not hear index 0 for long."""
        if not self._may_start_again():
            return Refused(409, "the gang is ending")
        message = f"index {member.index} did not hear index 0 for long, and is back"
        self._begin_anew(Ended(member.index, exits.EXIT_INFRASTRUCTURE, Cause.INFRASTRUCTURE.value, message))
        return None

    def _loss(self, index: int, why: str) -> Ended:
        message = f"index {index} (pod {self._meeting.members[index].pod_uid}) is lost: {why}"
        return Ended(index, exits.EXIT_INFRASTRUCTURE, Cause.INFRASTRUCTURE.value, message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat)
            self._compare_paces()
            lost = self._silence.pass_to(self._state.clock(), self._unfinished())
            why = "no heartbeat for {:.0f} s; its node or network failed"
            self._lose({index: why.format(seconds) for index, seconds in lost.items()})
            self._look_who_is_alone()
            if self._trains() and self._search.may_find(self._unfinished(), own_ended=0 in self._ended):
                self._background(self._find_hang())

    def _look_who_is_alone(self) -> None:
        """Takes it for a failure when ranks wait for one to join that has ended."""
        now = self._state.clock()
        if 0 not in self._ended:
            self._joining.heard(0, self._hangs.joining, self._hangs.left, now)
        alone = self._joining.found(now) if self._trains() else None
        if alone is not None:
            self._failures.append(verdict.left_alone(alone.index, alone.waits, alone.left, self._meeting.incarnation))
            self._background(self._settle())

    def _compare_paces(self) -> None:
        self._paces.heard(0, self._hangs.paces())
        for one in self._paces.look(self._state.clock(), self._config.world_size):
            say(told(one))

    def _trains(self) -> bool:
        return self._meeting.release is not None and not self._failures and self._state.stop is None

    async def _find_hang(self) -> None:
        """Takes a hang for a failure of the one that holds up the others."""
        incarnation = self._meeting.incarnation
        found = await self._search.find({index: self._meeting.members[index].address for index in self._unfinished()})
        if found is not None and self._meeting.incarnation == incarnation and self._trains():
            self._failures.append(replace(found, incarnation=incarnation))
            await self._settle()

    async def _limit(self) -> None:
        await asyncio.sleep(self._config.max_runtime)
        if self._state.ask_stop(Stop(StopReason.MAX_RUNTIME, self._config.grace)):
            self.spread()

    # ---------------------------------------------------------------------------------------------------- to the others

    @property
    def _end_all(self) -> Stop:
        return Stop(StopReason.PEER, 0.0, incarnation=self._state.incarnation)

    async def _relay(self, path: str, message: Stop | Restart | None) -> None:
        """To all who have not ended; the next heartbeat tells those whom it doesn't reach."""
        hosts = [self._meeting.members[index].address for index in self._unfinished()]
        await self._client.tell_all(hosts, path, encode(message))

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        self._state.keep(asyncio.ensure_future(work))
