"""Whether a crash is answered by starting the gang's processes again in the pods that they have. Pure: time is given.

That costs seconds and no pod, but mends only what isn't in the script, so it is tried a few times and not for ever.
Want of memory is mended by it where the GPU's was in pieces, or where another batch comes at that place.
What a second start would meet again ends the gang at once, as a crash did before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from muster_protocol.exits import Cause
from muster_protocol.messages import Ended
from muster_runtime.launch.tally import Tally

WINDOW_SECONDS: Final = 600.0
MOST_IN_WINDOW: Final = 3
_PAUSES: Final = (0.0, 5.0, 10.0)
"""Seconds before the first, second and third start within a window: the first crash may be chance."""


@dataclass
class Restarts:
    """Counts the restarts of one placement; a new index 0 learns the numbers from the others. `limit` is how many the
    job allows after failures of the script, `memory_limit` for want of memory, `network_limit` where ranks lost each
    other. Each counts for itself.

    Attributes:
        alike: failures in a row, up to the last one, that were one and the same.
    """

    limit: int
    memory_limit: int = 0
    network_limit: int = 0
    tally: Tally = field(default_factory=Tally)
    alike: int = 1
    _recent: deque[float] = field(default_factory=deque)
    _last: tuple[str, int | None] | None = None

    def pause(self, first: Ended, now: float) -> float:
        """Seconds to wait before the next start, after the failure `first`. Refusal when there is to be none."""
        self._compare(first)
        if not first.crash:
            raise Refusal("")
        used, limit = self._used(first.cause)
        if used >= limit:
            raise Refusal(f"the gang was restarted in place {times(used)} before" if used else "")
        if self.alike > 1:
            at = f" at step {first.step}" if first.step is not None else ""
            what = "hang" if first.cause == Cause.HANG.value else "exception"
            raise Refusal(f"the same {what} came{at} before the restart in place")
        while self._recent and now - self._recent[0] > WINDOW_SECONDS:
            self._recent.popleft()
        if len(self._recent) >= MOST_IN_WINDOW:
            raise Refusal(f"the gang was restarted in place {times(MOST_IN_WINDOW)} within {WINDOW_SECONDS:g} s")
        self._recent.append(now)
        self.tally = self.tally.after(first)
        return _PAUSES[len(self._recent) - 1]

    def _used(self, cause: str) -> tuple[int, int]:
        """How many of its limit the restarts after such failures have used, and that limit."""
        if cause == Cause.NETWORK.value:
            return self.tally.network_failures, self.network_limit
        if cause == Cause.OUT_OF_MEMORY.value:
            return self.tally.memory_failures, self.memory_limit
        return self.tally.failures - self.tally.memory_failures, self.limit

    def _compare(self, first: Ended) -> None:
        """Alike are failures with the same signature at the same step: what came in between has mended nothing."""
        this = (first.signature, first.step) if first.signature and not first.secondary else None
        self.alike = self.alike + 1 if this is not None and this == self._last else 1
        self._last = this


class Refusal(Exception):
    """The gang has to end. One sentence without its end, or "" where there is nothing to add to the failure."""


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
