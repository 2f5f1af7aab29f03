"""Plots as SVG files, written by hand: no library, and they open in any browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from muster.scheduling.snapshot import Seconds
from muster.simulate.engine import Outcome
from muster.simulate.measures import users

ACROSS: Final = 590
"""Of the curves; beside them stand their names."""
HEIGHT: Final = 380
LEFT: Final = 70
RIGHT: Final = 200
"""At least."""
LETTER: Final = 7.5
"""Of a name, at most, in the mean."""
TOP: Final = 40
BOTTOM: Final = 50
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#f0e442")
"""M. Okabe and K. Ito's palette, that colour-blind people can tell apart."""
POINTS: Final = 600
"""Most points of a line: an SVG of a long simulation stays small."""


@dataclass(frozen=True)
class Line:
    """One policy's curve; x and y of equal length. Each y holds until the next x."""

    name: str
    x: Seconds
    y: Seconds


def draw(outcomes: Sequence[Outcome], folder: Path) -> tuple[Path, ...]:
    """Write utilisation.svg, waiting.svg, waits.svg, fragmentation.svg and fairness.svg; returns their paths.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    charts = {
        "utilisation": _chart("GPUs in use", "days", "% of usable GPUs", [_utilisation(one) for one in outcomes]),
        "waiting": _chart("Jobs that wait", "days", "jobs", [_waiting(one) for one in outcomes]),
        "fragmentation": _chart(
            "Idle GPUs on partly used nodes", "days", "% of usable GPUs", [_broken(one) for one in outcomes]
        ),
        "waits": _chart(
            "How long jobs wait",
            "seconds waited, at most (logarithmic)",
            "% of jobs",
            [_waits(one) for one in outcomes],
            log=True,
        ),
        "fairness": _chart(
            "Users by their mean slowdown",
            "mean slowdown, at most (logarithmic)",
            "% of users",
            [_fairness(one) for one in outcomes],
            log=True,
        ),
    }
    paths = []
    for name, svg in charts.items():
        path = folder / f"{name}.svg"
        path.write_text(svg, encoding="utf-8")
        paths.append(path)
    return tuple(paths)


def _days(outcome: Outcome) -> Seconds:
    return (np.array(outcome.series.time) - outcome.begins) / 86_400


def _per_usable(outcome: Outcome, gpus: Sequence[int]) -> Seconds:
    usable: Seconds = np.maximum(np.array(outcome.series.usable, dtype=np.float64), 1.0)
    return 100 * np.array(gpus) / usable


def _utilisation(outcome: Outcome) -> Line:
    return Line(outcome.policy, _days(outcome), _per_usable(outcome, outcome.series.busy))


def _broken(outcome: Outcome) -> Line:
    return Line(outcome.policy, _days(outcome), _per_usable(outcome, outcome.series.broken))


def _waiting(outcome: Outcome) -> Line:
    return Line(outcome.policy, _days(outcome), np.array(outcome.series.waiting, dtype=np.float64))


def _waits(outcome: Outcome) -> Line:
    world = outcome.world
    return _distribution(outcome.policy, world.queued[np.isfinite(world.ended)])


def _fairness(outcome: Outcome) -> Line:
    return _distribution(outcome.policy, users(outcome).slowdown)


def _distribution(name: str, values: Seconds) -> Line:
    """From nobody up to all of these."""
    if not values.size:
        return Line(name, values, values)
    ordered = np.maximum(np.sort(values), 1.0)
    return Line(name, np.append(ordered[:1], ordered), 100 * np.arange(len(ordered) + 1) / len(ordered))


def _chart(title: str, x_name: str, y_name: str, lines: Sequence[Line], *, log: bool = False) -> str:
    """One SVG. With `log` the x axis is logarithmic, else it begins at 0."""
    x_scale = np.log10 if log else np.asarray
    xs = [x_scale(line.x) for line in lines]
    low = min((float(x.min()) for x in xs if x.size), default=0.0) if log else 0.0
    high = max((float(x.max()) for x in xs if x.size), default=1.0)
    top = max((float(line.y.max()) for line in lines if line.y.size), default=1.0) or 1.0
    end = LEFT + ACROSS
    width = end + max([RIGHT, *(40 + math.ceil(LETTER * len(line.name)) for line in lines)])
    across, up = _Axis(low, high, LEFT, end), _Axis(0.0, top, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{(LEFT + end) // 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text transform="translate(16 {HEIGHT // 2}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>',
    ]
    for tick in log_ticks(low, high) if log else _ticks(low, high):
        at, label = across(tick), number(float(10**tick)) if log else f"{tick:g}"
        parts.append(f'<path d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>')
    for tick in _ticks(0.0, top):
        at = up(tick)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{end}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for index, (line, x) in enumerate(zip(lines, xs, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        chosen = _thinned(len(x))
        steps = zip(np.repeat(x[chosen], 2)[1:].tolist(), np.repeat(line.y[chosen], 2)[:-1].tolist(), strict=True)
        path = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in steps)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        y = TOP + 10 + 20 * index
        parts.append(f'<path d="M{end + 12} {y}h22" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{end + 40}" y="{y + 4}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True)
class _Axis:
    """Maps values to places."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)


def _thinned(count: int) -> list[int]:
    """Which of `count` points to draw, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).astype(int)).tolist() if count else []


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / 5
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = np.ceil(low / step)
    return [round(float((first + index) * step), 10) for index in range(int((high - first * step) / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Logarithms of the powers of ten within a range; over less than two of them also of twice and five times these,
    and where even of those there are hardly any, of about five round numbers."""
    factors = (1, 2, 5) if high - low < 2 else (1,)
    powers = range(int(np.floor(low)), int(np.floor(high)) + 1)
    ticks = [power + float(np.log10(factor)) for power in powers for factor in factors]
    found = [tick for tick in ticks if low <= tick <= high]
    return found if len(found) > 2 else [float(np.log10(tick)) for tick in _ticks(10.0**low, 10.0**high) if tick > 0]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
