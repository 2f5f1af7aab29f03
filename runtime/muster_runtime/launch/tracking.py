"""Index 0 tells the run's tracker about it, through a process of its own (`muster_runtime.tracking`).

Nothing here waits: what the process doesn't take at once is kept, as much as there is room for, and a process that ends
is started again.
"""

from __future__ import annotations

import asyncio
import math
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from muster_protocol.exits import ExitFacts
from muster_protocol.launcher_status import Facts, Profiling
from muster_protocol.launcher_status import Tracking as Told
from muster_protocol.messages import StopReason
from muster_runtime import report
from muster_runtime.launch import tracked
from muster_runtime.launch.config import Config, Tracked
from muster_runtime.launch.environment import LAUNCHER_ONLY, library_path
from muster_runtime.launch.membership import Refused
from muster_runtime.launch.termination import say
from muster_runtime.launch.tracked import News
from muster_runtime.telemetry.gpus import Gpu
from muster_runtime.tracking import wire
from muster_runtime.tracking.tracker import Run

LOOK_SECONDS: Final = 15.0
"""Between two looks at GPUs and cost."""
LAST_SECONDS: Final = 10.0
"""How long the end of a run waits for its tracker, at most."""
AWAY_SECONDS: Final = 2.0
"""The same, for one that did not answer last time, or whose process is started anew for it."""
LEAST_SECONDS: Final = 0.5
"""The same, at least: a grace that is used up still leaves the tracker one word."""
_AGAIN_SECONDS: Final = 30.0
_PACKETS_KEPT: Final = 500
_FACTS_KEPT: Final = 1_000

COMMAND: Final = (sys.executable, "-m", "muster_runtime.tracking")


class Tracking:
    """`clock` gives seconds since the epoch. On other pods than index 0's, and without `tracking`, it does nothing."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.time,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self._config, self._environ, self._clock, self._command = config, environ, clock, command
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._packets: deque[tuple[bytes, int]] = deque()  # with the number of values
        self._params: dict[str, str] = {}  # all that was told, for a process that is started again
        self._tags: dict[str, str] = {}
        self._lost = 0
        self._again_at = self._looked_at = -math.inf  # on the monotonic clock: the other may be set back by a day
        self._facts: Facts | None = None
        self._profile = ""
        self._step = 0
        self._said = self._shown = self._left_out = ""
        self._told = Told()
        self._ended = False

    @property
    def told(self) -> Told | None:
        """How the tracker does; None where there is none."""
        if self._config.tracking is None:
            return None
        return replace(self._told, dropped=self._told.dropped + self._lost)

    @property
    def processes(self) -> frozenset[int]:
        """Its own one."""
        return frozenset() if self._process is None else frozenset({self._process.pid})

    def begin(self) -> None:
        """The launcher starts."""
        if self._config.tracking is not None:
            self._keep(tracked.start(self._config, self._environ, Path()))
            self._open(self._config.tracking)

    def hear(self, message: report.Message) -> None:
        """A rank's word."""
        if self._config.tracking is None:
            return
        if isinstance(message, report.Progress) and message.rank == 0:
            self._step = message.step
        if isinstance(message, report.Lost) and message.rank == 0:
            self._lost += message.figures
        news = tracked.of_report(message, self._config, self._clock())
        if news is not None:
            self._tell(news)

    def know(self, facts: Facts) -> Refused | None:
        """The operator's word."""
        if self._config.tracking is None or self._ended:
            return Refused(404, "nothing is tracked here")
        if not tracked.readable(facts):
            return Refused(400, "these are no facts")
        self._facts = facts
        self._tell(tracked.of_facts(facts, self._step, self._clock()))
        return None

    def look(self, gpus: Iterable[Gpu], profile: Profiling) -> None:
        """Call it now and then."""
        if self._config.tracking is None or self._ended:
            return
        now = time.monotonic()
        if profile.stored and profile.uri != self._profile:
            self._profile = profile.uri
            self._tell(tracked.of_profile(profile))
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._tell(tracked.of_machine(gpus, self._step, self._clock()))
            self._use()
        if self._socket is None and now >= self._again_at:
            self._open(self._config.tracking)
        self._send()
        self._listen()

    async def end(self, facts: ExitFacts, reason: StopReason | None, *, by_signal: bool, seconds: float) -> None:
        """The run has ended here: returns when its tracker knows, at the latest after `seconds`."""
        if self._config.tracking is None:
            return
        if self._socket is None:  # its process has died: one started now is told all that is known, and the end
            self._open(self._config.tracking)
        self._ended = True
        self._use()
        status = tracked.status(facts, reason, by_signal=by_signal)
        self._tell(News(tags={"muster.cause": facts.cause.value, "muster.end": facts.message[:1000]}))
        self._packets.append((wire.end(status, self._clock()), 0))
        self._send()
        limit = max(min(seconds, LAST_SECONDS if self._told.well is not False else AWAY_SECONDS), LEAST_SECONDS)
        until = time.monotonic() + limit
        while self._socket is not None and time.monotonic() < until:
            self._send()
            self._listen()
            await asyncio.sleep(0.02)
        if self._socket is not None and self._process is not None:
            say(f"tracking: not all could be told within {limit:g} s: {self._told.text or 'the tracker is slow'}")
            self._process.kill()

    # ------------------------------------------------------------------------------------------------------------ parts

    def _use(self) -> None:
        if self._facts is not None:
            self._tell(tracked.of_facts(self._facts, self._step, self._clock()))

    def _tell(self, news: News) -> None:
        self._keep(news)
        for kind, values in (("params", news.params), ("tags", news.tags)):
            for packet in wire.facts(kind, values or {}):
                self._packets.append((packet, 0))
        for packet, number in wire.points(news.points):
            self._packets.append((packet, number))
        self._send()
        while len(self._packets) > _PACKETS_KEPT:
            self._make_room()

    def _make_room(self) -> None:
        """Gives up the oldest values; facts only where there is nothing else."""
        place = next((place for place, (_, number) in enumerate(self._packets) if number), 0)
        self._lost += self._packets[place][1]
        del self._packets[place]

    def _keep(self, news: News) -> None:
        for known, values in ((self._params, news.params), (self._tags, news.tags)):
            for name, value in (values or {}).items():
                if name in known or len(known) < _FACTS_KEPT:
                    known[name] = value

    def _open(self, wanted: Tracked) -> None:
        """Starts the process, and tells it all that is known but values that are gone."""
        run = Run(
            uri=wanted.uri,
            key=wanted.key,
            experiment=wanted.experiment,
            name=wanted.name,
            tags={"mlflow.note.content": tracked.note(self._config)},
            started_at=self._clock(),
        )
        ours, its = wire.pair()
        try:
            with its:
                environ = {name: value for name, value in self._environ.items() if name not in LAUNCHER_ONLY}
                environ |= library_path(self._environ)
                self._process = subprocess.Popen(
                    self._command, stdin=its.fileno(), stdout=subprocess.DEVNULL, env=environ, start_new_session=True
                )
        except OSError as error:
            ours.close()
            self._away(f"its process can't be started: {error}")
            return
        ours.setblocking(False)
        self._socket = ours
        facts = [*wire.facts("params", self._params), *wire.facts("tags", self._tags)]
        self._packets.extendleft((packet, 0) for packet in reversed([wire.opening(run), *facts]))
        self._send()

    def _send(self) -> None:
        while self._socket is not None and self._packets:
            try:
                self._socket.send(self._packets[0][0])
            except BlockingIOError:
                return
            except OSError as error:
                self._away(f"its process has ended: {error.strerror or error}")
                return
            self._packets.popleft()

    def _listen(self) -> None:
        while self._socket is not None:
            try:
                packet = self._socket.recv(wire.PACKET_LIMIT)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._away("" if self._ended else "its process has ended")
                return
            told = wire.read_told(packet)
            if told is not None:
                self._told = told
                self._say()

    def _away(self, why: str) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if why:
            self._again_at = time.monotonic() + _AGAIN_SECONDS
            self._lost += self._told.dropped
            self._told = Told(False, self._told.url, why)
            self._say()

    def _say(self) -> None:
        """A line when the run is open, when something goes wrong in other words than before, and when that is over."""
        told, text = self._told, self._told.text if self._told.well is False else ""
        if text != self._said:
            say(f"tracking: {text}; the training goes on" if text else "tracking: it is well again")
        elif told.url != self._shown:
            say(f"tracking: {told.url}")
        if told.well and told.text and told.text != self._left_out:  # it takes the rest
            self._left_out = told.text
            say(f"tracking: {told.text}")
        self._said, self._shown = text, told.url
