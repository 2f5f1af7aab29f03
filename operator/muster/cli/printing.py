"""Tables and pages on a terminal, and without one for what reads them line by line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from muster.api.names import Phase

Cell = str | Text

STYLES: Final = {
    Phase.QUEUED: "yellow",
    Phase.STARTING: "cyan",
    Phase.RUNNING: "green",
    Phase.RESTARTING: "yellow",
    Phase.PREEMPTING: "yellow",
    Phase.SUSPENDED: "magenta",
    Phase.SUCCEEDED: "bold green",
    Phase.FAILED: "bold red",
}
"""Of a phase, as rich names them."""

UNSEEN: Final = "not seen yet: does the operator run?"
"""Of a job without a phase."""


class Output(str, Enum):
    """What `-o` may say."""

    TABLE = "table"
    JSON = "json"


As = Annotated[Output, typer.Option("--output", "-o", help="A table for people, or JSON.")]


WIDEST: Final = 10_000
"""Columns for what is not to be cut or wrapped."""

_CONTROLS: Final = dict.fromkeys(
    [*(set(range(0x20)) - {ord("\t"), ord("\n")}), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
"""Characters that command a terminal, or turn the order of those around them. They take no column."""


class Legible:
    """The same without control characters: a script's last words, an annotation and an Event are anybody's, and they
    could clear the screen, or write over what stands there."""

    def __init__(self, what: RenderableType) -> None:
        self._what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._what, options):
            yield segment if segment.control else Segment(segment.text.translate(_CONTROLS), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._what)


def note(message: str) -> None:
    """A line beside the answer, which stands on stdout."""
    typer.echo(f"muster: {message}", err=True)


def fail(message: str) -> NoReturn:
    """What could not be done ends the command."""
    note(message)
    raise typer.Exit(2)


def print_text(text: str) -> None:
    """As it is."""
    sys.stdout.write(text)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def print_plainly(console: Console, what: RenderableType) -> None:
    """Without a terminal no line ends in spaces."""
    what = Legible(what)
    if console.is_terminal:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    for line in captured.get().splitlines():
        console.print(line.rstrip(), highlight=False, soft_wrap=True)


def print_page(console: Console, what: RenderableType) -> None:
    """Within the terminal's width; without a terminal each line is as long as it is."""
    if not console.is_terminal:
        console.width = WIDEST
    print_plainly(console, what)


def print_sentence(console: Console, sentence: str) -> None:
    """Wrapped at words on a terminal, in one line without."""
    print_page(console, Text(sentence))


def too_wide(console: Console, table: Table) -> bool:
    """Whether the terminal would break the table's lines. Without a terminal nothing does."""
    return console.is_terminal and natural_width(console, table) > console.width


def print_table(console: Console, table: Table) -> None:
    """As wide as it is. Without a terminal no line ends in spaces: the longest cell pads none of the others."""
    console.width = natural_width(console, table)
    print_plainly(console, table)


def natural_width(console: Console, table: Table) -> int:
    """Columns that the table takes when nothing limits it."""
    return console.measure(table, options=console.options.update(max_width=WIDEST)).maximum


def plain_table(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
