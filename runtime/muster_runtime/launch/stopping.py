"""How ranks are ended: gently after a stop was asked, quickly when the gang has failed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from muster_protocol import exits
from muster_runtime.control import ControlWriter
from muster_runtime.launch.ranks import Rank, Ranks
from muster_runtime.launch.state import State
from muster_runtime.pulse import PulseReader, Section

END_SECONDS: Final = 5.0
"""Between SIGTERM and SIGKILL when the gang has failed."""
HURRY_SECONDS: Final = 2.0
"""The same when they start again: nobody needs what they still could save."""
_UNKILLABLE_SECONDS: Final = 10.0
"""A process that SIGKILL doesn't end hangs in the kernel; the launcher ends without it."""
DYING_SECONDS: Final = 60.0
"""The same when the gang starts again in this pod. On a starved machine, or with much memory to give back, a killed
process takes longer to be gone; the others wait for a lost worker for no more than 90 s."""
_LOOK_SECONDS: Final = 1.0
_BEFORE_LOOP: Final = (Section.NONE, Section.JOIN, Section.SETUP)


@dataclass(frozen=True)
class Deadlines:
    """On the monotonic clock: when sessions have to be done, and when whatever still runs is killed.

    Kubelet kills the launcher itself when the grace is over; the margin leaves time to say why.
    """

    save_until: float
    kill_at: float

    @classmethod
    def within(cls, now: float, grace_end: float) -> Deadlines:
        grace = max(0.0, grace_end - now)
        kill_at = grace_end - min(5.0, 0.15 * grace)
        return cls(kill_at - min(5.0, 0.15 * grace), kill_at)


class Stopping:
    def __init__(self, ranks: Ranks, state: State) -> None:
        self._ranks = ranks
        self._state = state
        self._begin(None, None, fresh=False)

    def begin(self, control: ControlWriter, pulse: PulseReader, *, fresh: bool) -> None:
        """Other ranks are about to start, with this control word and pulse in their run folder. `fresh`: none ran in
        this gang before, so its memory holds nothing that they have to save."""
        self._begin(control, pulse, fresh=fresh)

    def _begin(self, control: ControlWriter | None, pulse: PulseReader | None, *, fresh: bool) -> None:
        self._control, self._pulse, self._fresh = control, pulse, fresh
        self._terminated: set[int] = set()
        self._told: set[int] = set()
        """The processes that got SIGTERM."""

    async def drive(self) -> list[int]:
        """Asks the ranks to stop and returns when none runs, or when nobody asks for it any more; the ranks that had to
        be killed.

        A rank with a session reads the control word and commits a checkpoint; any other gets SIGTERM at once, as
        torchrun would do, and so does one that has nothing to save yet.
        """
        clock, grace_end, deadlines = self._state.clock, 0.0, Deadlines(0.0, 0.0)
        failed_at: float | None = None
        while self._ranks.running and self._state.stop is not None:
            now = clock()
            if self._state.stop_deadline != grace_end:
                grace_end = self._state.stop_deadline
                deadlines = Deadlines.within(now, grace_end)
                if self._control is not None:
                    self._control.ask_stop(deadlines.save_until)
            if now >= deadlines.kill_at:
                return await self.kill()
            late = now >= deadlines.save_until
            self._terminate([r for r in self._ranks.running if late or not r.session or self._has_nothing(r)])
            if failed_at is None and any(r.exit_code not in (None, 0, exits.EXIT_PREEMPTED) for r in self._ranks.all):
                failed_at = now  # the others wait for it in a collective, in vain
            if self._state.ending or (failed_at is not None and now >= failed_at + END_SECONDS):
                await self.end()
                return []
            until = deadlines.save_until if now < deadlines.save_until else deadlines.kill_at
            await self._state.wait(min(_LOOK_SECONDS, until - now))
            self._ranks.reap()
        return []

    async def end(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """SIGTERM to all that runs in the ranks' sessions, SIGKILL a little later, sooner once `hurried`."""
        self._ranks.signal(signal.SIGTERM)
        began = self._state.clock()
        await self._until_none(lambda: began + (HURRY_SECONDS if hurried() else END_SECONDS))
        await self.kill()

    async def kill(self) -> list[int]:
        """SIGKILL to all that runs in the ranks' sessions; the ranks that it met."""
        killed = [rank.rank for rank in self._ranks.running]
        self._ranks.signal(signal.SIGKILL)
        until = self._state.clock() + _UNKILLABLE_SECONDS
        await self._until_none(lambda: until)
        return killed

    async def outlast(self) -> None:
        """Waits on for those whom SIGKILL has met."""
        until = self._state.clock() + DYING_SECONDS - _UNKILLABLE_SECONDS
        await self._until_none(lambda: until)

    async def sweep(self, spared: Iterable[int]) -> list[int]:
        """SIGKILL to all that ended ranks left behind, and waits for its end; what outlives that."""
        until = self._state.clock() + DYING_SECONDS
        while (left := self._ranks.sweep(spared)) and (time_left := until - self._state.clock()) > 0:
            await self._state.wait(min(_LOOK_SECONDS, time_left))
            self._ranks.reap()
        return left

    def finished_by_themselves(self) -> bool:
        """All exited 0, and not because they were asked to stop: a plain script that saves and exits 0 on SIGTERM isn't
        done, nor is a session that has stopped behind a shell which says 0 in its place (`train.py | tee log`), nor a
        script that leaves its loop for the stop and says 0 itself."""
        return all(r.exit_code == 0 and not r.stopped and self._is_done(r) for r in self._ranks.all)

    def _is_done(self, rank: Rank) -> bool:
        """Of one that exited 0."""
        section = self._section(rank)
        if section is Section.OUTSIDE:
            return True
        return section in _BEFORE_LOOP and rank.rank not in self._terminated

    def _has_nothing(self, rank: Rank) -> bool:
        """Whether a rank with a session has nothing to save: no loop of it has begun, which would first restore what
        is in memory."""
        return self._fresh and self._section(rank) is Section.SETUP

    def had_begun(self, rank: Rank) -> bool:
        """Whether the rank has done a step, as far as its pulse tells: before, nothing is lost with it."""
        return not (self._fresh and self._section(rank) in (Section.SETUP, Section.START))

    def _section(self, rank: Rank) -> Section:
        beat = self._pulse.read(self._ranks.all.index(rank)) if self._pulse is not None else None
        return Section.NONE if beat is None else beat.section

    def _terminate(self, ranks: list[Rank]) -> None:
        """A shell may start the next program when the first has ended; it gets its SIGTERM then."""
        self._terminated.update(rank.rank for rank in ranks)
        if ranks:
            self._told.update(self._ranks.signal_processes(signal.SIGTERM, ranks, told=self._told))

    async def _until_none(self, until: Callable[[], float]) -> None:
        while self._ranks.running and (left := until() - self._state.clock()) > 0:
            await self._state.wait(min(_LOOK_SECONDS, left))
            self._ranks.reap()
