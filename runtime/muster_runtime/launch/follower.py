"""The part of every index but 0 in the gang: join, send heartbeats, tell and be told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from muster_protocol import exits
from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_status import Straggler
from muster_protocol.messages import Ended, GangState, Heartbeat, Member, Release, Restart
from muster_protocol.wire import decode, encode
from muster_runtime.launch import verdict
from muster_runtime.launch.config import Config
from muster_runtime.launch.hangs import Hangs
from muster_runtime.launch.http_client import Client, Unreachable
from muster_runtime.launch.liveness import Silence
from muster_runtime.launch.membership import Refused, Roll
from muster_runtime.launch.progress import Progress
from muster_runtime.launch.standing import Standing
from muster_runtime.launch.state import Over, State
from muster_runtime.launch.termination import say

REJOIN_SECONDS: Final = 90.0
"""How long joining again after a restart in place is tried: longer than index 0 waits there."""
TELL_SECONDS: Final = 10.0
"""How long an end or a stop is tried to be told to index 0."""
_REFUSED_SECONDS: Final = 60.0
"""A refusal may be old news (the membership of a replaced pod is on its way); after this long it stands."""
_CALL_SECONDS: Final = 3.0
_BACKOFF: Final = (0.1, 0.2, 0.5, 1.0, 2.0)


class Follower:
    def __init__(
        self,
        config: Config,
        client: Client,
        state: State,
        roll: Roll,
        standing: Standing,
        progress: Progress,
        hangs: Hangs,
    ) -> None:
        self._config = config
        self._standing = standing
        self._client = client
        self._state = state
        self._roll = roll
        self._progress = progress
        self._hangs = hangs
        self._own = config.member
        self._leader = config.leader_host
        self._leader_uid = ""
        """Of the pod at that address, where that is known."""
        self._released = False
        self._incarnation = 0
        self._silence = Silence(config.heartbeat, state.clock())
        self._lost: Ended | None = None
        self._lost_uid = ""
        self._lost_until = 0.0
        self._stop_told: asyncio.Future[None] | None = None

    @property
    def storage_errors(self) -> dict[int, str]:
        return {}

    @property
    def failing_copy(self) -> str:
        return self._standing.copy_error

    @property
    def idleness_of_all(self) -> None:
        """Index 0 knows."""

    @property
    def stragglers(self) -> tuple[Straggler, ...]:
        return ()

    @property
    def joined(self) -> int:
        return self._config.workers if self._released else 1

    @property
    def lost(self) -> tuple[int, ...]:
        """Index 0, from its loss until it, or another in its place, has answered."""
        return (0,) if self._lost is not None else ()

    def members(self) -> tuple[Member, ...]:
        return self._roll.held.members if self._roll.held is not None else ()

    def pushed(self) -> None:
        """A newer membership was pushed; index 0 may be another pod, or have another address."""
        if self._config.replace_seconds and self._released and self._replaced(self._leader_uid):
            self._lose("was replaced")
        self._state.tell()

    # ------------------------------------------------------------------------------------------------------ the barrier

    async def assemble(self, preflight: asyncio.Future[None] | None) -> Release:
        """Returns when index 0 lets the gang go. Raises Over."""
        state = self._state
        patience = _Patience(REJOIN_SECONDS if self._released else self._config.first_wait[0], state.clock)
        while True:
            self._raise_if_over()
            if self._lost is not None and not self._replaced(self._lost_uid):
                await state.wait(min(1.0, self._lost_until - state.clock()))
                continue
            status, body = await self._join_once(patience)
            if status in (200, 202):
                self._found()
            if status == 200:
                release = decode(Release, body)
                self._released, self._incarnation = True, release.incarnation
                state.incarnation = max(state.incarnation, release.incarnation)
                self._leader_uid = release.leader_uid
                say(f"joined as index {self._own.index}; all {self._config.workers} workers are here")
                return release
            if status == 410:
                raise Over(_facts(decode(Ended, body), self._own.index))
            why = patience.spent()
            if why and self._lost is None:
                raise Over(ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, why))
            await state.wait(patience.pause())

    async def _join_once(self, patience: _Patience) -> tuple[int, bytes]:
        named, state = self._roll.of(0), self._state
        self._leader = named.address if named is not None and named.address else self._config.leader_host
        self._leader_uid = named.pod_uid if named is not None else self._leader_uid
        told_to_end = max(self._incarnation, state.restart.incarnation - 1 if state.restart is not None else 0)
        tally = self._standing.tally
        own = replace(
            self._own,
            incarnation=told_to_end,
            copy=self._standing.copy,
            restarts=tally.restarts,
            failures=tally.failures,
            memory_failures=tally.memory_failures,
        )
        if self._standing.figures is not None and not self._released:
            own = replace(own, figures=replace(self._standing.figures, sent_at=time.time()))
        body = encode(own)
        call = asyncio.ensure_future(
            self._client.call("POST", self._leader, api.JOIN_PATH, body, timeout=api.JOIN_HOLD_SECONDS + 5)
        )
        call.add_done_callback(lambda _: self._state.tell())
        already_lost = self._lost
        while not call.done():  # neither a stop nor another index 0 may wait for the barrier
            over = state.stop is not None or state.foreign or state.lost or state.ending
            if over or self._lost is not already_lost or self._replaced(self._leader_uid):
                call.cancel()
                return 0, b""
            await self._state.wait(1.0)
        try:
            status, body = call.result()
        except Unreachable as error:
            patience.unreachable(f"index 0 at {error}")
            return 0, b""
        if status == 202:
            patience.heard()
        elif status not in (200, 410):
            patience.refused(f"index 0 refuses this pod: {body[:300].decode(errors='replace').strip()}")
        return status, body

    def _raise_if_over(self) -> None:
        self._state.raise_if_over(self._own.index)
        if self._lost is not None and self._state.clock() >= self._lost_until:
            message = f"{self._lost.message}; no other pod took its place within {self._config.replace_seconds:g} s"
            raise Over(ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, message))

    def _replaced(self, pod_uid: str) -> bool:
        """Whether the membership has another pod in the place of that index 0."""
        named = self._roll.of(0)
        return named is not None and pod_uid not in ("", named.pod_uid)

    def _lose(self, why: str) -> None:
        """Index 0 is lost: the ranks end and wait for another in its place. Where none would come, the pod ends."""
        if not self._config.replace_seconds or not self._released:
            self._state.give_up(f"index 0 {why}")
        elif self._lost is None:
            message = f"index 0 (pod {self._leader_uid}) is lost: it {why}"
            self._lost = Ended(0, exits.EXIT_INFRASTRUCTURE, Cause.INFRASTRUCTURE.value, message)
            self._lost_uid, self._lost_until = self._leader_uid, self._state.clock() + self._config.replace_seconds
            self._state.ask_restart(Restart(self._incarnation + 1, self._lost), guessed=True)
            self._state.tell()

    def _found(self) -> None:
        """Index 0 answers, the one that was lost or another."""
        self._silence.heard(0)
        if self._lost is not None:
            say(f"index 0 answers at {self._leader}")
            self._lost = None
            self._state.tell()

    # ---------------------------------------------------------------------------------------------------- while it runs

    def begin(self) -> None:
        self._background(self._beat())

    def heartbeat(self, beat: Heartbeat) -> GangState | Refused:
        return Refused(421, "heartbeats go to index 0")

    async def join(self, member: Member, gone: asyncio.Event) -> Release | Ended | Refused | None:
        return Refused(421, "index 0 holds the barrier")

    async def report(self, ended: Ended) -> GangState | None:
        """Tells index 0 that this pod's ranks ended; None when it can't be told."""
        body = await self._tell(api.ENDED_PATH, encode(ended), timeout=TELL_SECONDS)
        if body is None and ended.crash and self._config.replace_seconds:
            self._lose("could not be told that ranks ended")
        return decode(GangState, body) if body is not None else None

    def spread(self) -> None:
        """Tells index 0 of the stop that was asked here; it passes it on to all. Without it, tells all."""
        stop = self._state.stop_left()
        if stop is not None:
            self._stop_told = asyncio.ensure_future(self._tell_stop(encode(stop)))
            self._state.keep(self._stop_told)

    async def _tell_stop(self, stop: bytes) -> None:
        if self._lost is None:
            await self._tell(api.STOP_PATH, stop, timeout=_CALL_SECONDS)
        else:
            others = [member.address for member in self.members() if member.index not in (0, self._own.index)]
            await self._client.tell_all(others, api.STOP_PATH, stop)

    async def finish(self, facts: ExitFacts) -> GangState:
        if self._stop_told is not None:
            await asyncio.wait({self._stop_told}, timeout=_CALL_SECONDS)
        self._state.end_tasks()
        return GangState(self._state.stop_left(), self._state.first, self._state.restart)

    async def _tell(self, path: str, body: bytes, *, timeout: float) -> bytes | None:
        until = self._state.clock() + TELL_SECONDS
        pauses = iter(_BACKOFF)
        while self._lost is None:
            try:
                status, answer = await self._client.call("POST", self._leader, path, body, timeout=timeout)
            except Unreachable as error:
                pause = next(pauses, _BACKOFF[-1])
                if self._state.clock() + pause >= until:
                    say(f"index 0 was not told: {error}")
                    return None
                await asyncio.sleep(pause)
                continue
            if status < 300:
                return answer
            say(f"index 0 answered {status} to {path}: {answer[:200].decode(errors='replace').strip()}")
            return None
        return None

    async def _beat(self) -> None:
        while not self._state.lost:
            why = await self._beat_once()
            lost = self._silence.pass_to(self._state.clock(), [0])
            if not why and not self._replaced(self._leader_uid):
                self._found()
            elif lost:
                self._lose(f"gave no answer for {lost[0]:.0f} s ({why}); its node or network failed")
            await asyncio.sleep(self._config.heartbeat)

    async def _beat_once(self) -> str:
        """ "" when index 0 answered, else why not."""
        stuck, copy_error = self._hangs.stuck, self._standing.copy_error
        own = self._config.index, self._config.pod_uid
        beat = Heartbeat(
            *own,
            self._progress.storage_error,
            stuck,
            copy_error,
            self._hangs.paces(),
            stopped=self._hangs.stopped,
            idleness=self._standing.idleness,
            joining=self._hangs.joining,
            left=self._hangs.left,
        )
        patience = min(_CALL_SECONDS, max(1.0, self._config.heartbeat))  # `Silence` counts two intervals a beat at most
        try:
            status, body = await self._client.call(
                "POST", self._leader, api.HEARTBEAT_PATH, encode(beat), timeout=patience
            )
            if status == 403:
                self._state.exclude(f"index 0 refuses this pod: {body[:300].decode(errors='replace').strip()}")
            if status != 200:
                return f"it answered {status}: {body[:200].decode(errors='replace').strip()}"
            self._state.adopt(decode(GangState, body))
        except (Unreachable, ValueError) as error:
            return str(error)
        return ""

    def _background(self, work: Coroutine[Any, Any, object]) -> None:
        self._state.keep(asyncio.ensure_future(work))


class _Patience:
    """How long joining goes on without success. Index 0's own clock counts while it answers."""

    def __init__(self, limit: float, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._heard_at = clock()
        self._refused_at: float | None = None
        self._why = ""
        self._said = ""
        self._tries = 0

    def heard(self) -> None:
        self._heard_at, self._refused_at, self._why, self._tries = self._clock(), None, "", 0

    def unreachable(self, why: str) -> None:
        self._refused_at = None
        self._note(why)

    def refused(self, why: str) -> None:
        self._refused_at = self._refused_at or self._clock()
        self._note(why)

    def spent(self) -> str:
        """Why it is time to give up, or ""."""
        now = self._clock()
        if self._refused_at is not None and now - self._refused_at >= min(_REFUSED_SECONDS, self._limit):
            return self._why
        if self._why and now - self._heard_at >= self._limit:
            return f"no place in the gang within {self._limit:g} s: {self._why}"
        return ""

    def pause(self) -> float:
        """Seconds until the next try."""
        if not self._why:
            return 0.01
        self._tries += 1
        return _BACKOFF[min(self._tries, len(_BACKOFF)) - 1]

    def _note(self, why: str) -> None:
        self._why = why
        if why != self._said:
            say(f"{why}; trying again")
            self._said = why


def _facts(ended: Ended, index: int) -> ExitFacts:
    """Index 0 ended before the gang was complete; this pod ends with the same exit code."""
    try:
        cause = Cause(ended.cause)
    except ValueError:
        cause = Cause.PEER
    if cause is Cause.NODE and ended.index == index:
        return verdict.unfit(ended, index)
    keep = cause in (Cause.PREEMPTED, Cause.MAX_RUNTIME)
    return ExitFacts(cause if keep else Cause.PEER, ended.exit_code, f"followed index {ended.index}: {ended.message}")
