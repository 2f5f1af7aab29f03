"""Outcomes side by side, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from rich.table import Table

from muster.simulate.measures import Figures
from muster_protocol.counts import counted


def duration(seconds: float) -> str:
    """Like 42s, 12.5m, 3.4h or 2.1d."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _mean(row: Figures, seconds: float) -> str:
    """A mean, marked where it leaves jobs out: those that never ended."""
    ended = row.jobs - row.never
    if not ended:
        return "no job ended"
    return duration(seconds) + (f" of {ended} of {counted(row.jobs, 'job')}" if row.never else "")


def _if_any(count: int | None) -> str:
    return "" if count is None else str(count)


COLUMNS: Final[tuple[tuple[str, Callable[[Figures], str]], ...]] = (
    ("policy", lambda row: row.policy),
    ("mean completion", lambda row: _mean(row, row.mean_completion)),
    ("mean wait", lambda row: _mean(row, row.mean_wait)),
    ("p90 wait", lambda row: duration(row.p90_wait)),
    ("p99 wait", lambda row: duration(row.p99_wait)),
    ("slowdown", lambda row: f"{row.mean_slowdown:.1f}"),
    ("fairness", lambda row: f"{row.fairness:.2f}"),
    ("even speeds", lambda row: f"{row.even_speeds:.2f}"),
    ("in use", lambda row: _percent(row.utilisation)),
    ("useful", lambda row: _percent(row.useful)),
    ("lost", lambda row: _percent(row.lost)),
    ("lost GPU-hours", lambda row: f"{row.lost_gpu_hours:,.0f}"),
    ("fragmented", lambda row: _percent(row.fragmentation)),
    ("evictions", lambda row: str(row.evictions)),
    ("most stops", lambda row: str(row.most_stops)),
    ("never", lambda row: str(row.never)),
    ("of these failed", lambda row: _if_any(row.failed)),
    ("deadlines met", lambda row: "" if row.deadlines is None else f"{row.deadlines_met} of {row.deadlines}"),
    ("missed, told at once", lambda row: _if_any(row.deadlines_told)),
    (
        "wait in windows",
        lambda row: "" if row.mean_wait_in_windows is None else duration(row.mean_wait_in_windows),
    ),
    ("stopped by windows", lambda row: _if_any(row.window_stops)),
    ("plans", lambda row: f"{row.plans:,}"),
    ("a plan", lambda row: f"{1000 * row.planning_seconds / max(1, row.plans):.1f}ms"),
    ("took", lambda row: duration(row.seconds)),
)


def _there(rows: Sequence[Figures]) -> tuple[tuple[str, Callable[[Figures], str]], ...]:
    """The columns that say something of any of these."""
    return tuple((name, show) for name, show in COLUMNS if any(show(row) for row in rows))


def side_by_side(rows: Sequence[Figures]) -> Table:
    """One column a policy."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(row.policy, justify="right", no_wrap=True)
    for name, show in _there(rows)[1:]:
        table.add_row(name, *(show(row) for row in rows))
    return table


def line_by_line(rows: Sequence[Figures], title: str) -> Table:
    """One line for each."""
    table = Table(title=title, title_justify="left")
    columns = _there(rows)
    for index, (name, _) in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(show(row) for _, show in columns))
    return table


def as_json(rows: Sequence[Figures]) -> str:
    """A list of objects, one a policy; fields as in `muster.simulate.measures.Figures`."""
    return json.dumps([row.as_dict() for row in rows], indent=2)
