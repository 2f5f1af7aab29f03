"""CRC-32 (zlib's) of an object and of each chunk in it, with every byte read once.

The sum of two runs of bytes follows from the sums of each: `combined`, as zlib's own crc32_combine has it, which
Python doesn't offer. Sums are polynomials over two elements, the highest power in the lowest bit.
"""

from __future__ import annotations

import functools
from typing import Final

from muster_runtime.checkpoint.crc import crc32

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31

Span = tuple[int, int]
"""First byte and length."""


def sums(content: memoryview, chunks: list[Span]) -> tuple[int, list[int]]:
    """The CRC-32 of the whole `content`, and that of each chunk, which are in order and don't overlap."""
    whole, of_chunks, end = 0, [], 0
    for at, length in chunks:
        whole = crc32(content[end:at], whole)
        end = at + length
        of_chunks.append(crc32(content[at:end]))
        whole = combined(whole, of_chunks[-1], length)
    return crc32(content[end:], whole), of_chunks


def combined(first: int, second: int, length: int) -> int:
    """The CRC-32 of bytes whose sum is `first`, followed by `length` bytes whose sum is `second`."""
    return _product(_shift(length), first) ^ second


@functools.cache
def _powers() -> list[int]:
    """x to the power 8 · 2^n."""
    powers = [_ONE >> 8]
    while len(powers) < 64:
        powers.append(_product(powers[-1], powers[-1]))
    return powers


@functools.lru_cache(1024)
def _shift(length: int) -> int:
    """What `length` bytes that follow multiply a sum by: x to the power 8 · length."""
    shift = _ONE
    for power in _powers():
        if not length:
            break
        if length & 1:
            shift = _product(power, shift)
        length >>= 1
    return shift


def _product(one: int, other: int) -> int:
    """Modulo the CRC's polynomial."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = (one << 1) & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product
