"""Index 0's launcher counts where its time goes: its own, and what rank 0's pulse tells of the ranks'."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from muster_protocol.exits import EXIT_OK, EXIT_PREEMPTED, Cause
from muster_protocol.goodput import UNDERUSED_BELOW, Spent
from muster_protocol.idleness import Idleness
from muster_protocol.messages import Ended
from muster_runtime.launch.idling import Idling, trains
from muster_runtime.pulse import PulseReader
from muster_runtime.telemetry.goodput import SECOND, End, Ledger, Part, spent


class Spending:
    """`busy` tells which part of the time this pod's GPUs are at work, 0 to 1, or None; `clock` gives monotonic
    nanoseconds."""

    def __init__(
        self,
        reached: int,
        busy: Callable[[], float | None] = lambda: None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._busy, self._clock = busy, clock
        self._training = self._underused = 0
        self._looks, self._sum = 0, 0.0  # of how busy they were since it was known last what was training
        self._ledger = Ledger(clock())
        self._pulse: PulseReader | None = None
        self._begun, self._idling = 0, Idling()
        self.reached = reached
        """Steps that the run has done, as far as this launcher knows."""

    def begin(self, pulse: PulseReader) -> None:
        """Ranks start now."""
        self._begun, self._idling = self._clock(), Idling()
        self._ledger.spawned(self._begun)
        self._pulse = pulse

    def look(self) -> None:
        """Call it now and then."""
        if self._pulse is not None:
            told, busy, now = self._pulse.told(0), self._busy(), self._clock()
            self._ledger.look(told, now)
            self._weigh(busy, now)
            self._idling.look(counts=trains(told, now - self._begun), busy=busy, now=now)

    def _weigh(self, busy: float | None, now: int) -> None:
        """Time is known to be training when a step is done: then it counts how busy the GPUs were meanwhile."""
        if busy is not None:
            self._looks, self._sum = self._looks + 1, self._sum + busy
        training = self._ledger.at(now)[0][Part.TRAINING]
        if training > self._training:
            if self._looks and self._sum / self._looks < UNDERUSED_BELOW:
                self._underused += training - self._training
            self._training, self._looks, self._sum = training, 0, 0.0

    def end(self, how: End) -> None:
        """The ranks have ended."""
        if self._pulse is None:
            return
        told, beat = self._pulse.told(0), self._pulse.read(0)
        self._ledger.ended(told, self._clock(), how)
        if beat is not None:
            self.reached = max(self.reached, beat.step)
        self._pulse, self._idling = None, Idling()

    @property
    def idleness(self) -> Idleness | None:
        """Of this pod's GPUs, since its ranks were started; None where nobody knows."""
        return self._idling.told

    def spent(self) -> Spent:
        self.look()
        found = spent(*self._ledger.at(self._clock()))
        return replace(found, underused=round(self._underused / SECOND, 3))


def how_ended(exit_codes: Iterable[int | None], first: Ended | None) -> End:
    """`exit_codes` of the pod's ranks; `first` is what the gang ended or started again for, if anything."""
    if first is not None and first.cause == Cause.HANG.value:
        return End.HUNG
    return End.WELL if all(code in (EXIT_OK, EXIT_PREEMPTED) for code in exit_codes) else End.BROKEN
