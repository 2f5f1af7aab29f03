"""When a checkpoint is due. Pure: time is given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Schedule:
    """Due every `every_steps` steps, or `interval_seconds` after the last save, whichever comes first."""

    every_steps: int | None
    interval_seconds: float | None
    last_save: float
    """Clock reading, in seconds."""
    due: bool = False

    def is_due(self, step: int, now: float) -> bool:
        """After `step` steps are done. Stays due until `saved`, since a save may have to wait for a better boundary."""
        if self.every_steps and step % self.every_steps == 0:
            self.due = True
        if self.interval_seconds and now - self.last_save >= self.interval_seconds:
            self.due = True
        return self.due

    def saved(self, now: float) -> None:
        self.due, self.last_save = False, now
