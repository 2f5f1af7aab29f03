"""An S3 server that has no capacity: `python unavailable.py ADDRESS PORT FILE` answers every call with 503.

FILE grows by one byte with each of them.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BODY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Refusal(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    counter: Path

    def refuse(self) -> None:
        with self.counter.open("ab") as counted:
            counted.write(b".")
        self.send_response(503)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(BODY)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(BODY)
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = refuse  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    Refusal.counter = Path(sys.argv[3])
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Refusal).serve_forever()
