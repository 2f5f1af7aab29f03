"""Moments and spans: months in UTC, clipping, and cutting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from itertools import pairwise
from typing import Final

_MONTH: Final = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_SECOND: Final = timedelta(seconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)


def month_of(moment: datetime) -> str:
    """Like 2026-11, in UTC."""
    return f"{moment.astimezone(timezone.utc):%Y-%m}"


def month(name: str) -> tuple[datetime, datetime]:
    """When a month like 2026-11 begins, and the next one. Raises ValueError."""
    if not _MONTH.fullmatch(name) or not "0001" <= name[:4] <= "9998":  # the next one has to be a date, too
        raise ValueError(f"{name!r} is no month; write it like 2026-11")
    begins = datetime(int(name[:4]), int(name[5:]), 1, tzinfo=timezone.utc)
    return begins, next_month(begins)


def next_month(moment: datetime) -> datetime:
    """When the month after that of `moment` begins, in UTC."""
    first = moment.astimezone(timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (first + timedelta(days=32)).replace(day=1)


def microseconds(begins: datetime, ends: datetime) -> int:
    return (ends - begins) // _MICROSECOND


def seconds(begins: datetime, ends: datetime) -> Fraction:
    """Exactly."""
    return Fraction(microseconds(begins, ends), _SECOND // _MICROSECOND)


def months(begins: datetime, ends: datetime) -> list[datetime]:
    """The firsts of a month within a span, its own ends left out."""
    found, first = [], next_month(begins)
    while first < ends:
        found.append(first)
        first = next_month(first)
    return found


def pieces(begins: datetime, ends: datetime, cuts: Iterable[datetime]) -> Iterator[tuple[datetime, datetime]]:
    """A span, cut at those moments that lie within it; nothing where it is empty."""
    if begins < ends:
        yield from pairwise([begins, *sorted({cut for cut in cuts if begins < cut < ends}), ends])
