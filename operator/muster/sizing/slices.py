"""What a slice of a GPU counts: its part of the GPU's compute, as its profile's name has it.

NVIDIA's MIG User Guide ("MIG Device Names", "Supported GPUs", "Supported MIG Profiles"): of `3g.20gb` the 3 are GPU
slices, of which an A100, H100, H200 or B200 has seven, an A30 and an RTX PRO 6000 four. `1c.3g.20gb` is a part of such
a slice, with one compute slice of its three. What follows the memory (`+me`, `.me`) are engines, and counts nothing.

A **slice type** names what a worker holds, as a GPU type does: `A100-MIG-3g.20gb`, or `MIG-3g.20gb` where nobody knows
of which GPU it is. Where each device of a node is a slice (the single strategy), the node's own GPU type is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

RESOURCE: Final = "nvidia.com/mig-"
"""How the names of the resources begin that are slices (the mixed strategy)."""

SLICES: Final = 7
"""Of a GPU that is not named below."""
_SLICES: Final = {"A30": 4, "RTX-PRO-6000": 4, "RTX-PRO-5000": 2, "RTX-PRO-4500": 2}
"""By short type."""

_TYPE: Final = re.compile(
    r"^(?:(?P<whole>.+)-)?MIG-(?:(?P<compute>\d)c\.)?(?P<slices>\d)g(?:\.(?P<memory>\d+)gb.*)?$", re.IGNORECASE
)
_GB_OF_AN_A30: Final = 6
"""Of each slice. No other GPU has slices of that size, so they are known where the GPU's type is not."""


@lru_cache(maxsize=1024)
def share(gpu_type: str) -> Fraction:
    """What one device of a type counts, as a part of a whole GPU: 1 for all that are no slices."""
    found = _TYPE.match(gpu_type)
    if found is None:
        return Fraction(1)
    part = int(found["compute"] or found["slices"])
    return min(Fraction(1), Fraction(part, _of(found["whole"] or "", int(found["slices"]), int(found["memory"] or 0))))


def _of(whole_type: str, slices: int, memory: int) -> int:
    """How many slices the GPU has."""
    if not whole_type and memory == _GB_OF_AN_A30 * slices:
        return _SLICES["A30"]
    return _SLICES.get(whole_type.upper(), SLICES)


@lru_cache(maxsize=1024)
def whole(gpu_type: str) -> str:
    """The type of the GPU that a slice is of, "" where that is not known; all other types themselves."""
    found = _TYPE.match(gpu_type)
    return gpu_type if found is None else found["whole"] or ""


@lru_cache(maxsize=1024)
def sliced(resource: str, gpu_type: str) -> str:
    """The slice type of a resource on nodes of a GPU type; "" for a resource that is no slice."""
    if not resource.startswith(RESOURCE):
        return ""
    named = f"MIG-{resource.removeprefix(RESOURCE)}"
    if _TYPE.match(named) is None:
        return ""
    of = whole(gpu_type)
    return f"{of}-{named}" if of else named


def unit(gpu_type: str) -> str:
    """The type of one GPU slice of a GPU: what holds of several kinds are counted in."""
    of = whole(gpu_type)
    return f"{of}-MIG-1g" if of else "MIG-1g"


def device_price(prices: Mapping[str, float], flavour: str) -> float | None:
    """Money for an hour of one device of a flavour like `A100-MIG-3g.20gb/spot`: its own price, or else a slice's part
    of the whole GPU's. None where neither is known."""
    own = _named(prices, flavour)
    of = _whole_price(prices, flavour) if own is None else None
    return own if of is None else float(_exact(of) * share(flavour.partition("/")[0]))


def gpu_price(prices: Mapping[str, float], flavour: str) -> float | None:
    """The same for as many of these devices as make a whole GPU."""
    own = _named(prices, flavour)
    return _whole_price(prices, flavour) if own is None else float(_exact(own) / share(flavour.partition("/")[0]))


def _exact(price: float) -> Fraction:
    """As it was written: a third of it shall be the nearest number to that."""
    return Fraction(str(price))


def _whole_price(prices: Mapping[str, float], flavour: str) -> float | None:
    gpu_type, _, capacity = flavour.partition("/")
    return _named(prices, f"{whole(gpu_type)}/{capacity}")


def _named(prices: Mapping[str, float], flavour: str) -> float | None:
    """A GPU type means the same in any case, as in a price file for the ledger and as in a job."""
    price = prices.get(flavour)
    if price is not None:
        return price
    lower = flavour.lower()
    return next((price for name, price in prices.items() if name.lower() == lower), None)
