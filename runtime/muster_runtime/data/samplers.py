"""Samplers of the user's, made functions of (seed, epoch): what a run that continues would draw anew.

A sampler may hold others, and generators of random numbers of its own, which go on from pass to pass. A run that is
resumed has made none of these passes. So all of them are seeded for each epoch, and put back afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from muster_runtime.data.generators import kept
from muster_runtime.data.order import mix
from muster_runtime.data.seeded import kept_generators, seed_generators


def within(sampler: Any) -> list[Any]:
    """The sampler and all that it holds, in a fixed order."""
    found: list[Any] = []
    left = [sampler]
    while left:
        one = left.pop(0)
        if any(one is other for other in found):
            continue
        found.append(one)
        for name, value in getattr(one, "__dict__", {}).items():
            inner = value if isinstance(value, (list, tuple)) else (value,)
            left += [each for each in inner if isinstance(each, Sampler) or name in ("sampler", "batch_sampler")]
    return found


def set_epoch(sampler: Any, epoch: int) -> None:
    """Tells the epoch to everything there that wants to know it."""
    for one in within(sampler):
        if callable(getattr(one, "set_epoch", None)):
            one.set_epoch(epoch)


def sampled(sampler: Any, epoch: int, seed: int) -> list[Any]:
    """All that the sampler gives in this epoch. ValueError when that isn't as much as its length says."""
    set_epoch(sampler, epoch)
    own = [value for one in within(sampler) for value in getattr(one, "__dict__", {}).values()]
    with kept_generators(), kept(own) as seed_own:
        seed_generators(seed)
        seed_own(lambda number: mix(seed, number) if number else seed)
        found = list(sampler)
    if len(found) != len(sampler):
        raise ValueError(
            f"the {type(sampler).__name__} has the length {len(sampler)} and gave {len(found)} in epoch {epoch}, so no "
            "run could go on where it was cut; let its __len__ say what it gives"
        )
    return found


class Permutation(Sequence[int]):
    """A tensor of indices that gives plain ints; a list would take four times the memory."""

    def __init__(self, order: torch.Tensor) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, at: Any) -> Any:
        return Permutation(self._order[at]) if isinstance(at, slice) else int(self._order[at])
