"""The chart's rules, as Prometheus reads them once the chart's default thresholds stand in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[3]
CHART: Final = ROOT / "charts" / "muster"
VALUES: Final = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["rules"]

DCGM: Final = frozenset(
    {
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    }
)
"""What we read of the DCGM exporter."""


def text(name: str) -> str:
    """Of one of the chart's files of rules."""
    found = (CHART / "rules" / f"{name}.yaml").read_text().replace("@runbookUrl@", VALUES["runbookUrl"])
    for threshold, value in VALUES["thresholds"].items():
        found = found.replace(f"@{threshold}@", str(value))
    return found


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text(name))["groups"] for rule in group["rules"]]


RECORDED: Final = tuple(rule["record"] for rule in rules("recording"))
ALERTS: Final = tuple(rules("alerts"))


def names(expression: str) -> set[str]:
    """Names of metrics in a PromQL expression: ours, DCGM's, and recorded ones."""
    expression = re.sub(r'\{__name__=~"([^"]*)"\}', lambda found: found[1].replace("|", " "), expression)
    bare = re.sub(r'"(\\.|[^"\\])*"', '""', expression)
    return set(re.findall(r"\b(?:muster_\w+|DCGM_\w+|[a-z]+:muster_[\w:]+)", bare))
