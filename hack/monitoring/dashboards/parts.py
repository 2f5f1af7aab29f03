"""What dashboards are made of: panels in rows, variables, one look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 24
HEIGHT: Final = 8
FLAT: Final = 4
"""Of panels beside which there is nothing but single figures."""

RATIO: Final = "percentunit"
SECONDS: Final = "s"
MONEY: Final = "none"
"""In the currency of the operator's prices, which a panel can't be told: the dashboard of costs has it at its top."""
COUNT: Final = "short"
BYTES: Final = "bytes"
CELSIUS: Final = "celsius"
WATTS: Final = "watt"

_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """
    Attributes:
        kind: timeseries, stat, bargauge or table.
        steps: (from, colour) of thresholds behind the first, which is green.
        width: of WIDTH.
        stacked: one on the other, for parts of a whole.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    steps: tuple[tuple[float, str], ...] = ()
    width: int = 8
    stacked: bool = False
    most: float | None = None

    def model(self, number: int, x: int, y: int, height: int) -> Json:
        custom: Json = {}
        if self.kind == "timeseries":
            stacking = {"mode": "normal" if self.stacked else "none"}
            custom = {
                "fillOpacity": 30 if self.stacked else 8,
                "lineWidth": 1,
                "showPoints": "never",
                "stacking": stacking,
                "thresholdsStyle": {"mode": "dashed" if self.steps else "off"},
            }
        defaults: Json = {
            "unit": self.unit,
            "min": 0,
            "custom": custom,
            "thresholds": {"mode": "absolute", "steps": [{"color": "green", "value": None}, *self._steps()]},
        }
        if self.most is not None:
            defaults["max"] = self.most
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": _DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": height},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": _OPTIONS[self.kind],
            "targets": [self._target(letter, query) for letter, query in zip("ABCDEFGH", self.queries, strict=False)],
        }

    def _steps(self) -> Iterator[Json]:
        for value, color in self.steps:
            yield {"color": color, "value": value}

    def _target(self, letter: str, query: Query) -> Json:
        instant = self.kind != "timeseries"
        return {
            "refId": letter,
            "datasource": _DATASOURCE,
            "expr": query.expression,
            "legendFormat": query.legend or "__auto",
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if self.kind == "table" else {}),
        }


_OPTIONS: Final[dict[str, Json]] = {
    "timeseries": {
        # `last`: nothing for a series that has ended, where `lastNotNull` would give what it was then.
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["last"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}},
    "bargauge": {"orientation": "horizontal", "displayMode": "basic", "reduceOptions": {"calcs": ["lastNotNull"]}},
    "table": {"showHeader": True},
}


@dataclass(frozen=True)
class Variable:
    """A choice at the top, of the values that `label` has in `metric`; `narrowed` by other choices."""

    name: str
    metric: str
    label: str
    narrowed: str = ""
    several: bool = True

    def model(self) -> Json:
        query = f"label_values({self.metric}{{{self.narrowed}}}, {self.label})"
        every = {"includeAll": True, "allValue": ".*", "multi": True} if self.several else {}
        return {
            "name": self.name,
            "label": self.name,
            "type": "query",
            "datasource": _DATASOURCE,
            "query": {"query": query, "refId": self.name},
            "definition": query,
            "refresh": 2,
            "sort": 1,
            **every,
            "current": {"text": "All", "value": "$__all"} if self.several else {},
        }


CLUSTER: Final = Variable("cluster", "muster_operator_leader", "cluster")
NAMESPACE: Final = Variable("namespace", "muster_job_info", "namespace", 'cluster=~"$cluster"')
QUEUE: Final = Variable("queue", "muster_queue_weight", "queue", 'cluster=~"$cluster"')


@dataclass(frozen=True)
class Dashboard:
    """
    Attributes:
        uid: stays the same for ever: links and bookmarks have it.
        rows: heading, and the panels below it.
        more: variables behind those that all dashboards have.
    """

    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    more: tuple[Variable, ...] = ()

    @property
    def file(self) -> str:
        return f"{self.uid.removeprefix('muster-')}.json"

    @property
    def variables(self) -> tuple[Variable, ...]:
        return (CLUSTER, NAMESPACE, QUEUE, *self.more)

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for _, panels in self.rows for panel in panels)

    def model(self) -> Json:
        """Grafana's JSON."""
        datasource = {"name": "datasource", "label": "datasource", "type": "datasource", "query": "prometheus"}
        return {
            "uid": self.uid,
            "title": f"Muster / {self.title}",
            "description": self.description,
            "tags": ["muster"],
            "schemaVersion": 39,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "1m",
            "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [datasource, *(one.model() for one in self.variables)]},
            "links": [
                {"type": "dashboards", "title": "Muster", "tags": ["muster"], "asDropdown": True, "keepTime": True}
            ],
            "panels": list(self._laid_out()),
        }

    def _laid_out(self) -> Iterator[Json]:
        number, y = 1, 0
        for heading, panels in self.rows:
            yield {
                "id": number,
                "type": "row",
                "title": heading,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            }
            number, y = number + 1, y + 1
            for line in _lines(panels):
                height = FLAT if all(panel.kind == "stat" for panel in line) else HEIGHT
                x = 0
                for panel in line:
                    yield panel.model(number, x, y, height)
                    number, x = number + 1, x + panel.width
                y += height


def _lines(panels: Iterable[Panel]) -> Iterator[list[Panel]]:
    """As many panels beside each other as there is room for."""
    line: list[Panel] = []
    for panel in panels:
        if sum(one.width for one in line) + panel.width > WIDTH:
            yield line
            line = []
        line.append(panel)
    yield line
