"""How a tensor is cut into chunks of bounded size, each of whose bytes lie next to each other in it."""

from __future__ import annotations

import math
from collections.abc import Iterator

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


def cut(sizes: tuple[int, ...], most: int) -> Iterator[Box]:
    """A box of `sizes` in boxes of at most `most` items (1 or more), in C order: whole rows where one has no more than
    that, else parts of one row each."""
    if not sizes or math.prod(sizes) <= most:
        yield (0,) * len(sizes), sizes
        return
    row = math.prod(sizes[1:])
    if row <= most:
        step = most // row
        for first in range(0, sizes[0], step):
            yield (first, *(0 for _ in sizes[1:])), (min(step, sizes[0] - first), *sizes[1:])
        return
    for number in range(sizes[0]):
        for offsets, part in cut(sizes[1:], most):
            yield (number, *offsets), (1, *part)


def lies_together(sizes: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether the bytes of a box of `sizes`, in a box of the sizes `whole`, lie next to each other there."""
    inner = len(sizes)
    while inner and sizes[inner - 1] == whole[inner - 1]:
        inner -= 1
    return math.prod(sizes[: max(0, inner - 1)]) == 1
