"""When the windows of a cron expression are open. Pure: `now` is given, and the same question has the same answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from muster.api.effective_parts import EffectiveWindow

NEVER: Final = datetime.max.replace(tzinfo=timezone.utc)
"""A moment that never comes: a window that is always open closes then."""

LONGEST_CHAIN: Final = 11_000
"""Times that a window is made longer by others that overlap it. One that goes on after that is taken to be always open.
One that ends may be of many: a minute every minute from 8 to 18 is of 660, and a week of such minutes of 10,080."""

EVERY_HOUR: Final = timedelta(days=1)
EVERY_WEEK: Final = timedelta(days=400)
EVERY_YEAR: Final = timedelta(days=10 * 366)
"""The same by the time for which an opening is followed: as long as it takes until all starts, changes of the clock and
leap days among them, have come once, and more. Whoever submits jobs chooses their windows, and the scheduling loop
waits for the answer: each month's first day is one start in 916 years of 11,000."""

STARTS: Final = 2.0
"""A gang is not started in a window that closes before it could have started so many times."""

_FIELDS: Final = 5


@dataclass(frozen=True)
class Opening:
    """The window that is open, or that opens next: `opens <= now < closes`, or `now < opens`."""

    opens: datetime
    closes: datetime


@lru_cache(maxsize=4096)
def window_error(window: EffectiveWindow) -> str:
    """What is wrong with a window that its schema let through, and how to mend it; "" if nothing is."""
    try:
        zone = ZoneInfo(window.time_zone)
    except (KeyError, ValueError, OSError):  # no such file, a folder, or a name that leads elsewhere
        return (
            f"window.timeZone: there is no time zone {window.time_zone!r}; use a name such as Europe/Berlin or Etc/UTC"
        )
    try:
        if len(window.start.split()) != _FIELDS:  # of six it takes the first for seconds, and minutes for hours
            raise CronSimError("Wrong number of fields")
        first = next(CronSim(window.start, datetime(2024, 1, 1, tzinfo=zone)), None)
    except CronSimError as error:
        if _no_such_day(window.start, zone):
            return _never(window)
        return (
            f"window.start: {window.start!r} is no cron expression: {error}; write minute, hour, day of month, month "
            "and weekday, like '0 20 * * MON-FRI'"
        )
    return _never(window) if first is None else ""


def _never(window: EffectiveWindow) -> str:
    return f"window.start: {window.start!r} never comes; name a day that the calendar has"


def _no_such_day(start: str, zone: ZoneInfo) -> bool:
    """Whether an expression is refused for its day alone, which other months have, like the 31st of February."""
    fields = start.split()
    if len(fields) != _FIELDS:
        return False
    with suppress(CronSimError):
        CronSim(" ".join(("0", "0", "1", fields[3], "*")), datetime(2024, 1, 1, tzinfo=zone))
        CronSim(" ".join((*fields[:3], "*", fields[4])), datetime(2024, 1, 1, tzinfo=zone))
        return True
    return False


def opening(window: EffectiveWindow, now: datetime) -> Opening:
    """The window that is open at `now`, or the next one. Durations are elapsed time, also across a clock change.

    Raises ValueError with `window_error`'s words for a window that is wrong.
    """
    # Cron has whole minutes, so what is found for a minute holds until a window ends within it.
    minute = now.replace(second=0, microsecond=0)
    found = _opening(window, minute)
    return found if now < found.closes else _opening(window, now)


@lru_cache(maxsize=4096)
def _opening(window: EffectiveWindow, now: datetime) -> Opening:
    wrong = window_error(window)
    if wrong:
        raise ValueError(wrong)
    zone, length = ZoneInfo(window.time_zone), timedelta(seconds=window.duration)
    last = _last_start(window, zone, now)
    if last is None or last + length <= now:
        return _joined(window, zone, _next_start(window, zone, now), length)
    return _joined(window, zone, last, length)


@dataclass
class _Chain:
    """The openings of a window that were followed last: who asks later in them is spared that.

    Attributes:
        opens, known: from when on, and until when, they are known to be one.
        closes: when that ends.
    """

    opens: datetime = NEVER
    known: datetime = NEVER
    closes: datetime = NEVER


@lru_cache(maxsize=1024)
def _last_chain(window: EffectiveWindow) -> _Chain:
    return _Chain()


def _joined(window: EffectiveWindow, zone: ZoneInfo, opens: datetime, length: timedelta) -> Opening:
    """One opening with those that begin before it closes."""
    chain = _last_chain(window)
    if not chain.opens <= opens < chain.known:
        known, ends = _follow(window, zone, opens, length)
        chain.opens, chain.known, chain.closes = opens, known, known if ends else NEVER
    return Opening(opens, chain.closes)


def _follow(window: EffectiveWindow, zone: ZoneInfo, opens: datetime, length: timedelta) -> tuple[datetime, bool]:
    """Until when openings overlap, and whether they end then; False: nobody followed them any further."""
    closes, followed = opens + length, _followed(window)
    for _ in range(LONGEST_CHAIN):
        if closes - opens > followed or closes > NEVER - 2 * length:
            break  # the calendar would end before the chain
        last = _last_start(window, zone, closes)  # those before it end before it does
        if last is None or last + length <= closes:
            return closes, True
        closes = last + length
    return closes, False


def _followed(window: EffectiveWindow) -> timedelta:
    """For how long at least a chain of a window's openings is followed."""
    hour, day, month, weekday = window.start.split()[1:]
    if (day, month) != ("*", "*"):
        return EVERY_YEAR
    return EVERY_HOUR if (hour, weekday) == ("*", "*") else EVERY_WEEK


def _last_start(window: EffectiveWindow, zone: ZoneInfo, moment: datetime) -> datetime | None:
    """The last moment of `window.start` that has come by `moment`; None before the first."""
    local = (moment + timedelta(seconds=1)).astimezone(zone)  # in UTC: a sum on a wall clock knows no second time
    if local.fold:
        # A time of day that the clock shows twice comes the first time, and cron looks at what the clock shows.
        local += (local.replace(fold=0).utcoffset() or timedelta()) - (local.utcoffset() or timedelta())
    starts = map(_utc, CronSim(window.start, local, reverse=True))
    return next((start for start in starts if start <= moment), None)


def _next_start(window: EffectiveWindow, zone: ZoneInfo, moment: datetime) -> datetime:
    """The first moment of `window.start` after `moment`."""
    starts = map(_utc, CronSim(window.start, moment.astimezone(zone)))
    return next(start for start in starts if start > moment)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)


def latest_start(window: EffectiveWindow, found: Opening, start_seconds: float) -> datetime:
    """From when on there is too little time left to start in an opening."""
    if not window.stops:
        return found.closes
    return found.closes - timedelta(seconds=min(STARTS * start_seconds, window.duration / 2))
