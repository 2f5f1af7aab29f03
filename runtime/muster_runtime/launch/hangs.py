"""One launcher's part in finding hangs: it watches its ranks' pulses, and shows what they are at when index 0 asks."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from muster_protocol import launcher_api as api
from muster_protocol.messages import Ended, Examined, Heartbeat, Pace, RankSeen
from muster_protocol.wire import decode
from muster_runtime.launch import captures, hang, processes
from muster_runtime.launch.config import Config
from muster_runtime.launch.http_client import Client, Unreachable
from muster_runtime.launch.ranks import Rank, Ranks
from muster_runtime.launch.state import State
from muster_runtime.launch.termination import say
from muster_runtime.launch.watchdog import Watchdog
from muster_runtime.pulse import Beat, PulseReader, Section

LOOK_SECONDS: Final = 1.0
_STILL_SECONDS: Final = 2.0
"""After which it is looked whether a rank was stopped by a signal."""
_ASK_SECONDS: Final = captures.CAPTURE_SECONDS + 3.0
_ASKED_AT_ONCE: Final = 64
_STACK_CHARACTERS: Final = 4000
"""Of one rank's stack, to index 0; its worker's log has all."""
_FIELDS: Final = {
    Section.NONE: "start",
    Section.SETUP: "start",
    Section.START: "start",
    Section.JOIN: "start",
    Section.EVALUATION: "evaluation",
    Section.CHECKPOINT: "checkpoint",
}


class Hangs:
    def __init__(self, config: Config, ranks: Ranks, state: State) -> None:
        self._config, self._ranks, self._state = config, ranks, state
        self._watchdog = Watchdog(config.hang, LOOK_SECONDS, state.clock())
        self._pulse: PulseReader | None = None
        self._folder = Path()
        self._looked = 0.0

    def begin(self, folder: Path, pulse: PulseReader) -> None:
        """Ranks start, with this run folder, and their pulses there."""
        self._folder, self._pulse = folder, pulse
        self._watchdog.begin_anew(self._state.clock())

    def end(self) -> None:
        self._pulse = None
        self._watchdog.begin_anew(self._state.clock())

    @property
    def stuck(self) -> bool:
        """Whether all ranks of this pod are still for longer than they may."""
        return self._watchdog.stuck

    @property
    def stopped(self) -> bool:
        """Whether a rank of this pod was stopped by a signal for longer than it may be still."""
        return self._watchdog.stopped

    def look(self, *, now: bool = False) -> None:
        """Call it at least every `LOOK_SECONDS`. What comes too soon is left out, but for `now`."""
        moment = self._state.clock()
        if self._pulse is None or not (now or (self._config.hang.watched and self._due(moment))):
            return
        self._looked = moment
        first, running = self._config.rank(0), self._ranks.running
        still = [one for one in running if self._watchdog.still(one.rank) > _STILL_SECONDS]
        stopped = [one.rank for one in still if processes.state(self._pid(one)) == "T"]
        self._watchdog.look(moment, {one.rank: self._pulse.read(one.rank - first) for one in running}, stopped)

    def _due(self, moment: float) -> bool:
        return moment - self._looked >= LOOK_SECONDS / 2

    def paces(self) -> tuple[Pace, ...]:
        """How fast the ranks of this pod are."""
        return tuple(Pace(rank, beat.steps, beat.seconds, beat.own) for rank, beat in self.beats().items())

    def beats(self) -> dict[int, Beat]:
        """What the ranks of this pod wrote last, but for nonsense."""
        if self._pulse is None:
            return {}
        first = self._config.rank(0)
        beats = {one.rank: self._pulse.read(one.rank - first) for one in self._ranks.running}
        return {
            rank: beat
            for rank, beat in beats.items()
            if beat is not None and all(map(math.isfinite, (beat.seconds, beat.own, *beat.stages)))
        }

    @property
    def joining(self) -> int | None:
        """A rank of this pod that waits for all others to join; None: none does."""
        return next((rank for rank, beat in self.beats().items() if beat.section is Section.JOIN), None)

    @property
    def left(self) -> int | None:
        """A rank of this pod that has ended well while others of it run; None: none has."""
        over = (one.rank for one in self._ranks.all if one.exit_code == 0)
        return next(over, None) if self._ranks.running else None

    async def examine(self) -> Examined:
        """The ranks' stacks, in this pod's log and as the answer. A rank that is seen to compile is given more time."""
        running = self._ranks.running
        pids = {one.rank: self._pid(one) for one in running}
        dumps, records = await asyncio.gather(captures.capture(pids, self._folder), captures.flight(pids, self._folder))
        calls = {rank: captures.main_thread(dump) for rank, dump in dumps.items()}
        self._watchdog.excuse(rank for rank, stack in calls.items() if hang.compiles(stack))
        seen = tuple(self._seen(one, pids[one.rank], calls.get(one.rank, "")) for one in running)
        stuck, stopped = self._watchdog.stuck, self._watchdog.stopped
        if stuck and not stopped:
            self._watchdog.found()
        for one in seen if stuck or stopped else ():
            self._show(one, pids[one.rank], dumps.get(one.rank, ""), records.get(one.rank, ""))
        return Examined(self._config.index, stuck, seen, stopped)

    async def show(self) -> Examined:
        """The same for a person, whether the ranks get on or not: nothing follows from it."""
        self.look(now=True)
        running = self._ranks.running
        pids = {one.rank: self._pid(one) for one in running}
        dumps = await captures.capture(pids, self._folder)
        calls = {rank: captures.main_thread(dump) for rank, dump in dumps.items()}
        seen = tuple(self._seen(one, pids[one.rank], calls.get(one.rank, "")) for one in running)
        return Examined(self._config.index, self._watchdog.stuck, seen, self._watchdog.stopped)

    def _pid(self, one: Rank) -> int:
        """Of the process that has the session: the command's own, or one that it has started."""
        pid = self._watchdog.beat(one.rank).pid
        try:
            return pid if 0 < pid < 2**31 and os.getpgid(pid) == one.pid else one.pid
        except OSError:
            return one.pid

    def _seen(self, one: Rank, pid: int, stack: str) -> RankSeen:
        beat, still = self._watchdog.beat(one.rank), self._watchdog.still(one.rank)
        letter, field = processes.state(pid), _FIELDS.get(beat.section, "step")
        return RankSeen(one.rank, beat.section.name.lower(), beat.step, still, field, letter, stack[:_STACK_CHARACTERS])

    def _show(self, seen: RankSeen, pid: int, dump: str, record: str) -> None:
        """In the log, as the rank's own lines: `muster logs --rank` shows them."""
        prefix = f"[rank {seen.rank}] " if self._config.world_size > 1 else ""
        head = f"did not get on for {seen.still:.0f} s ({seen.section} after step {seen.step})"
        lines = dump.strip().split("\n") if dump else [f"process {pid} {captures.explained(pid, seen.state)}"]
        for line in (f"{head}; its threads:" if dump else head, *lines, *captures.collectives(record)):
            if line:
                say(line, prefix)


class Search:
    """Index 0's part: whether the whole gang hangs, and who holds it up."""

    def __init__(self, own: Hangs, client: Client) -> None:
        self._own, self._client = own, client
        self._stuck: set[int] = set()
        self._stopped: set[int] = set()
        self._busy = False

    def heard(self, beat: Heartbeat) -> None:
        (self._stuck.add if beat.stuck else self._stuck.discard)(beat.index)
        (self._stopped.add if beat.stopped else self._stopped.discard)(beat.index)

    def may_find(self, others: Collection[int], *, own_ended: bool) -> bool:
        """Whether nobody gets on, or one was stopped, as far as heartbeats tell. `others` are the indexes whose ranks
        run."""
        own = self._own.stuck or (own_ended and bool(others))
        stopped = self._own.stopped or not self._stopped.isdisjoint(others)
        return not self._busy and (stopped or (own and self._stuck.issuperset(others)))

    async def find(self, hosts: Mapping[int, str]) -> Ended | None:
        """Looks at the ranks of all, by `hosts` of the other indexes. None where none was stopped and one gets on, or
        can't be asked."""
        self._busy = True
        try:
            seen = await self._examine_all(hosts)
        finally:
            self._busy = False
        ranks = [one for one in seen if one is not None and one.ranks]
        hangs = None not in seen and ranks and all(one.stuck for one in ranks)
        return hang.judge(ranks) if hangs or any(one.stopped for one in ranks) else None

    async def _examine_all(self, hosts: Mapping[int, str]) -> list[Examined | None]:
        """None for one that can't be asked."""
        gate = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(host: str) -> Examined | None:
            async with gate:
                try:
                    status, body = await self._client.call("POST", host, api.STACKS_PATH, timeout=_ASK_SECONDS)
                    return decode(Examined, body) if status == 200 else None
                except (Unreachable, ValueError):
                    return None

        return await asyncio.gather(self._own.examine(), *map(ask, hosts.values()))
