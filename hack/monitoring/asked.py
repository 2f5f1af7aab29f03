"""What dashboards ask a Prometheus for: their JSON, with the variables filled in as Grafana would. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

_WINDOW: Final = re.compile(r"\[[\w.]+:5m\]")
_MATCHED: Final = re.compile(r"((?:muster|DCGM)_\w+|\w+:muster_[\w:]+)(\{[^}]*\})?")


@dataclass(frozen=True)
class Choice:
    """A variable at a dashboard's top: the values that `label` has in what `selector` finds.

    Attributes:
        every: what stands for all values; empty where one must be chosen.
    """

    name: str
    selector: str
    label: str
    every: str


@dataclass(frozen=True)
class Asked:
    """One query of a panel, with its variables filled in."""

    dashboard: str
    panel: str
    expression: str
    legend: str
    instant: bool

    @property
    def name(self) -> str:
        return f"{self.dashboard} / {self.panel}: {self.expression}"


def moment(expression: str, now: float) -> float:
    """When an expression is best asked, in seconds since the epoch: now; or soon, where it looks back in steps of five
    minutes, which it takes when the clock shows a multiple of them. A Prometheus may be younger than that."""
    return (now // 300 + 1) * 300 if _WINDOW.search(expression) else now


def panels(dashboard: Json) -> list[Json]:
    """Without the headings of rows."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def choices(dashboard: Json) -> list[Choice]:
    """But for the datasource."""
    found = []
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        parts = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        if parts is None:
            raise ValueError(f"{dashboard['title']}: the variable {variable['name']} isn't one of label_values")
        found.append(Choice(variable["name"], parts[1], parts[2], variable.get("allValue", "")))
    return found


def filled(text: str, values: Mapping[str, str]) -> str:
    """`$name` and `${name}` by the values; raises KeyError for a variable that has none."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: values[found[1] or found[2]], text)


def queries(dashboard: Json, values: Mapping[str, str]) -> list[Asked]:
    """All queries of all panels."""
    return [
        Asked(
            dashboard["title"],
            panel["title"],
            filled(target["expr"], values),
            target["legendFormat"],
            bool(target["instant"]),
        )
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]


def name_of(legend: str, labels: Mapping[str, str]) -> str:
    """A series' name in the legend. `__auto`: its labels, as Grafana shows them."""
    if legend == "__auto":
        return "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}" if labels else ""
    return " ".join(re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend).split())


def selectors(expression: str) -> Iterable[str]:
    """Each metric that a PromQL expression reads, with its matchers."""
    quoted = re.compile(r'"(?:\\.|[^"\\])*"')
    for found in _MATCHED.finditer(expression):
        if not any(text.start() < found.start() < text.end() for text in quoted.finditer(expression)):
            yield found[0]
