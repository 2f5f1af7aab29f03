"""What is asked of this launcher: stop, or end with the others. Changed from several sides, watched by several."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from muster_protocol import exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.messages import Ended, GangState, Restart, Stop, StopReason
from muster_runtime.launch import verdict


class Over(Exception):
    """The gang ended before its ranks were started; `facts` tell why."""

    def __init__(self, facts: ExitFacts) -> None:
        super().__init__(facts.message)
        self.facts = facts


class State:
    """Lives in the event loop's thread. `wait` wakes at every change; check what you wait for before each call.

    Attributes:
        stop: asked to stop; the reason given first stays, and `told` while all who ask name the same pod.
        stop_deadline: when the grace is over, on `clock`; asking again may only bring it nearer.
        ending: another worker failed; end the ranks.
        first: the failure that came first, once that is known.
        restart: the newest incarnation that the gang was asked to go on as, or None.
        incarnation: the newest that index 0 has named, by its release or by a restart; 0 before.
        lost: why index 0 is given up, or what failed in this launcher itself, or "".
        foreign: why this pod does not belong to the gang any more, or "".
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.stop: Stop | None = None
        self.stop_deadline = 0.0
        self.ending = False
        self.first: Ended | None = None
        self.restart: Restart | None = None
        self.incarnation = 0
        self.lost = ""
        self.foreign = ""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Future[Any]] = set()

    def keep(self, task: asyncio.Future[Any]) -> None:
        """Looks after a background task. One that fails must not leave the gang waiting for ever, so it ends it."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            traceback.print_exception(type(error), error, error.__traceback__)
            self.give_up(f"the launcher failed: {error!r}")

    def tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, timeout: float) -> None:
        """Returns at the next change, at the latest after `timeout` seconds."""
        changed = self._changed
        try:
            await asyncio.wait_for(changed.wait(), max(0.0, timeout))
        except asyncio.TimeoutError:
            return

    def ask_stop(self, stop: Stop) -> bool:
        """Whether this changed anything."""
        if stop.reason is StopReason.PEER:
            return self.end(None)
        deadline = self.clock() + max(0.0, stop.grace_seconds)
        if self.stop is not None and self.stop.told != stop.told:
            self.stop = replace(self.stop, told=None)
        if self.stop is not None and deadline >= self.stop_deadline:
            return False
        self.stop = self.stop or stop
        self.stop_deadline = deadline
        self.tell()
        return True

    def hear_stop(self, stop: Stop) -> bool:
        """A stop that another launcher passes on; one of an older incarnation counts for nothing, it comes late: the
        gang went on since, without the pod that was told, and what is still meant index 0 says again with each
        heartbeat. Whether this changed anything.
        """
        return not 0 < stop.incarnation < self.incarnation and self.ask_stop(stop)

    def end(self, first: Ended | None) -> bool:
        """The gang has to end. Whether this changed anything."""
        if self.ending and (first is None or self.first is not None):
            return False
        self.ending = True
        self.first = self.first or first
        self.tell()
        return True

    def ask_restart(self, restart: Restart, *, guessed: bool = False) -> None:
        """A stop that only a lost pod was told of goes with it: the others go on with another in its place. `guessed`:
        index 0 doesn't answer, and its number of the incarnation isn't known."""
        if not guessed:
            self.incarnation = max(self.incarnation, restart.incarnation)
        if self.restart is None or restart.incarnation > self.restart.incarnation:
            self.restart = restart
            if self.stop is not None and restart.first.is_loss and restart.first.index == self.stop.told:
                self.stop = None
            self.tell()

    def adopt(self, gang: GangState) -> None:
        """What index 0 said."""
        if gang.restart is not None:
            self.ask_restart(gang.restart)
        if gang.ended is not None:
            self.end(gang.ended)
        if gang.stop is not None:
            self.hear_stop(gang.stop)

    def give_up(self, why: str) -> None:
        self.lost = self.lost or why
        self.tell()

    def exclude(self, why: str) -> None:
        self.foreign = self.foreign or why
        self.tell()

    def raise_if_over(self, index: int) -> None:
        """At the barrier, as `index`: raises Over when the gang won't start."""
        if self.stop is not None:
            when = "before the gang was complete"
            if self.restart is not None:  # else the pods' logs, which are gone soon, have the only word of why
                when = f"before its processes had started again in their pods, after {self.restart.first.message}"
            message = f"stopped ({self.stop.reason.value}) {when}"
            raise Over(ExitFacts(Cause.PREEMPTED, exits.EXIT_PREEMPTED, message))
        if self.foreign:
            raise Over(ExitFacts(Cause.RENDEZVOUS, exits.EXIT_INFRASTRUCTURE, self.foreign))
        if self.lost:
            raise Over(ExitFacts(Cause.INFRASTRUCTURE, exits.EXIT_INFRASTRUCTURE, self.lost))
        if self.ending:
            raise Over(verdict.followed(self.first, index))

    def stop_left(self) -> Stop | None:
        """The stop with what is left of its grace, to pass on."""
        if self.stop is None:
            return None
        left = max(0.0, self.stop_deadline - self.clock())
        return replace(self.stop, grace_seconds=left, incarnation=self.incarnation)
