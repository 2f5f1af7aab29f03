"""Durations as Kubernetes writes them: `90s`, `10m`, `1h30m`, `2d`."""

from __future__ import annotations

import re
from typing import Final

DURATION_PATTERN: Final = r"^([0-9]{1,6}d)?([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?$"
"""Six digits each: longer than any run, and no sum leaves the calendar."""

_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> int:
    """Seconds. Raises ValueError for anything but a sum of d, h, m and s in that order."""
    if not text or not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration; write it like 90s, 10m, 1h30m or 2d")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9]+)([dhms])", text))


def format_duration(seconds: float) -> str:
    """The two largest units, for people: `1h30m`, `45s`, `2d3h`."""
    rest, parts = int(seconds), []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"
