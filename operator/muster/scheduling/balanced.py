"""Balance: as many workers in each domain that a gang uses as in every other."""

from __future__ import annotations

from math import isqrt

import numpy as np

from muster.scheduling.snapshot import Int


def shares(size: int, multiple: int) -> list[int]:
    """Workers for each domain, so that all get the same number: the most first, hence the fewest domains.

    Args:
        size: of the gang.
        multiple: each share is one of this, which divides `size`: a slice is never parted.
    """
    parts = size // multiple
    low = [domains for domains in range(1, isqrt(parts) + 1) if parts % domains == 0]
    high = [parts // domains for domains in reversed(low) if domains * domains != parts]
    return [size // domains for domains in (*low, *high)]


def possible(size: int, share: int, rooms: Int) -> bool:
    """Whether enough domains have room for their share. Necessary, and cheaper than to count slices in all of them.

    Args:
        rooms: workers that each domain takes, the most first.
    """
    domains = size // share
    return domains <= len(rooms) and bool(rooms[domains - 1] >= share)


def most_first(rooms: Int) -> Int:
    ordered: Int = np.sort(rooms)[::-1]
    return ordered


def most_even(rooms: Int, most: int) -> int:
    """The most that can be shared out in equal numbers, up to `most` in all, among domains with these rooms."""
    ordered = most_first(rooms)[:most]
    domains = np.arange(1, len(ordered) + 1)
    return int((np.minimum(ordered, most // domains) * domains).max(initial=0))
