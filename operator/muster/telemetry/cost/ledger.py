"""The ledger: intervals and prices in, charges out. Pure and exact.

A charge is GPU time of one job, in one month, of one flavour at one rate, spent on one part of its work; or GPUs that
nobody used; or checkpoints that were kept. Everything else, by team or by month, is a sum of charges: all sums agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from typing import Any, Final

from muster.sizing.money import gpu_cost, storage_cost
from muster.sizing.prices import NO_CURRENCY, STORAGE, Catalogue, Key
from muster.sizing.slices import share, whole
from muster.telemetry.cost.intervals import AttemptParts, Interval, PoolInterval, Stored, current, latest
from muster.telemetry.cost.periods import microseconds, month_of, months, pieces
from muster.telemetry.cost.pools import Holding, idle

ON_DEMAND: Final = "on-demand"
SPOT: Final = "spot"

UNTOLD: Final = ""
"""Part of GPU time of which nobody told what it was spent on."""

USEFUL: Final = "training"

WASTE: Final = ("starting", "restoring", "recomputing", "hung", "data_wait", "checkpoint", "underused")
"""Parts in which GPUs were held and nothing new was learnt: goodput's, and training in which they were hardly used."""


class Kind(str, Enum):
    """What a charge is for."""

    GPU = "gpu"
    """GPUs that a job held; its quantity is GPU-seconds."""
    IDLE = "idle"
    """GPUs that the cluster had and no job held; GPU-seconds."""
    STORAGE = "storage"
    """Checkpoints of a job; byte-seconds."""


@dataclass(frozen=True)
class Line:
    """What charges are told apart by.

    Attributes:
        job: UID; "" for what is idle.
        month: in UTC, like 2026-11.
        part: of the job's time, see `muster.api.goodput.PARTS`; `UNTOLD` where nothing is known.
        rate: what was paid for a GPU and hour, or a gigabyte and month; None where there is no price.
        list_rate: what the GPU would have cost on demand; None where that is not known, or it is no GPU.
        queue: that the job drew on then; "" where that is not known, or it is no GPU that a job held.
    """

    kind: Kind
    job: str
    month: str
    gpu_type: str = ""
    capacity: str = ""
    part: str = UNTOLD
    rate: Decimal | None = None
    list_rate: Decimal | None = None
    queue: str = ""


@dataclass
class _Sum:
    """`quantity`: microseconds of GPUs, or of slices of the line's type, or byte-microseconds."""

    quantity: int = 0
    begins: datetime | None = None
    ends: datetime | None = None
    estimated: bool = False


@dataclass(frozen=True)
class Charge:
    """One line of the ledger.

    Attributes:
        quantity: GPU-seconds, or byte-seconds.
        begins, ends: the first and the last moment that it counts, within its month.
        estimated: an end in it is only the last time that something was seen.
    """

    line: Line
    quantity: Fraction
    begins: datetime
    ends: datetime
    estimated: bool

    @property
    def cost(self) -> Fraction:
        return self._at(self.line.rate)

    @property
    def saved(self) -> Fraction:
        """Less than on demand, for spot capacity whose price on demand is known."""
        line = self.line
        if line.capacity != SPOT or line.rate is None or line.list_rate is None or line.kind is not Kind.GPU:
            return Fraction(0)
        return self._at(line.list_rate) - self.cost

    def _at(self, rate: Decimal | None) -> Fraction:
        if rate is None:
            return Fraction(0)
        price = storage_cost if self.line.kind is Kind.STORAGE else gpu_cost
        return price(self.quantity, rate)


@dataclass(frozen=True)
class Ledger:
    """All charges of a period.

    Attributes:
        charges: in the order of their lines.
        beyond: GPU-seconds by flavour that jobs held beyond what the pools say there was: the pools are wrong there.
    """

    currency: str
    begins: datetime
    ends: datetime
    charges: tuple[Charge, ...]
    beyond: Mapping[str, Fraction]

    @property
    def code(self) -> str:
        """The currency for people: "" where nobody told."""
        return "" if self.currency == NO_CURRENCY else self.currency

    @property
    def cost(self) -> Fraction:
        return sum((charge.cost for charge in self.charges), Fraction(0))

    @property
    def unpriced(self) -> dict[str, Fraction]:
        """GPU-seconds or byte-seconds that have no price, and count as nothing, by flavour or `storage`."""
        found = defaultdict[str, Fraction](Fraction)
        for charge in self.charges:
            line = charge.line
            if line.rate is None:
                found[line.kind if line.kind is Kind.STORAGE else f"{line.gpu_type}/{line.capacity}"] += charge.quantity
        return dict(sorted(found.items()))


def ledger(
    prices: Catalogue,
    begins: datetime,
    ends: datetime,
    intervals: Iterable[Interval],
    *,
    parts: Iterable[AttemptParts] = (),
    pools: Iterable[PoolInterval] = (),
    stored: Iterable[Stored] = (),
) -> Ledger:
    """What [begins, ends) cost. What goes on is counted until `ends`, which should be no later than now.

    Rows may come more than once and in any order (see `current`). GPU time of an attempt is spread over the parts of
    its time by their share of it: all its workers wait for one another.
    """
    book = _Book(prices, begins, ends)
    rows = current(intervals)
    for row in rows:
        if row.gpus:
            book.gpus(Kind.GPU, row, row.job, row.attempt)
    for store in current(stored):
        book.bytes(store)
    unused, over = idle(rows, current(pools), begins, ends)
    beyond = {flavour: number * share(flavour.rpartition("/")[0]) for flavour, number in over.items()}
    for holding in unused:
        book.gpus(Kind.IDLE, holding, "", 0)
    told = {row.key: (row.queue, _shares(row)) for row in latest(parts)}
    return Ledger(prices.currency, begins, ends, book.charges(told), beyond)


def _shares(row: AttemptParts) -> dict[str, Fraction]:
    whole = sum(row.seconds.values())
    return {part: Fraction(number, whole) for part, number in row.seconds.items() if number} or {UNTOLD: Fraction(1)}


_Told = tuple[str, Mapping[str, Fraction]]
"""Of an attempt: its queue, and the parts of its time."""
_NOTHING: Final[_Told] = "", {UNTOLD: Fraction(1)}


def gpu_rate(prices: Catalogue, key: Key, moment: datetime) -> Decimal | None:
    """What a GPU costs in an hour. A slice that has a price of its own costs that, so a whole GPU of such slices costs
    as many times more; all others cost their part of the whole GPU's price."""
    gpu_type, capacity = key
    rate = prices.rate(key, moment)
    if whole(gpu_type) == gpu_type:
        return rate
    if rate is None:
        return prices.rate((whole(gpu_type), capacity), moment)
    part = share(gpu_type)
    return rate * part.denominator / part.numerator


class _Book:
    """Sums by attempt first, and as whole numbers: gangs have many workers, and fractions are slow."""

    def __init__(self, prices: Catalogue, begins: datetime, ends: datetime) -> None:
        self._prices = prices
        self._begins, self._ends = begins, ends
        self._sums = defaultdict[tuple[Line, int], _Sum](_Sum)
        self._lines = dict[tuple[Any, ...], Line]()

    def gpus(self, kind: Kind, row: Interval | Holding, job: str, attempt: int) -> None:
        begins, ends = self._clipped(row.begins, row.ends)
        own, listed = (row.gpu_type.lower(), row.capacity), (row.gpu_type.lower(), ON_DEMAND)
        changes = (self._prices.changes(key) for one in (own, listed) for key in (one, (whole(one[0]), one[1])))
        cuts = [*months(begins, ends), *chain.from_iterable(changes)]
        for start, end in pieces(begins, ends, cuts):
            rate, on_demand = (gpu_rate(self._prices, key, start) for key in (own, listed))
            line = self._line(kind, job, month_of(start), row.gpu_type, row.capacity, UNTOLD, rate, on_demand)
            self._add(line, attempt, row.gpus * microseconds(start, end), start, end, row.estimated)

    def bytes(self, row: Stored) -> None:
        begins, ends = self._clipped(row.begins, row.ends)
        for start, end in pieces(begins, ends, [*months(begins, ends), *self._prices.changes(STORAGE)]):
            rate = self._prices.rate(STORAGE, start)
            line = self._line(Kind.STORAGE, row.job, month_of(start), "", "", UNTOLD, rate, None)
            self._add(line, 0, row.size * microseconds(start, end), start, end, row.estimated)

    def charges(self, told: Mapping[tuple[str, int], _Told]) -> tuple[Charge, ...]:
        """`told`: by job and attempt."""
        found = defaultdict[Line, list[tuple[Fraction, _Sum]]](list)
        for (line, attempt), one in self._sums.items():
            quantity = Fraction(one.quantity, 10**6)
            if line.kind is not Kind.STORAGE:
                quantity *= share(line.gpu_type)
            queue, parts = told.get((line.job, attempt), _NOTHING) if line.kind is Kind.GPU else _NOTHING
            for part, part_of in parts.items():
                found[replace(line, part=part, queue=queue)].append((quantity * part_of, one))
        return tuple(_charge(line, found[line]) for line in sorted(found, key=repr))

    def _line(self, *values: Any) -> Line:
        line = self._lines.get(values)
        if line is None:
            line = self._lines[values] = Line(*values)
        return line

    def _clipped(self, begins: datetime, ends: datetime | None) -> tuple[datetime, datetime]:
        return max(begins, self._begins), self._ends if ends is None else min(ends, self._ends)

    def _add(self, line: Line, attempt: int, quantity: int, begins: datetime, ends: datetime, estimated: bool) -> None:
        one = self._sums[line, attempt]
        one.quantity += quantity
        one.begins = begins if one.begins is None else min(one.begins, begins)
        one.ends = ends if one.ends is None else max(one.ends, ends)
        one.estimated |= estimated


def _charge(line: Line, found: list[tuple[Fraction, _Sum]]) -> Charge:
    sums = [one for _, one in found]
    return Charge(
        line,
        sum((quantity for quantity, _ in found), Fraction(0)),
        min(one.begins for one in sums if one.begins is not None),
        max(one.ends for one in sums if one.ends is not None),
        any(one.estimated for one in sums),
    )
