"""When the operator counts as healthy: the loop ticks, and every watch and the Lease have shown life lately.

A process that only stands by for the Lease is healthy too.
"""

from __future__ import annotations

from collections.abc import Mapping


def stale(ages: Mapping[str, float], limit: float) -> list[str]:
    """One sentence for each part that has shown no life for longer than `limit` seconds; ages in seconds."""
    return [f"{part}: no sign of life for {age:.0f} s" for part, age in sorted(ages.items()) if age > limit]
