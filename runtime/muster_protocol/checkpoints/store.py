"""Where checkpoints lie: one small interface over S3 and over folders.

A store is made for one uri; keys are relative to it. Every method raises `StorageError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from muster_protocol.errors import StorageError
from muster_protocol.manifest import ShardFile


@dataclass(frozen=True)
class Body:
    """A whole small object, and the tag that a conditional write names it by."""

    content: bytes
    etag: str


@dataclass(frozen=True)
class Item:
    """One object of a listing: size in bytes, when it was written in seconds since the epoch by the store's clock."""

    key: str
    size: int
    modified: float


@dataclass(frozen=True)
class Unfinished:
    """A large object whose writing was begun and neither ended nor given up. `size` in bytes, 0 where it isn't told."""

    key: str
    upload: str
    started: float
    size: int = 0


@dataclass(frozen=True)
class Level:
    """Keys, and folders with their slash, right below a prefix. `whole`: these are all."""

    keys: list[str]
    folders: list[str]
    whole: bool = True


NOTHING: Final = Level([], [])


class ShardWriter(Protocol):
    """One object being written as a stream. Nothing is visible before `close`."""

    def write(self, data: memoryview) -> None:
        """Appends `data`; it may be reused as soon as this returns."""

    def close(self) -> ShardFile:
        """Makes the object visible and durable."""

    def abort(self) -> None:
        """Gives the object up; nothing stays."""


@contextmanager
def whole_or_nothing(writer: ShardWriter) -> Iterator[ShardWriter]:
    """Gives the object up where the block fails, in which it is to be written and closed.

    What that meets is not told, or it would hide why: a server that is away can't be asked to forget an upload, nor may
    everybody ask who may write. The next prune finds what is left.
    """
    try:
        yield writer
    except BaseException:
        with suppress(StorageError):
            writer.abort()
        raise


class Store(Protocol):
    uri: str

    def get(self, key: str) -> Body | None:
        """The whole object, or None when there is none."""

    def read(self, key: str, offset: int, length: int) -> bytearray:
        """`length` bytes from `offset`. StorageError of kind NotFound when the object is absent or too short."""

    def put(self, key: str, content: bytes) -> None:
        """Writes a small object whole, replacing any other."""

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        """Writes only if the object still has `etag` (None: if there is none). The new etag.

        StorageError of kind PreconditionFailed when it has not; any other kind leaves it open whether it was written.
        """

    def objects(self, prefix: str) -> list[Item]:
        """Everything below `prefix`, sorted by key."""

    def unfinished(self) -> list[Unfinished]:
        """What writers that died have left behind, and what living ones are at."""

    def forget(self, unfinished: list[Unfinished]) -> None:
        """Frees what they hold; one that is gone already is no error."""

    def delete(self, keys: list[str]) -> None:
        """Removes objects; one that is gone already is no error."""

    def close(self) -> None:
        """Ends what the store holds open."""


class StreamingStore(Store, Protocol):
    """A store that takes objects of which nobody holds the whole."""

    def level(self, prefix: str) -> Level:
        """What lies right below `prefix`, which is empty or ends in a slash; no more than some thousands of it."""

    def unfinished(self, prefix: str = "") -> list[Unfinished]:
        """As `Store` has it, of keys that begin so."""

    def writer(self, key: str) -> ShardWriter:
        """Starts a large object."""
