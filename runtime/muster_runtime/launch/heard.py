"""What the other workers' heartbeats tell index 0 of their pods, for its status. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster_protocol.idleness import Idleness, of_gang
from muster_protocol.messages import Heartbeat


@dataclass
class Heard:
    """By index; each one's last heartbeat counts.

    Attributes:
        storage_errors: what a worker found wrong with the checkpoint's storage.
    """

    storage_errors: dict[int, str] = field(default_factory=dict)
    _copy_errors: dict[int, str] = field(default_factory=dict)
    _idleness: dict[int, Idleness] = field(default_factory=dict)

    def take(self, beat: Heartbeat) -> None:
        self.forget(beat.index)
        if beat.storage_error:
            self.storage_errors[beat.index] = beat.storage_error
        if beat.copy_error:
            self._copy_errors[beat.index] = beat.copy_error
        if beat.idleness is not None and beat.idleness.plausible:
            self._idleness[beat.index] = beat.idleness

    def forget(self, index: int) -> None:
        for known in (self.storage_errors, self._copy_errors, self._idleness):
            known.pop(index, None)

    def begin_anew(self) -> None:
        """Other processes start: copies and idleness are theirs."""
        self._copy_errors.clear()
        self._idleness.clear()

    def failing_copy(self, own: str) -> str:
        """Why a worker's memory has no copy with another one, or ""; `own`: the same of index 0's."""
        return own or next((self._copy_errors[index] for index in sorted(self._copy_errors)), "")

    def idleness(self, own: Idleness | None, workers: int) -> Idleness | None:
        """Of all workers' GPUs, `own` being index 0's; None where that of one isn't known."""
        if own is None or len(self._idleness) < workers - 1:
            return None
        return of_gang((own, *self._idleness.values()))
