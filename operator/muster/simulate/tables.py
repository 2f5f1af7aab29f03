"""Outcomes side by side, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from rich.table import Table

from muster.simulate.measures import Figures
from muster_protocol.counts import counted

_UNITS: Final = (("d", 86_400.0, 1), ("h", 3600.0, 1), ("m", 60.0, 1), ("s", 1.0, 0))
"""With the digits behind the point."""


def duration(seconds: float) -> str:
    """Like 42s, 12.5m, 3.4h or 2.1d."""
    return _in(_unit(seconds), seconds)


def _unit(seconds: float) -> tuple[str, float, int]:
    return next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])


def _in(unit: tuple[str, float, int], seconds: float) -> str:
    name, size, digits = unit
    return f"{seconds / size:,.{digits}f}{name}"


Show = Callable[[Sequence[Figures]], list[str]]
"""What each row shows, an empty text where there is nothing to say."""


def _each(show: Callable[[Figures], str]) -> Show:
    return lambda rows: [show(row) for row in rows]


def _durations(of: Callable[[Figures], float | None]) -> Show:
    """All in the unit that suits the shortest: they stand there to be compared."""

    def show(rows: Sequence[Figures]) -> list[str]:
        found = [of(row) for row in rows]
        unit = _unit(min((seconds for seconds in found if seconds), default=0.0))
        return ["" if seconds is None else _in(unit, seconds) for seconds in found]

    return show


def _means(of: Callable[[Figures], float | None]) -> Show:
    """Durations, marked where they leave jobs out: those that never ended."""

    def show(rows: Sequence[Figures]) -> list[str]:
        return [_marked(row, text) for row, text in zip(rows, _durations(of)(rows), strict=True)]

    return show


def _marked(row: Figures, text: str) -> str:
    if not text:
        return "no job ended"
    return f"{text} of {row.jobs - row.never} of {counted(row.jobs, 'job')}" if row.never else text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _if_any(count: int | None) -> str:
    return "" if count is None else str(count)


COLUMNS: Final[tuple[tuple[str, Show], ...]] = (
    ("policy", _each(lambda row: row.policy)),
    ("mean completion", _means(lambda row: row.mean_completion)),
    ("mean wait", _means(lambda row: row.mean_wait)),
    ("p90 wait", _durations(lambda row: row.p90_wait)),
    ("p99 wait", _durations(lambda row: row.p99_wait)),
    ("slowdown", _each(lambda row: "" if row.mean_slowdown is None else f"{row.mean_slowdown:.1f}")),
    ("fairness", _each(lambda row: f"{row.fairness:.2f}")),
    ("even speeds", _each(lambda row: f"{row.even_speeds:.2f}")),
    ("in use", _each(lambda row: _percent(row.utilisation))),
    ("useful", _each(lambda row: _percent(row.useful))),
    ("lost", _each(lambda row: _percent(row.lost))),
    ("lost GPU-hours", _each(lambda row: f"{row.lost_gpu_hours:,.0f}")),
    ("fragmented", _each(lambda row: _percent(row.fragmentation))),
    ("evictions", _each(lambda row: str(row.evictions))),
    ("most stops", _each(lambda row: str(row.most_stops))),
    ("never", _each(lambda row: str(row.never))),
    ("of these failed", _each(lambda row: _if_any(row.failed))),
    ("deadlines met", _each(lambda row: "" if row.deadlines is None else f"{row.deadlines_met} of {row.deadlines}")),
    ("missed, told at once", _each(lambda row: _if_any(row.deadlines_told))),
    ("wait in windows", _durations(lambda row: row.mean_wait_in_windows)),
    ("stopped by windows", _each(lambda row: _if_any(row.window_stops))),
    ("plans", _each(lambda row: f"{row.plans:,}")),
    ("a plan", _each(lambda row: f"{1000 * row.planning_seconds / max(1, row.plans):.1f}ms")),
    ("took", _durations(lambda row: row.seconds)),
)


def _there(rows: Sequence[Figures]) -> list[tuple[str, list[str]]]:
    """The columns that say something of any of these."""
    told = ((name, show(rows)) for name, show in COLUMNS)
    return [(name, texts) for name, texts in told if any(texts)]


def side_by_side(rows: Sequence[Figures]) -> Table:
    """One column a policy."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(row.policy, justify="right", no_wrap=True)
    for name, texts in _there(rows)[1:]:
        table.add_row(name, *texts)
    return table


def line_by_line(rows: Sequence[Figures], title: str) -> Table:
    """One line for each."""
    table = Table(title=title, title_justify="left")
    columns = _there(rows)
    for index, (name, _) in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for texts in zip(*(texts for _, texts in columns), strict=True):
        table.add_row(*texts)
    return table


def as_json(rows: Sequence[Figures]) -> str:
    """A list of objects, one a policy; fields as in `muster.simulate.measures.Figures`."""
    return json.dumps([row.as_dict() for row in rows], indent=2)
