"""Index 0's launcher counts where its time goes: its own, and what rank 0's pulse tells of the ranks'."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from muster_protocol.exits import EXIT_OK, EXIT_PREEMPTED, Cause
from muster_protocol.goodput import Spent
from muster_protocol.launcher_api import Ended
from muster_runtime.pulse import PulseReader
from muster_runtime.telemetry.goodput import End, Ledger, spent


class Spending:
    """`clock` gives monotonic nanoseconds."""

    def __init__(self, reached: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._ledger = Ledger(clock())
        self._pulse: PulseReader | None = None
        self.reached = reached
        """Steps that the run has done, as far as this launcher knows."""

    def begin(self, pulse: PulseReader) -> None:
        """Ranks start now."""
        self._ledger.spawned(self._clock())
        self._pulse = pulse

    def look(self) -> None:
        """Call it now and then."""
        if self._pulse is not None:
            told = self._pulse.told(0)
            self._ledger.look(told, self._clock())

    def end(self, how: End) -> None:
        """The ranks have ended."""
        if self._pulse is None:
            return
        told, beat = self._pulse.told(0), self._pulse.read(0)
        self._ledger.ended(told, self._clock(), how)
        if beat is not None:
            self.reached = max(self.reached, beat.step)
        self._pulse = None

    def spent(self) -> Spent:
        self.look()
        return spent(*self._ledger.at(self._clock()))


def how_ended(exit_codes: Iterable[int | None], first: Ended | None) -> End:
    """`exit_codes` of the pod's ranks; `first` is what the gang ended or started again for, if anything."""
    if first is not None and first.cause == Cause.HANG.value:
        return End.HUNG
    return End.WELL if all(code in (EXIT_OK, EXIT_PREEMPTED) for code in exit_codes) else End.BROKEN
