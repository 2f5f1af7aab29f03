"""The API server's clock, by the header `Date` of its answers: the machine of who asks may be minutes off, a laptop's
after it has slept for one, and what stands in objects are moments of the cluster."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Final

_SAME: Final = timedelta(seconds=3)
"""A `Date` has whole seconds, and an answer is some time on its way."""


class ServerClock:
    def __init__(self) -> None:
        self._date, self._heard = "", 0.0

    def heard(self, date: str) -> None:
        """The header of an answer that has just come; "" where it has none."""
        self._date, self._heard = date, time.monotonic()

    def now(self) -> datetime:
        """The present moment; by this machine's own clock where the two are about the same, or nothing was heard."""
        own = datetime.now(timezone.utc)
        try:
            told = parsedate_to_datetime(self._date).astimezone(timezone.utc)
            told += timedelta(seconds=time.monotonic() - self._heard)
        except (ValueError, OverflowError):
            return own
        return own if abs(told - own) < _SAME else told
