"""Who has asked this process to stop, and how long it may take over its last save."""

from __future__ import annotations

import time
from typing import Final

from muster_runtime.control import ControlReader

_SIGNALLED_SECONDS: Final = 20.0
"""Who asks by a signal alone doesn't tell how long it waits; Slurm does for 30 s where nobody has set it."""


class Stopping:
    """By the launcher's control word, or by a signal where no launcher stands above."""

    def __init__(self, control: ControlReader) -> None:
        self._control = control
        self._signalled: float | None = None  # when, on the monotonic clock
        self.is_minded = False
        """The script has asked by itself whether it is to stop, and will again."""
        self.was_told = False
        """It was answered that it is: where it leaves its loop before the total, it does so for that."""

    def signal(self) -> None:
        """A signal has asked."""
        self._signalled = self._signalled or time.monotonic()

    def is_asked(self) -> bool:
        return self._signalled is not None or self._control.stop_requested()

    def ends_before(self, *, began: bool) -> bool:
        """Whether this process ends as soon as it is signalled: before the loop has begun nothing is to be saved, and
        nobody knows when it will."""
        return self._signalled is not None and not began and not self.is_minded

    def deadline(self) -> float | None:
        """Until when a last save is tried again, on the monotonic clock; None: there is no hurry."""
        if self._control.stop_requested() or self._signalled is None:
            return self._control.deadline()
        return self._signalled + _SIGNALLED_SECONDS
