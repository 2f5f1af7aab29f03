"""The arithmetic of money: exact while it is added up, rounded only when it is shown.

An hour's price times seconds has no finite decimal (2.50 for one second is 0.000694...), so amounts are fractions.
Everything that puts a price on GPU time goes through `gpu_cost`: a job's status, a queue's month, the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final

HOUR: Final = 3600
"""Seconds."""

MONTH: Final = 730 * HOUR
"""Seconds for which a GB-month is sold: a twelfth of a year, the same for February as for March."""

GB: Final = 10**9
"""Bytes."""


def gpu_cost(gpu_seconds: int | Fraction, hourly: Decimal) -> Fraction:
    """What so many GPU-seconds cost, at `hourly` for a GPU and hour."""
    return Fraction(hourly) * gpu_seconds / HOUR


def storage_cost(byte_seconds: int | Fraction, gb_month: Decimal) -> Fraction:
    """What bytes that are kept so long cost, at `gb_month` for a gigabyte and month."""
    return Fraction(gb_month) * byte_seconds / (GB * MONTH)


def written(amount: Fraction | Decimal) -> str:
    """As decimal text for a status, to a hundredth of a cent, without zeros at its end."""
    return f"{rounded(Fraction(amount), 4):f}".rstrip("0").rstrip(".") or "0"


def exact(amount: Decimal) -> str:
    """As decimal text, with all its digits: for a rate, by which time is still to be multiplied."""
    return f"{amount.normalize():f}"


PLATFORM_PRICES: Final = "at the platform's prices"
"""Behind a sum of money whose currency nobody has told."""


def in_currency(budget: int, currency: str | None) -> str:
    """A budget in words: `90,000 EUR`; `90,000 in money` where nobody has told the currency."""
    return f"{budget:,} {currency or 'in money'}"


def rounded(amount: Fraction, places: int) -> Decimal:
    """The nearest decimal with so many places; halves to even."""
    return Decimal(round(amount * 10**places)).scaleb(-places)


def apportioned(amounts: Sequence[Fraction], places: int) -> list[Decimal]:
    """The amounts rounded so that they add up to their rounded sum: each is rounded down, and the units that are then
    missing go to those that lost most. No one is off by a unit or more."""
    unit = 10**places
    floors = [math.floor(amount * unit) for amount in amounts]
    missing = round(sum(amounts, Fraction(0)) * unit) - sum(floors)
    lost = sorted(range(len(amounts)), key=lambda index: floors[index] - amounts[index] * unit)
    for index in lost[:missing]:
        floors[index] += 1
    return [Decimal(floor).scaleb(-places) for floor in floors]
