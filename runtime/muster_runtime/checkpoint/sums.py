"""CRC-32 (zlib's) of an object, of each chunk and of each block in it, with every byte read once.

The sum of two runs of bytes follows from the sums of each: `combined`, as zlib's own crc32_combine has it, which
Python doesn't offer. Sums are polynomials over two elements, the highest power in the lowest bit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muster_protocol.manifest import BLOCK_BYTES
from muster_runtime.checkpoint.crc import crc32

_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31

Span = tuple[int, int]
"""First byte and length."""


@dataclass(frozen=True)
class Sums:
    whole: int
    chunks: list[int]
    blocks: list[int]


def sums(content: memoryview, chunks: list[Span], block: int = BLOCK_BYTES) -> Sums:
    """The CRC-32 of the whole `content`, of each chunk, which are in order and don't overlap, and of each `block`."""
    of_chunks, of_blocks = [0] * len(chunks), [0] * -(-len(content) // block)
    for start, end, chunk in _pieces(len(content), chunks, block):
        number = start // block
        if chunk is None:
            of_blocks[number] = crc32(content[start:end], of_blocks[number])
            continue
        own = crc32(content[start:end])
        of_blocks[number] = combined(of_blocks[number], own, end - start)
        of_chunks[chunk] = combined(of_chunks[chunk], own, end - start)
    whole = 0
    for number, of_block in enumerate(of_blocks):
        whole = combined(whole, of_block, min(block, len(content) - number * block))
    return Sums(whole, of_chunks, of_blocks)


def _pieces(length: int, chunks: list[Span], block: int) -> Iterator[tuple[int, int, int | None]]:
    """The content in order, each piece within one block, with the chunk that it is of."""

    def within(start: int, end: int, chunk: int | None) -> Iterator[tuple[int, int, int | None]]:
        while start < end:
            until = min(end, (start // block + 1) * block)
            yield start, until, chunk
            start = until

    end = 0
    for number, (at, size) in enumerate(chunks):
        yield from within(end, at, None)
        end = at + size
        yield from within(at, end, number)
    yield from within(end, length, None)


def combined(first: int, second: int, length: int) -> int:
    """The CRC-32 of bytes whose sum is `first`, followed by `length` bytes whose sum is `second`."""
    return _product(_shift(length), first) ^ second if first else second


@functools.cache
def _powers() -> list[int]:
    """x to the power 8 · 2^n."""
    powers = [_ONE >> 8]
    while len(powers) < 64:
        powers.append(_product(powers[-1], powers[-1]))
    return powers


@functools.lru_cache(8192)
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
