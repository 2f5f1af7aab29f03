"""Checkpoints in a folder: for a laptop, and for file systems that all pods mount.

An object appears by rename, so that a reader never sees half of it. Compare-and-swap holds a lock file (flock).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.store import Body, Item, Level, Unfinished, whole_or_nothing
from muster_protocol.errors import StorageError, storage_error
from muster_protocol.manifest import ShardFile
from muster_protocol.storage_errors import Kind
from muster_protocol.uris import CheckpointUri

_HIDDEN = ".muster-"
"""Prefix of names that are no objects: lock and half-written files."""
_LOCK = ".lock"
_NO_FOLDER = frozenset({errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
_OPEN_TRIES = 100
"""Each time, whoever deletes took away the folder that had just been made."""


class FileStore:
    def __init__(self, uri: CheckpointUri) -> None:
        self.uri = str(uri)
        self._root = Path(uri.prefix or "/")

    def get(self, key: str) -> Body | None:
        with _explained(self._root / key):
            try:
                content = (self._root / key).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Body(content, _etag(content))

    def read(self, key: str, offset: int, length: int) -> bytearray:
        path = self._root / key
        data = bytearray(length)
        with _explained(path), path.open("rb", buffering=0) as file:
            file.seek(offset)
            view, done = memoryview(data), 0
            while done < length:
                count = file.readinto(view[done:])
                if not count:
                    raise StorageError(Kind.NOT_FOUND.value, f"{path} ends before byte {offset + length}")
                done += count
        return data

    def put(self, key: str, content: bytes) -> None:
        with whole_or_nothing(self.writer(key)) as writer:
            writer.write(memoryview(content))
            writer.close()

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        with self._locked(key):
            current = self.get(key)
            if (current.etag if current else None) != etag:
                raise StorageError(Kind.PRECONDITION_FAILED.value, f"{self._root / key} was changed by another writer")
            self.put(key, content)
        return _etag(content)

    def writer(self, key: str) -> FileWriter:
        return FileWriter(key, self._root / key)

    def objects(self, prefix: str) -> list[Item]:
        folder, _, start = prefix.rpartition("/")
        found = self._files(self._root / folder, start)
        items = [
            Item(key, status.st_size, status.st_mtime)
            for key, name, status in found
            if key.startswith(prefix) and not name.startswith(_HIDDEN)
        ]
        return sorted(items, key=lambda item: item.key)

    def level(self, prefix: str) -> Level:
        _, folders, names = next(_walk(self._root / prefix), ("", [], []))
        return Level(sorted(prefix + name for name in names), sorted(f"{prefix}{name}/" for name in folders))

    def unfinished(self, prefix: str = "") -> list[Unfinished]:
        folder, _, start = prefix.rpartition("/")
        found = [
            Unfinished(
                f"{key.rpartition('/')[0]}/{_written_as(name)}".lstrip("/"), key, status.st_mtime, status.st_size
            )
            for key, name, status in self._files(self._root / folder, start, whole=False)  # what it can't list has none
            if name.startswith(_HIDDEN) and not name.endswith(_LOCK)
        ]
        return [each for each in found if each.key.startswith(prefix)]

    def forget(self, unfinished: list[Unfinished]) -> None:
        self.delete([each.upload for each in unfinished])

    def _files(self, folder: Path, start: str = "", *, whole: bool = True) -> Iterator[tuple[str, str, os.stat_result]]:
        """(key, name, status) of every file, but for folders right below whose names don't begin with `start`.

        Files that are deleted meanwhile are left out. `whole`: a folder that can't be listed is an error.
        """
        with _explained(folder):
            for parent, folders, names in _walk(folder) if whole else os.walk(folder):
                if Path(parent) == folder:
                    folders[:] = [each for each in folders if each.startswith(start)]
                for name in names:
                    path = Path(parent, name)
                    with contextlib.suppress(FileNotFoundError):
                        yield path.relative_to(self._root).as_posix(), name, path.stat()

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            path = self._root / key
            with _explained(path):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # not empty yet: another object's folder, too
                    for folder in path.relative_to(self._root).parents[:-1]:
                        (self._root / folder).rmdir()

    def close(self) -> None:
        pass

    def _make_root(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"{self._root}: the folder can't be made ({error.strerror}); correct the uri, or its parent's owner"
            raise storage_error(Kind.ACCESS_DENIED.value, why) from error

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        path = self._root / f"{_HIDDEN}{key.replace('/', '-')}{_LOCK}"
        with _explained(path):
            self._make_root()
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            _locks.add(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel drops it when the process dies
                yield
            finally:
                _locks.discard(lock)
                os.close(lock)


_locks: set[int] = set()
"""Descriptors of locks that are held or waited for."""


def _leave_locks() -> None:
    """In a process that was forked, a data loader's worker for one: a lock lasts as long as anybody has its descriptor,
    so it would keep others out though the rank that took it is done with it, or dead."""
    for lock in _locks:
        os.close(lock)
    _locks.clear()


os.register_at_fork(after_in_child=_leave_locks)


class FileWriter:
    """Writes beside the target and renames at the end."""

    def __init__(self, key: str, path: Path) -> None:
        self._key, self._path = key, path
        self._temporary = path.with_name(f"{_HIDDEN}{path.name}.{uuid.uuid4().hex}")
        self._crc32, self._size = 0, 0
        self._file: IO[bytes] | None = None
        with _explained(path):
            self._made = [folder for folder in path.parents if not folder.exists()]
            self._file = self._open()

    def _open(self) -> IO[bytes]:
        for _ in range(_OPEN_TRIES):
            # Who deletes may take the folder away between mkdir's finding it there and its look whether it is one.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                return self._temporary.open("wb")
        try:
            return self._temporary.open("wb")
        except FileNotFoundError as error:  # /proc, say
            where = self._path.parent
            why = f"{where}: no file can be made in that folder; name another"
            raise storage_error(Kind.MISCONFIGURED.value, why) from error

    def write(self, data: memoryview) -> None:
        assert self._file is not None
        with _explained(self._path):
            self._file.write(data)
        self._crc32 = zlib.crc32(data, self._crc32)
        self._size += data.nbytes

    def close(self) -> ShardFile:
        assert self._file is not None
        with _explained(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self._path)
            _sync_folder(self._path.parent)
        return ShardFile(self._key, self._size, named(self._crc32))

    def abort(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # writes what is buffered, for which there may be no room
                self._file.close()
        with contextlib.suppress(OSError):  # who aborts tells why; what is left counts as unfinished
            self._temporary.unlink(missing_ok=True)
            for folder in self._made:  # or who looks for what failed would find a folder of nothing
                folder.rmdir()


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """As os.walk, but only a folder that is gone is an empty one: what a prune has to spare may lie in another."""

    def tell(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            with _explained(Path(error.filename)):
                raise error

    return os.walk(folder, onerror=tell)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _written_as(name: str) -> str:
    """The name of the object that a half-written file would have become."""
    return name.removeprefix(_HIDDEN).rpartition(".")[0]


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise storage_error(Kind.ACCESS_DENIED.value, f"{path}: no permission; check the folder's owner") from error
    except FileNotFoundError as error:
        raise StorageError(Kind.NOT_FOUND.value, f"{path} does not exist") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            why = f"{path}: its file system may only be read; mount it to be written"
            raise storage_error(Kind.ACCESS_DENIED.value, why) from error
        if error.errno in _NO_FOLDER:
            why = f"{path}: {error.strerror}, so nothing can lie there; correct the uri, which names a folder"
            raise storage_error(Kind.MISCONFIGURED.value, why) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"{path}: {error.strerror}; delete what nobody needs there, or name a place with more room"
            raise StorageError(Kind.FULL.value, why) from error
        raise StorageError(Kind.OTHER.value, f"{path}: {error.strerror or error}") from error
