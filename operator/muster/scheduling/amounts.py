"""Amounts as people write them: cores, GiB, pieces. Exact enough to act on, and never in scientific notation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_GIB: Final = 2**30
_MIB: Final = 2**20


def is_bytes(resource: str) -> bool:
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def amount(resource: str, quantity: int) -> str:
    """`cpu, 1500` is "1.5 cores", `memory, 2**31` is "2 GiB memory", `nvidia.com/gpu, 8` is "8 nvidia.com/gpu"."""
    if resource == "cpu":
        return f"{_cores(quantity)} {'core' if quantity == 1000 else 'cores'}"
    if is_bytes(resource):
        return f"{_bytes(quantity)} {resource}"
    if resource == "pods":
        return f"{quantity} {'pod' if quantity == 1 else 'pods'}"
    if resource.startswith("hostport/"):
        port = resource.removeprefix("hostport/")
        return f"host port {port}" if quantity == 1 else f"{quantity} × host port {port}"
    if resource.startswith("apart/"):
        return "a node of its own" if quantity == 1 else f"{quantity} nodes of their own"
    return f"{quantity} {resource}"


def amounts(parts: Iterable[tuple[str, int]]) -> str:
    return " + ".join(amount(resource, quantity) for resource, quantity in parts)


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def few(shown: Sequence[str], of: int) -> str:
    """`a, b and 5 more`: the first of so many."""
    return ", ".join(shown) + (f" and {of - len(shown)} more" if of > len(shown) else "")


def is_or_are(resource: str, quantity: int) -> str:
    one = 1000 if resource == "cpu" else 1
    return "is" if quantity == one or is_bytes(resource) else "are"


def _cores(thousandths: int) -> str:
    """Exactly: DaemonSets ask for so little that a node with room for 63.998 cores would seem to have those 64 that a
    worker asks for."""
    return f"{thousandths / 1000:.3f}".rstrip("0").rstrip(".")


def _bytes(quantity: int) -> str:
    nearly_whole = quantity % _GIB != 0 and round(quantity * 100 / _GIB) % 100 == 0  # 64 GiB would be another amount
    if quantity == 0 or (quantity >= _GIB and not nearly_whole):
        return f"{_decimal(quantity, _GIB)} GiB"
    if quantity >= _MIB:
        return f"{_decimal(quantity, _MIB)} MiB"
    return f"{quantity} B"


def _decimal(quantity: int, unit: int) -> str:
    """At most two decimals, none if they would be zeros."""
    hundredths = round(quantity * 100 / unit)
    if quantity % unit == 0 or hundredths % 100 == 0:
        return str(hundredths // 100)
    return f"{hundredths / 100:.2f}".rstrip("0")
