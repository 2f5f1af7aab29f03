"""A curve drawn with letters, for terminals. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character by column and row: each cell holds 2 x 4 dots."""


def curve(
    points: Sequence[tuple[float, float]],
    *,
    width: int = 72,
    height: int = 14,
    marks: Mapping[float, str] | None = None,
) -> str:
    """The points as a braille curve with both axes; `marks` puts a word under an x.

    `width` and `height` are those of the curve in characters. Points that are not finite are left out. Raises
    ValueError when no point is left.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        raise ValueError("there is no point to draw")
    xs, ys = [x for x, _ in finite], [y for _, y in finite]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    cells = [[0] * width for _ in range(height)]
    for x, y in finite:
        column = _scale(x, left, right, 2 * width)
        row = 4 * height - 1 - _scale(y, low, high, 4 * height)
        cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    labels = {0: f"{high:.3f}", height - 1: f"{low:.3f}"}
    margin = max(len(label) for label in labels.values())
    lines = [
        f"{labels.get(index, ''):>{margin}} |" + "".join(chr(0x2800 + cell) for cell in row).rstrip("\u2800")
        for index, row in enumerate(cells)
    ]
    lines.append(" " * margin + " +" + "-" * width)
    lines.append(" " * (margin + 2) + f"{left:g}".ljust(width - len(f"{right:g}")) + f"{right:g}")
    lines += _mark_lines(marks or {}, left, right, width, margin)
    return "\n".join(lines)


def _scale(value: float, low: float, high: float, cells: int) -> int:
    """Which of `cells` cells between low and high holds the value."""
    return min(cells - 1, int((value - low) / (high - low) * cells)) if high > low else 0


def _mark_lines(marks: Mapping[float, str], left: float, right: float, width: int, margin: int) -> list[str]:
    lines = []
    for x, word in sorted(marks.items()):
        column = _scale(x, left, right, width)
        text = f"^ {word}"
        start = column if column + len(text) <= width else max(0, column - len(word) - 1)
        shown = text if start == column else f"{word} ^"
        lines.append(" " * (margin + 2 + start) + shown)
    return lines
