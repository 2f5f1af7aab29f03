"""Index 0's part in the gang: it holds the barrier, hears the heartbeats, finds out who failed first, decides whether
the gang starts again in its pods, waits for others where pods were lost, and passes stops, restarts and ends on to all.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Container, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from muster_protocol import exits
from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.idleness import Idleness
from muster_protocol.launcher_status import Kept, Straggler
from muster_protocol.messages import Ended, Figures, GangState, Heartbeat, Member, Release, Restart, Stop, StopReason
from muster_protocol.wire import encode
from muster_runtime.launch import verdict
from muster_runtime.launch.checkup import judge
from muster_runtime.launch.config import Config
from muster_runtime.launch.hangs import Hangs, Search
from muster_runtime.launch.heard import Heard
from muster_runtime.launch.http_client import Client
from muster_runtime.launch.liveness import PROBING_SECONDS, Silence, silent
from muster_runtime.launch.membership import Barrier, Refused, Roll
from muster_runtime.launch.partners import Partners
from muster_runtime.launch.ports import Ports
from muster_runtime.launch.restarts import Refusal, Restarts
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import Over, State
from muster_runtime.launch.stragglers import Stragglers, told
from muster_runtime.launch.termination import say

SETTLE_SECONDS: Final = 2.0
"""How long a failure that looks like an echo waits for the one that caused it."""
LINGER_SECONDS: Final = 12.0
"""After a failure: how long the others have to end and to ask what was first."""
LATE_SECONDS: Final = 5.0
"""How long who comes late to the barrier is still told why there will be no start: more than a follower's longest
pause between two tries."""
REJOIN_SECONDS: Final = 60.0
"""How long the barrier of a restart waits: every pod lives, and its ranks are killed after a few seconds."""
_BARRIER_PATIENCE: Final = 10.0
"""Between two calls a launcher counts as present for so long; it calls again at once."""
_SAY_AGAIN_SECONDS: Final = 10.0
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
        self._own = config.member
        self._over: Ended | None = None
        self._told: set[int] = set()
        """Who has been told of it."""
        self._members: dict[int, Member] = {}
        """Who was let go, once anybody was, but for those that were lost since. A restart doesn't change it."""
        self._lost: dict[int, Ended] = {}
        """Why those indexes are waited for."""
        self._deadline = 0.0
        self._silence = Silence(config.heartbeat, state.clock())
        self._restarts = Restarts(config.restarts, config.memory_restarts, config.network_restarts)
        self._not_before = 0.0
        self._ports = Ports(config.address)
        self._figures: dict[int, Figures] = {}
        self._heard = Heard()
        self._partners = Partners()
        self._open_barrier(1)

    def _open_barrier(self, incarnation: int) -> None:
        """For the processes that will be this incarnation."""
        self._incarnation = incarnation
        self._barrier = Barrier(self._config.workers, patience=_BARRIER_PATIENCE)
        self._barrier.enter(self._own, self._state.clock())
        self._release: Release | None = None
        self._decided = asyncio.Event()
        """The barrier is over, well or not."""
        self._unfit: Ended | None = None
        self._ended: dict[int, Ended] = {}
        self._failures: list[Ended] = []
        self._settled = False

    # ------------------------------------------------------------------------------------------------------ the barrier

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

    @property
    def joined(self) -> int:
        return len(self._members) if self._release else len(self._barrier.present(self._state.clock()))

    @property
    def lost(self) -> tuple[int, ...]:
        """The indexes that are lost and have no new pod at the barrier yet."""
        present = self._barrier.present(self._state.clock()) if self._lost else {}
        return tuple(sorted(index for index in self._lost if index not in present))

    def members(self) -> tuple[Member, ...]:
        known = self._members if self._release else self._barrier.present(self._state.clock())
        return tuple(known[index] for index in sorted(known))

    def pushed(self) -> None:
        """A newer membership was pushed. Who has another's place is lost, whether it lives or not."""
        if self._config.replace_seconds:
            named = ((index, self._roll.of(index)) for index in self._members if index != 0)
            taken = {index: one.pod_uid for index, one in named if one and not self._is_member(index, one.pod_uid)}
            self._lose({index: f"pod {uid} takes its place" for index, uid in taken.items()})
        if self._release is None:
            self._barrier.keep(self._roll)
        self._state.tell()

    async def assemble(self, preflight: asyncio.Future[None] | None) -> Release:
        """Returns when every index is here and the storage is found well. Raises Over."""
        state = self._state
        self._wait, self._wait_name = self._config.first_wait
        if self._members:
            self._wait, self._wait_name = REJOIN_SECONDS, "the time of a restart in place"
        if not self._lost:
            self._deadline = max(state.clock(), self._not_before) + self._wait
        say_at = state.clock() + 1.0
        try:
            while True:
                state.raise_if_over(0)
                if preflight is not None and preflight.done():
                    preflight.result()
                now = state.clock()
                checked = (preflight is None or preflight.done()) and now >= self._not_before
                if checked and self._barrier.may_be_full and not self._barrier.missing(now):
                    self._check_nodes()
                    release = self._let_go()
                    return self._partners.release(release, 0)
                if now >= self._deadline:
                    raise Over(self._late(self._barrier.missing(now)))
                if now >= say_at and (missing := self._barrier.missing(now)):
                    here = self._config.workers - len(missing)
                    say(f"waiting for index {_some(missing)} ({here} of {self._config.workers} are here)")
                    say_at = now + _SAY_AGAIN_SECONDS
                until = min(self._deadline, self._not_before) if now < self._not_before else self._deadline
                await state.wait(min(1.0, until - now))
        except Over as over:
            facts = over.facts
            self._over = self._unfit or Ended(0, facts.exit_code, facts.cause.value, facts.message)
            self._decided.set()
            raise

    def _late(self, missing: list[int]) -> ExitFacts:
        gone = [index for index in missing if index in self._lost]
        if gone:
            waited = f"no other pod took the place of index {_some(gone)} within {self._config.replace_seconds:g} s"
            message = f"{self._lost[gone[0]].message}; {waited}"
            return ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, message)
        waited = f"within {self._wait_name} ({self._wait:g} s)"
        message = f"index {_some(missing)} did not join {waited}; see why those pods are not running"
        if not missing:
            message = f"the checkpoint's storage could not be checked {waited}"
        return ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, message)

    def _check_nodes(self) -> None:
        """Raises Over where a node is not fit to train, by the figures of those who join for the first time."""
        present = self._barrier.present(self._state.clock())
        new = {index: member.figures for index, member in present.items() if member.figures is not None}
        if self._standing.figures is not None and not self._figures:
            new[0] = self._standing.figures
        self._figures |= new
        found = [one for one in judge(self._figures, factor=self._config.pace.factor) if one.index in new]
        for one in found:
            say(one.ended().message)
        if found:
            self._unfit = found[0].ended()
            raise Over(verdict.unfit(self._unfit, 0))

    def _let_go(self) -> Release:
        own = replace(self._own, copy=self._standing.copy)
        self._members = {**self._barrier.present(self._state.clock()), 0: own}
        if self._config.copies_memory:
            self._partners = Partners.of(self._members, one_node=self._config.memory == Kept.PEER.value)
        for index in self._lost:
            self._roll.take_back(self._members[index].pod_uid)  # it may be the one that was lost
        self._lost.clear()
        seen = max(member.incarnation for member in self._members.values())
        self._incarnation = self._state.incarnation = max(self._incarnation, seen + 1, self._roll.incarnation())
        port = self._ports.free()
        for member in self._members.values():
            self._restarts.tally = self._restarts.tally.heard(member)
        tally = self._restarts.tally
        self._release = Release(
            self._incarnation,
            self._config.address,
            port,
            leader_uid=self._own.pod_uid,
            restarts=tally.restarts,
            failures=tally.failures,
            memory_failures=tally.memory_failures,
        )
        self._heard.begin_anew()
        self._paces.begin_anew(self._state.clock())
        self._silence = Silence(self._config.heartbeat, self._state.clock())
        self._decided.set()
        return self._release

    async def join(self, member: Member, gone: asyncio.Event) -> Release | Ended | Refused | None:
        """One call of one launcher; None: not yet, ask again."""
        refused = self._roll.check(member)
        if refused is None and member.index == 0 and member.pod_uid != self._own.pod_uid:
            refused = Refused(403, f"index 0 is pod {self._own.pod_uid}")
        if refused is None and member.index in self._members and not self._is_member(member.index, member.pod_uid):
            known = self._members[member.index].pod_uid
            refused = Refused(409, f"the gang runs already, with pod {known} as index {member.index}")
        if refused is None and self._release is not None and member.incarnation >= self._release.incarnation:
            refused = self._come_back(member)
        if refused is None and self._release is not None:
            return self._partners.release(self._release, member.index)
        if refused is None and self._over is None:
            if member.figures is not None:
                skew = member.figures.sent_at - time.time()
                member = replace(member, figures=replace(member.figures, skew=skew))
            refused = self._barrier.enter(member, self._state.clock())
            if refused is None:
                return await self._hold(member, gone)
        return refused or self._end_of(member)

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
        if self._release is None:
            return self._end_of(member)
        return self._partners.release(self._release, member.index)

    def _end_of(self, member: Member) -> Ended | None:
        """What ended the gang at the barrier, told to `member`; None while nothing has."""
        if self._over is not None:
            self._told.add(member.index)
            if len(self._told) == self._config.workers - 1:
                self._state.tell()
        return self._over

    # ---------------------------------------------------------------------------------------------------- while it runs

    def begin(self) -> None:
        """The ranks have started: watch the others, and the run's time."""
        self._background(self._watch())
        if not math.isinf(self._config.max_runtime):
            self._background(self._limit())

    def heartbeat(self, beat: Heartbeat) -> GangState | Refused:
        refused = self._roll.check_pod(beat.index, beat.pod_uid)
        taken = self._release is not None or beat.index in self._members  # else it was lost, or this index 0 is new
        if refused is None and taken and not self._is_member(beat.index, beat.pod_uid):
            refused = Refused(403, f"index {beat.index} of this gang is not pod {beat.pod_uid}")
        if refused is not None:
            return refused
        self._silence.heard(beat.index)
        self._search.heard(beat)
        self._paces.heard(beat.index, beat.paces)
        self._heard.take(beat)
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

        At the barrier `finish` does so: those who wait there get it as their answer.
        """
        stop = self._state.stop_left()
        if stop is not None and self._release is not None:
            self._background(self._relay(api.STOP_PATH, stop))

    async def finish(self, facts: ExitFacts) -> GangState:
        """Serves until the others have ended, so that nobody takes this end for a failure."""
        if self._release is None:
            if self._members:  # who is not at the barrier yet ends by itself when it knows
                await self._relay(api.STOP_PATH, self._state.stop_left() or self._end_all)
            await self._tell_barrier(LATE_SECONDS if facts.cause in _FOUND_BY_INDEX_0 else 1.0)
            until = self._state.clock()
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

    async def _tell_barrier(self, seconds: float) -> None:
        """Serves until each of the others has been told why the gang doesn't start, at most for `seconds`."""
        until = self._state.clock() + seconds
        while len(self._told) < self._config.workers - 1 and (left := until - self._state.clock()) > 0:
            await self._state.wait(left)

    def _unfinished(self) -> list[int]:
        return [index for index in self._members if index not in self._ended and index != 0]

    def _is_member(self, index: int, pod_uid: str) -> bool:
        return index in self._members and self._members[index].pod_uid == pod_uid

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
        elif ended.cause not in _WELL and (self._state.stop is None or ended.secondary):
            self._failures.append(ended)
            if len(self._failures) == 1:
                self._background(self._settle())
        self._state.tell()

    async def _settle(self) -> None:
        until, incarnation = self._state.clock() + SETTLE_SECONDS, self._incarnation
        stopping = self._state.stop is not None
        while self._state.clock() < until and not self._cause() and self._unfinished():
            await self._state.wait(until - self._state.clock())
        if self._cause() is None:
            hosts = {index: self._members[index].address for index in self._unfinished()}
            gone = await silent(self._client, hosts)
            if self._cause() is None and self._incarnation == incarnation:
                self._lose({index: f"its launcher does not answer: {why}" for index, why in gone.items()})
        if self._incarnation != incarnation:
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
        self._not_before = now + self._restarts.pause(first, now)
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
            return replace(first, message=f"{first.message}; index {done[0]} {verdict.LEFT_EARLY}")
        if first.cause != Cause.USER.value or not first.crash:
            return first
        return replace(first, cause=Cause.NETWORK.value, message=f"{first.message}; {verdict.LOST_EACH_OTHER}")

    def _begin_anew(self, first: Ended) -> None:
        if self._release is not None:
            self._open_barrier(self._incarnation + 1)
        self._state.ask_restart(Restart(self._incarnation, first))
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
            for index in lost:
                self._roll.give_up(self._members.pop(index).pod_uid)
                self._barrier.forget(index)
                self._heard.forget(index)
            self._lost |= lost
            self._deadline = self._state.clock() + self._config.replace_seconds
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
        message = f"index {index} (pod {self._members[index].pod_uid}) is lost: {why}"
        return Ended(index, exits.EXIT_INFRASTRUCTURE, Cause.INFRASTRUCTURE.value, message)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat)
            self._compare_paces()
            lost = self._silence.pass_to(self._state.clock(), self._unfinished())
            why = "no heartbeat for {:.0f} s; its node or network failed"
            self._lose({index: why.format(seconds) for index, seconds in lost.items()})
            if self._trains() and self._search.may_find(self._unfinished(), own_ended=0 in self._ended):
                self._background(self._find_hang())

    def _compare_paces(self) -> None:
        self._paces.heard(0, self._hangs.paces())
        for one in self._paces.look(self._state.clock(), self._config.world_size):
            say(told(one))

    def _trains(self) -> bool:
        return self._release is not None and not self._failures and self._state.stop is None

    async def _find_hang(self) -> None:
        """Takes a hang for a failure of the one that holds up the others."""
        incarnation = self._incarnation
        found = await self._search.find({index: self._members[index].address for index in self._unfinished()})
        if found is not None and self._incarnation == incarnation and self._trains():
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
        hosts = [self._members[index].address for index in self._unfinished()]
        await self._client.tell_all(hosts, path, encode(message))

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        self._state.keep(asyncio.ensure_future(work))


def _some(indexes: list[int]) -> str:
    shown = ", ".join(str(index) for index in indexes[:8])
    return shown if len(indexes) <= 8 else f"{shown} and {len(indexes) - 8} more"
