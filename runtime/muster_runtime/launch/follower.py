"""The part of every index but 0 in the gang: join, send heartbeats, tell and be told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from muster_protocol import exits
from muster_protocol import launcher_api as api
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.launcher_api import Ended, GangState, Heartbeat, Member, Release
from muster_runtime.launch import verdict
from muster_runtime.launch.config import Config
from muster_runtime.launch.http_client import Client, Unreachable
from muster_runtime.launch.liveness import Silence
from muster_runtime.launch.membership import Refused, Roll
from muster_runtime.launch.progress import Progress
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
    def __init__(self, config: Config, client: Client, state: State, roll: Roll, progress: Progress) -> None:
        self._config = config
        self._client = client
        self._state = state
        self._roll = roll
        self._progress = progress
        self._own = config.member
        self._leader = config.leader_host
        self._released = False
        self.storage_errors: dict[int, str] = {}

    @property
    def joined(self) -> int:
        return self._config.workers if self._released else 1

    def members(self) -> tuple[Member, ...]:
        return self._roll.held.members if self._roll.held is not None else ()

    def pushed(self) -> None:
        """A newer membership was pushed; index 0 may have another address."""
        self._state.tell()

    # ------------------------------------------------------------------------------------------------------ the barrier

    async def assemble(self, preflight: asyncio.Future[None] | None) -> Release:
        """Returns when index 0 lets the gang go. Raises Over."""
        limit = REJOIN_SECONDS if self._released else self._config.ready_timeout
        patience = _Patience(limit, self._state.clock)
        while True:
            self._raise_if_over()
            status, body = await self._join_once(patience)
            if status == 200:
                self._released = True
                return api.decode(Release, body)
            if status == 410:
                raise Over(_facts(api.decode(Ended, body)))
            why = patience.spent()
            if why:
                raise Over(ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, why))
            await self._state.wait(patience.pause())

    async def _join_once(self, patience: _Patience) -> tuple[int, bytes]:
        named = self._roll.of(0)
        self._leader = named.address if named is not None and named.address else self._config.leader_host
        call = asyncio.ensure_future(
            self._client.call(
                "POST", self._leader, api.JOIN_PATH, api.encode(self._own), timeout=api.JOIN_HOLD_SECONDS + 5
            )
        )
        call.add_done_callback(lambda _: self._state.tell())
        while not call.done():  # a stop must not wait for the barrier
            if self._state.stop is not None or self._state.foreign or self._state.lost or self._state.ending:
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
        if self._state.stop is not None:
            message = f"stopped ({self._state.stop.reason.value}) before the gang was complete"
            raise Over(ExitFacts(Cause.PREEMPTED, exits.EXIT_PREEMPTED, message))
        if self._state.foreign:
            raise Over(ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, self._state.foreign))
        if self._state.lost:
            raise Over(ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, self._state.lost))
        if self._state.ending:
            raise Over(verdict.followed(self._state.first))

    # ---------------------------------------------------------------------------------------------------- while it runs

    def begin(self) -> None:
        self._background(self._beat())

    def heartbeat(self, beat: Heartbeat) -> GangState | Refused:
        return Refused(421, "heartbeats go to index 0")

    async def join(self, member: Member, gone: asyncio.Event) -> Release | Ended | Refused | None:
        return Refused(421, "index 0 holds the barrier")

    async def report(self, ended: Ended) -> GangState | None:
        """Tells index 0 that this pod's ranks ended; None when it can't be told."""
        body = await self._tell(api.ENDED_PATH, api.encode(ended), timeout=TELL_SECONDS)
        return api.decode(GangState, body) if body is not None else None

    def spread(self) -> None:
        """Tells index 0 of the stop that was asked here; it passes it on to all."""
        stop = self._state.stop_left()
        if stop is not None:
            self._background(self._tell(api.STOP_PATH, api.encode(stop), timeout=_CALL_SECONDS))

    async def finish(self, facts: ExitFacts) -> GangState:
        self._state.end_tasks()
        return GangState(self._state.stop_left(), self._state.first, self._state.restart)

    async def _tell(self, path: str, body: bytes, *, timeout: float) -> bytes | None:
        until = self._state.clock() + TELL_SECONDS
        pauses = iter(_BACKOFF)
        while True:
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

    async def _beat(self) -> None:
        interval = self._config.heartbeat
        silence = Silence(interval, self._state.clock())
        while True:
            why = await self._beat_once()
            lost = silence.pass_to(self._state.clock(), [0])
            if not why:
                silence.heard(0)
            elif lost:
                self._state.give_up(f"index 0 gave no answer for {lost[0]:.0f} s ({why}); its node or network failed")
                return
            await asyncio.sleep(interval)

    async def _beat_once(self) -> str:
        """ "" when index 0 answered, else why not."""
        beat = Heartbeat(self._config.index, self._config.pod_uid, self._progress.storage_error)
        try:
            status, body = await self._client.call(
                "POST", self._leader, api.HEARTBEAT_PATH, api.encode(beat), timeout=_CALL_SECONDS
            )
            if status != 200:
                return f"it answered {status}: {body[:200].decode(errors='replace').strip()}"
            self._state.adopt(api.decode(GangState, body))
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
            say(why)
            self._said = why


def _facts(ended: Ended) -> ExitFacts:
    """Index 0 ended before the gang was complete; this pod ends with the same exit code."""
    try:
        cause = Cause(ended.cause)
    except ValueError:
        cause = Cause.PEER
    keep = cause in (Cause.PREEMPTED, Cause.MAX_RUNTIME)
    return ExitFacts(cause if keep else Cause.PEER, ended.exit_code, f"followed index {ended.index}: {ended.message}")
