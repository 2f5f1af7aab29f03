"""Each dashboard's panels say what they show, and ask only for what exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from hack.monitoring.dashboards import DASHBOARDS
from hack.monitoring.dashboards.parts import WIDTH, Dashboard, Panel
from hack.prometheus import program
from tests.unit.monitoring import rules

from muster.telemetry.metrics_declared import ALL

pytestmark = pytest.mark.unit

KNOWN = {name for metric in ALL for name in metric.series} | set(rules.RECORDED)
PANELS = [pytest.param(panel, id=f"{board.title}: {panel.title}") for board in DASHBOARDS for panel in board.panels]
BOARDS = [pytest.param(board, id=board.title) for board in DASHBOARDS]


def filled(expression: str) -> str:
    """With Grafana's variables as it would fill them in."""
    return re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "2m").replace("$__range", "6h"))


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows(panel: Panel) -> None:
    assert panel.title
    assert panel.description.endswith(".")
    assert panel.unit
    assert 0 < panel.width <= WIDTH
    assert 0 < len(panel.queries) <= 8


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_what_exists(panel: Panel) -> None:
    for query in panel.queries:
        found = rules.names(query.expression)
        assert found
        assert found <= KNOWN


@pytest.mark.parametrize("board", BOARDS)
def test_variables_come_from_what_exists(board: Dashboard) -> None:
    labels = {metric.name: metric.labels for metric in ALL}
    given = {"cluster"}  # by Prometheus
    for variable in board.variables:
        assert variable.label in {*labels[variable.metric], *given}
    used = {
        name for panel in board.panels for query in panel.queries for name in re.findall(r"\$(\w+)", query.expression)
    }
    assert used <= {variable.name for variable in board.variables} | {"__rate_interval", "__range"}


WATCHED = {
    ("muster-fleet", "Least busy jobs"): "utilization",
    ("muster-fleet", "Time of a plan"): "planSeconds",
    ("muster-queues", "Longest wait"): "queueWaitSeconds",
    ("muster-cost", "Budgets"): "budget",
    ("muster-checkpoints", "Oldest last commits"): "checkpointAgeSeconds",
    ("muster-checkpoints", "Jobs that failed"): "failureRate",
}
"""Panels that show what an alert watches, and the alert's threshold."""


def test_a_panel_turns_red_or_green_where_its_alert_fires() -> None:
    panels = {(board.uid, panel.title): panel for board in DASHBOARDS for panel in board.panels}
    for where, threshold in WATCHED.items():
        steps = [value for value, _ in panels[where].steps]
        assert rules.VALUES["thresholds"][threshold] in steps, where


def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    found = [
        {"record": f"panel:query_{number}", "expr": filled(query.expression), "labels": {"number": str(number)}}
        for number, query in enumerate(
            query for board in DASHBOARDS for panel in board.panels for query in panel.queries
        )
    ]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": found}]}))
    command = [program("promtool"), "check", "rules", "queries.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("board", BOARDS)
def test_panels_do_not_overlap(board: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board.model()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= WIDTH
        assert not cells & taken
        taken |= cells


def test_uids_and_panels_numbers_are_unique() -> None:
    assert len({board.uid for board in DASHBOARDS}) == len(DASHBOARDS)
    for board in DASHBOARDS:
        numbers = [panel["id"] for panel in board.model()["panels"]]
        assert len(set(numbers)) == len(numbers)
