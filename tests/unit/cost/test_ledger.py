"""The ledger against a count of every second, and what it makes of single rows."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.sizing.price_file import parse
from muster.sizing.prices import Catalogue, catalogue
from muster.telemetry.cost.chargeback import IDLE, UnknownGroup, notes, report
from muster.telemetry.cost.formats import Account, to_focus
from muster.telemetry.cost.intervals import AttemptParts, Interval, JobFacts, PoolInterval, Stored
from muster.telemetry.cost.ledger import Kind, Ledger, ledger

from .brute import counted
from .schedules import BEGINS, ENDS, RATES, schedule, told

pytestmark = pytest.mark.unit

PRICES = """
gpus:
- {gpu: H100, capacity: on-demand, hourly: 6.155, until: 2026-12-01}
- {gpu: H100, capacity: on-demand, hourly: 5.99, from: 2026-12-01}
- {gpu: h100, capacity: spot, hourly: 2.46375}
- {gpu: A100, capacity: on-demand, hourly: 2.70}
- {gpu: A100, capacity: on-demand, hourly: 0, from: 2026-12-01}
storage:
- {gbMonth: 0.023}
"""
NOVEMBER = datetime(2026, 11, 1, tzinfo=timezone.utc)
DECEMBER = datetime(2026, 12, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@cache
def prices(text: str = PRICES) -> Catalogue:
    found = catalogue(own=parse(text, "test"), defaults=False)
    assert not found.problems
    return found


def interval(begins: datetime, ends: datetime | None, *, capacity: str = "on-demand", index: int = 0) -> Interval:
    return Interval("a", 1, index, 0, "n1", "H100", capacity, 8, begins, ends)


def cost(found: Ledger) -> Decimal:
    return round(Decimal(found.cost.numerator) / found.cost.denominator, 6)


@pytest.mark.parametrize("seed", range(200))
def test_the_ledger_equals_a_count_of_every_second(seed: int) -> None:
    made = schedule(seed)
    expected = counted(made.intervals, made.pools, RATES, BEGINS, ENDS)
    found = ledger(prices(), BEGINS, ENDS, made.intervals, pools=made.pools)

    gpu_seconds, money, idle = defaultdict[str, Fraction](Fraction), defaultdict[tuple[str, str], Fraction](Fraction), 0
    unused = defaultdict[str, Fraction](Fraction)
    for charge in found.charges:
        if charge.line.kind is Kind.GPU:
            gpu_seconds[charge.line.job] += charge.quantity
            money[charge.line.job, charge.line.month] += charge.cost
        else:
            idle += charge.quantity
            unused[charge.line.month] += charge.cost
    assert gpu_seconds == expected.gpu_seconds
    assert nonzero(money) == nonzero(expected.cost)
    assert (idle, nonzero(unused)) == (expected.idle_seconds, nonzero(expected.idle_cost))
    assert not found.beyond


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_rows_that_come_again_and_out_of_order_change_nothing(seed: int) -> None:
    made = schedule(seed)
    once = ledger(prices(), BEGINS, ENDS, made.intervals, pools=made.pools)
    assert ledger(prices(), BEGINS, ENDS, told(made, seed), pools=[*made.pools[::-1], *made.pools]) == once


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_a_period_costs_as_much_as_its_pieces(seed: int) -> None:
    made, middle = schedule(seed), BEGINS + timedelta(seconds=157)
    whole = ledger(prices(), BEGINS, ENDS, made.intervals, pools=made.pools)
    halves = [
        ledger(prices(), begins, ends, made.intervals, pools=made.pools)
        for begins, ends in ((BEGINS, middle), (middle, ENDS))
    ]
    assert sum(half.cost for half in halves) == whole.cost


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6), by=st.sampled_from(["queue", "user", "project", "namespace", "month", "job", "label:x"])
)
def test_the_teams_totals_are_the_clusters(seed: int, by: str) -> None:
    made = schedule(seed)
    found = ledger(prices(), BEGINS, ENDS, made.intervals, pools=made.pools)
    table = report(found, made.jobs, (by,), places=2)
    for column in ("cost", "useful", "wasted", "idle", "storage", "saved", "gpu_hours", "gb_months"):
        assert sum(getattr(row, column) for row in table.rows) == getattr(table.total, column)
    assert abs(Fraction(table.total.cost) - found.cost) <= Fraction(1, 200)


def nonzero(found: dict[object, Fraction] | defaultdict[object, Fraction]) -> dict[object, Fraction]:
    return {key: amount for key, amount in found.items() if amount}


def test_an_interval_is_split_where_the_month_and_the_price_change() -> None:
    found = ledger(prices(), NOVEMBER, DECEMBER + 48 * HOUR, [interval(DECEMBER - HOUR, DECEMBER + 2 * HOUR)])
    lines = [(one.line.month, one.quantity, one.line.rate, one.cost) for one in found.charges]
    assert lines == [
        ("2026-11", 8 * 3600, Decimal("6.155"), 8 * Fraction("6.155")),
        ("2026-12", 16 * 3600, Decimal("5.99"), 16 * Fraction("5.99")),
    ]


def test_what_goes_on_is_counted_until_the_end_of_the_period_and_nothing_twice_across_two() -> None:
    rows = [interval(NOVEMBER - 5 * HOUR, None)]
    first, second = (ledger(prices(), NOVEMBER + at * HOUR, NOVEMBER + (at + 1) * HOUR, rows) for at in (0, 1))
    assert cost(first) == cost(second) == Decimal("49.24")


def test_an_interval_that_ends_when_it_begins_or_lies_outside_costs_nothing() -> None:
    rows = [interval(NOVEMBER, NOVEMBER), interval(NOVEMBER - 2 * HOUR, NOVEMBER - HOUR, index=1)]
    assert ledger(prices(), NOVEMBER, DECEMBER, rows).charges == ()


def test_a_seen_end_goes_before_an_estimated_one_however_late() -> None:
    seen, guess = interval(NOVEMBER, NOVEMBER + HOUR), interval(NOVEMBER, NOVEMBER + 5 * HOUR)
    guess = replace(guess, estimated=True)
    for rows in ([seen, guess], [guess, seen]):
        assert cost(ledger(prices(), NOVEMBER, DECEMBER, rows)) == Decimal("49.24")


def test_waste_is_told_apart_by_how_the_attempt_spent_its_time() -> None:
    parts = [
        AttemptParts("a", 1, {"training": 30}),
        AttemptParts("a", 1, {"training": 75, "starting": 15, "recomputing": 10}),
    ]
    found = ledger(prices(), NOVEMBER, DECEMBER, [interval(NOVEMBER, NOVEMBER + HOUR)], parts=parts)
    row = report(found, [], ("job",)).rows[0]
    assert (row.useful, row.waste) == (Decimal("36.93"), {"starting": Decimal("7.39"), "recomputing": Decimal("4.92")})
    assert row.cost == Decimal("49.24")


def test_what_was_held_stays_with_the_queue_that_it_was_held_in() -> None:
    """Of a job that was moved the facts have the last queue; a bill that was sent out must not change by that."""
    rows = [interval(NOVEMBER, NOVEMBER + HOUR), replace(interval(NOVEMBER + HOUR, NOVEMBER + 3 * HOUR), attempt=2)]
    parts = [AttemptParts("a", 1, {"training": 30}, "vision"), AttemptParts("a", 2, {"training": 60}, "research")]
    stored = [Stored("a", "100", 10**12, NOVEMBER, NOVEMBER + 365 * HOUR)]
    found = ledger(prices(), NOVEMBER, DECEMBER, rows, parts=parts, stored=stored)
    facts = JobFacts("a", "ns", "x", "research")
    told = {row.group: (row.useful, row.storage) for row in report(found, [facts], ("queue",)).rows}
    assert told == {
        ("research",): (Decimal("98.48"), Decimal("11.50")),
        ("vision",): (Decimal("49.24"), Decimal("0.00")),
    }
    lines = list(csv.DictReader(io.StringIO(to_focus(found, [facts], Account()))))
    assert {line["SubAccountId"]: json.loads(line["Tags"])["muster/queue"] for line in lines} == {
        "research": "research",
        "vision": "vision",
    }


def test_spot_is_compared_with_what_it_would_have_cost_on_demand_at_that_time() -> None:
    found = ledger(prices(), NOVEMBER, DECEMBER, [interval(NOVEMBER, NOVEMBER + HOUR, capacity="spot")])
    row = report(found, [], ("flavour",)).rows[0]
    assert (row.group, row.cost, row.saved) == (("H100/spot",), Decimal("19.71"), Decimal("29.53"))


def test_a_checkpoint_costs_bytes_times_time() -> None:
    stored = [Stored("a", "100", 10**12, NOVEMBER, NOVEMBER + 365 * HOUR), Stored("a", "100", 10**12, NOVEMBER)]
    found = ledger(prices(), NOVEMBER, DECEMBER, [], stored=stored)
    row = report(found, [JobFacts("a", "ns", "llama", "research")], ("queue",)).rows[0]
    assert (row.group, row.storage, row.gb_months) == (("research",), Decimal("11.50"), Decimal("500.00"))


def test_of_gpus_whose_type_nobody_tells_it_is_said_that_a_label_is_missing() -> None:
    """No price can be given for them: it would have to name a type."""
    rows = [replace(interval(NOVEMBER, NOVEMBER + HOUR), gpu_type="")]
    table = report(ledger(prices(), NOVEMBER, DECEMBER, rows), [], ("flavour",))
    (told,) = notes(table)
    assert [row.group for row in table.rows] == [("(unknown)/on-demand",)]
    assert "--prices" not in told
    assert told.startswith("8.00 GPU hours on-demand are of GPUs whose type no label of their nodes tells")
    assert "muster.dev/gpu-type=" in told


def test_what_has_no_price_is_counted_and_told() -> None:
    found = ledger(
        prices("gpus: []"),
        NOVEMBER,
        DECEMBER,
        [interval(NOVEMBER, NOVEMBER + HOUR)],
        stored=[Stored("a", "1", 7, NOVEMBER, NOVEMBER + HOUR)],
    )
    assert found.unpriced == {"H100/on-demand": 8 * 3600, "storage": 7 * 3600}
    assert (report(found, []).rows[0].gpu_hours, report(found, []).total.cost) == (Decimal("8.00"), 0)


def test_gpus_that_no_pool_had_are_told_and_never_count_as_idle_below_zero() -> None:
    pools = [PoolInterval("H100", "on-demand", 4, NOVEMBER)]
    found = ledger(prices(), NOVEMBER, NOVEMBER + 2 * HOUR, [interval(NOVEMBER, NOVEMBER + HOUR)], pools=pools)
    assert found.beyond == {"H100/on-demand": 4 * 3600}
    assert report(found, []).rows[-1].group == (IDLE,)
    assert report(found, []).rows[-1].gpu_hours == Decimal("4.00")
    assert any("4.00 GPU hours of H100/on-demand more than its pool had" in each for each in notes(report(found, [])))
    moment = replace(found, beyond={"H100/on-demand": Fraction(15)})
    assert not any("than its pool had" in each for each in notes(report(moment, [])))


def test_a_pool_row_that_was_never_closed_ends_where_the_next_begins() -> None:
    pools = [PoolInterval("H100", "on-demand", 8, NOVEMBER), PoolInterval("H100", "on-demand", 2, NOVEMBER + HOUR)]
    found = ledger(prices(), NOVEMBER, NOVEMBER + 3 * HOUR, [], pools=pools)
    assert sum(charge.quantity for charge in found.charges) == (8 + 2 + 2) * 3600


def test_a_report_by_something_unknown_says_what_there_is() -> None:
    with pytest.raises(UnknownGroup, match=r"'team'; there are: .* queue, .* label:KEY"):
        report(ledger(prices(), NOVEMBER, DECEMBER, []), [], ("team",))


def test_a_label_groups_and_a_job_without_it_stands_apart() -> None:
    jobs = [JobFacts("a", "ns", "x", "q", labels={"cost-centre": "4711"}), JobFacts("b", "ns", "y", "q")]
    rows = [interval(NOVEMBER, NOVEMBER + HOUR), replace(interval(NOVEMBER, NOVEMBER + HOUR), job="b")]
    table = report(
        ledger(prices(), NOVEMBER, DECEMBER, [*rows, replace(rows[0], job="c")]), jobs, ("label:cost-centre",)
    )
    assert {row.group[0] for row in table.rows} == {"4711", "(none)", "(unknown)"}
