"""Runs that are made without training, and stores that are cut or watched at a call."""

from __future__ import annotations

import functools
import hashlib
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.commit import Claim, claim_epoch, commit, read_latest
from muster_protocol.checkpoints.inventory import Link
from muster_protocol.checkpoints.store import Body, Item, Store, Unfinished
from muster_protocol.errors import storage_error
from muster_protocol.manifest import MANIFEST_NAME, Manifest, ShardFile, step_prefix

RANKS = 2


class MemoryStore:
    """A store in this process's memory, for what is tried thousands of times."""

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.uri = "file:///memory"
        self.written: dict[str, float] = {}
        """When each was put, in seconds since the epoch."""
        self._objects = dict(objects or {})

    @property
    def everything(self) -> dict[str, bytes]:
        return dict(self._objects)

    def copy(self) -> MemoryStore:
        return MemoryStore(self._objects)

    def get(self, key: str) -> Body | None:
        content = self._objects.get(key)
        return None if content is None else Body(content, hashlib.sha256(content).hexdigest())

    def read(self, key: str, offset: int, length: int) -> bytearray:
        return bytearray(self._objects[key][offset : offset + length])

    def put(self, key: str, content: bytes) -> None:
        self._objects[key] = content
        self.written[key] = time.time()

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        now = self.get(key)
        if (now.etag if now else None) != etag:
            raise storage_error("PreconditionFailed", f"{key} was changed by another writer")
        self.put(key, content)
        return hashlib.sha256(content).hexdigest()

    def objects(self, prefix: str) -> list[Item]:
        now = time.time()
        found = sorted(self._objects.items())
        return [Item(key, len(content), self.written.get(key, now)) for key, content in found if key.startswith(prefix)]

    def unfinished(self) -> list[Unfinished]:
        return []

    def forget(self, unfinished: list[Unfinished]) -> None:
        pass

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    def close(self) -> None:
        pass


@dataclass
class MadeRun:
    """Saves and commits like a gang of `RANKS` ranks, with one tensor `model.weight` cut along its first dimension.

    `clock` gives `created_at`, `milestone` is what the next manifest names as such. Every committed step's whole weight
    is in `weights`.
    """

    store: Store
    rows: int = 4
    columns: int = 3
    clock: Callable[[], float] = lambda: 1e9
    claim: Claim | None = None
    parent: Link = ("", "")
    milestone: Link = ("", "")
    weights: dict[str, bytes] = field(default_factory=dict)

    def start(self) -> None:
        """A gang starts and restores what is committed."""
        self.claim = claim_epoch(self.store, "job")
        self.parent = (self.claim.latest.manifest, self.claim.latest.sha256)

    def save(
        self, step: int, *, attempt: int = 0, metrics: dict[str, float] | None = None, finished: bool = False
    ) -> str:
        """The manifest's key."""
        link = self.write(step, attempt=attempt, metrics=metrics)
        assert self.claim is not None
        self.claim = commit(
            self.store,
            self.claim,
            step=step,
            manifest_key=link[0],
            sha256=link[1],
            finished=finished,
            parent=self.parent,
        )
        self.parent = link
        return link[0]

    def write(
        self, step: int, *, attempt: int = 0, metrics: dict[str, float] | None = None, whole: bool = True
    ) -> Link:
        """All but the commit; with `whole` False all but the manifest."""
        assert self.claim is not None
        epoch = self.claim.latest.epoch
        prefix = step_prefix(step, epoch, attempt)
        files, chunks, weight = [], [], b""
        per_rank = self.rows // RANKS
        for rank in range(RANKS):
            values = [
                1000.0 * step + epoch + rank * per_rank * self.columns + i for i in range(per_rank * self.columns)
            ]
            content = struct.pack(f"<{len(values)}f", *values)
            files.append(ShardFile(f"{prefix}rank-{rank:05d}.bin", len(content), f"{zlib.crc32(content):08x}"))
            self.store.put(files[-1].key, content)
            chunks.append(
                {
                    "offsets": [rank * per_rank, 0],
                    "sizes": [per_rank, self.columns],
                    "file": rank,
                    "at": 0,
                    "crc32": files[-1].crc32,
                }
            )
            weight += content
        key = prefix + MANIFEST_NAME
        tensor = {"dtype": "float32", "shape": [self.rows, self.columns], "chunks": chunks}
        record = Manifest(
            step=step,
            epoch=epoch,
            attempt=attempt,
            parent=self.parent[0],
            parent_sha256=self.parent[1],
            milestone=self.milestone[0],
            milestone_sha256=self.milestone[1],
            files=tuple(files),
            planner={
                "tensors": {"model.weight": tensor},
                "trees": {"model": {"weight": {"$tensor": "model.weight"}}},
                "run": {"step": step},
            },
            world_size=RANKS,
            created_at=self.clock(),
            metrics=metrics or {},
        )
        content = manifests.encode(record)
        if whole:
            self.store.put(key, content)
        self.weights[key] = weight
        return key, hashlib.sha256(content).hexdigest()


def read_whole(store: Store, key: str) -> bytes | None:
    """The weight of one checkpoint, as a restore reads it; None when anything is missing."""
    body = store.get(key)
    if body is None:
        return None
    record = manifests.decode_manifest(body.content)
    return b"".join(bytes(_shard(store, file)) for file in record.files)


def is_whole(store: Store, found: Found) -> bool:
    """Every shard is there, and what was saved."""
    for file in found.manifest.files:
        body = store.get(file.key)
        if body is None or f"{zlib.crc32(body.content):08x}" != file.crc32:
            return False
    return True


def _shard(store: Store, file: ShardFile) -> bytes:
    body = store.get(file.key)
    return b"" if body is None else body.content


def latest_key(store: Store) -> str:
    claim = read_latest(store)
    return claim.latest.manifest if claim else ""


class Held:
    """Transfers whose uploads wait until they are let go."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.memory = inner, inner.memory
        self._waiting: list[tuple[Any, Future[Any]]] = []

    def upload(self, *what: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((what, future))
        return future

    def let_go(self) -> None:
        waiting, self._waiting = self._waiting, []
        for what, future in waiting:
            try:
                future.set_result(self._inner.upload(*what).result())
            except Exception as error:  # noqa: BLE001 - whoever waits for the upload gets it
                future.set_exception(error)

    def close(self) -> None:
        self._inner.close()


class Cut(BaseException):
    """The process died here."""


@dataclass
class WatchedStore:
    """Calls `at[n]` before the n-th call (from 0) of the store, and `after[n]` when it is done."""

    inner: Store
    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    after: dict[int, Callable[[], None]] = field(default_factory=dict)
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        return functools.partial(self._watched, value) if callable(value) else value

    def delete(self, keys: list[str]) -> None:
        for key in keys:  # S3 is asked for each
            self._watched(self.inner.delete, [key])

    def _watched(self, call: Callable[..., Any], *args: Any) -> Any:
        number, self.calls = self.calls, self.calls + 1
        self.at.get(number, _nothing)()
        result = call(*args)
        self.after.get(number, _nothing)()
        return result


def _nothing() -> None:
    pass


def die() -> None:
    raise Cut
