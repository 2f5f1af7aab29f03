"""Tables and pages on a terminal, and without one for what reads them line by line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import StyleType
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
_BREAKS: Final = str.maketrans("\n\t", "  ")
GAP: Final = 2
"""Columns between two of a table's."""


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


class PlainTable:
    """A line for the titles and one for each row, columns as wide as their longest cell. Rich's own table measures and
    wraps each cell for itself, which takes ten seconds for ten thousand jobs."""

    def __init__(self, titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        told = [[_in_a_line(title, "bold") for title in titles], *(list(map(_in_a_line, row)) for row in rows)]
        self._lines = [[(text, cell_len(text), style) for text, style in line] for line in told]
        self._widths = [max(length for _, length, _ in column) for column in zip(*self._lines, strict=True)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._lines:
            pads = [width - length + GAP for width, (_, length, _) in zip(self._widths, line, strict=True)]
            pads[-1] = 0
            for (text, _, style), pad in zip(line, pads, strict=True):
                yield Segment(text, console.get_style(style))
                yield Segment(" " * pad)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = sum(self._widths) + GAP * (len(self._widths) - 1)
        return Measurement(width, width)


def _in_a_line(cell: Cell, style: StyleType = "") -> tuple[str, StyleType]:
    text, style = (cell, style) if isinstance(cell, str) else (cell.plain, cell.style)
    return text.translate(_BREAKS).translate(_CONTROLS), style


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
    console.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def print_page(console: Console, what: RenderableType) -> None:
    """Within the terminal's width; without a terminal each line is as long as it is."""
    if not console.is_terminal:
        console.width = WIDEST
    print_plainly(console, what)


def print_sentence(console: Console, sentence: str) -> None:
    """Wrapped at words on a terminal, in one line without."""
    print_page(console, Text(sentence))


def too_wide(console: Console, table: PlainTable | Table) -> bool:
    """Whether the terminal would break the table's lines. Without a terminal nothing does."""
    return console.is_terminal and natural_width(console, table) > console.width


def print_table(console: Console, table: PlainTable | Table) -> None:
    """As wide as it is; what follows it is as wide as the terminal again. Without a terminal no line ends in spaces:
    the longest cell pads none of the others."""
    width, console.width = console.width, natural_width(console, table)
    print_plainly(console, table)
    console.width = width


def natural_width(console: Console, table: PlainTable | Table) -> int:
    """Columns that the table takes when nothing limits it."""
    return console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
