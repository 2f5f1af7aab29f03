"""The chargeback: charges added up by team, user, project or month, and rounded so that all sums on a page agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

from muster.sizing.money import GB, HOUR, MONTH, PLATFORM_PRICES, apportioned, rounded
from muster.telemetry.cost.intervals import JobFacts
from muster.telemetry.cost.ledger import UNTOLD, USEFUL, WASTE, Charge, Kind, Ledger
from muster.telemetry.cost.periods import month, month_of, next_month, seconds
from muster_protocol.spelling import there_are

IDLE: Final = "(idle)"
"""Stands where a job's queue, user or project would, for GPUs that no job held."""

UNKNOWN: Final = "(unknown)"
"""Of a job of which no facts are known."""

NONE: Final = "(none)"
"""Of a job without such a label."""

LABEL: Final = "label:"

GROUPS: Final = ("queue", "namespace", "user", "project", "month", "job", "flavour")


@dataclass(frozen=True)
class Row:
    """One line of the table. Money is rounded; `cost` is the sum of `useful`, `waste`, `idle` and `storage`.

    Attributes:
        group: the value of each of the report's groups.
        gpu_hours, gb_months: of use, rounded.
        useful: what training cost, and GPU time of which nobody told what it was spent on.
        waste: what other parts of the jobs' time cost, by part.
        saved: less than on demand, by spot capacity; not part of the cost.
        estimated: an end in it is only the last time that something was seen.
    """

    group: tuple[str, ...]
    gpu_hours: Decimal
    gb_months: Decimal
    useful: Decimal
    waste: Mapping[str, Decimal]
    idle: Decimal
    storage: Decimal
    saved: Decimal
    estimated: bool

    @property
    def wasted(self) -> Decimal:
        return sum(self.waste.values(), _NOTHING)

    @property
    def cost(self) -> Decimal:
        return self.useful + self.wasted + self.idle + self.storage


@dataclass(frozen=True)
class Report:
    """A chargeback. The total is that of the cluster: the rows add up to it in every column, to the last digit.

    Attributes:
        by: names of the groups.
        places: decimals of the money in it.
    """

    by: tuple[str, ...]
    ledger: Ledger
    rows: tuple[Row, ...]
    total: Row
    places: int

    @property
    def forecast(self) -> Decimal | None:
        """What the month that goes on comes to, at the pace of the days that it counts; None for any other period, and
        in a month's first day."""
        begins, ends, over = self.ledger.begins, self.ledger.ends, next_month(self.ledger.begins)
        counted = self.counted_from
        if counted is None or ends - counted < timedelta(days=1):
            return None
        if begins != month(month_of(begins))[0] or ends >= over:
            return None
        pace = Fraction(self.total.cost) / seconds(counted, ends)
        return rounded(Fraction(self.total.cost) + pace * seconds(ends, over), self.places)

    @property
    def counted_from(self) -> datetime | None:
        """Since when the period has charges: later than its begin where Muster came in its middle; None for none."""
        return min((charge.begins for charge in self.ledger.charges), default=None)


class UnknownGroup(ValueError):
    """Nothing can be grouped by that."""


def report(ledger: Ledger, jobs: Iterable[JobFacts], by: Sequence[str] = ("queue",), *, places: int = 2) -> Report:
    """The ledger by groups: any of `GROUPS`, and `label:KEY`; one named twice counts once. The dearest row comes
    first, what was idle last.

    Raises UnknownGroup.
    """
    by = tuple(dict.fromkeys(by))
    for name in by:
        if name not in GROUPS and not (name.startswith(LABEL) and len(name) > len(LABEL)):
            raise UnknownGroup(f"nothing is grouped by {name!r}; {there_are(name, GROUPS)}, and label:KEY")
    facts = {job.uid: job for job in jobs}
    groups = defaultdict[tuple[str, ...], list[Charge]](list)
    for charge in ledger.charges:
        groups[tuple(_value(name, charge, facts.get(charge.line.job)) for name in by)].append(charge)
    cells = [(group, cell) for group in groups for cell in _cells(groups[group]).items()]
    money = apportioned([amount for _, (_, amount) in cells], places)
    shown = {group: dict[str, Decimal]() for group in groups}
    for (group, (name, _)), amount in zip(cells, money, strict=True):
        shown[group][name] = amount
    used = [_used(groups[group]) for group in shown]
    digits = (min(2, places), 2, places)
    columns = [apportioned([use[column] for use in used], some) for column, some in enumerate(digits)]
    rows = [
        _row(group, groups[group], shown[group], hours, kept, saved)
        for group, hours, kept, saved in zip(shown, *columns, strict=True)
    ]
    rows.sort(key=lambda row: (IDLE in row.group, -row.cost, row.group))
    return Report(by, ledger, tuple(rows), _total(rows), places)


_CALLED: Final = {
    "recomputing": "lost steps computed again",
    "data_wait": "waiting for data",
    "checkpoint": "saves",
    "underused": "training with GPUs hardly used",
}
"""What people call parts whose names do not say it."""


def notes(table: Report) -> Iterator[str]:
    """What stands below a table: sentences without their full stop."""
    book = table.ledger
    if table.forecast is not None:
        days = (book.ends - (table.counted_from or book.begins)) / timedelta(days=1)
        money = book.code or PLATFORM_PRICES
        yield (
            f"Month to date, {days:,.1f} days: {table.total.cost:,.2f} {money}; "
            f"at this pace the month comes to {table.forecast:,.2f}{f' {book.code}' if book.code else ''}"
        )
    wasted = [f"{_CALLED.get(part, part)} {amount:,.2f}" for part, amount in table.total.waste.items() if amount]
    if wasted:
        yield f"Wasted: {', '.join(wasted)}"
    for column, name in enumerate(table.by):
        if name.startswith(LABEL) and {row.group[column] for row in table.rows} <= {NONE, UNKNOWN, IDLE}:
            yield f"No job of these has a label {name.removeprefix(LABEL)}"
    for name, quantity in book.unpriced.items():
        if name.startswith("/"):  # of no type; a price names one
            yield (
                f"{_hours(quantity)} GPU hours {name[1:]} are of GPUs whose type no label of their nodes tells, so no "
                "price is for them: counted as nothing. Give the nodes a label like muster.dev/gpu-type=H100"
            )
            continue
        much = "checkpoints" if name == Kind.STORAGE.value else f"{_hours(quantity)} GPU hours of {name}"
        give = "Give one with --prices, or the operator one by the chart's cost.catalogue; see docs/cost.md"
        yield f"No price is known for {much}: counted as nothing. {give}"
    for flavour, over in book.beyond.items():
        if not rounded(over / HOUR, 2):
            continue  # a moment's difference between two clocks
        yield f"Jobs held {_hours(over)} GPU hours of {flavour} more than its pool had: rows of pools are missing"
    if table.total.estimated:
        yield "Some ends are estimated: the last time that a worker was seen, since its end was not"


def _hours(gpu_seconds: Fraction) -> str:
    return f"{rounded(gpu_seconds / HOUR, 2):,.2f}"


def _value(name: str, charge: Charge, job: JobFacts | None) -> str:
    line = charge.line
    if name == "month":
        return line.month
    if name == "flavour":
        return "checkpoints" if line.kind is Kind.STORAGE else f"{line.gpu_type or UNKNOWN}/{line.capacity}"
    if line.kind is Kind.IDLE:
        return IDLE
    if name == "queue" and line.queue:
        return line.queue
    if job is None:
        return UNKNOWN
    if name.startswith(LABEL):
        return job.labels.get(name.removeprefix(LABEL), "") or NONE
    if name == "job":
        return f"{job.namespace}/{job.name}"
    return str(getattr(job, name)) or NONE


_USEFUL: Final = "useful"
_IDLE: Final = "idle"
_STORAGE: Final = "storage"
_NOTHING: Final = Decimal(0)


def _cells(charges: Iterable[Charge]) -> dict[str, Fraction]:
    """Money by what it went to: `useful`, a part of waste, `idle`, `storage`."""
    found = defaultdict[str, Fraction](Fraction)
    for charge in charges:
        part = charge.line.part
        gpus = _USEFUL if part in (USEFUL, UNTOLD) else part
        name = {Kind.GPU: gpus, Kind.IDLE: _IDLE, Kind.STORAGE: _STORAGE}[charge.line.kind]
        found[name] += charge.cost
    return dict(sorted(found.items()))


def _used(charges: Iterable[Charge]) -> tuple[Fraction, Fraction, Fraction]:
    """GPU-hours, GB-months, and what spot capacity saved."""
    gpus = kept = saved = Fraction(0)
    for charge in charges:
        saved += charge.saved
        if charge.line.kind is Kind.STORAGE:
            kept += charge.quantity
        else:
            gpus += charge.quantity
    return gpus / HOUR, kept / (GB * MONTH), saved


def _row(
    group: tuple[str, ...],
    charges: Iterable[Charge],
    money: Mapping[str, Decimal],
    gpu_hours: Decimal,
    gb_months: Decimal,
    saved: Decimal,
) -> Row:
    others = (_USEFUL, _IDLE, _STORAGE)
    told = (*WASTE, *(name for name in money if name not in (*WASTE, *others)))
    return Row(
        group=group,
        gpu_hours=gpu_hours,
        gb_months=gb_months,
        useful=money.get(_USEFUL, _NOTHING),
        waste={part: money[part] for part in told if part in money},
        idle=money.get(_IDLE, _NOTHING),
        storage=money.get(_STORAGE, _NOTHING),
        saved=saved,
        estimated=any(charge.estimated for charge in charges),
    )


def _total(rows: Sequence[Row]) -> Row:
    waste = defaultdict[str, Decimal](Decimal)
    for row in rows:
        for part, amount in row.waste.items():
            waste[part] += amount
    return Row(
        group=(),
        gpu_hours=sum((row.gpu_hours for row in rows), _NOTHING),
        gb_months=sum((row.gb_months for row in rows), _NOTHING),
        useful=sum((row.useful for row in rows), _NOTHING),
        waste=dict(waste),
        idle=sum((row.idle for row in rows), _NOTHING),
        storage=sum((row.storage for row in rows), _NOTHING),
        saved=sum((row.saved for row in rows), _NOTHING),
        estimated=any(row.estimated for row in rows),
    )
