"""Moving shards between shared memory and a store, beside the training.

A rank's part of a checkpoint is cut into files; each is one object, written by a single PUT and checked by its CRC-32.
Files rather than the parts of a multipart upload: nothing unfinished is ever left in the bucket, no server has to put
parts together, and what is damaged is known by the file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol, TypeVar

from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.store import Store
from muster_protocol.manifest import ShardFile
from muster_protocol.storage_errors import Kind
from muster_runtime.checkpoint.crc import crc32
from muster_runtime.checkpoint.extents import Extent
from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.s3_store import Landed, Outgoing, S3Store, no_more
from muster_runtime.checkpoint.sums import sums
from muster_runtime.errors import CorruptCheckpointError, StorageError

PIECES_WANTED: Final = 16
"""Of a rank's bytes: enough for all connections to end at about the same time; each costs a request, of which botocore
makes some milliseconds' work."""
PARTS_WANTED: Final = 32
"""Of what comes through memory that is used again and again: some of them at once are all that a restore takes."""
SMALLEST_PIECE: Final = 4 << 20
LARGEST_PIECE: Final = 64 << 20
"""What is lost when a request has to be repeated."""

T = TypeVar("T")
Receive = Callable[[Extent, Sequence[memoryview]], None]


class Transfers(Protocol):
    """All methods return at once; `memory` must not be changed, or resized, before the future is done."""

    memory: SharedMemory

    def upload(self, files: list[Outgoing]) -> Future[list[Landed]]:
        """Writes each from `memory`. StorageError."""

    def sum(self, files: list[Outgoing]) -> Future[list[Landed]]:
        """What `upload` will tell, without the writing and long before it."""

    def fetch(self, extent: Extent, at: int) -> Future[None]:
        """Reads bytes of an object to memory[at:]. StorageError, CorruptCheckpointError when they aren't what was
        written."""

    def receiver(self) -> Receive | None:
        """What reads bytes of an object into memory of this process: its parts, one after the other.

        It returns when nothing writes there any more. StorageError; CorruptCheckpointError when they aren't what was
        written. None where only `fetch` can be had.
        """

    def close(self) -> None: ...


def piece_bytes(length: int, wanted: int = PIECES_WANTED) -> int:
    """Size of the pieces, about `wanted` of them, for a rank that has `length` bytes."""
    return max(SMALLEST_PIECE, min(LARGEST_PIECE, length // wanted))


def transfers(store: Store, memory: SharedMemory | None = None) -> Transfers:
    """The transfers of an open store. They are closed apart from it. `memory`: what they use, if the store has none."""
    return S3Transfers(store) if isinstance(store, S3Store) else FileTransfers(store, memory)


def in_background(work: Callable[[], T], *, or_now: bool = False) -> Future[T]:
    """Does `work` in a thread that doesn't keep the process from ending. For what leaves the interpreter alone, as it
    waits or copies memory.

    Where no thread can be started that is a StorageError, as if the store had failed; `or_now`: the work is done before
    this returns.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            result.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True, name="muster-checkpoint").start()
    except RuntimeError as error:
        if or_now:
            run()
        else:
            result.set_exception(no_thread(error))
    return result


def no_thread(error: RuntimeError) -> StorageError:
    """What Python says of a thread that it can't start, as if the store had failed."""
    return StorageError(Kind.OTHER.value, no_more(f"no thread can be started ({error})"))


class FileTransfers:
    """To a folder: by threads, which let go of the interpreter while they write and sum."""

    def __init__(self, store: Store, memory: SharedMemory | None = None) -> None:
        self._store, self.memory = store, memory or SharedMemory()

    def upload(self, files: list[Outgoing]) -> Future[list[Landed]]:
        memory = self._memory_of(files)
        return in_background(lambda: [self._write(file, memory) for file in files])

    def sum(self, files: list[Outgoing]) -> Future[list[Landed]]:
        memory = self._memory_of(files)
        return in_background(lambda: [self._summed(file, memory) for file in files])

    def _memory_of(self, files: list[Outgoing]) -> memoryview:
        return raw_bytes(self.memory.reserve(max(file.start + file.length for file in files)))

    def _write(self, file: Outgoing, memory: memoryview) -> Landed:
        self._store.put(file.key, bytes(memory[file.start : file.start + file.length]))
        return self._summed(file, memory)

    def _summed(self, file: Outgoing, memory: memoryview) -> Landed:
        found = sums(memory[file.start : file.start + file.length], list(file.chunks))
        written = ShardFile(file.key, file.length, named(found.whole), "".join(map(named, found.blocks)))
        return Landed.of(file, written, map(named, found.chunks))

    def fetch(self, extent: Extent, at: int) -> Future[None]:
        target = raw_bytes(self.memory.reserve(at + extent.size))[at:]
        return in_background(lambda: self._read(extent, target))

    def _read(self, extent: Extent, target: memoryview) -> None:
        content = self._store.read(extent.key, extent.start or 0, extent.size)
        if named(crc32(content)) != extent.crc32:
            raise damaged(self._store, extent)
        target[: extent.size] = content

    def receiver(self) -> Receive | None:
        return None

    def close(self) -> None:
        self.memory.close()


class S3Transfers:
    """To S3: by the rank's storage process, which maps the same memory."""

    def __init__(self, store: S3Store) -> None:
        self._store, self.memory = store, store.memory

    def upload(self, files: list[Outgoing]) -> Future[list[Landed]]:
        return self._store.upload(files)

    def sum(self, files: list[Outgoing]) -> Future[list[Landed]]:
        return self._store.sum(files)

    def fetch(self, extent: Extent, at: int) -> Future[None]:
        return self._store.fetch(extent, at)

    def receiver(self) -> Receive | None:
        return self._store.receiver()

    def close(self) -> None:
        """The memory is the store's."""


def damaged(store: Store, extent: Extent) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{store.uri}/{extent.key} is not what was saved (CRC-32 differs)")
