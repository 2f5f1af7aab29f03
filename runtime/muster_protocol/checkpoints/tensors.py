"""The tensors of a checkpoint by its manifest alone, without torch: where their bytes lie, read in order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from muster_protocol.checkpoints.checks import Check, check_of, checksum_of
from muster_protocol.checkpoints.cuts import lies_together
from muster_protocol.checkpoints.store import Store
from muster_protocol.errors import CorruptCheckpointError, StateError, StorageError
from muster_protocol.manifest import Manifest, ShardFile

PIECE: Final = 8 << 20
"""Bytes that are read and held at once, for each thread."""

ITEM_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "bcomplex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""By torch's name of the type."""


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, in C order from byte `at` of a file. `checksum`: see `checks`."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: ShardFile
    at: int
    length: int
    checksum: str


@dataclass(frozen=True)
class Tensor:
    """`dtype` is torch's name of it; the chunks together are the whole tensor, in order of their offsets."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


def tensors_of(manifest: Manifest) -> dict[str, Tensor]:
    """By name. CorruptCheckpointError when the manifest makes no sense, StateError for a type unknown here."""
    found = {}
    try:
        for name, raw in manifest.planner["tensors"].items():
            if raw["dtype"] not in ITEM_BYTES:
                raise StateError(f"{name} is of type {raw['dtype']}, which this version does not know; upgrade muster")
            shape = _counts(raw["shape"])
            chunks = [_chunk(manifest, raw["dtype"], shape, chunk) for chunk in raw["chunks"]]
            whole = sorted(chunks, key=lambda chunk: chunk.offsets)
            found[name] = Tensor(name, raw["dtype"], shape, tuple(whole))
            if sum(chunk.length for chunk in chunks) != found[name].bytes:
                raise CorruptCheckpointError(f"the manifest of step {manifest.step}: the chunks of {name} don't fit it")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise CorruptCheckpointError(f"the manifest of step {manifest.step} is damaged: {error!r}") from error
    return found


def _chunk(manifest: Manifest, dtype: str, shape: tuple[int, ...], raw: dict[str, Any]) -> Chunk:
    offsets, sizes = _counts(raw["offsets"]), _counts(raw["sizes"])
    number, at = _counts([raw["file"], raw["at"]])
    file, length = manifest.files[number], math.prod(sizes) * ITEM_BYTES[dtype]
    if at + length > file.size:
        raise CorruptCheckpointError(f"a chunk lies beyond the end of {file.key}")
    if any(offset + size > whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)):
        raise ValueError(f"a chunk at {offsets} of sizes {sizes} lies beyond the shape {shape}")
    return Chunk(offsets, sizes, file, at, length, checksum_of(raw))


def _counts(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list) or not all(isinstance(each, int) and each >= 0 for each in raw):
        raise ValueError(f"{raw!r} are no counts")
    return tuple(raw)


def content(store: Store, tensor: Tensor) -> Iterator[memoryview]:
    """All bytes of a tensor in C order, in pieces; every chunk is checked. CorruptCheckpointError when one differs.

    Holds one piece, or as many rows as one has where ranks hold parts of rows (one row at least).
    """
    if not tensor.bytes:
        return
    rows = tensor.shape[0] if tensor.shape else 1
    if all(lies_together(chunk.sizes, tensor.shape) for chunk in tensor.chunks):
        for chunk in tensor.chunks:
            yield from checked(store, chunk)
        return
    row_bytes = tensor.bytes // rows
    checks = {chunk: check_of(chunk.checksum) for chunk in tensor.chunks}
    step = max(1, PIECE // row_bytes)
    for first in range(0, rows, step):
        last = min(first + step, rows)
        band = bytearray((last - first) * row_bytes)
        for chunk, check in checks.items():
            _scatter(store, tensor, chunk, check, first, last, band)
        yield memoryview(band)


def checked(store: Store, chunk: Chunk) -> Iterator[memoryview]:
    """One chunk's bytes in pieces."""
    check = check_of(chunk.checksum)
    for start in range(0, chunk.length, PIECE):
        data = read(store, chunk.file.key, chunk.at + start, min(PIECE, chunk.length - start))
        check.update(data)
        yield memoryview(data)
    demand(store, chunk, check)


class Passage:
    """One object, read once from its begin to its end: `PIECE` bytes by a request, however many chunks are in them."""

    def __init__(self, store: Store, file: ShardFile) -> None:
        self._store, self._file, self._at, self._here = store, file, 0, memoryview(b"")

    def up_to(self, end: int) -> Iterator[memoryview]:
        """The bytes from where it stands. CorruptCheckpointError when the object is missing or too short."""
        while self._at < end:
            if not self._here:
                length = min(PIECE, self._file.size - self._at)
                self._here = memoryview(read(self._store, self._file.key, self._at, length))
            piece, self._here = self._here[: end - self._at], self._here[end - self._at :]
            self._at += len(piece)
            yield piece


def read(store: Store, key: str, at: int, length: int) -> bytearray:
    """CorruptCheckpointError when the object is missing or too short."""
    try:
        return store.read(key, at, length)
    except StorageError as error:
        if error.kind != "NotFound":
            raise
        raise CorruptCheckpointError(str(error)) from error


def demand(store: Store, chunk: Chunk, check: Check) -> None:
    """CorruptCheckpointError when what `check` was fed isn't the chunk."""
    trouble = check.trouble()
    if trouble:
        where = f"{store.uri}/{chunk.file.key}: bytes {chunk.at} to {chunk.at + chunk.length}"
        raise CorruptCheckpointError(f"{where} are not those that were saved ({trouble})")


def _scatter(store: Store, tensor: Tensor, chunk: Chunk, check: Check, first: int, last: int, band: bytearray) -> None:
    """Brings the chunk's part of the rows `first` to `last` into `band`."""
    begin, end = chunk.offsets[0], chunk.offsets[0] + chunk.sizes[0]
    low, high = max(first, begin), min(last, end)
    if low >= high:
        return
    chunk_row = chunk.length // chunk.sizes[0]
    data = read(store, chunk.file.key, chunk.at + (low - begin) * chunk_row, (high - low) * chunk_row)
    check.update(data)
    if high == end:
        demand(store, chunk, check)
    run = chunk.sizes[-1] * tensor.item_bytes  # bytes that lie next to each other in both
    source = 0
    for place in _runs(tensor, chunk, low - first, high - low):
        band[place : place + run] = data[source : source + run]
        source += run


def _runs(tensor: Tensor, chunk: Chunk, row: int, rows: int) -> Iterator[int]:
    """Where each run along the last dimension begins in a band whose first row is row 0."""
    strides = [tensor.item_bytes]
    for size in tensor.shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    counts = [rows, *chunk.sizes[1:-1]]
    starts = [row, *chunk.offsets[1:-1]]
    base = chunk.offsets[-1] * strides[-1]
    for number in range(math.prod(counts)):
        place, rest = base, number
        for dimension in range(len(counts) - 1, -1, -1):
            rest, index = divmod(rest, counts[dimension])
            place += (starts[dimension] + index) * strides[dimension]
        yield place
