"""A made-up S3 server, whose objects lie in memory: what a real one wouldn't do, it may."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

import pytest

CODES: Final = {
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    501: "NotImplemented",
}


class MadeStore(ThreadingHTTPServer):
    """It keeps conditions. Those that do not, or that have troubles, override `holds` or `put`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.writes = 0

    def tag_of(self, key: str) -> str:
        content = self.objects.get(key)
        return "" if content is None else f'"{hashlib.md5(content).hexdigest()}"'

    def holds(self, key: str, headers: Message) -> bool:
        wanted = headers.get("If-Match")
        if headers.get("If-None-Match") == "*" and self.tag_of(key):
            return False
        return wanted is None or wanted == self.tag_of(key)

    def put(self, key: str, content: bytes, headers: Message) -> int:
        """The answer's status."""
        with self.lock:
            if not self.holds(key, headers):
                return 412
            self.objects[key] = content
            return 200


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MadeStore

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_GET(self) -> None:
        key = urlsplit(self.path).path
        if "list-type" in self.path:
            self._answer(200, b"<ListBucketResult></ListBucketResult>")
        elif key in self.server.objects:
            self._answer(200, self.server.objects[key], self.server.tag_of(key))
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def do_PUT(self) -> None:
        content, key = self.rfile.read(int(self.headers["Content-Length"])), urlsplit(self.path).path
        status = self.server.put(key, content, self.headers)
        code = CODES.get(status, "")
        body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
        self._answer(status, body, f'"{hashlib.md5(content).hexdigest()}"' if status == 200 else "")

    def do_DELETE(self) -> None:
        self.server.objects.pop(urlsplit(self.path).path, None)
        self._answer(204)

    def _answer(self, status: int, body: bytes = b"", tag: str = "") -> None:
        self.send_response(status)
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextlib.contextmanager
def served(server: MadeStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_address[1]}")
    yield
    server.shutdown()
    server.server_close()
