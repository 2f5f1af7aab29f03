"""What every benchmark prints: a table for people and, as the last line, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A figure is met when it is at most `at_most`, in the figure's own unit."""

    at_most: float


def report(bench: str, figures: Mapping[str, float], targets: Mapping[str, Target], notes: Mapping[str, str]) -> bool:
    """Print the table and the JSON line; return whether every target is met.

    Args:
        figures: name to value; the unit ends the name (`replan_ms`).
        targets: for some of the figures.
        notes: for each figure what was measured, in a few words.
    """
    met = all(figures[name] <= target.at_most for name, target in targets.items())
    width = max(len(name) for name in figures)
    print(f"{'figure':<{width}}  {'value':>12}  {'target':>10}  what")
    for name, value in figures.items():
        target = f"≤ {targets[name].at_most:g}" if name in targets else ""
        verdict = "" if name not in targets else "  MISSED" if value > targets[name].at_most else "  met"
        print(f"{name:<{width}}  {value:>12,.1f}  {target:>10}  {notes.get(name, '')}{verdict}")
    limits = {name: {"at_most": target.at_most} for name, target in targets.items()}
    print(json.dumps({"bench": bench, "figures": dict(figures), "targets": limits, "met": met}))
    return met
