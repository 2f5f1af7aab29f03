"""Operators that are killed, and databases that go away, change nothing in the ledger but rows marked `estimated`."""

from __future__ import annotations

import os
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from muster.sizing.price_file import parse
from muster.sizing.prices import catalogue
from muster.telemetry.cost.intervals import Interval
from muster.telemetry.cost.ledger import Kind, ledger

from ..cost.brute import counted
from .cases import reading
from .test_sqlite import File
from .world import BEGINS, LENGTH, Hold, World, at

pytestmark = pytest.mark.unit

PRICES = """
gpus:
- {gpu: H100, capacity: on-demand, hourly: 6.155, until: 2026-12-01}
- {gpu: H100, capacity: on-demand, hourly: 5.99, from: 2026-12-01}
- {gpu: H100, capacity: spot, hourly: 2.46375}
- {gpu: A100, capacity: on-demand, hourly: 2.70}
"""
LONG_AGO = BEGINS.replace(year=2025)
RATES = [
    (LONG_AGO, "H100", "on-demand", Decimal("6.155")),
    (LONG_AGO, "H100", "spot", Decimal("2.46375")),
    (LONG_AGO, "A100", "on-demand", Decimal("2.70")),
    (BEGINS.replace(month=12, day=1, year=2026, hour=0, minute=0, second=0), "H100", "on-demand", Decimal("5.99")),
]


def judged(world: World, hold: Hold, row: Interval | None) -> str:
    """What is wrong with a row; "" for nothing."""
    truth = hold.row if hold.ends is None else replace(hold.row, ends=at(hold.ends))
    if row is None:
        return "it is missing" if hold.begun or hold.ends is None else ""
    if not row.estimated:
        return "" if row == truth else f"it is {row}"
    if replace(row, ends=truth.ends, estimated=False) != truth:
        return f"it is {row}"
    if hold.written or (hold.ends is None and hold.replaced is None):
        return f"it is an estimate, {row.ends}, of what was seen"
    assert row.ends is not None
    if hold.shown_gone:
        return "" if row.ends == truth.ends else f"it ends at {row.ends}, and was seen to go"
    gone = LENGTH if hold.ends is None else hold.ends
    last_seen = max(cut for cut in world.cuts if cut <= gone) if not hold.orphan else 0
    if hold.replaced is not None:
        last_seen = min(last_seen, hold.replaced)
    early, late = max(at(last_seen), row.begins), at(gone)
    return "" if early <= row.ends <= late else f"it ends at {row.ends}, and was last seen at {early}, gone at {late}"


SEEDS = 200 if os.environ.get("MUSTER_THOROUGH") else 60


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_only_what_nobody_saw_is_estimated_and_all_else_is_exact(first: int, tmp_path: Path) -> None:
    restarts = outages = estimated = 0
    prices = catalogue(own=parse(PRICES, "test"), defaults=False)
    for seed in range(first, first + 20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        database = File(folder)
        world = World(seed, database)
        world.run()
        with reading(database) as reader:
            rows = reader.intervals(BEGINS, at(LENGTH))
            pools = reader.pools(BEGINS, at(LENGTH))
        found = {row.key: row for row in rows}
        wrong = {key: told for key, hold in world.holds.items() if (told := judged(world, hold, found.get(key)))}
        assert not wrong, (seed, wrong)
        assert set(found) <= set(world.holds)

        truth = [
            replace(row, ends=found[row.key].ends) if found[row.key].estimated else row
            for row in world.truth()
            if row.key in found
        ]
        expected = counted(truth, world.pools(), RATES, BEGINS, at(LENGTH))
        book = ledger(prices, BEGINS, at(LENGTH), rows, pools=pools)
        used = sum((one.quantity for one in book.charges if one.line.kind is Kind.GPU), Fraction(0))
        idle = sum((one.quantity for one in book.charges if one.line.kind is Kind.IDLE), Fraction(0))
        assert (used, idle) == (sum(expected.gpu_seconds.values()), expected.idle_seconds), seed
        assert book.cost == sum(expected.cost.values()) + sum(expected.idle_cost.values()), seed
        restarts, outages = restarts + world.restarts, outages + world.outages
        estimated += sum(row.estimated for row in rows)
    assert restarts > 10
    assert outages > 5
    assert estimated
