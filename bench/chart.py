"""A chart of lines on two logarithmic axes, as SVG without any library: it is drawn anew wherever the bench runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 90, 60
COLOURS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df")


@dataclass(frozen=True)
class Curve:
    """
    Attributes:
        points: (x, y), both above zero, by ascending x.
    """

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class _Axis:
    """Powers of ten from `low` to `high`, laid out from `start` to `end` on the page."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[int | float]:
        return [10**power for power in range(self.low, self.high + 1)]


def draw(curves: Sequence[Curve], title: str, x_name: str, y_name: str) -> str:
    """The SVG. A dashed line through each curve's first point shows what linear growth would be."""
    xs = [x for curve in curves for x, _ in curve.points]
    ys = [y for curve in curves for _, y in curve.points]
    across = _axis(xs, LEFT, WIDTH - RIGHT)
    up = _axis(ys, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" fill="#1f2328">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        *_grid(across, up),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text transform="translate(20 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>",
    ]
    for index, curve in enumerate(curves):
        parts += _curve(curve, COLOURS[index % len(COLOURS)], across, up, 46 + 18 * index)
    return "\n".join([*parts, "</svg>", ""])


def _axis(values: Sequence[float], start: float, end: float) -> _Axis:
    return _Axis(floor(log10(min(values))), max(ceil(log10(max(values))), floor(log10(min(values))) + 1), start, end)


def _grid(across: _Axis, up: _Axis) -> list[str]:
    lines = []
    for value in across.ticks():
        x = across.at(value)
        lines.append(f'<path d="M{x:.1f} {up.start}V{up.end}" stroke="#d0d7de"/>')
        lines.append(f'<text x="{x:.1f}" y="{up.start + 20}" text-anchor="middle">{value:,}</text>')
    for value in up.ticks():
        y = up.at(value)
        lines.append(f'<path d="M{across.start} {y:.1f}H{across.end}" stroke="#d0d7de"/>')
        lines.append(f'<text x="{across.start - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>')
    return lines


def _curve(curve: Curve, colour: str, across: _Axis, up: _Axis, legend: float) -> list[str]:
    places = [(across.at(x), up.at(y)) for x, y in curve.points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    (first_x, first_y), last_x = curve.points[0], curve.points[-1][0]
    # Linear growth, as far as it stays on the page.
    reach = min(last_x, first_x * 10**up.high / first_y)
    return [
        f'<path d="M{across.at(first_x):.1f} {up.at(first_y):.1f}L{across.at(reach):.1f} '
        f'{up.at(first_y * reach / first_x):.1f}" stroke="{colour}" stroke-dasharray="3 5" fill="none" opacity="0.7"/>',
        f'<polyline points="{line}" stroke="{colour}" stroke-width="2.5" fill="none"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places),
        f'<path d="M{LEFT} {legend}h24" stroke="{colour}" stroke-width="2.5"/>',
        f'<text x="{LEFT + 32}" y="{legend + 4}">{escape(curve.name)} (dashed: linear growth)</text>',
    ]
