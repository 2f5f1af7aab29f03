"""Pictures of dashboards: figures as Grafana shows them, and every panel drawn."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise

import pytest
from hack.monitoring import draw, units
from hack.monitoring.dashboards import DASHBOARDS
from hack.monitoring.server import Series
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from tests.unit.monitoring.test_asked import VALUES

pytestmark = pytest.mark.unit

WINDOW = draw.Window(0.0, 100.0, 10.0)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.731, "percentunit", "73.1%"),
        (1.0, "percentunit", "100%"),
        (90.0, "s", "1.5 min"),
        (0.0, "s", "0 s"),
        (0.0034, "s", "3.4 ms"),
        (1e-9, "s", "0 µs"),
        (1536.0, "bytes", "1.5 KiB"),
        (12_400.0, "short", "12.4 K"),
        (3.0, "short", "3"),
        (2_500_000.0, "Bps", "2.5 MB/s"),
        (12.345, "none", "12.3"),
        (0.00043, "percentunit", "0.043%"),
        (0.0, "percentunit", "0%"),
        (61.0, "celsius", "61 °C"),
    ],
)
def test_figures(value: float, unit: str, shown: str) -> None:
    assert units.text(value, unit) == shown


def test_every_unit_of_every_panel_is_known() -> None:
    assert {units.text(1.0, panel.unit) for board in DASHBOARDS for panel in board.panels}


def two(expression: str, instant: bool) -> Sequence[Series]:
    """Two series, of which one begins late."""
    labels = {"queue": "research", "namespace": "ns", "job_name": "j"}
    points = tuple((10.0 * number, 0.1 * number) for number in range(11))
    return [Series(labels, points[-1:] if instant else points), Series(labels, points[-1:] if instant else points[5:])]


def coloured(picture: bytes) -> int:
    """Pixels that are not grey."""
    saturation = Image.open(BytesIO(picture)).convert("HSV").getchannel("S")
    return sum(saturation.histogram()[120:])


def test_a_dashboard_is_drawn_with_data_and_without() -> None:
    board = next(board for board in DASHBOARDS if board.uid == "muster-fleet").model()
    full = draw.picture(board, VALUES, two, WINDOW)
    empty = draw.picture(board, VALUES, lambda expression, instant: [], WINDOW)
    size = Image.open(BytesIO(full)).size
    assert size == Image.open(BytesIO(empty)).size
    assert size[0] == draw.WIDTH_PX
    assert coloured(full) > 10_000
    assert coloured(empty) < 100


@pytest.mark.parametrize("width", [90, 150, 230, 300, 420, 700])
@pytest.mark.parametrize("seconds", [120, 500, 900, 3_600, 21_600, 86_400])
@pytest.mark.parametrize("start", [1_790_000_000, 1_790_001_234])
def test_the_times_below_a_panel_do_not_run_together(width: int, seconds: int, start: int) -> None:
    figure = Figure(figsize=(15, 4), dpi=100)
    axes = figure.add_axes((0.1, 0.3, width / 1500, 0.5))
    plain = {"thresholds": {"steps": [{"value": None, "color": "green"}]}}
    draw._scales(axes, "short", plain, 1.0, draw.Window(start, start + seconds, seconds / 60))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    shown = [label for label in axes.get_xticklabels() if label.get_text()]
    boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
    assert all(left.x1 + 4 < right.x0 for left, right in pairwise(boxes)), [label.get_text() for label in shown]
    assert len(shown) >= min(2, width // 100)
