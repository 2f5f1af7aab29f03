"""Figures as Grafana shows them by a panel's unit. Pure."""

from __future__ import annotations

from typing import Final

_SECONDS: Final = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86_400.0, "d"))
_BYTES: Final = tuple((1024.0**power, name) for power, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB")))
_RATES: Final = tuple((1000.0**power, name) for power, name in enumerate(("B/s", "kB/s", "MB/s", "GB/s")))
_SHORT: Final = tuple((1000.0**power, name) for power, name in enumerate(("", "K", "Mil", "Bil", "Tri")))
_SCALES: Final = {"s": _SECONDS, "bytes": _BYTES, "Bps": _RATES, "short": _SHORT}
_ENDINGS: Final = {"none": "", "celsius": " °C", "watt": " W"}


def text(value: float, unit: str) -> str:
    """`0.731` of percentunit is `73.1%`, `90` of s is `1.5 min`. Raises KeyError for a unit that no dashboard has."""
    if unit == "percentunit":
        percent = 100 * value
        return f"{_short(percent) if abs(percent) >= 0.1 or not percent else f'{percent:.2g}'}%"
    if unit in _ENDINGS:
        return f"{_short(value)}{_ENDINGS[unit]}"
    size, name = _step(value, unit)
    return f"{_short(value / size)} {name}".rstrip()


def size(value: float, unit: str) -> float:
    """What one of the unit's names stands for, where `value` is told: 3600 for some hours."""
    return _step(value, unit)[0] if unit in _SCALES else 1.0


def _step(value: float, unit: str) -> tuple[float, str]:
    """The largest step of the unit's scale that the value fills; that of 1 for 0."""
    value, scale = abs(value), _SCALES[unit]
    if value == 0:
        return next(step for step in scale if step[0] == 1.0)
    return next((step for step in reversed(scale) if value >= step[0]), scale[0])


def _short(value: float) -> str:
    """At most three figures, as far as they say anything."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    shown = f"{value:.{digits}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown
