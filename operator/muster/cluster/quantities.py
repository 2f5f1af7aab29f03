"""Kubernetes quantities, exactly: `100m`, `1.5`, `64Gi`, `1e3`. Pure.

Amounts are whole numbers of a resource's base unit: cpu in thousandths of a core, everything else in bytes or pieces.
Where a quantity is finer than its unit it is rounded up, as the API server's own `Value()` and `MilliValue()` do: a pod
that asks for 0.1 bytes still asks for something. A limit is rounded down: two GPUs are more than 1.5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

_QUANTITY: Final = re.compile(
    r"^(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<power>[-+]?[0-9]+))?$"
)

_BINARY: Final = {f"{letter}i": Fraction(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")}
_DECIMAL: Final = {
    letter: Fraction(10) ** power
    for letter, power in {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}.items()
}
_SUFFIXES: Final[Mapping[str, Fraction]] = {**_BINARY, **_DECIMAL}

_LARGEST_POWER: Final = 30
"""Exponents beyond it are nobody's resources, and would only cost memory."""


@lru_cache(maxsize=4096)
def parse(quantity: str | int | float) -> Fraction:
    """The quantity's exact value. Raises ValueError that names it when it is not one."""
    match = _QUANTITY.match(str(quantity).strip())
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity: write a number such as 4, 500m, 1.5 or 64Gi")
    number = Fraction(match["number"]) * (-1 if match["sign"] == "-" else 1)
    if match["suffix"]:
        return number * _SUFFIXES[match["suffix"]]
    if match["power"]:
        power = int(match["power"])
        if abs(power) > _LARGEST_POWER:
            raise ValueError(f"{quantity!r} is not a quantity that a cluster can have: its exponent is too large")
        return number * Fraction(10) ** power
    return number


def whole(resource: str, exact: Fraction) -> int:
    """`exact` (in cores, bytes, pieces) in the resource's base unit, rounded up."""
    return math.ceil(exact * 1000) if resource == "cpu" else math.ceil(exact)


def amount(resource: str, quantity: str | int | float) -> int:
    """The quantity in the resource's base unit, rounded up. Raises ValueError."""
    return whole(resource, parse(quantity))


def limit(resource: str, quantity: str | int | float) -> int:
    """The most of the resource that stays within the quantity, in its base unit. Raises ValueError."""
    exact = parse(quantity)
    return math.floor(exact * 1000) if resource == "cpu" else math.floor(exact)


def format_amount(resource: str, amount: int) -> str:
    """An amount in base units as Kubernetes writes it."""
    if resource != "cpu":
        return str(amount)
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
