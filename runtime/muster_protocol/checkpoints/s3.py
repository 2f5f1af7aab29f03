"""An S3 prefix, spoken to from this very process: for tools. A rank never imports this; its storage process may."""

from __future__ import annotations

import contextlib
import itertools
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import botocore.exceptions

from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.pace import Pace
from muster_protocol.checkpoints.pools import each_in, one_in
from muster_protocol.checkpoints.s3_client import S3_ERRORS, code_of, detail_of, endpoint_in_environment, make_client
from muster_protocol.checkpoints.store import Body, Item, Level, Unfinished
from muster_protocol.errors import storage_error
from muster_protocol.manifest import ShardFile
from muster_protocol.storage_errors import BY_HAND, Hints, Kind, kind_of, sentence
from muster_protocol.uris import CheckpointUri

PART_BYTES: Final = 16 << 20
"""Size of a multipart upload's parts; S3 asks for at least 5 MiB and at most 10,000 of them."""
THREADS: Final = 8
_LEVEL_PAGES: Final = 5
"""Of a thousand keys and folders each."""
_PARTS_IN_FLIGHT: Final = 4
_PARTS_OF_A_SIZE: Final = 1000
"""Then they are twice as large, so that an object of any size that S3 takes has far fewer than 10,000."""
_BODY_TRIES: Final = 3
_BODY_PIECE: Final = 1 << 14
"""Bytes after which it is asked how slowly they came."""
_BROKEN_BODY: Final = (
    botocore.exceptions.ResponseStreamingError,
    botocore.exceptions.IncompleteReadError,
    botocore.exceptions.ReadTimeoutError,
)
T = TypeVar("T")
_GONE: Final = frozenset({"NoSuchUpload", "NoSuchKey", "404"})


class S3Store:
    """One S3 prefix. Methods may be called from several threads.

    `endpoint`: "" for the environment's, else AWS's own. `hints`: what its errors tell people to look at.
    """

    def __init__(self, uri: CheckpointUri, endpoint: str = "", hints: Hints = BY_HAND) -> None:
        self.uri = str(uri)
        self._bucket, self._prefix = uri.bucket, uri.prefix
        self._endpoint = endpoint or endpoint_in_environment()
        self._hints = hints
        self._making = threading.Lock()
        self._made: Any = None
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="muster-s3")

    @property
    def client(self) -> Any:
        """Made at first use, so that wrong settings are told as an error of the request."""
        with self._making:
            if self._made is None:
                self._made = make_client(self._endpoint, 2 * THREADS)
            return self._made

    def place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._full(key)}

    def get(self, key: str) -> Body | None:
        with self.explained(key):
            found = fetch(self.client, {}, **self.place(key))
        return None if found is None else Body(found[1], found[0])

    def read(self, key: str, offset: int, length: int) -> bytearray:
        if length == 0:
            return bytearray()
        with self.explained(key):
            found = fetch(self.client, {"Range": f"bytes={offset}-{offset + length - 1}"}, **self.place(key))
        if found is None or len(found[1]) != length:
            what = "does not exist, or ends before that" if found is None else "is too short"
            raise storage_error(Kind.NOT_FOUND.value, f"{self.uri}/{key} {what} (bytes {offset} to {offset + length})")
        return bytearray(found[1])

    def put(self, key: str, content: bytes) -> None:
        with self.explained(key):
            self.client.put_object(**self.place(key), Body=content)

    def put_if(self, key: str, content: bytes, etag: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with self.explained(key):
            try:
                return str(self.client.put_object(**self.place(key), Body=content, **condition)["ETag"])
            except botocore.exceptions.ClientError as error:
                if kind_of(code_of(error)) is not Kind.NOT_FOUND:
                    raise
                refused = error
        # If-Match on an object that is gone
        raise storage_error(Kind.PRECONDITION_FAILED.value, f"{self.uri}/{key} is gone: {refused}")

    def writer(self, key: str) -> S3Writer:
        return S3Writer(self, key)

    def objects(self, prefix: str) -> list[Item]:
        skip = len(self._full(""))
        with self.explained(prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._full(prefix)
            )
            found = [item for page in pages for item in page.get("Contents", ())]
        items = [Item(item["Key"][skip:], item["Size"], item["LastModified"].timestamp()) for item in found]
        return sorted(items, key=lambda item: item.key)

    def level(self, prefix: str) -> Level:
        skip = len(self._full(""))
        with self.explained(prefix):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket,
                Prefix=self._full(prefix),
                Delimiter="/",
            )
            found = list(itertools.islice(pages, _LEVEL_PAGES))
        keys = [item["Key"][skip:] for page in found for item in page.get("Contents", ())]
        folders = [item["Prefix"][skip:] for page in found for item in page.get("CommonPrefixes", ())]
        return Level(keys, folders, not found[-1].get("IsTruncated"))

    def unfinished(self, prefix: str = "") -> list[Unfinished]:
        with self.explained(prefix):
            found = unfinished_uploads(self.client, self._bucket, self._prefix, prefix)
        return [Unfinished(*each) for each in found]

    def forget(self, unfinished: list[Unfinished]) -> None:
        for each in unfinished:
            with self.explained(each.key):
                forget_upload(self.client, each.upload, **self.place(each.key))

    def delete(self, keys: list[str]) -> None:
        def one(key: str) -> None:  # one by one: DeleteObjects needs a checksum header that servers don't agree on
            with self.explained(key):
                forget_object(self.client, **self.place(key))

        list(each_in(self.pool, one, keys))

    def close(self) -> None:
        self.pool.shutdown()

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    @contextlib.contextmanager
    def explained(self, key: str) -> Iterator[None]:
        """S3's errors as `StorageError`."""
        try:
            yield
        except S3_ERRORS as error:
            kind = kind_of(code_of(error))
            text = sentence(
                kind,
                bucket=self._bucket,
                key=self._full(key),
                endpoint=self._endpoint,
                detail=detail_of(error),
                hints=self._hints,
            )
            raise storage_error(kind.value, text) from error


class S3Writer:
    """One object being uploaded: a small one by a single PUT, a large one in parts, a few at a time."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store, self._key = store, key
        self._pending, self._size, self._crc32 = bytearray(), 0, 0
        self._upload = ""
        self._part_bytes = PART_BYTES
        self._parts: list[Future[dict[str, Any]]] = []

    def write(self, data: memoryview) -> None:
        self._crc32 = zlib.crc32(data, self._crc32)
        self._size += data.nbytes
        self._pending += data
        while len(self._pending) >= self._part_bytes:
            with memoryview(self._pending) as pending, pending[: self._part_bytes] as first:
                part = bytes(first)
            del self._pending[: self._part_bytes]
            self._send(part)

    def _send(self, part: bytes) -> None:
        store, number = self._store, len(self._parts) + 1
        with store.explained(self._key):
            if not self._upload:
                begun = store.client.create_multipart_upload(**store.place(self._key), ChecksumAlgorithm="CRC32")
                self._upload = begun["UploadId"]
            if len(self._parts) >= _PARTS_IN_FLIGHT:
                self._parts[-_PARTS_IN_FLIGHT].result()  # bounds what is held in memory
        if number % _PARTS_OF_A_SIZE == 0:
            self._part_bytes *= 2
        self._parts.append(one_in(store.pool, lambda: self._send_part(number, part)))

    def _send_part(self, number: int, part: bytes) -> dict[str, Any]:
        done = self._store.client.upload_part(
            **self._store.place(self._key), UploadId=self._upload, PartNumber=number, Body=part
        )
        told = {name: done[name] for name in ("ETag", "ChecksumCRC32") if name in done}  # not all servers know sums
        return {"PartNumber": number, **told}

    def close(self) -> ShardFile:
        store = self._store
        if not self._upload:
            store.put(self._key, bytes(self._pending))
        else:
            if self._pending:
                self._send(bytes(self._pending))
            with store.explained(self._key):
                parts = [part.result() for part in self._parts]
                store.client.complete_multipart_upload(
                    **store.place(self._key), UploadId=self._upload, MultipartUpload={"Parts": parts}
                )
        return ShardFile(self._key, self._size, named(self._crc32))

    def abort(self) -> None:
        for part in self._parts:
            part.exception()  # waits: S3 forgets an upload only when none of its parts is under way
        if self._upload:
            with self._store.explained(self._key):
                forget_upload(self._store.client, self._upload, **self._store.place(self._key))


def fetch(client: Any, asked: dict[str, str], **place: str) -> tuple[str, bytes] | None:
    """ETag and content, or None when there is no such object or range."""
    return received(client, lambda found: (found["ETag"], _content(found["Body"])), **place, **asked)


def _content(body: Any) -> bytes:
    pace, pieces = Pace.of_an_object(), []
    while piece := body.read(_BODY_PIECE):
        try:
            pace.count(len(piece))
        except TimeoutError as error:
            body.close()
            raise botocore.exceptions.ResponseStreamingError(error=error) from error
        pieces.append(piece)
    return b"".join(pieces)


def received(client: Any, read: Callable[[dict[str, Any]], T], **asked: str) -> T | None:
    """What `read` makes of GetObject's answer, or None when there is no such object or range.

    A body that breaks off, or crawls, is no concern of botocore's retries any more: it is asked for and read anew.
    """
    try:
        for _ in range(_BODY_TRIES - 1):
            with contextlib.suppress(*_BROKEN_BODY):
                return read(client.get_object(**asked))
        return read(client.get_object(**asked))
    except botocore.exceptions.ClientError as error:
        if kind_of(code_of(error)) is Kind.NOT_FOUND or code_of(error) == "InvalidRange":
            return None
        raise


def unfinished_uploads(client: Any, bucket: str, prefix: str, begin: str = "") -> list[tuple[str, str, float]]:
    """(key below the prefix, upload, seconds since the epoch) of each multipart upload that is neither ended nor
    aborted, and whose key begins so there."""
    below = f"{prefix}/" if prefix else ""
    pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=below + begin)
    found = [upload for page in pages for upload in page.get("Uploads", ())]
    return [
        (upload["Key"][len(below) :], upload["UploadId"], upload["Initiated"].timestamp())
        for upload in found
        if upload["Key"].startswith(below + begin)
    ]


def forget_object(client: Any, **place: str) -> None:
    """Deletes an object. One that is gone already is no error, as S3 has it, but a server may say that it is not there
    when another deletes it at the same moment."""
    try:
        client.delete_object(**place)
    except botocore.exceptions.ClientError as error:
        if kind_of(code_of(error)) is not Kind.NOT_FOUND:
            raise


def forget_upload(client: Any, upload: str, **place: str) -> None:
    """Aborts a multipart upload; one that is gone already is no error."""
    try:
        client.abort_multipart_upload(**place, UploadId=upload)
    except botocore.exceptions.ClientError as error:
        if code_of(error) not in _GONE:
            raise
