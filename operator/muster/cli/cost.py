"""`muster cost` and `muster prices`: what the work cost, and at which prices. Needs no cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml
from rich.console import Console
from rich.table import Table

from muster.api.handwritten import undecoded
from muster.cli.printing import (
    As,
    Output,
    PlainTable,
    fail,
    note,
    print_json,
    print_sentence,
    print_table,
    too_wide,
)
from muster.cli.reconcile import reconcile
from muster.cli.stored_history import HISTORY_URL, history
from muster.sizing.price_file import PARTS, Price, PriceFile, load, parse, read
from muster.sizing.prices import Catalogue, catalogue
from muster.telemetry.cost import formats, rows
from muster.telemetry.cost.chargeback import Report, Row, UnknownGroup, notes, report
from muster.telemetry.cost.ledger import ledger
from muster.telemetry.cost.page import to_html
from muster.telemetry.cost.periods import month as month_named
from muster.telemetry.cost.periods import month_of
from muster_protocol.counts import counted
from muster_protocol.spelling import there_are

app = typer.Typer(
    help="What the work cost: by team, user, project and month.", no_args_is_help=True, rich_markup_mode=None
)
prices_app = typer.Typer(help="What GPUs and storage cost: list, check.", no_args_is_help=True, rich_markup_mode=None)


class Format(str, Enum):
    TABLE = "table"
    CSV = "csv"
    FOCUS = "focus"
    JSON = "json"
    HTML = "html"


_FOR_EYES: Final = (Format.TABLE, Format.HTML)
_LISTED: Final = (
    "At public list prices, since no --prices names a file: where the operator has prices of its own, its metrics, "
    "budgets and /v1/cost count at those. --prices takes the chart's values"
)

PricesFile = Annotated[
    Path | None, typer.Option("--prices", help="A price file, or the chart's values. Left out: public list prices.")
]
Region = Annotated[str, typer.Option(help="Whose prices: as price files name it, like aws/us-east-1.")]
ListPrices = Annotated[
    bool, typer.Option("--list-prices/--no-list-prices", help="Public list prices where no other is.")
]


app.command("reconcile")(reconcile)


@app.command("report")
def report_(
    context: typer.Context,
    intervals: Annotated[
        list[Path] | None, typer.Option(help="JSON lines of who held which GPUs when; may be given again.")
    ] = None,
    pools: Annotated[
        list[Path] | None, typer.Option(help="JSON lines of the GPUs that the cluster had; for what was idle.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(envvar=HISTORY_URL, help="URL of the history's database, in place of files.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="queue, namespace, user, project, month, job, flavour, label:KEY; several with commas.")
    ] = "queue",
    month: Annotated[
        str | None, typer.Option(help="Like 2026-11, in UTC. Left out: all that the files tell of; this month.")
    ] = None,
    form: Annotated[
        Format, typer.Option("--output", "-o", help="html is a page; focus the FinOps specification's CSV.")
    ] = Format.TABLE,
    prices: PricesFile = None,
    region: Region = "",
    list_prices: ListPrices = True,
    cluster: Annotated[str, typer.Option(help="Its name: FOCUS's billing account, and on the page.")] = "",
) -> None:
    """A chargeback from the history, or from exported rows.

    What goes on is counted until now.

    \b
      muster cost report --database sqlite:////PATH/history.db --by queue,user
      muster cost report --intervals october.jsonl --month 2026-10 -o focus
    """
    source = context.get_parameter_source("database")
    if intervals and source is not None and source.name == "ENVIRONMENT":
        database = None  # who names files means them
    if (database is None) == (not intervals):
        fail(
            f"give either --intervals FILE, of exported rows, or --database URL, of the operator's history, which "
            f"{HISTORY_URL} may hold; docs/cost.md has an example of each"
        )
    charged = _catalogue(prices, region, list_prices)
    if prices is not None and charged.problems:  # where only stdout is kept, nobody would see them
        fail(f"no report at other prices than those of {prices}; `muster prices check {prices}` tells when it is right")
    try:
        if database is not None:
            found, begins, ends = _history(database, month)
        else:
            found, begins, ends = _files(intervals or [], pools or [], month)
    except ValueError as error:
        fail(str(error))
    listed = [_LISTED] if prices is None and charged.layers else []
    if listed and form not in _FOR_EYES:
        note(_LISTED)
    book = ledger(charged, begins, ends, found.intervals, parts=found.parts, pools=found.pools, stored=found.stored)
    if form is Format.FOCUS:
        account = formats.Account.named(cluster, charged.region)
        typer.echo(formats.to_focus(book, found.jobs, account), nl=False)
        return
    groups = [name.strip() for name in by.split(",")]
    try:
        table = report(book, found.jobs, groups, places=2 if form in _FOR_EYES else 6)
    except UnknownGroup as error:
        fail(f"--by: {error}")
    if form is Format.CSV:
        typer.echo(formats.to_csv(table), nl=False)
    elif form is Format.JSON:
        typer.echo(formats.to_json(table))
    elif form is Format.HTML:
        typer.echo(to_html(table, [*listed, *notes(table)], cluster=cluster), nl=False)
    else:
        _print(table, lambda: report(book, found.jobs, groups, places=0), listed)


def _files(intervals: list[Path], pools: list[Path], month: str | None) -> tuple[rows.Rows, datetime, datetime]:
    """Rows of files, and the period. Raises ValueError."""
    found, now = rows.Rows(), datetime.now(timezone.utc)
    for path in intervals:
        rows.read(_lines(path), str(path), into=found)
    for path in pools:
        rows.read(_lines(path), str(path), kind="pool", into=found)
    names = ", ".join(str(path) for path in (*intervals, *pools))
    periods = found.periods()
    if not periods:
        raise ValueError(f"{names}: no row tells of GPUs or storage, so there is nothing to bill; see docs/cost.md")
    first, last = min(row[0] for row in periods), max(row[1] or now for row in periods)
    begins, ends = month_named(month) if month else (first, now)
    ends = min(ends, now)
    if begins >= ends or not any(row[0] < ends and (row[1] is None or row[1] > begins) for row in periods):
        asked = month or "the time up to now"
        raise ValueError(f"{names}: nothing is told of {asked}, but from {first:%Y-%m-%d} to {last:%Y-%m-%d}")
    return found, begins, ends


def _history(database: str, month: str | None) -> tuple[rows.Rows, datetime, datetime]:
    """Rows of the history, and the period: what goes on is counted as far as the history reaches. Raises ValueError."""
    asked = month or month_of(datetime.now(timezone.utc))
    begins, ends = month_named(asked)
    with history(database) as (url, reader):
        seen_at = reader.seen_at()
        found = rows.Rows(
            intervals=list(reader.intervals(begins, ends)),
            jobs=list(reader.facts(begins, ends)),
            pools=list(reader.pools(begins, ends)),
            parts=list(reader.parts(begins, ends)),
            stored=list(reader.stored(begins, ends)),
        )
    ends = min(ends, seen_at or begins)
    if begins >= ends or not found.periods():
        from muster.telemetry.history.database import shown

        until = f"it was written until {seen_at:%Y-%m-%d %H:%M} UTC" if seen_at else "nobody has written to it yet"
        raise ValueError(f"the history at {shown(url)} tells of nothing in {asked}; {until}; choose another --month")
    return found, begins, ends


@prices_app.command("list")
def list_(
    prices: PricesFile = None,
    region: Region = "",
    list_prices: ListPrices = True,
    output: As = Output.TABLE,
) -> None:
    """The prices that hold today, and where each comes from.

    \b
      muster prices list --region aws/us-east-1
    """
    found, now = _catalogue(prices, region, list_prices), datetime.now(timezone.utc)
    known, storage, transfer = found.known(now), found.storage(now), found.transfer(now)
    if output is Output.JSON:
        gpus, stored, sent = (
            [price.model_dump(mode="json", by_alias=True) for price in kind if price is not None]
            for kind in (known, [storage], [transfer])
        )
        print_json(
            {"currency": found.currency, "region": found.region, "gpus": gpus, "storage": stored, "transfer": sent}
        )
        return
    priced: list[tuple[str, str, Price]] = [(price.gpu, price.capacity, price) for price in known]
    priced += [("a GB kept a month", "", storage)] if storage is not None else []
    priced += [("a TB sent out", "", transfer)] if transfer is not None else []
    if not priced:
        note("no price holds: there is none of your own, and list prices are left out or in another currency")
        return
    console = Console(markup=False, highlight=False)
    sources = {source: source for source in dict.fromkeys(price.source for *_, price in priced)}
    table = _priced(found.code, priced, sources)
    if too_wide(console, table):
        sources = {source: f"({number})" for number, source in enumerate(filter(None, sources), start=1)}
        table = _priced(found.code, priced, sources)
        print_table(console, table)
        for source, name in sources.items():
            print_sentence(console, f"{name} {source}")
    else:
        print_table(console, table)
    if told := _whose(found, region):
        print_sentence(console, told)


def _priced(currency: str, priced: Iterable[tuple[str, str, Price]], sources: Mapping[str, str]) -> PlainTable:
    """`sources`: what the table says of each."""
    titles = ("GPU", "CAPACITY", f"{currency} AN HOUR".lstrip(), "REGION", "AS OF", "SOURCE")
    rows = [
        (name, capacity, f"{price.amount:f}", price.region, str(price.as_of or ""), sources.get(price.source, ""))
        for name, capacity, price in priced
    ]
    return PlainTable(titles, rows)


def _whose(found: Catalogue, asked: str) -> str:
    """Why it is this region's prices that hold, in a sentence; "" where prices have no regions."""
    if found.region in found.regions:
        return f"Prices of region {found.region}, as {'--region' if asked else 'the price file'} says"
    lists = found.layers[-1].region if found.layers and not found.region else ""
    others = ", ".join(sorted(found.regions - {lists}))
    if not lists or not others:
        return ""
    return (
        f"No region is chosen, so list prices are those of {lists}: it lists the most GPU types on demand and as spot. "
        f"--region, or region: in a price file, takes another: {others}"
    )


@prices_app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A price file, or the chart's values.")],
    region: Region = "",
) -> None:
    """Whether a price file is right, before the operator gets it.

    Ends with 1 when something in it is not.

    \b
      muster prices check values.yaml
    """
    given = _read(file)
    found = given.catalogue(region, True)
    for problem in found.problems:
        typer.echo(problem if problem.startswith(f"{file}: ") else f"{file}: {problem}", err=True)
    own = given.catalogue(region, False).layers
    count = sum(len(layer.gpus) + len(layer.storage) + len(layer.transfer) for layer in own)
    money = f"in {found.code}" if found.code else "in a currency that cost.currency does not name"
    typer.echo(f"{file}: {counted(len(found.problems), 'problem')}, {counted(count, 'price')} {money}")
    if not count and not found.problems:
        note(f"{file} names no price, so only public list prices would hold; docs/cost.md shows what to write")
    raise typer.Exit(1 if found.problems or not count else 0)


def _catalogue(path: Path | None, region: str, list_prices: bool) -> Catalogue:
    found = (
        _read(path).catalogue(region, list_prices)
        if path is not None
        else catalogue(region=region, defaults=list_prices)
    )
    for problem in found.problems:
        note(problem)
    if region and region not in found.regions:
        raise typer.Exit(2)  # at prices of nowhere all would cost nothing
    return found


# fmt: off
CHART: Final = frozenset({
    "affinity", "api", "badNodes", "commonLabels", "cost", "crds", "defaultQueue", "extraEnv", "fullnameOverride",
    "gangPriorityClass", "history", "image", "imagePullSecrets", "log", "metrics", "monitoring", "moves",
    "nameOverride", "networkPolicy", "nodeHoursBetweenFailures", "nodeSelector", "podAnnotations",
    "podDisruptionBudget", "podLabels", "prices", "priorityClassName", "provisioning", "rbac", "replicas",
    "resources", "runtime", "serviceAccount", "tokenKey", "tolerations", "topology",
})
"""What the chart's values have, by which they are known where they name no price."""
# fmt: on

_COST: Final = ("currency", "region", "listPrices", "catalogue")
"""What the chart's `cost` has."""


@dataclass(frozen=True)
class _Given:
    """What a price file says, or the chart's values."""

    flat: Mapping[str, object]
    own: PriceFile
    currency: str = ""
    region: str = ""
    list_prices: bool = True

    def catalogue(self, region: str, list_prices: bool) -> Catalogue:
        defaults = list_prices and self.list_prices
        return catalogue(self.flat, self.own, region=region or self.region, currency=self.currency, defaults=defaults)


def _read(path: Path) -> _Given:
    text = _text(path)
    try:
        raw = load(text)
    except yaml.YAMLError:
        raw = None
    if not isinstance(raw, dict) or not CHART & set(raw):
        return _Given({}, parse(text, str(path)))
    flat, cost = raw.get("prices") or {}, raw.get("cost") or {}
    if not isinstance(flat, dict):
        fail(f"{path}: prices: is no map of numbers; write it like `H100/on-demand: 2.50`")
    if not isinstance(cost, dict):
        fail(f"{path}: cost: is no map; see docs/cost.md")
    own = read(cost.get("catalogue") or {}, f"{path}: cost.catalogue")
    unknown = [f"{path}: cost: there is no {key!r}; {there_are(str(key), _COST)}" for key in cost if key not in _COST]
    apart = [
        f"{path}: {key!r} is no value of the chart, which a file with {_named(raw)!r} is taken for; put it below "
        "cost.catalogue, or leave the chart's values out of a price file"
        for key in raw
        if key in PARTS
    ]
    own = replace(own, problems=(*apart, *unknown, *own.problems))
    listed = cost.get("listPrices", "true") != "false"
    return _Given(flat, own, str(cost.get("currency") or ""), str(cost.get("region") or ""), listed)


def _named(raw: Mapping[str, object]) -> str:
    """The first of the chart's values that a file has."""
    return next(key for key in raw if key in CHART)


def _print(table: Report, in_whole: Callable[[], Report], first: Iterable[str]) -> None:
    """`in_whole` makes the report without cents, for a terminal that they don't fit on; `first`: sentences below it."""
    console = Console(markup=False, highlight=False)
    shown = _table(table)
    if too_wide(console, shown):
        shown = _table(table, gap=1)
    coarse = too_wide(console, shown)
    print_table(console, _table(in_whole(), gap=1) if coarse else shown)
    for sentence in (*first, *notes(table)):
        print_sentence(console, sentence)
    if coarse:
        whole = table.ledger.code or "units of money"
        print_sentence(console, f"In whole {whole}, for the terminal is narrow; -o csv has all digits")


def _table(table: Report, *, gap: int = 2) -> Table:
    titles = ("GPU HOURS", "USEFUL", "WASTED", "IDLE", "STORAGE", f"COST {table.ledger.code}".rstrip(), "SPOT SAVED")
    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, gap - 1))
    for name in table.by:
        shown.add_column(name.upper(), no_wrap=True)
    for title in titles:
        shown.add_column(title, justify="right", no_wrap=True)
    for row in table.rows:
        # In one line: an annotation with a line break would look like a row more.
        shown.add_row(*(" ".join(value.split()) for value in row.group), *_cells(row, table.places))
    shown.add_row("total", *("" for _ in table.by[1:]), *_cells(table.total, table.places), style="bold")
    return shown


def _cells(row: Row, places: int) -> list[str]:
    amounts = (row.gpu_hours, row.useful, row.wasted, row.idle, row.storage, row.cost, row.saved)
    return [f"{amount:,.{places}f}" for amount in amounts]


def _lines(path: Path) -> list[str]:
    """JSON has what others call ends of lines within a line."""
    return _text(path).split("\n")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror or error}; name a file that can be read")
    except UnicodeDecodeError:
        fail(undecoded(path))
