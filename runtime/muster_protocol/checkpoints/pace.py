"""How slowly bytes may come: below that another try, on another connection, is worth more than patience.

What is sent has no need of it: a connection's time-out holds for all of a piece that is sent, and of what comes for the
next byte alone.
"""

from __future__ import annotations

import time
from typing import Final

STORE_SLOWEST: Final = 16e3
"""Bytes a second of an object's content. A megabyte a minute: so slow is no link that anybody trains with, for four of
them bring half a gigabyte in two hours; and another connection to the same store mostly isn't."""
STORE_SECONDS: Final = 60.0
"""As long as a connection may stall."""


class Pace:
    """Of what comes, judged every so many `seconds`: TimeoutError where that is less than `slowest` bytes a second.

    What stalls is for the connection's own time-out to tell: nothing is counted then.
    """

    def __init__(self, slowest: float, seconds: float) -> None:
        self._slowest, self._seconds = slowest, seconds
        self._since, self._came = time.monotonic(), 0

    @classmethod
    def of_an_object(cls) -> Pace:
        """Of one that comes from a store."""
        return cls(STORE_SLOWEST, STORE_SECONDS)

    def count(self, length: int) -> None:
        self._came += length
        seconds = time.monotonic() - self._since
        if seconds < self._seconds:
            return
        if self._came < self._slowest * seconds:
            raise TimeoutError(f"only {self._came / 1e6:.1f} MB came in {seconds:.0f} s")
        self._since, self._came = time.monotonic(), 0
