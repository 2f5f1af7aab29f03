"""An HTTP proxy before the S3 server that counts requests and does something bad at one of them."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Act = Callable[["Handler"], None]
"""What is done with a request."""


class Proxy(ThreadingHTTPServer):
    """Forwards everything, but for the request number `at` (from 1, since `arm`), which `act` deals with.

    Requests below another step's folder than `folder` don't count: those of a killed process may come late.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = urlsplit(endpoint).netloc
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self._counting = threading.Lock()
        self.arm(0, forward)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def arm(self, at: int, act: Act, folder: str = "") -> None:
        with self._counting:
            self.seen: list[str] = []
            self._at, self._act, self._folder = at, act, folder

    def act_for(self, request: str) -> Act:
        with self._counting:
            if "/step-" in request and self._folder not in request:
                return forward
            self.seen.append(request)
            return self._act if len(self.seen) == self._at else forward

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed leaves broken connections; that is what is tested."""


class NoUploadsListed(Proxy):
    """As for who may do everything but list multipart uploads, or a server that doesn't know how to."""

    refusal = 403, "AccessDenied"

    def act_for(self, request: str) -> Act:
        lists = request.startswith("GET") and "?uploads" in request
        return error(*self.refusal) if lists else forward


class NothingDeleted(Proxy):
    """As for who may do everything but delete what is named so."""

    name = ""

    def act_for(self, request: str) -> Act:
        return error(403, "AccessDenied") if request.startswith("DELETE") and self.name in request else forward


class Archived(Proxy):
    """A bucket whose lifecycle rule has moved what is named so to an archive."""

    name = ""

    def act_for(self, request: str) -> Act:
        return error(403, "InvalidObjectState") if request.startswith("GET") and self.name in request else forward


class Full(Proxy):
    """A bucket whose quota is used up."""

    def act_for(self, request: str) -> Act:
        return error(403, "QuotaExceeded") if request.startswith("PUT") else forward


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Or an answer's content waits 40 ms for the acknowledgement of its head."""
    server: Proxy
    body: bytes

    def _any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.act_for(f"{self.command} {self.path}")(self)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any  # noqa: N815 - names that http.server looks up

    def ask(self) -> tuple[http.client.HTTPResponse, bytes]:
        """The server's answer to this request, as it came, host and signature included."""
        connection = http.client.HTTPConnection(self.server.target)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(self.body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer, content

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes, length: int | None = None) -> None:
        self._begin(status, headers, [("Content-Length", str(len(content) if length is None else length))])
        self.wfile.write(content)

    def begin(self, answer: http.client.HTTPResponse, own: list[tuple[str, str]]) -> None:
        """The head of the server's answer, which `own` makes whole."""
        self._begin(answer.status, answer.getheaders(), own)

    def _begin(self, status: int, headers: list[tuple[str, str]], own: list[tuple[str, str]]) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        for name, value in own:
            self.send_header(name, value)
        self.end_headers()

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def forward(handler: Handler) -> None:
    answer, content = handler.ask()
    length = int(answer.headers.get("Content-Length") or 0) if handler.command == "HEAD" else None
    handler.answer(answer.status, answer.getheaders(), content, length)


def in_chunks(handler: Handler) -> None:
    """Whole, as a proxy sends it on that doesn't wait for the end, and so can't tell the length before."""
    answer, content = handler.ask()
    handler.begin(answer, [("Transfer-Encoding", "chunked")])
    for start in range(0, len(content), 1_000_000):
        piece = content[start : start + 1_000_000]
        handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    handler.wfile.write(b"0\r\n\r\n")


def until_closed(handler: Handler) -> None:
    """Whole, as HTTP/1.0 has it: the connection's end is the content's."""
    answer, content = handler.ask()
    handler.begin(answer, [("Connection", "close")])
    handler.wfile.write(content)
    handler.close_connection = True


def half_in_chunks(handler: Handler) -> None:
    """The same, broken off."""
    answer, content = handler.ask()
    handler.begin(answer, [("Transfer-Encoding", "chunked")])
    handler.wfile.write(b"%x\r\n%b" % (len(content), content[: len(content) // 2]))
    handler.hang_up()


def error(status: int, code: str) -> Act:
    """Answers so without asking the server."""

    def act(handler: Handler) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made up</Message></Error>"
        handler.answer(status, [("Content-Type", "application/xml")], body.encode())

    return act


def delay(handler: Handler) -> None:
    """It takes its time; others overtake it."""
    threading.Event().wait(0.2)
    forward(handler)


def drop(handler: Handler) -> None:
    """The request is lost."""
    handler.hang_up()


def drop_answer(handler: Handler) -> None:
    """It is done, but nobody learns that."""
    handler.ask()
    handler.hang_up()


def duplicate(handler: Handler) -> None:
    """It arrives twice; the second answer is the one that comes back."""
    handler.ask()
    forward(handler)


def truncate(handler: Handler) -> None:
    """The answer breaks off."""
    answer, content = handler.ask()
    handler.answer(answer.status, answer.getheaders(), content[: len(content) // 2], len(content) + 1)
    handler.hang_up()
