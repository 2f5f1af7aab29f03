"""What the ranks reported, kept for the status, the metrics and the exit facts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from muster_protocol.launcher_status import Checkpoint, Kept, MemoryTier, Saving
from muster_protocol.numerics import Numerics
from muster_runtime import report
from muster_runtime.launch.warned import Warned

_RATE_WINDOW_SECONDS: Final = 60.0
_TEXT_KEPT: Final = 500


@dataclass
class Progress:
    """The newest reports. `clock` gives monotonic seconds.

    Reports are untrusted: any process of the user's may send them. They are only shown, never obeyed.
    """

    clock: Callable[[], float] = time.monotonic
    last: report.Progress | None = None
    step: int | None = None
    checkpoint: Checkpoint | None = None
    stored: int | None = None
    resumed_from: int | None = None
    resumed_uri: str = ""
    nothing_left: str = ""
    """Why the ranks had nothing to train, while they have trained nothing."""
    storage_error: str = ""
    fixed_size: str = ""
    memory_tier: MemoryTier | None = None
    saving: Saving | None = None
    numerics: Numerics | None = None
    warned: Warned = field(default_factory=Warned)
    _steps: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def loss(self) -> str:
        """Of the last step; "" where it wasn't told with it."""
        last = self.last
        return (last.loss or "")[:32] if last is not None and last.step == self.step else ""

    def take(self, message: report.Message) -> None:
        if isinstance(message, report.Progress):
            self._progress(message)
        elif isinstance(message, report.CheckpointCommitted):
            self.checkpoint = Checkpoint(
                message.step, message.uri, message.committed_at, message.seconds, message.total or message.bytes
            )
            self.storage_error = ""
        elif isinstance(message, report.Stored):
            self.stored = max(0, message.bytes)
        elif isinstance(message, report.Resumed):
            self.resumed_from, self.resumed_uri = message.step, message.uri[:_TEXT_KEPT]
        elif isinstance(message, report.NothingLeft):
            self.nothing_left = message.text
        elif isinstance(message, report.Warned):
            self.warned.take(message.text)
        elif isinstance(message, report.FixedSize):
            self.fixed_size = message.text
        elif isinstance(message, report.StorageFailed):
            self.storage_error = message.text
        elif isinstance(message, report.KeptInMemory) and message.kept in {kept.value for kept in Kept}:
            self.memory_tier = MemoryTier(Kept(message.kept), message.why[:500])
        elif isinstance(message, report.Saving):
            self.saving = Saving(message.left_out, message.interval_seconds)
        elif isinstance(message, report.Numerics):
            self._numerics(message)
        elif isinstance(message, report.Lost):
            self.warned.take(f"rank {message.rank} had more to report than its launcher took: some of it is lost")

    def reach(self, step: int) -> None:
        """Steps that a rank which has failed had done: what it reports is up to a second old, and nobody reports at a
        SIGKILL. Two failures at one step could be taken for two."""
        self.step = None if self.step is None else max(self.step, step)

    def begin_anew(self) -> None:
        """The ranks were started again: what they report goes on from where they resume."""
        self.last = self.step = self.resumed_from = None
        self.fixed_size = self.nothing_left = self.resumed_uri = ""
        self._steps.clear()

    def steps_per_second(self) -> float | None:
        """Over the last minute, or between the last two reports where a step takes longer; None before two."""
        if len(self._steps) < 2:
            return None
        (begin, first), (end, last) = self._steps[0], self._steps[-1]
        return (last - first) / (end - begin) if end > begin and last >= first else None

    def _numerics(self, message: report.Numerics) -> None:
        known = self.numerics.rollbacks if self.numerics is not None else 0
        if message.rollbacks > known and self.step is not None and message.step < self.step:
            self.step = message.step  # the ranks train these steps again
            self._steps.clear()
        self.numerics = Numerics(message.skipped, message.rollbacks, message.text[:_TEXT_KEPT])

    def _progress(self, message: report.Progress) -> None:
        self.nothing_left = ""  # another loop of the script had something
        self.step = message.step if self.step is None else max(self.step, message.step)
        if self.last is not None and message.rank > self.last.rank:
            return  # the lowest rank speaks for the pod
        self.last = message
        now = self.clock()
        self._steps.append((now, message.step))
        while len(self._steps) > 2 and self._steps[0][0] < now - _RATE_WINDOW_SECONDS:
            self._steps.popleft()
