"""What crawls is given up, and asked for again: it neither stalls, which a time-out would end, nor gets anywhere."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest
import urllib3
from botocore.exceptions import ResponseStreamingError
from hack.s3server import S3Server
from proxy import Handler, Proxy, forward

from muster_protocol.checkpoints import pace
from muster_protocol.checkpoints.pace import Pace
from muster_protocol.checkpoints.s3 import S3Store
from muster_protocol.errors import StorageError
from muster_protocol.uris import CheckpointUri
from muster_runtime.checkpoint import bodies, lent
from muster_runtime.checkpoint.bodies import pieces_into
from muster_runtime.checkpoint.frames import receive_frame, send_frame

CONTENT = bytes(range(256)) * 1000
BETWEEN = 0.02
"""Seconds between two pieces of what crawls."""


def crawl(connection: socket.socket, pieces: Iterator[bytes]) -> None:
    with suppress(OSError):  # whoever reads has hung up
        for piece in pieces:
            connection.sendall(piece)
            threading.Event().wait(BETWEEN)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "STORE_SECONDS", 0.1)
    monkeypatch.setattr(pace, "STORE_SLOWEST", 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_it_is_judged_by_each_span_of_time_alone(clock: SimpleNamespace) -> None:
    judge = Pace(100, 20)
    for seconds, length in ((19, 1), (1, 1999), (5, 10_000), (15, 0)):
        clock.now += seconds
        judge.count(length)
    clock.now += 25
    with pytest.raises(TimeoutError, match=r"only 0\.0 MB came in 25 s"):
        judge.count(2499)


class Crawling:
    """A server whose answer to anything crawls, and a pool of connections to it."""

    def __init__(self, head: bytes, pieces: Iterator[bytes]) -> None:
        self._head, self._pieces = head, pieces
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.pool = urllib3.HTTPConnectionPool(*self._listener.getsockname()[:2], timeout=0.5, retries=False)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + self._head + b"\r\n\r\n")
            crawl(connection, self._pieces)

    def close(self) -> None:
        self.pool.close()
        self._thread.join()
        self._listener.close()


KNOWN = b"Content-Length: 1000000000"
CHUNKS = b"Transfer-Encoding: chunked"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("head", "piece", "tls"), [(KNOWN, b"x", False), (KNOWN, b"x", True), (CHUNKS, b"1\r\nx\r\n", False)]
)
def test_content_that_crawls_into_memory_is_given_up(
    head: bytes, piece: bytes, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it comes: from a plain connection, over TLS, in chunks."""
    if tls:
        monkeypatch.setattr(bodies, "_plain_socket", lambda _: None)
    server = Crawling(head, itertools.repeat(piece))
    try:
        answer = server.pool.request("GET", "/", preload_content=False)
        with pytest.raises(ResponseStreamingError, match=r"only 0\.0 MB came in"):
            list(pieces_into(memoryview(bytearray(10**6)), SimpleNamespace(_raw_stream=answer)))
    finally:
        server.close()


@pytest.mark.usefixtures("impatient")
def test_a_rank_gives_up_what_crawls_on_a_connection_that_is_lent_to_it() -> None:
    (ours, theirs), (connection, server) = socket.socketpair(), socket.socketpair()
    with ours, theirs, server, ThreadPoolExecutor(2) as pool, connection, bodies._waiting_in_the_kernel(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bodies._TIME.pack(0, 50_000))
        send_frame(theirs, {}, b"", connection.fileno())
        receiving = pool.submit(lent.receive, ours, [memoryview(bytearray(10**6))])
        pool.submit(crawl, server, itertools.repeat(b"x"))
        told = receive_frame(theirs)
        assert told is not None
        assert told[0]["broken"].startswith("only 0.0 MB came in")
        theirs.shutdown(socket.SHUT_RDWR)
        receiving.result()


def crawling(handler: Handler) -> None:
    answer, content = handler.ask()
    handler.begin(answer, [("Content-Length", str(len(content)))])
    pieces = (content[at : at + 1000] for at in range(0, len(content), 1000))
    crawl(handler.connection, pieces)
    handler.close_connection = True


@pytest.mark.usefixtures("impatient")
def test_a_small_object_that_crawls_is_asked_for_again(
    s3_environment: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest, whose length nothing tells beforehand."""
    proxy = Proxy(s3_environment.endpoint)
    store = S3Store(CheckpointUri("s3", "models", "crawling"), proxy.endpoint)
    try:
        store.put("manifest.json", CONTENT)
        proxy.arm(1, crawling)
        found = store.get("manifest.json")
        assert found is not None
        assert found.content == CONTENT
        assert len(proxy.seen) == 2
        monkeypatch.setattr(Proxy, "act_for", lambda *_: crawling)
        with pytest.raises(StorageError, match=r"check --endpoint, .* only 0\.0 MB came in"):
            store.get("manifest.json")
        monkeypatch.setattr(Proxy, "act_for", lambda *_: forward)
    finally:
        store.close()
        proxy.shutdown()
        proxy.server_close()
