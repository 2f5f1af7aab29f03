"""A chargeback as one HTML file that needs nothing else: to be opened, mailed or printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from muster.sizing.money import PLATFORM_PRICES
from muster.telemetry.cost.chargeback import LABEL, Report, Row

COLUMNS: Final = ("GPU hours", "Useful", "Wasted", "Idle", "Storage", "Cost", "Saved by spot")

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; margin: 2.5rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } p { margin: .3rem 0; color: #55606e; }
table { border-collapse: collapse; width: 100%; margin: 1.2rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid #dde3ea; white-space: nowrap; }
th { font-weight: 600; color: #55606e; } .group { text-align: left; } .estimated::after { content: " ~"; }
tfoot td { font-weight: 700; border-top: 2px solid #1c2430; border-bottom: 0; } .cost { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #e6eaf0; } p, th { color: #9aa6b5; }
  th, td { border-color: #2c3542; } tfoot td { border-top-color: #e6eaf0; }
}
@media print { body { margin: 0; } }
""".strip()


def to_html(report: Report, notes: Sequence[str], *, cluster: str = "") -> str:
    """`notes` stand below the table, a sentence each."""
    book = report.ledger
    money = book.code
    heads = [(_heading(name), "group") for name in report.by]
    heads += [(f"{name}, {money}" if name == "Cost" and money else name, "") for name in COLUMNS]
    period = f"{book.begins:%Y-%m-%d %H:%M} to {book.ends:%Y-%m-%d %H:%M} UTC"
    title = f"Cost of {cluster or 'the cluster'} by {', '.join(name.removeprefix(LABEL) for name in report.by)}"
    rows = "\n".join(_row(row, row.group) for row in report.rows)
    total = _row(report.total, ("Total", *("" for _ in report.by[1:])))
    said = "\n".join(f"<p>{escape(note)}.</p>" for note in [*notes, *_legend(report)])
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{_STYLE}
</style>
<h1>{escape(title)}</h1>
<p>{period}, {f"in {escape(money)}" if money else PLATFORM_PRICES}</p>
<table>
<thead><tr>{"".join(_cell("th", name, kind) for name, kind in heads)}</tr></thead>
<tbody>
{rows}
</tbody>
<tfoot>{total}</tfoot>
</table>
{said}
</html>
"""


def _heading(group: str) -> str:
    """A label's key as it is written, since case matters in it."""
    return group.removeprefix(LABEL) if group.startswith(LABEL) else group.capitalize()


def _row(row: Row, group: Iterable[str]) -> str:
    amounts = (row.gpu_hours, row.useful, row.wasted, row.idle, row.storage)
    cells = [_cell("td", name, "group") for name in group]
    cells += [_cell("td", f"{amount:,.2f}") for amount in amounts]
    cells.append(_cell("td", f"{row.cost:,.2f}", "cost estimated" if row.estimated else "cost"))
    return f"<tr>{''.join(cells)}{_cell('td', f'{row.saved:,.2f}')}</tr>"


def _cell(tag: str, text: str, kind: str = "") -> str:
    return f'<{tag} class="{kind}">{escape(text)}</{tag}>' if kind else f"<{tag}>{escape(text)}</{tag}>"


def _legend(report: Report) -> Iterable[str]:
    yield "Cost is useful, wasted, idle and storage together; what spot capacity saved is no part of it"
    if report.total.estimated:
        yield "~: an end in it was not seen, and is when it was last seen"
