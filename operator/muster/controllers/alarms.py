"""When which job is to have a turn without any change: a heap, for nobody looks at ten thousand jobs to find the next
one."""

from __future__ import annotations

from heapq import heappop, heappush


class Alarms:
    """Moments of the monotonic clock by UID. One that is put off leaves its old entry, which then rings for nothing."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def at(self, uid: str, moment: float) -> None:
        heappush(self._heap, (moment, uid))

    def ring(self, now: float) -> set[str]:
        """Take out those whose time has come."""
        due: set[str] = set()
        while self._heap and self._heap[0][0] <= now:
            due.add(heappop(self._heap)[1])
        return due

    @property
    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None
