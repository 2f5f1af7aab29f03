"""Draws a dashboard from its own JSON: the panels where they lie, with what their own queries give.

It is not Grafana. It knows what the dashboards here use: timeseries, stat and bargauge, units, thresholds, legends.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from io import BytesIO
from typing import Any, Final

import matplotlib.dates
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D
from PIL import Image

from hack.monitoring import asked, units
from hack.monitoring.server import Series

Json = dict[str, Any]
Ask = Callable[[str, bool], Sequence[Series]]
"""(an expression, whether one moment is asked for) -> what it gives."""

WIDTH_PX: Final = 1500
ROW_PX: Final = 36
"""Of one unit of a panel's gridPos."""
HEADER_PX: Final = 64
_COLUMNS: Final = 24
_DPI: Final = 100
_LEGENDS: Final = 8
"""Series that are named; the others are counted."""
_SHORT_S: Final = 600
"""Of a window: below it, seconds are told."""

_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12, 24)),
)
"""Between two times below a panel."""

_PAGE, _PANEL, _EDGE = "#f4f5f7", "#ffffff", "#dcdfe4"
_TEXT, _FAINT, _GRID = "#24292e", "#6a737d", "#eceff2"
_COLOURS: Final = {"green": "#299c46", "orange": "#e5760b", "red": "#d44a3a"}
_PALETTE: Final = ("#3274d9", "#e5760b", "#299c46", "#a352cc", "#d44a3a", "#0c9fb0", "#b8860b", "#6a737d")


@dataclass(frozen=True)
class Window:
    """Seconds since the epoch, and between two points."""

    start: float
    end: float
    step: float


@dataclass(frozen=True)
class _Box:
    """On the page, in pixels from its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class _Named:
    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        return self.points[-1][1]


def picture(dashboard: Json, values: Mapping[str, str], ask: Ask, window: Window) -> bytes:
    """The dashboard as PNG. `values`: of its variables."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    height = HEADER_PX + rows * ROW_PX + 12
    figure = Figure(figsize=(WIDTH_PX / _DPI, height / _DPI), dpi=_DPI, facecolor=_PAGE)
    page = _Page(figure, height)
    _header(page, dashboard, values, window)
    for panel in dashboard["panels"]:
        box = _box(panel["gridPos"])
        if panel["type"] == "row":
            page.text(box.x + 4, box.y + box.height * 0.6, panel["title"], size=11, weight="bold")
            continue
        found = [
            _Named(asked.name_of(target["legendFormat"], series.labels), series.points)
            for target in panel["targets"]
            for series in ask(asked.filled(target["expr"], values), bool(target["instant"]))
        ]
        _panel(page, panel, box, found, window)
    return _png(figure)


class _Page:
    """A figure with pixels for coordinates, as panels count: from the upper left corner."""

    def __init__(self, figure: Figure, height: float) -> None:
        self.figure, self.height = figure, height

    def text(self, x: float, y: float, text: str, *, size: float = 9, color: str = _TEXT, **more: Any) -> None:
        self.figure.text(x / WIDTH_PX, 1 - y / self.height, text, fontsize=size, color=color, va="center", **more)

    def axes(self, box: _Box) -> Axes:
        bottom = 1 - (box.y + box.height) / self.height
        where = (box.x / WIDTH_PX, bottom, box.width / WIDTH_PX, box.height / self.height)
        return self.figure.add_axes(where)

    def rectangle(self, box: _Box, *, face: str, edge: str = "none", rounding: float = 0.0) -> None:
        style = f"round,pad=0,rounding_size={rounding}" if rounding else "square,pad=0"
        corner = (box.x, self.height - box.y - box.height)
        patch = FancyBboxPatch(
            corner, box.width, box.height, boxstyle=style, facecolor=face, edgecolor=edge, linewidth=1, zorder=-1
        )
        patch.set_transform(self._pixels())
        self.figure.add_artist(patch)

    def _pixels(self) -> Any:
        return Affine2D().scale(1 / WIDTH_PX, 1 / self.height) + self.figure.transFigure


def _box(at: Mapping[str, int]) -> _Box:
    unit, gap = (WIDTH_PX - 16) / _COLUMNS, 4
    return _Box(
        8 + at["x"] * unit + gap,
        HEADER_PX + at["y"] * ROW_PX + gap,
        at["w"] * unit - 2 * gap,
        at["h"] * ROW_PX - 2 * gap,
    )


def _header(page: _Page, dashboard: Json, values: Mapping[str, str], window: Window) -> None:
    page.text(14, 22, dashboard["title"], size=16, weight="bold")
    page.text(14, 46, dashboard["description"], size=10, color=_FAINT)
    chosen = [
        f"{choice.name}: {'All' if values[choice.name] == '.*' else values[choice.name]}"
        for choice in asked.choices(dashboard)
    ]
    moments = [datetime.fromtimestamp(at, timezone.utc) for at in (window.start, window.end)]
    span = f"{moments[0]:%Y-%m-%d %H:%M} to {moments[1]:%H:%M} UTC"
    page.text(WIDTH_PX - 14, 22, "    ".join([*chosen, span]), size=10, ha="right")


def _panel(page: _Page, panel: Json, box: _Box, found: Sequence[_Named], window: Window) -> None:
    page.rectangle(box, face=_PANEL, edge=_EDGE, rounding=4)
    page.text(box.x + 12, box.y + 17, panel["title"], size=10.5, weight="bold")
    below = 32
    for line in textwrap.wrap(panel["description"], int(box.width / 6.1))[:2]:
        page.text(box.x + 12, box.y + below + 3, line, size=8, color=_FAINT)
        below += 14
    inner = _Box(box.x + 12, box.y + below + 4, box.width - 24, box.height - below - 12)
    if not found:
        page.text(inner.x + inner.width / 2, inner.y + inner.height / 2, "No data", size=12, color=_FAINT, ha="center")
        return
    _DRAWN[panel["type"]](page, panel, inner, found, window)


# ------------------------------------------------------------------------------------------------------------ the kinds


def _stat(page: _Page, panel: Json, box: _Box, found: Sequence[_Named], window: Window) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    shown = units.text(found[0].last, defaults["unit"])
    colour = _coloured(found[0].last, defaults)
    middle = (box.x + box.width / 2, box.y + box.height / 2)
    size = min(34.0, box.width / len(shown) / 1.05)  # points: as much as fits
    page.text(*middle, shown, size=size, color=colour, weight="bold", ha="center")


def _bargauge(page: _Page, panel: Json, box: _Box, found: Sequence[_Named], window: Window) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    most = defaults.get("max") or max(series.last for series in found) or 1.0
    height = min(34.0, box.height / len(found))
    beside = 0.34 * box.width
    for number, series in enumerate(found):
        y = box.y + number * height + height / 2
        page.text(box.x + beside - 10, y, _cut(series.name, int(beside / 7.5)), ha="right")
        bar = _Box(box.x + beside, y - height * 0.32, box.width * 0.5, height * 0.64)
        page.rectangle(bar, face=_GRID)
        colour = _coloured(series.last, defaults)
        page.rectangle(_Box(bar.x, bar.y, bar.width * min(1.0, series.last / most), bar.height), face=colour)
        page.text(bar.x + bar.width + 8, y, units.text(series.last, defaults["unit"]), color=colour, weight="bold")


def _timeseries(page: _Page, panel: Json, box: _Box, found: Sequence[_Named], window: Window) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    unit, custom = defaults["unit"], defaults["custom"]
    lines = (min(len(found), _LEGENDS) + 1) // 2 + (len(found) > _LEGENDS)
    axes = page.axes(_Box(box.x + 54, box.y + 2, box.width - 60, box.height - 24 - 15 * lines))
    stacked = custom["stacking"]["mode"] == "normal"
    top = _stack(axes, found, window) if stacked else _lines(axes, found, window, custom["fillOpacity"] / 100)
    _scales(axes, unit, defaults, top, window)
    below = box.y + box.height - 15 * lines + 10
    for number, series in enumerate(found[:_LEGENDS]):
        x, y = box.x + (number % 2) * box.width / 2, below + 15 * (number // 2)
        page.rectangle(_Box(x + 2, y - 2, 12, 4), face=_PALETTE[number % len(_PALETTE)])
        ended = series.points[-1][0] < window.end - window.step / 2
        told = "" if ended else units.text(series.last, unit)
        page.text(x + 20, y, f"{_cut(series.name, int(box.width / 18))}  {told}", size=8)
    if len(found) > _LEGENDS:
        page.text(box.x + 2, below + 15 * (lines - 1), f"and {len(found) - _LEGENDS} more", size=8, color=_FAINT)


_DRAWN: Final = {"stat": _stat, "bargauge": _bargauge, "timeseries": _timeseries}


def _lines(axes: Axes, found: Sequence[_Named], window: Window, opacity: float) -> float:
    for number, series in enumerate(found):
        colour = _PALETTE[number % len(_PALETTE)]
        at, values = _when(window), _on_grid(series, window)
        axes.plot(at, values, color=colour, linewidth=1.4, marker="." if np.isfinite(values).sum() == 1 else None)
        axes.fill_between(at, values, 0, color=colour, alpha=opacity / max(1, len(found)), linewidth=0)
    return max(value for series in found for _, value in series.points)


def _stack(axes: Axes, found: Sequence[_Named], window: Window) -> float:
    known = np.vstack([_on_grid(series, window) for series in found])
    layers = np.where(np.isnan(known).all(axis=0), np.nan, np.nan_to_num(known))
    colours = [_PALETTE[number % len(_PALETTE)] for number in range(len(found))]
    axes.stackplot(_when(window), layers, colors=colours, alpha=0.45, linewidth=0)
    for top, colour in zip(layers.cumsum(axis=0), colours, strict=True):
        axes.plot(_when(window), top, color=colour, linewidth=1.2)
    return float(np.nanmax(layers.sum(axis=0)))


def _scales(axes: Axes, unit: str, defaults: Json, top: float, window: Window) -> None:
    most = defaults.get("max", 0) if unit == "percentunit" else 0
    limit = max(top * 1.1, min(float(most), 1.0)) or 1.0
    axes.set_ylim(0, limit)
    axes.set_xlim(_when(window)[0], _when(window)[-1])
    for step in defaults["thresholds"]["steps"]:
        if step["value"] and step["value"] < limit:
            axes.axhline(step["value"], color=_COLOURS[step["color"]], linewidth=1, linestyle="--")
    size = units.size(limit, unit)
    axes.set_yticks(
        [
            tick * size
            for tick in MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, limit / size)
            if 0 <= tick * size <= limit
        ]
    )
    axes.yaxis.set_major_formatter(lambda value, _: units.text(value, unit))
    span = window.end - window.start
    clock, label_px = ("%H:%M", 50) if span > _SHORT_S else ("%H:%M:%S", 72)
    room = min(6.0, axes.get_window_extent().width / label_px)
    step = next((step for step in _STEPS_S if span <= step * room), span)
    axes.set_xticks(_dates(np.arange(-(-window.start // step) * step, window.end + 1e-6, step)))
    axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter(clock))
    axes.tick_params(labelsize=8, colors=_FAINT, length=0)
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_alpha(0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _when(window: Window) -> Any:
    return _dates(np.arange(window.start, window.end + 1e-6, window.step))


def _dates(moments: Any) -> Any:
    return matplotlib.dates.date2num([datetime.fromtimestamp(at, timezone.utc) for at in moments])


def _on_grid(series: _Named, window: Window) -> Any:
    """Its values at the window's moments; NaN where it had none."""
    values = np.full(len(np.arange(window.start, window.end + 1e-6, window.step)), np.nan)
    for at, value in series.points:
        values[round((at - window.start) / window.step)] = value
    return values


def _coloured(value: float, defaults: Json) -> str:
    """By the highest threshold that the value reaches."""
    reached = [
        step["color"] for step in defaults["thresholds"]["steps"] if step["value"] is None or value >= step["value"]
    ]
    return _COLOURS[reached[-1]]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _png(figure: Figure) -> bytes:
    """In few colours: half a megabyte becomes a third of it or less. An octree keeps those of small areas, as a legend
    has."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    kept = BytesIO()
    image.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(kept, "PNG", optimize=True)
    return kept.getvalue()
