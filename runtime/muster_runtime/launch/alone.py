"""Whether ranks wait for one to join that has ended already, as index 0 hears of both. Pure: the time is given.

Torch would wait for half an hour, after each restart. This is no guess about a hang: without all ranks nobody joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

LEFT_SECONDS: Final = 15.0
"""Joining isn't over for all at the same moment, and who is through first may end at once."""


@dataclass(frozen=True)
class Alone:
    """Rank `waits` of pod `index` waits for who has `left`."""

    index: int
    waits: int
    left: str


@dataclass
class Joining:
    """Of one incarnation of the gang."""

    _waiting: dict[int, int] = field(default_factory=dict)
    _left: dict[int, tuple[str, float]] = field(default_factory=dict)
    """By index: who, and when that was heard first."""

    def heard(self, index: int, waits: int | None, left: int | None, now: float) -> None:
        """A pod's ranks run: one that waits for others to join, and one that has ended with exit code 0."""
        self._waiting.pop(index, None)
        if waits is not None:
            self._waiting[index] = waits
        if left is not None:
            self._left.setdefault(index, (f"rank {left}", now))

    def ended_well(self, index: int, now: float) -> None:
        """All ranks of a pod have ended with exit code 0."""
        self._waiting.pop(index, None)
        self._left.setdefault(index, (f"index {index}", now))

    def forget(self, index: int) -> None:
        """The pod is lost."""
        self._waiting.pop(index, None)
        self._left.pop(index, None)

    def found(self, now: float) -> Alone | None:
        left = [who for who, since in self._left.values() if now - since >= LEFT_SECONDS]
        if not left or not self._waiting:
            return None
        index = min(self._waiting)
        return Alone(index, self._waiting[index], left[0])
