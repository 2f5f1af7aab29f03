"""The process that talks to S3 for one rank.

boto3 never enters the user's process: there it could shadow, or be shadowed by, the versions that the script brings.
So each rank starts this module in a fresh interpreter and speaks `frames` with it. It ends when its parent does.

Requests (header fields beside `id` and `op`):

    get     key [offset length]      -> etag, payload; absent: true when there is no object
    put     key [match | absent]     -> etag; payload is the content; match: If-Match; absent: If-None-Match: *
    summary key sha256 uri           -> summary: the `Checkpoint` of this manifest; or wrong: what is wrong with it
    list    prefix                   -> items: [[key, size, modified], ...]
    unfinished                       -> items: [[key, upload, started], ...]
    forget  uploads: [[key, upload]] -> ok
    delete  keys                     -> ok
    upload  files: [[key, start, length, chunks: [[at, length], ...]], ...]
                                     -> sums: [[crc32, crc32 of each chunk, those of the blocks], ...]; from the
                                        shared memory
    sum     files, as for upload     -> sums, as upload tells them; nothing is written
    fetch   key offset size crc32 at -> wrong: "" or what is wrong with these bytes; they are in the shared memory at
                                        `at`. Without an offset they are the whole object
    lends                            -> lends: whether connections to the store are plain, so that they can be lent
    lend    key offset size crc32    -> wrong, as for fetch; the rank reads the content by itself, see `lent`. A lane's
                                        descriptor comes with the request

An answer has `error: {kind, message}` when the request failed.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import botocore.exceptions

from muster_protocol.checkpoints.chain import found_in
from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.inventory import summary
from muster_protocol.checkpoints.s3 import fetch, forget_object, forget_upload, received, unfinished_uploads
from muster_protocol.checkpoints.s3_client import S3_ERRORS, code_of, detail_of, endpoint_in_environment, make_client
from muster_protocol.errors import CorruptCheckpointError
from muster_protocol.storage_errors import Kind, kind_of, sentence
from muster_runtime.checkpoint.bodies import Content, lent, pieces_into, send_unsigned
from muster_runtime.checkpoint.crc import crc32
from muster_runtime.checkpoint.frames import (
    EXIT_NO_THREADS,
    receive_frame,
    receive_frame_and_descriptor,
    send_frame,
)
from muster_runtime.checkpoint.niceness import only_when_idle
from muster_runtime.checkpoint.sums import Span, Sums, sums

THREADS: Final = 6
_TRANSFERS: Final = 4
"""Pieces on their way at once, each with a connection of its own."""
Answer = tuple[dict[str, Any], bytes]
Piece = tuple[str, int, int, list[Span]]
"""Key, first byte and length in the shared memory, chunks."""


class Server:
    def __init__(self, connection: socket.socket, memory: int, bucket: str, prefix: str) -> None:
        self._connection, self._memory, self._bucket, self._prefix = connection, memory, bucket, prefix
        self._sending = threading.Lock()
        self.pool = ThreadPoolExecutor(THREADS)
        self._requests = ThreadPoolExecutor(THREADS)  # apart from `pool`: `_delete` waits for it
        self._uploads = ThreadPoolExecutor(_TRANSFERS, initializer=only_when_idle)
        self._sums = ThreadPoolExecutor(1, initializer=only_when_idle)
        self._fetches = ThreadPoolExecutor(_TRANSFERS)
        self._endpoint = endpoint_in_environment()
        self._client: Any = None
        self._making = threading.Lock()
        self._mapped, self._mapping = memoryview(b""), threading.Lock()
        self._summed: tuple[str, dict[str, Sums]] = "", {}  # a save's prefix, and its sums by key
        self._summing = threading.Lock()

    @property
    def client(self) -> Any:
        """Made at first use, so that a missing credential is an answer and not a dead process; and by `warm`."""
        with self._making:
            if self._client is None:
                self._client = make_client(self._endpoint, 2 * THREADS)
                send_unsigned(self._client)
            return self._client

    def warm(self) -> None:
        """Makes the client before it is asked for, and has it load what it would load for its first request."""
        with contextlib.suppress(*S3_ERRORS):  # the request that needs it tells
            self.client.generate_presigned_url("get_object", Params=self.place("LATEST"))

    def place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._full(key)}

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def serve(self) -> None:
        """Answers until the rank closes its end, or dies with an answer unread."""
        with contextlib.suppress(ConnectionResetError):
            while (received := receive_frame_and_descriptor(self._connection)) is not None:
                (header, payload), descriptor = received
                handler = getattr(self, f"_{header['op']}")
                given = payload if descriptor is None else socket.socket(fileno=descriptor)
                self._requests.submit(self._answer, header, functools.partial(handler, header, given))

    def _answer(self, header: dict[str, Any], work: Callable[[], Answer]) -> None:
        try:
            answer, payload = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the rank must get an answer
            answer, payload = {"error": self._explain(header, error)}, b""
        with self._sending:
            send_frame(self._connection, {**answer, "id": header["id"]}, payload)

    def _explain(self, header: dict[str, Any], error: Exception) -> dict[str, str]:
        kind = kind_of(_code(error))
        key = header.get("key") or header.get("prefix") or ""
        text = sentence(
            kind, bucket=self._bucket, key=self._full(key), endpoint=self._endpoint, detail=detail_of(error)
        )
        return {"kind": kind.value, "message": text}

    def _get(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        asked = {}
        if "offset" in header:
            asked["Range"] = f"bytes={header['offset']}-{header['offset'] + header['length'] - 1}"
        found = fetch(self.client, asked, **self.place(header["key"]))
        return ({"absent": True}, b"") if found is None else ({"etag": found[0]}, found[1])

    def _summary(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        """Here, since what many ranks have written takes a second of an interpreter to decode."""
        found = fetch(self.client, {}, **self.place(header["key"]))
        content = None if found is None else found[1]
        try:
            record = found_in(content, header["uri"], header["key"], header["sha256"])
        except CorruptCheckpointError as error:
            return {"wrong": str(error)}, b""
        return {"summary": vars(summary(record))}, b""

    def _put(self, header: dict[str, Any], payload: bytearray) -> Answer:
        condition: dict[str, str] = {}
        if header.get("absent"):
            condition["IfNoneMatch"] = "*"
        elif header.get("match"):
            condition["IfMatch"] = header["match"]
        try:
            done = self.client.put_object(**self.place(header["key"]), Body=bytes(payload), **condition)
        except botocore.exceptions.ClientError as error:
            if condition and kind_of(_code(error)) is Kind.NOT_FOUND:  # If-Match on an object that is gone
                raise _Changed from error
            raise
        return {"etag": done["ETag"]}, b""

    def _list(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        skip = len(self._prefix) + 1 if self._prefix else 0
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._full(header["prefix"])
        )
        items = [
            [item["Key"][skip:], item["Size"], item["LastModified"].timestamp()]
            for page in pages
            for item in page.get("Contents", ())
        ]
        return {"items": sorted(items)}, b""

    def _unfinished(self, _header: dict[str, Any], _payload: bytearray) -> Answer:
        return {"items": unfinished_uploads(self.client, self._bucket, self._prefix)}, b""

    def _forget(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        for key, upload in header["uploads"]:
            forget_upload(self.client, upload, **self.place(key))
        return {}, b""

    def _delete(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        # One by one: DeleteObjects needs a checksum header that S3 servers don't agree on.
        list(self.pool.map(lambda key: forget_object(self.client, **self.place(key)), header["keys"]))
        return {}, b""

    def _upload(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        memory = self._shared()

        def put(file: Piece) -> tuple[str, list[str], str]:
            key, start, length, _ = file
            content = memory[start : start + length]
            found = self._sums_of(file, memory)
            # The server checks the sum of what arrives, where it knows the header.
            self.client.put_object(
                **self.place(key),
                Body=Content(content),
                ChecksumCRC32=base64.b64encode(found.whole.to_bytes(4, "big")).decode(),
            )
            return _told(found)

        return {"sums": list(self._uploads.map(put, header["files"]))}, b""

    def _sum(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        """From the last to the first, since `upload` goes the other way: each piece is summed by who comes first."""
        memory = self._shared()
        found = list(self._sums.map(lambda file: self._sums_of(file, memory), reversed(header["files"])))
        return {"sums": [_told(each) for each in found[::-1]]}, b""

    def _sums_of(self, file: Piece, memory: memoryview) -> Sums:
        key, start, length, chunks = file
        save = key.rpartition("/")[0]
        with self._summing:
            if self._summed[0] != save:  # those of the save before are of no use any more
                self._summed = save, {}
            found = self._summed[1]
        if key not in found:
            found[key] = sums(memory[start : start + length], chunks)
        return found[key]

    def _shared(self) -> memoryview:
        """The shared memory as large as the rank has made it by now."""
        with self._mapping:
            size = os.fstat(self._memory).st_size
            if size != len(self._mapped):
                self._mapped = memoryview(mmap.mmap(self._memory, size))
            return self._mapped

    def _fetch(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        return {"wrong": self._fetches.submit(self._fetch_piece, header).result()}, b""

    def _fetch_piece(self, header: dict[str, Any]) -> str:
        """Streams an object into the shared memory. What is wrong with it, or "" when nothing is."""
        memory = self._shared()[header["at"] : header["at"] + header["size"]]

        def summed(body: Any) -> str:
            return named(functools.reduce(lambda value, piece: crc32(piece, value), pieces_into(memory, body), 0))

        return self._wrong_with(header, summed)

    def _lends(self, _header: dict[str, Any], _payload: bytearray) -> Answer:
        return {"lends": self.client.meta.endpoint_url.startswith("http:")}, b""

    def _lend(self, header: dict[str, Any], lane: socket.socket) -> Answer:
        with lane:
            try:
                return {"wrong": self._fetches.submit(self._lend_piece, header, lane).result()}, b""
            finally:
                with contextlib.suppress(OSError):  # the rank has gone
                    lane.shutdown(socket.SHUT_RDWR)  # which a copy in a process that it forked doesn't hold up

    def _lend_piece(self, header: dict[str, Any], lane: socket.socket) -> str:
        """Has the rank receive an object. What is wrong with it, or "" when nothing is."""

        def summed(body: Any) -> str:
            with lent(body) as (ahead, connection):
                send_frame(lane, {}, ahead, connection.fileno())
                told = receive_frame(lane)
                if told is None or "broken" in told[0]:
                    raise ConnectionError(told[0]["broken"] if told else "the rank has gone")
                return str(told[0]["crc32"])

        return self._wrong_with(header, summed)

    def _wrong_with(self, header: dict[str, Any], summed: Callable[[Any], str]) -> str:
        """`summed` receives a body, and tells its CRC-32."""
        size, offset = header["size"], header["offset"]
        asked = {} if offset is None else {"Range": f"bytes={offset}-{offset + size - 1}"}

        def read(found: dict[str, Any]) -> str:
            length = found.get("ContentLength", size)  # a proxy that sends it on in chunks doesn't tell
            if length != size:
                return f"is {length} bytes, not {size}"
            return "" if summed(found["Body"]) == header["crc32"] else "is not what was saved (CRC-32 differs)"

        wrong = received(self.client, read, **asked, **self.place(header["key"]))
        if wrong is not None:
            return wrong
        return "does not exist" if offset is None else f"does not exist, or ends before its byte {offset}"


def _told(found: Sums) -> tuple[str, list[str], str]:
    return named(found.whole), [named(each) for each in found.chunks], "".join(map(named, found.blocks))


class _Changed(Exception):
    pass


def _code(error: Exception) -> str:
    return "PreconditionFailed" if isinstance(error, _Changed) else code_of(error)


def _end_with_parent(parent: int) -> None:
    # The socket's end tells it, too, but not while a process that the rank forked still holds a copy of it.
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def main(descriptor: int, memory: int, parent: int, bucket: str, prefix: str) -> None:
    # A stop signal, or one of the script's own, may go to the whole process group; the rank still needs this process.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
        with socket.socket(fileno=descriptor) as connection:
            server = Server(connection, memory, bucket, prefix)
            server.pool.submit(server.warm)
            server.serve()
    except RuntimeError:  # of a thread that can't be started; requests have none to fail in
        os._exit(EXIT_NO_THREADS)
    sys.stdout.flush()
    os._exit(0)  # requests under way have nobody left to answer to
