"""A chargeback as CSV and JSON, and the ledger in the FinOps Open Cost and Usage Specification's columns.

FOCUS 1.3 (focus.finops.org), with the columns that it has deprecated and 1.2 still demands, so that readers of both
take the file; the FinOps Foundation's validator has rules for 1.2. A job is the resource, its queue the sub-account.
Nobody sends an invoice here: billed and effective cost are what the prices make of the use. `x_` columns are ours, as
the specification allows.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from pydantic.alias_generators import to_camel

from muster.sizing.money import GB, HOUR, MONTH, apportioned, rounded
from muster.telemetry.cost.chargeback import IDLE, UNKNOWN, Report, Row
from muster.telemetry.cost.intervals import JobFacts
from muster.telemetry.cost.ledger import UNTOLD, USEFUL, Charge, Kind, Ledger
from muster.telemetry.cost.periods import month

FOCUS_PLACES: Final = 10
"""Decimals of the money in a FOCUS file."""

FOCUS_COLUMNS: Final = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountStatus",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "HostProviderName",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingCurrencyContractedUnitPrice",
    "PricingCurrencyEffectiveCost",
    "PricingCurrencyListUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
    "x_Estimated",
    "x_WastedCost",
)

_COSTS: Final = ("BilledCost", "ContractedCost", "EffectiveCost", "PricingCurrencyEffectiveCost")
"""Columns that are the same here: nobody negotiates, prepays, or converts."""

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_ALMOST: Final = timedelta(seconds=1) - timedelta(microseconds=1)
"""FOCUS counts whole seconds: a period's end is rounded up, so that none is empty."""

_PRICING: Final = {"on-demand": "Standard", "reserved": "Committed", "spot": "Dynamic"}


def row_fields(report: Report, row: Row) -> dict[str, Any]:
    """A row of the report as plain values: hours and money as decimals, of which money has all the report's places."""
    group = dict(zip(report.by, row.group, strict=False))
    zero = Decimal(0).scaleb(-report.places)
    money = {"useful": row.useful, "wasted": row.wasted, "idle": row.idle, "storage": row.storage, "cost": row.cost}
    return group | {
        "gpu_hours": row.gpu_hours,
        "gb_months": row.gb_months,
        **{name: amount + zero for name, amount in money.items()},
        "spot_saved": row.saved + zero,
        "currency": report.ledger.currency,
        "estimated": row.estimated,
    }


def to_csv(report: Report) -> str:
    """One line a row, without a total: the lines add up to it."""
    names = [*report.by, *row_fields(report, replace(report.total, group=()))]
    return _csv(names, (row_fields(report, row) for row in report.rows))


def to_json(report: Report) -> str:
    """The whole report, with names in camelCase like all JSON that Muster gives. Money is text, since numbers in JSON
    are floats to most who read them."""

    def fields(row: Row) -> dict[str, Any]:
        found = row_fields(report, row)
        of = {name: found.pop(name) for name in report.by[: len(row.group)]}
        waste = {to_camel(part): amount for part, amount in row.waste.items()}
        return of | {to_camel(name): value for name, value in found.items()} | {"waste": waste}

    whole = {
        "begins": _time(report.ledger.begins),
        "ends": _time(report.ledger.ends),
        "by": list(report.by),
        "rows": [fields(row) for row in report.rows],
        "total": fields(report.total),
        "forecast": report.forecast,
        "unpriced": {name: str(quantity) for name, quantity in _unpriced(report.ledger)},
        "beyond": {name: str(rounded(over / HOUR, 2)) for name, over in report.ledger.beyond.items()},
    }
    return json.dumps(whole, default=str, indent=2)


def _unpriced(ledger: Ledger) -> Iterator[tuple[str, Decimal]]:
    for name, quantity in ledger.unpriced.items():
        yield name, rounded(quantity / (GB * MONTH if name == Kind.STORAGE.value else HOUR), 2)


@dataclass(frozen=True)
class Account:
    """Who tells it to whom.

    Attributes:
        cluster: the billing account's id and name.
        host: who owns the machines.
        region: of the machines; "" for unknown.
    """

    cluster: str = "cluster"
    host: str = "Muster"
    region: str = ""

    @classmethod
    def named(cls, cluster: str, region: str) -> Account:
        """Of a cluster that has a name, or (empty) none; who owns its machines is not known apart from it."""
        name = cluster or cls.cluster
        return cls(cluster=name, host=name, region=region)


def to_focus(ledger: Ledger, jobs: Iterable[JobFacts], account: Account) -> str:
    """The ledger as FOCUS CSV: a row for each job, queue, month, flavour and rate, and for what was idle or kept."""
    facts = {job.uid: job for job in jobs}
    merged = defaultdict[Any, list[Charge]](list)
    for charge in ledger.charges:
        merged[replace(charge.line, part=UNTOLD)].append(charge)
    lines = [_whole(line, charges) for line, charges in merged.items()]
    costs = apportioned([charge.cost for charge in lines], FOCUS_PLACES)
    lists = apportioned([charge.cost + charge.saved for charge in lines], FOCUS_PLACES)
    waste = apportioned([_wasted(charges) for charges in merged.values()], FOCUS_PLACES)
    rows = (
        _focus(charge, facts.get(charge.line.job), account, ledger.currency)
        | dict.fromkeys(_COSTS, cost)
        | {"ListCost": listed, "x_WastedCost": lost}
        for charge, cost, listed, lost in zip(lines, costs, lists, waste, strict=True)
    )
    return _csv(FOCUS_COLUMNS, rows)


def _whole(line: Any, charges: list[Charge]) -> Charge:
    """Charges that differ by nothing but the part of a job's time, as one."""
    return Charge(
        line,
        sum((charge.quantity for charge in charges), Fraction(0)),
        min(charge.begins for charge in charges),
        max(charge.ends for charge in charges),
        any(charge.estimated for charge in charges),
    )


def _wasted(charges: list[Charge]) -> Fraction:
    lost = (one.cost for one in charges if one.line.kind is Kind.IDLE or one.line.part not in (USEFUL, UNTOLD))
    return sum(lost, Fraction(0))


def _focus(charge: Charge, job: JobFacts | None, account: Account, currency: str) -> dict[str, Any]:
    line, (begins, ends) = charge.line, month(charge.line.month)
    stored = line.kind is Kind.STORAGE
    sku = "checkpoints" if stored else f"{line.gpu_type}/{line.capacity}"
    unit = GB * MONTH if stored else HOUR
    quantity = rounded(charge.quantity / unit, FOCUS_PLACES)
    listed = line.rate if charge.saved == 0 else line.list_rate
    queue = IDLE if line.kind is Kind.IDLE else line.queue or (job.queue if job else UNKNOWN)
    return {
        "BillingAccountId": account.cluster,
        "BillingAccountName": account.cluster,
        "BillingCurrency": currency,
        "BillingPeriodStart": _time(begins),
        "BillingPeriodEnd": _time(ends),
        "ChargeCategory": "Usage",
        "ChargeDescription": _description(charge, sku),
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _time(charge.begins),
        "ChargePeriodEnd": _time(charge.ends + _ALMOST),
        "ConsumedQuantity": quantity,
        "ConsumedUnit": "GB-Months" if stored else "GPU-Hours",
        "ContractedUnitPrice": line.rate,
        "HostProviderName": account.host,
        "InvoiceIssuerName": "Muster",
        "ListUnitPrice": listed,
        "PricingCategory": "Standard" if stored else _PRICING.get(line.capacity, "Other"),
        "PricingCurrency": currency,
        "PricingCurrencyContractedUnitPrice": line.rate,
        "PricingCurrencyListUnitPrice": listed,
        "PricingQuantity": quantity,
        "PricingUnit": "GB-Months" if stored else "GPU-Hours",
        "ProviderName": "Muster",
        "PublisherName": "Muster",
        "RegionId": account.region,
        "RegionName": account.region,
        "ResourceId": line.job,
        "ResourceName": f"{job.namespace}/{job.name}" if job else "",
        "ResourceType": "TrainingJob" if line.job else "",
        "ServiceCategory": "Storage" if stored else "Compute",
        "ServiceName": "Checkpoints" if stored else "GPU training",
        "ServiceProviderName": "Muster",
        "ServiceSubcategory": "Object Storage" if stored else "Containers",
        "SkuId": sku,
        "SkuMeter": "Checkpoint storage" if stored else "GPU time",
        "SkuPriceId": sku,
        "SubAccountId": queue,
        "SubAccountName": queue,
        "SubAccountType": "Queue",
        "Tags": json.dumps(_tags(job, queue), sort_keys=True),
        "x_Estimated": str(charge.estimated).lower(),
    }


def _description(charge: Charge, sku: str) -> str:
    what = {Kind.GPU: f"GPUs held, {sku}", Kind.IDLE: f"GPUs idle, {sku}", Kind.STORAGE: "Checkpoints kept"}
    return what[charge.line.kind] + ("" if charge.line.rate is not None else "; no price is known")


def _tags(job: JobFacts | None, queue: str) -> dict[str, str]:
    if job is None:
        return {}
    own = {"namespace": job.namespace, "queue": queue, "user": job.user, "project": job.project}
    return dict(job.labels) | {f"muster/{key}": value for key, value in own.items() if value}


def _csv(columns: Iterable[str], rows: Iterable[dict[str, Any]]) -> str:
    names, out = list(columns), io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:f}"
    text = "" if value is None else str(value)
    # A user or a label may be anybody's words, and a spreadsheet takes these for a formula.
    return f"'{text}" if text[:1] in _FORMULA else text


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
