"""The FOCUS file against the rules of FOCUS 1.2 and 1.3 that can be judged in it alone."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest

from muster.sizing.prices import catalogue
from muster.telemetry.cost.formats import FOCUS_COLUMNS, Account, to_focus
from muster.telemetry.cost.intervals import AttemptParts, Interval, JobFacts, PoolInterval, Stored
from muster.telemetry.cost.ledger import ledger

pytestmark = pytest.mark.unit

PRESENT = """BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart
ChargeCategory ChargeClass ChargeDescription ChargeFrequency ChargePeriodEnd ChargePeriodStart ConsumedQuantity
ConsumedUnit ContractedCost ContractedUnitPrice EffectiveCost HostProviderName InvoiceIssuerName ListCost ListUnitPrice
PricingCategory PricingQuantity PricingUnit ProviderName PublisherName RegionId RegionName ResourceId ResourceName
ResourceType ServiceCategory ServiceName ServiceProviderName ServiceSubcategory SkuId SkuMeter SkuPriceDetails
SkuPriceId SubAccountId SubAccountName SubAccountType Tags"""
"""Columns that must be there: 1.2's for who publishes prices, has sub-accounts, regions and tags; 1.3's two more."""

FILLED = """BilledCost BillingAccountId BillingAccountName BillingCurrency BillingPeriodEnd BillingPeriodStart
ChargeCategory ChargeFrequency ChargePeriodEnd ChargePeriodStart ConsumedQuantity ConsumedUnit ContractedCost
EffectiveCost InvoiceIssuerName ListCost PricingCategory PricingCurrency PricingCurrencyEffectiveCost PricingQuantity
PricingUnit ProviderName PublisherName ServiceCategory ServiceName ServiceSubcategory SkuId SkuPriceId"""
"""Columns that may not be empty in a row of use."""

ONE_OF = {
    "ChargeCategory": {"Usage"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "PricingCategory": {"Standard", "Committed", "Dynamic", "Other"},
    "ServiceCategory": {"Compute", "Storage"},
    "ServiceSubcategory": {"Containers", "Object Storage"},
    "ConsumedUnit": {"GPU-Hours", "GB-Months"},
}
NUMBERS = re.compile(r"-?[0-9]+(\.[0-9]+)?")
NOVEMBER = datetime(2026, 11, 1, tzinfo=timezone.utc)
DECEMBER = datetime(2026, 12, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


def exported(prices: dict[str, Decimal]) -> list[dict[str, str]]:
    """A file with all there is: spot, no price, no facts, half a second, an open interval over two months, idle, ..."""
    moment = NOVEMBER + HOUR / 3
    rows = [
        Interval("a", 1, 0, 0, "n", "H100", "spot", 8, moment, moment + HOUR / 7),
        Interval("a", 2, 0, 0, "n", "H100", "on-demand", 8, DECEMBER - HOUR / 11),
        Interval("b", 1, 0, 0, "n", "B200", "reserved", 1, moment, moment + timedelta(milliseconds=500), True),
        Interval("gone", 1, 0, 0, "n", "H100", "on-demand", 3, moment, moment + HOUR),
    ]
    jobs = [
        JobFacts("a", "ns", 'a "quoted", name', "q", "ada", "llm", {"team": "blue\nand green"}),
        JobFacts("b", "ns", "b", "q"),
    ]
    book = ledger(
        catalogue(prices, currency="EUR", defaults=False),
        NOVEMBER,
        DECEMBER + HOUR,
        rows,
        parts=[AttemptParts("a", 1, {"training": 2, "starting": 1})],
        pools=[PoolInterval("H100", "on-demand", 64, NOVEMBER)],
        stored=[Stored("a", "100", 10**12, moment)],
    )
    text = to_focus(book, jobs, Account("prod", "prod", "eu-1"))
    found = list(csv.DictReader(io.StringIO(text)))
    assert sum(Decimal(row["BilledCost"]) for row in found) == round(
        Decimal(book.cost.numerator) / book.cost.denominator, 10
    )
    return found


PRICED = {"H100/spot": Decimal("1.45"), "H100/on-demand": Decimal("3.20"), "B200/reserved": Decimal("4.1")}


@pytest.mark.parametrize("prices", [PRICED, {}], ids=["priced", "no price at all"])
def test_every_row_keeps_the_specifications_rules(prices: dict[str, Decimal]) -> None:
    rows = exported(prices)
    assert set(PRESENT.split()) <= set(FOCUS_COLUMNS) == set(rows[0])
    assert {row["ResourceId"] for row in rows} == {"a", "b", "gone", ""}
    for row in rows:
        assert all(row[name] for name in FILLED.split()), row
        assert all(row[name] in values for name, values in ONE_OF.items()), row
        assert re.fullmatch("[A-Z]{3}", row["BillingCurrency"])
        assert row["InvoiceId"] == row["ChargeClass"] == row["CommitmentDiscountStatus"] == ""
        for name in FOCUS_COLUMNS:
            if name.endswith(("Cost", "UnitPrice", "Quantity")) and row[name]:
                assert NUMBERS.fullmatch(row[name]), (name, row[name])
        times = [
            row[name] for name in ("BillingPeriodStart", "ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodEnd")
        ]
        for text in times:
            datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
        assert times == sorted(times)
        assert times[1] < times[2]
        assert all(isinstance(value, str) for value in json.loads(row["Tags"]).values())


def test_prices_times_quantities_are_costs_and_spot_stands_beside_its_list_price() -> None:
    for row in exported(PRICED):
        for cost, price in (("ContractedCost", "ContractedUnitPrice"), ("ListCost", "ListUnitPrice")):
            product = Decimal(row["PricingQuantity"]) * Decimal(row[price] or 0)
            assert abs(product - Decimal(row[cost])) < Decimal("1e-8")
        assert Decimal(row["x_WastedCost"]) <= Decimal(row["EffectiveCost"])
        spot = row["SkuId"] == "H100/spot"
        assert (Decimal(row["ListCost"]) > Decimal(row["EffectiveCost"])) == spot
        assert (row["PricingCategory"] == "Dynamic") == spot
