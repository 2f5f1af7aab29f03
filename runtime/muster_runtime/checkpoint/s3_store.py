"""The rank's side of S3: a store whose work is done by `s3_process`."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from muster_protocol.checkpoints.inventory import Checkpoint
from muster_protocol.checkpoints.store import Body, Item, Unfinished
from muster_protocol.manifest import ShardFile
from muster_protocol.storage_errors import Kind
from muster_protocol.uris import CheckpointUri
from muster_runtime import vendored
from muster_runtime.checkpoint.extents import Extent
from muster_runtime.checkpoint.frames import EXIT_NO_THREADS, receive_frame, send_frame
from muster_runtime.checkpoint.lent import receive
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.sums import Span
from muster_runtime.errors import CorruptCheckpointError, MusterError, StorageError, storage_error

_ROOT: Final = Path(__file__).resolve().parents[2]

# The first entry of sys.path is the script's folder; ours go in its place, boto3's copy before everything.
_BOOTSTRAP: Final = (
    "import sys; sys.path[:1] = sys.argv[6:]; "
    "from muster_runtime.checkpoint.s3_process import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])"
)

_HIDDEN: Final = frozenset({"PYTHONPATH", "PYTHONSAFEPATH", "PYTHONSTARTUP"})
"""The user's settings that could change what our process imports."""

_SETTINGS: Final = ("AWS_", "BOTO", "MUSTER_S3_")
_MORE_SETTINGS: Final = frozenset({"CURL_CA_BUNDLE", "HOME", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"})

_END_SECONDS: Final = 5.0
"""How long a process may take to end when its connection has."""

Answer = tuple[dict[str, Any], bytearray]
T = TypeVar("T")


def import_folders() -> list[str]:
    """Where our process finds boto3 and this package, best first."""
    brought = vendored.folder()
    return [str(folder) for folder in (brought, _ROOT) if folder is not None]


@dataclass(frozen=True)
class Outgoing:
    """An object to be written: where it lies in the shared memory, and where its chunks lie in it."""

    key: str
    start: int
    length: int
    chunks: tuple[Span, ...]


@dataclass(frozen=True)
class Landed:
    """An object that was written, and the CRC-32 of each of its chunks by first byte, as eight hex digits."""

    file: ShardFile
    sums: dict[int, str]

    @classmethod
    def of(cls, what: Outgoing, file: ShardFile, sums: Iterable[str]) -> Landed:
        return cls(file, {at: crc32 for (at, _), crc32 in zip(what.chunks, sums, strict=True)})


class _Link:
    """One S3 process: the connection to it and the requests that wait for its answers.

    `answered` tells whether a process of this store has ever answered, so that a missing library can be told from a
    process that was killed.
    """

    def __init__(self, uri: CheckpointUri, memory: SharedMemory, *, answered: bool) -> None:
        self.answered, self.ended = answered, False
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise _not_started(error.strerror or str(error), full=False) from error
        numbers = (theirs.fileno(), memory.descriptor, os.getpid())
        command = [sys.executable, "-c", _BOOTSTRAP, *map(str, numbers), uri.bucket, uri.prefix]
        environment = _environment()
        self.settings = _settings(environment)
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [*command, *import_folders()],
                    pass_fds=[theirs.fileno(), memory.descriptor],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                    env=environment,
                )
            except OSError as error:  # a save that comes later may find room again
                ours.close()
                full = error.errno in (errno.EAGAIN, errno.ENOMEM)
                raise _not_started(error.strerror or str(error), full=full) from error
        self._connection = ours
        self._sending = threading.Lock()
        self._waiting: dict[int, Future[Answer]] = {}
        try:
            threading.Thread(target=self._receive, daemon=True, name="muster-s3").start()
        except RuntimeError as error:
            self.kill()
            ours.close()
            raise _not_started(str(error), full=True) from error

    def _receive(self) -> None:
        while True:
            try:
                frame = receive_frame(self._connection)
            except OSError:
                frame = None
            if frame is None:
                break
            self.answered = True
            header, payload = frame
            future = self._waiting.pop(header["id"])
            error = header.get("error")
            if error:
                future.set_exception(storage_error(error["kind"], error["message"]))
            else:
                future.set_result((header, payload))
        with self._sending:
            self.ended = True
            left, self._waiting = self._waiting, {}
            self._connection.close()
        for future in left.values():
            future.set_exception(self._gone())

    def _gone(self) -> StorageError:
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # without its connection it is of no use to anybody
            self.process.kill()
            code = self.process.wait()
        if code == -signal.SIGKILL:
            text = (
                "the S3 process of this rank was killed, probably for want of memory; raise the worker's memory "
                "request and limit. The next request starts another"
            )
        elif code == EXIT_NO_THREADS:
            text = no_more("the S3 process of this rank can't start its threads") + ". The next request starts another"
        elif self.answered:
            text = (
                f"the S3 process of this rank has ended (exit code {code}); its own message is above. "
                "The next request starts another"
            )
        else:
            text = (
                f"the S3 process of this rank did not start (exit code {code}); its own message is above. "
                "Is boto3 installed? On a laptop: pip install boto3"
            )
        return StorageError(Kind.OTHER.value, text)

    def ask(self, number: int, header: dict[str, Any], payload: memoryview | bytes = b"") -> Answer:
        return self.request(number, header, payload).result()

    def request(
        self, number: int, header: dict[str, Any], payload: memoryview | bytes = b"", descriptor: int | None = None
    ) -> Future[Answer]:
        """The answer to come. StorageError when the process is gone already."""
        future: Future[Answer] = Future()
        try:
            with self._sending:
                self._waiting[number] = future
                send_frame(self._connection, {**header, "id": number}, payload, descriptor)
        except OSError as error:
            self._waiting.pop(number, None)
            raise self._gone() from error
        return future

    def kill(self) -> None:
        """Before it was asked for anything."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended before us
            self._connection.shutdown(socket.SHUT_RDWR)
        self.process.wait()


class S3Store:
    """One S3 prefix, through a process of its own. Methods may be called from several threads.

    When the process has ended, the request that notices fails, and the next one starts another. What the environment
    says of S3 when the first request comes is what counts.
    """

    def __init__(self, uri: CheckpointUri, memory: SharedMemory | None = None) -> None:
        self.uri = str(uri)
        self._parsed = uri
        self._ids = itertools.count(1)
        self._starting = threading.Lock()
        self.memory = memory or SharedMemory()
        self._asked = False
        self._newest = _Link(uri, self.memory, answered=False)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that serves this store now, or served it last."""
        return self._newest.process

    def _link(self) -> _Link:
        with self._starting:
            if not self._asked and _settings(_environment()) != self._newest.settings:
                self._newest.kill()  # the script has set credentials, say, since the session began
                self._newest = _Link(self._parsed, self.memory, answered=False)
            self._asked = True
            if self._newest.ended:
                if self.memory.descriptor < 0:
                    raise StorageError(Kind.OTHER.value, f"the store {self.uri} was closed")
                self._newest = _Link(self._parsed, self.memory, answered=self._newest.answered)
            return self._newest

    def _ask(self, header: dict[str, Any], payload: memoryview | bytes = b"") -> Answer:
        return self._link().ask(next(self._ids), header, payload)

    def get(self, key: str) -> Body | None:
        header, payload = self._ask({"op": "get", "key": key})
        return None if header.get("absent") else Body(bytes(payload), header["etag"])

    def summary(self, key: str, sha256: str) -> Checkpoint:
        """What the manifest of this digest says. CorruptCheckpointError when it isn't there whole."""
        header, _ = self._ask({"op": "summary", "key": key, "sha256": sha256, "uri": self.uri})
        if "wrong" in header:
            raise CorruptCheckpointError(header["wrong"])
        told = header["summary"]
        return Checkpoint(**{**told, "links": tuple((link, digest) for link, digest in told["links"])})

    def read(self, key: str, offset: int, length: int) -> bytearray:
        if length == 0:
            return bytearray()
        header, payload = self._ask({"op": "get", "key": key, "offset": offset, "length": length})
        if header.get("absent") or len(payload) != length:
            what = "does not exist, or ends before that" if header.get("absent") else "is too short"
            raise StorageError(Kind.NOT_FOUND.value, f"{self.uri}/{key} {what} (bytes {offset} to {offset + length})")
        return payload

    def put(self, key: str, content: bytes) -> None:
        self._ask({"op": "put", "key": key}, content)

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        condition = {"absent": True} if etag is None else {"match": etag}
        header, _ = self._ask({"op": "put", "key": key, **condition}, content)
        return str(header["etag"])

    def objects(self, prefix: str) -> list[Item]:
        header, _ = self._ask({"op": "list", "prefix": prefix})
        return [Item(*item) for item in header["items"]]

    def unfinished(self) -> list[Unfinished]:
        header, _ = self._ask({"op": "unfinished"})
        return [Unfinished(*item) for item in header["items"]]

    def forget(self, unfinished: list[Unfinished]) -> None:
        self._ask({"op": "forget", "uploads": [[each.key, each.upload] for each in unfinished]})

    def delete(self, keys: list[str]) -> None:
        if keys:
            self._ask({"op": "delete", "keys": keys})

    def upload(self, files: list[Outgoing]) -> Future[list[Landed]]:
        """Writes each from `memory`."""
        return self._landed("upload", files)

    def sum(self, files: list[Outgoing]) -> Future[list[Landed]]:
        """What `upload` will tell, without the writing. Soon done, also while the store is away."""
        return self._landed("sum", files)

    def _landed(self, operation: str, files: list[Outgoing]) -> Future[list[Landed]]:
        def landed(answer: Answer) -> list[Landed]:
            answers = zip(files, answer[0]["sums"], strict=True)
            return [
                Landed.of(file, ShardFile(file.key, file.length, crc32, blocks), sums)
                for file, (crc32, sums, blocks) in answers
            ]

        told = [(file.key, file.start, file.length, file.chunks) for file in files]  # astuple copies what is in them
        return self._later({"op": operation, "files": told}, landed)

    def fetch(self, extent: Extent, at: int) -> Future[None]:
        """Reads bytes of an object to `memory`[at:]. CorruptCheckpointError when they aren't what was written."""
        return self._later({"op": "fetch", **_asked(extent), "at": at}, lambda answer: self._check(extent, answer))

    def receiver(self) -> Callable[[Extent, Sequence[memoryview]], None] | None:
        """What reads bytes of an object into memory of this process: its parts, one after the other.

        It returns when nothing writes there any more. StorageError; CorruptCheckpointError when they aren't what was
        written. None where connections to the store are not plain: then the content goes through `memory`.
        """
        header, _ = self._ask({"op": "lends"})
        return self._receive if header["lends"] else None

    def _receive(self, extent: Extent, parts: Sequence[memoryview]) -> None:
        ours, theirs = socket.socketpair()
        header = {"op": "lend", **_asked(extent)}
        with ours:
            with theirs:
                answer = self._link().request(next(self._ids), header, descriptor=theirs.fileno())
            with contextlib.suppress(OSError):  # the process has ended, which the answer tells
                receive(ours, parts)
        self._check(extent, answer.result())

    def _check(self, extent: Extent, answer: Answer) -> None:
        if answer[0]["wrong"]:
            raise CorruptCheckpointError(f"{self.uri}/{extent.key} {answer[0]['wrong']}")

    def _later(self, header: dict[str, Any], convert: Callable[[Answer], T]) -> Future[T]:
        result: Future[T] = Future()

        def settle(answered: Future[Answer]) -> None:
            try:
                result.set_result(convert(answered.result()))
            except MusterError as error:
                result.set_exception(error)

        try:
            self._link().request(next(self._ids), header).add_done_callback(settle)
        except StorageError as error:
            result.set_exception(error)
        return result

    def close(self) -> None:
        self._newest.close()
        self.memory.close()


def _asked(extent: Extent) -> dict[str, Any]:
    return {"key": extent.key, "offset": extent.start, "size": extent.size, "crc32": extent.crc32}


def _not_started(why: str, *, full: bool) -> StorageError:
    told = f"the S3 process of this rank can't be started ({why})"
    return StorageError(Kind.OTHER.value, f"{no_more(told) if full else told}. The next request tries again")


def no_more(told: str) -> str:
    """`told`, and why no more processes or threads can be started."""
    return (
        f"{told}: its pod or node has reached its limit of processes and threads, of which data loaders' workers take "
        "many, or is out of memory"
    )


def _environment() -> dict[str, str]:
    """What a process that is started now inherits."""
    return {name: value for name, value in os.environ.items() if name not in _HIDDEN}


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What botocore, or our use of it, goes by. torch sets variables of its own while a script builds its model."""

    def counts(name: str) -> bool:
        return name.startswith(_SETTINGS) or name in _MORE_SETTINGS or name.lower().endswith("_proxy")

    return {name: value for name, value in environment.items() if counts(name)}


def _has_descriptor(file: Any) -> bool:
    try:
        return isinstance(file.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False
