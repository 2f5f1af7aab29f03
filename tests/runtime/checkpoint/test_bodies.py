"""What goes to S3 straight from memory: nothing copied, nothing signed that has a checksum, everything sent."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import boto3
import botocore.awsrequest
import botocore.config
import pytest
import urllib3
from botocore.exceptions import IncompleteReadError, ResponseStreamingError

from muster_runtime.checkpoint.bodies import Content, lent, pieces_into, send_unsigned

pytestmark = pytest.mark.runtime
STATE = memoryview(bytearray(range(256)) * 20_000)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
def test_shards_are_sent_whole_and_unsigned_and_small_objects_signed(endpoint: str) -> None:
    requests: list[Any] = []
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=botocore.config.Config(request_checksum_calculation="when_required", s3={"addressing_style": "path"}),
    )
    send_unsigned(client)

    def answer(request: Any, **_: object) -> botocore.awsrequest.AWSResponse:
        requests.append(request)
        return botocore.awsrequest.AWSResponse(
            request.url, 200, {"ETag": '"1"'}, urllib3.HTTPResponse(io.BytesIO(), preload_content=False)
        )

    client.meta.events.register("before-send.s3.PutObject", answer)
    client.put_object(Bucket="models", Key="shard", Body=Content(STATE), ChecksumCRC32="AAAAAA==")
    client.put_object(Bucket="models", Key="LATEST", Body=b"small")
    shard, small = requests
    assert shard.headers["Content-Length"] == str(len(STATE))
    assert shard.headers["X-Amz-Content-SHA256"] == b"UNSIGNED-PAYLOAD"
    assert b"x-amz-checksum-crc32" in shard.headers["Authorization"].split(b"Signature")[0]
    assert shard.url == f"{endpoint}/models/shard"
    assert small.headers["X-Amz-Content-SHA256"] == hashlib.sha256(b"small").hexdigest().encode()


def test_a_body_is_read_again_from_where_it_is_set() -> None:
    body = Content(STATE)
    whole = b"".join(iter(lambda: bytes(body.read(1)), b""))
    assert whole == STATE
    assert body.tell() == len(STATE)
    assert body.seek(-10, 2) == len(STATE) - 10
    assert body.read() == STATE[-10:]
    body.seek(0)
    assert b"".join(iter(lambda: bytes(body.read(1)), b"")) == STATE


class _Storage(BaseHTTPRequestHandler):
    """/whole sends all of STATE; /half ends the connection in the middle, /stalled only waits there."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.connections.add(self.client_address)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(STATE)))
        self.end_headers()
        self.wfile.write(STATE if self.path == "/whole" else STATE[: len(STATE) // 2])
        if self.path == "/stalled":
            self.server.over.wait()  # type: ignore[attr-defined]
        self.close_connection = self.path != "/whole"

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def storage() -> Iterator[tuple[urllib3.HTTPConnectionPool, set[Any]]]:
    """A pool of connections to a server, and the connections that the server has seen."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Storage)
    server.connections, server.over = set(), threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with urllib3.HTTPConnectionPool("127.0.0.1", server.server_port, timeout=0.5, retries=False) as pool:
            yield pool, server.connections  # type: ignore[attr-defined]
    finally:
        server.over.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()
        server.server_close()


def received(pool: urllib3.HTTPConnectionPool, path: str) -> bytearray:
    memory = bytearray(len(STATE))
    answer = pool.request("GET", path, preload_content=False)
    assert b"".join(pieces_into(memoryview(memory), SimpleNamespace(_raw_stream=answer))) == memory
    return memory


def test_a_body_comes_whole_and_leaves_its_connection_to_the_next() -> None:
    with storage() as (pool, connections):
        for _ in range(3):
            assert received(pool, "/whole") == STATE
    assert len(connections) == 1


def test_a_connection_that_was_lent_is_for_the_next_request_too() -> None:
    with storage() as (pool, connections):
        for _ in range(3):
            answer = pool.request("GET", "/whole", preload_content=False)
            with lent(SimpleNamespace(_raw_stream=answer)) as (ahead, connection):
                rest = connection.recv(len(STATE) - len(ahead), socket.MSG_WAITALL)
            assert ahead + rest == STATE
    assert len(connections) == 1


def test_a_body_that_breaks_off_or_stalls_is_an_error_to_try_again() -> None:
    with storage() as (pool, _):
        with pytest.raises(IncompleteReadError):
            received(pool, "/half")
        with pytest.raises(ResponseStreamingError):
            received(pool, "/stalled")
        assert received(pool, "/whole") == STATE
