"""Numbers of things, as they stand in a sentence."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def all_of(number: int, what: str) -> str:
    """`its pod` where there is only one, else `all 4 pods`."""
    return f"its {what}" if number == 1 else f"all {number} {what}s"
