"""Grafana dashboards of the chart, one module each; `parts` has what they are made of."""

from __future__ import annotations

import json
from typing import Final

from hack.monitoring.dashboards import checkpoints, cost, fleet, job, queues
from hack.monitoring.dashboards.parts import Dashboard

DASHBOARDS: Final[tuple[Dashboard, ...]] = (
    fleet.DASHBOARD,
    queues.DASHBOARD,
    job.DASHBOARD,
    cost.DASHBOARD,
    checkpoints.DASHBOARD,
)


def text(dashboard: Dashboard) -> str:
    """Its file in the chart."""
    return json.dumps(dashboard.model(), indent=1) + "\n"
