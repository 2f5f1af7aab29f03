"""The process that talks to S3 for one rank.

boto3 never enters the user's process: there it could shadow, or be shadowed by, the versions that the script brings.
So each rank starts this module in a fresh interpreter and speaks `frames` with it. It ends when its parent does.

Requests (header fields beside `id` and `op`):

    get     key [offset length]      -> etag, payload; absent: true when there is no object
    put     key [match | absent]     -> etag; payload is the content; match: If-Match; absent: If-None-Match: *
    open    stream key               starts a stream; no answer
    write   stream                   payload is the next bytes; no answer
    shut    stream                   -> size, sha256; the object is visible now
    abort   stream                   -> ok
    list    prefix                   -> items: [[key, size, modified], ...]
    unfinished                       -> items: [[key, upload, started], ...]
    forget  uploads: [[key, upload]] -> ok
    delete  keys                     -> ok

An answer has `error: {kind, message}` when the request failed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import botocore.exceptions

from muster_protocol.checkpoints.s3 import fetch, forget_upload, make_client, unfinished_uploads
from muster_protocol.storage_errors import Kind, kind_of, sentence
from muster_runtime.checkpoint.frames import receive_frame, send_frame

PART_BYTES: Final = 16 << 20
"""Size of a multipart upload's parts; S3 asks for at least 5 MiB and at most 10,000 of them."""
THREADS: Final = 6
PARTS_IN_FLIGHT: Final = 4
_S3_ERRORS: Final = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)

Answer = tuple[dict[str, Any], bytes]


class Stream:
    """One object that is being uploaded. Small ones go by a single PUT, large ones in parts."""

    def __init__(self, server: Server, key: str) -> None:
        self._server, self._key = server, key
        self._pending, self._size, self._digest = bytearray(), 0, hashlib.sha256()
        self._upload_id = ""
        self._parts: list[Future[dict[str, Any]]] = []
        self._part_bytes = PART_BYTES
        self.failure: Exception | None = None

    def write(self, data: bytearray) -> None:
        if self.failure is not None:
            return  # told at `shut`; until then the rank's bytes are thrown away
        self._digest.update(data)
        self._size += len(data)
        self._pending += data
        try:
            while len(self._pending) >= self._part_bytes:
                self._send_part(bytes(self._pending[: self._part_bytes]))
                del self._pending[: self._part_bytes]
        except _S3_ERRORS as error:
            self.failure = error

    def _send_part(self, part: bytes) -> None:
        server = self._server
        if not self._upload_id:
            created = server.client.create_multipart_upload(**server.place(self._key))
            self._upload_id = created["UploadId"]
        number = len(self._parts) + 1
        if number % 1000 == 0:
            self._part_bytes *= 2  # stays far below 10,000 parts for an object of any size that S3 takes
        server.slots.acquire()
        self._parts.append(server.pool.submit(self._upload, number, part))

    def _upload(self, number: int, part: bytes) -> dict[str, Any]:
        server = self._server
        try:
            done = server.client.upload_part(
                **server.place(self._key), UploadId=self._upload_id, PartNumber=number, Body=part
            )
        finally:
            server.slots.release()
        return {"PartNumber": number, "ETag": done["ETag"]}

    def shut(self) -> Answer:
        server = self._server
        if self.failure is not None:
            self.abort()
            raise self.failure
        if not self._upload_id:
            server.client.put_object(**server.place(self._key), Body=bytes(self._pending))
        else:
            try:
                if self._pending:
                    self._send_part(bytes(self._pending))
                parts = [part.result() for part in self._parts]
                server.client.complete_multipart_upload(
                    **server.place(self._key), UploadId=self._upload_id, MultipartUpload={"Parts": parts}
                )
            except _S3_ERRORS:
                self.abort()
                raise
        return {"size": self._size, "sha256": self._digest.hexdigest()}, b""

    def abort(self) -> None:
        for part in self._parts:
            part.exception()  # waits: S3 forgets an upload only when none of its parts is under way
        if self._upload_id:
            self._server.client.abort_multipart_upload(**self._server.place(self._key), UploadId=self._upload_id)

    def give_up(self) -> Answer:
        self.abort()
        return {}, b""


class Server:
    def __init__(self, connection: socket.socket, bucket: str, prefix: str) -> None:
        self._connection, self._bucket, self._prefix = connection, bucket, prefix
        self._sending = threading.Lock()
        self._streams: dict[int, Stream] = {}
        self.pool = ThreadPoolExecutor(THREADS)
        self._requests = ThreadPoolExecutor(THREADS)  # apart from `pool`: `shut` waits there for parts
        self.slots = threading.BoundedSemaphore(PARTS_IN_FLIGHT)
        self._endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        self._client: Any = None
        self._making = threading.Lock()

    @property
    def client(self) -> Any:
        """Made at first use, so that a missing credential is an answer and not a dead process."""
        with self._making:
            if self._client is None:
                self._client = make_client(self._endpoint, 2 * THREADS)
            return self._client

    def place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._full(key)}

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def serve(self) -> None:
        """Answers until the rank closes its end."""
        while (frame := receive_frame(self._connection)) is not None:
            header, payload = frame
            operation = header["op"]
            if operation == "open":
                self._streams[header["stream"]] = Stream(self, header["key"])
            elif operation == "write":
                self._streams[header["stream"]].write(payload)  # in order; blocks the rank when S3 is slower
            elif operation in ("shut", "abort"):
                stream = self._streams.pop(header["stream"])
                self._answer_later(header, stream.shut if operation == "shut" else stream.give_up)
            else:
                handler = getattr(self, f"_{operation}")
                self._answer_later(header, functools.partial(handler, header, payload))

    def _answer_later(self, header: dict[str, Any], work: Callable[[], Answer]) -> None:
        self._requests.submit(self._answer, header, work)

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
            kind, bucket=self._bucket, key=self._full(key), endpoint=self._endpoint, detail=f"{error or error!r}"
        )
        return {"kind": kind.value, "message": text}

    def _get(self, header: dict[str, Any], _payload: bytearray) -> Answer:
        asked = {}
        if "offset" in header:
            asked["Range"] = f"bytes={header['offset']}-{header['offset'] + header['length'] - 1}"
        found = fetch(self.client, asked, **self.place(header["key"]))
        return ({"absent": True}, b"") if found is None else ({"etag": found[0]}, found[1])

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
        list(self.pool.map(lambda key: self.client.delete_object(**self.place(key)), header["keys"]))
        return {}, b""


class _Changed(Exception):
    pass


def _code(error: Exception) -> str:
    if isinstance(error, _Changed):
        return "PreconditionFailed"
    if isinstance(error, botocore.exceptions.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def _end_with_parent(parent: int) -> None:
    # The socket's end tells it, too, but not while a process that the rank forked still holds a copy of it.
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def main(descriptor: int, parent: int, bucket: str, prefix: str) -> None:
    # A stop signal goes to the whole process group; the rank still needs this process for its last save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    with socket.socket(fileno=descriptor) as connection:
        Server(connection, bucket, prefix).serve()
    sys.stdout.flush()
    os._exit(0)  # requests under way have nobody left to answer to
