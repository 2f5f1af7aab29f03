"""A model in Hugging Face's layout made a checkpoint, as a run of its own that has it committed: `export`'s inverse.

Streamed: one object of the new checkpoint is held at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.commit import TOOL, commit
from muster_protocol.checkpoints.copy import claim_empty
from muster_protocol.checkpoints.cuts import cut
from muster_protocol.checkpoints.export import DTYPES, INDEX, WHOLE, tree_of
from muster_protocol.checkpoints.store import Store, StreamingStore
from muster_protocol.checkpoints.tensors import ITEM_BYTES
from muster_protocol.errors import CorruptCheckpointError, StateError, StorageError
from muster_protocol.manifest import (
    BLOCK_BYTES,
    MANIFEST_NAME,
    Manifest,
    ShardFile,
    is_key,
    may_be_tracked,
    step_prefix,
)

OWNER: Final = f"{TOOL}import"
OBJECT_BYTES: Final = 64 << 20
"""As a rank writes them at most: a restore holds a few whole."""
HEADER_BYTES: Final = 100_000_000
"""A longer header is none, as safetensors has it."""
_POINTER: Final = b"version "
"""So a file begins that stands for one which Git LFS has not fetched."""
_TYPES: Final = {theirs: ours for ours, theirs in DTYPES.items()}
_RUN: Final = {"step": 0, "seed": 0, "world_size": 1, "threads": 1}


@dataclass(frozen=True)
class Source:
    """One tensor: its bytes begin at `at` of an object. `dtype` is torch's name of the type."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    at: int


def read_model(store: Store) -> list[Source]:
    """The tensors of a folder in Hugging Face's layout. StateError when it is none, CorruptCheckpointError.

    Where there are both, `model.safetensors` counts and no index, as loaders have it.
    """
    if any(item.key == WHOLE for item in store.objects(WHOLE)):
        found = list(_read_file(store, WHOLE))
    else:
        found = _by_index(store)
    if not found:
        raise StateError(f"the model in {store.uri} has no tensors")
    return found


def _by_index(store: Store) -> list[Source]:
    """Each tensor out of the file that the index names for it; another file may have one of that name, too."""
    index = store.get(INDEX)
    if index is None:
        raise StateError(f"{store.uri} has neither {WHOLE} nor {INDEX}; name the folder that has one")
    weights = _json(store, INDEX, index.content).get("weight_map", {})
    if not isinstance(weights, dict) or not all(isinstance(name, str) and is_key(name) for name in weights.values()):
        raise CorruptCheckpointError(f"{store.uri}/{INDEX} is no index: its weight_map names no files")
    there = [source for name in sorted(set(weights.values())) for source in _read_file(store, name)]
    found = [source for source in there if weights.get(source.name) == source.file]
    names = {source.name for source in there}
    if stray := sorted(names - weights.keys()):
        file = next(source.file for source in there if source.name == stray[0])
        raise CorruptCheckpointError(f"{store.uri}/{INDEX} does not name {_first_of(stray)}, which {file} has")
    if lost := sorted(weights.keys() - {source.name for source in found}):
        raise CorruptCheckpointError(f"{store.uri}/{INDEX} names {_first_of(lost)}, which {weights[lost[0]]} has not")
    return found


def _first_of(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _read_file(store: Store, name: str) -> Iterator[Source]:
    start = _read(store, name, 0, 8)
    if start == _POINTER:
        raise StateError(f"{store.uri}/{name} is Git LFS's pointer to a file; run git lfs pull there")
    length = int.from_bytes(start, "little")
    if not 2 <= length <= HEADER_BYTES:
        raise CorruptCheckpointError(f"{store.uri}/{name} is no safetensors file: its header has {length:,} bytes")
    header = _json(store, name, bytes(_read(store, name, 8, length)))
    spans = []
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        try:
            dtype, shape = str(entry["dtype"]), _counts(entry["shape"])
            begin, end = _counts(entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(f"{store.uri}/{name}: the entry of {key} is damaged: {error!r}") from error
        if dtype not in _TYPES:
            raise StateError(f"{key} in {name} is of type {dtype}, which a checkpoint can't hold")
        if end - begin != math.prod(shape) * ITEM_BYTES[_TYPES[dtype]]:
            raise CorruptCheckpointError(f"{store.uri}/{name}: {key} has {end - begin:,} bytes, its shape wants others")
        spans.append((begin, end, key))
        yield Source(key, _TYPES[dtype], shape, name, 8 + length + begin)
    _demand_whole(store, name, 8 + length, spans)


def _demand_whole(store: Store, name: str, start: int, spans: list[tuple[int, int, str]]) -> None:
    """Tensors lie one after the other, and the last one's end is the file's. Else a file that was cut would be found so
    when all before it has been uploaded; and what has more, loaders refuse."""
    at = 0
    for begin, end, key in sorted(spans):
        if begin != at:
            what = "overlaps the tensor before it" if begin < at else f"follows {begin - at:,} bytes of no tensor"
            raise CorruptCheckpointError(f"{store.uri}/{name}: {key} {what}")
        at = end
    if at:
        _read(store, name, start + at - 1, 1)
    more = sum(item.size for item in store.objects(name) if item.key == name) - start - at
    if more > 0:
        raise CorruptCheckpointError(f"{store.uri}/{name} has {more:,} bytes after its last tensor")


def _counts(raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list) or not all(type(each) is int and each >= 0 for each in raw):
        raise ValueError(f"{raw!r} are no counts")
    return tuple(raw)


def _json(store: Store, name: str, text: bytes) -> dict[str, Any]:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{store.uri}/{name} can't be read: {error}") from error
    if not isinstance(raw, dict):
        raise CorruptCheckpointError(f"{store.uri}/{name} is no safetensors file")
    return raw


def _read(store: Store, name: str, at: int, length: int) -> bytearray:
    try:
        return store.read(name, at, length)
    except StorageError as error:
        if error.kind != "NotFound":
            raise
        raise CorruptCheckpointError(str(error)) from error


def import_model(source: Store, target: StreamingStore, name: str = "model") -> int:
    """Commits the model as the tracked object `name` at step 0 of a new run. Its bytes.

    StateError when the target has a run already. An import that was cut is begun anew by the next.
    """
    if not may_be_tracked(name):
        raise StateError(f"no script can track an object named {name!r}; choose a name without a dot, such as model")
    sources = read_model(source)
    claim = claim_empty(target, OWNER)
    prefix = step_prefix(0, claim.latest.epoch, 0)
    written = _Writer(target, prefix)
    tensors = {f"{name}.{each.name}": written.tensor(source, each) for each in sources}
    written.end_file()
    trees = {name: tree_of({each.name: {"$tensor": f"{name}.{each.name}"} for each in sources})}
    record = Manifest(
        step=0,
        epoch=claim.latest.epoch,
        attempt=0,
        parent="",
        files=tuple(written.files),
        planner={"tensors": tensors, "trees": trees, "run": _RUN},
        world_size=1,
        created_at=time.time(),
    )
    body = manifests.encode(record)
    target.put(prefix + MANIFEST_NAME, body)
    digest = hashlib.sha256(body).hexdigest()
    commit(target, claim, step=0, manifest_key=prefix + MANIFEST_NAME, sha256=digest, finished=False)
    return sum(file.size for file in written.files)


class _Writer:
    """Puts chunks, whose bytes lie next to each other in their tensors, into objects of at most `OBJECT_BYTES`."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.files: list[ShardFile] = []
        self._pending = bytearray()

    def tensor(self, source: Store, what: Source) -> dict[str, Any]:
        """The tensor's entry in the manifest."""
        item, at = ITEM_BYTES[what.dtype], what.at
        chunks = []
        for offsets, sizes in cut(what.shape, OBJECT_BYTES // item):
            length = math.prod(sizes) * item
            self._make_room(length)
            data = _read(source, what.file, at, length)
            chunks.append({"offsets": list(offsets), "sizes": list(sizes), **self._append(data)})
            at += length
        return {"dtype": what.dtype, "shape": list(what.shape), "chunks": chunks}

    def _make_room(self, length: int) -> None:
        """Before the bytes are read: two objects are all that is in memory, one and its copy on the way out."""
        if self._pending and len(self._pending) + length > OBJECT_BYTES:
            self.end_file()

    def _append(self, data: bytearray) -> dict[str, Any]:
        place = {"file": len(self.files), "at": len(self._pending), "crc32": named(zlib.crc32(data))}
        if self._pending:
            self._pending += data
        else:
            self._pending = data
        return place

    def end_file(self) -> None:
        key = f"{self._prefix}rank-00000.{len(self.files):04d}.bin"
        content, self._pending = bytes(self._pending), bytearray()
        self._store.put(key, content)
        view = memoryview(content)
        blocks = (named(zlib.crc32(view[at : at + BLOCK_BYTES])) for at in range(0, len(content), BLOCK_BYTES))
        self.files.append(ShardFile(key, len(content), named(zlib.crc32(content)), "".join(blocks)))
