"""What a Prometheus on this machine fetches beside the cluster's own metrics: made-up ones, and lists of targets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Final

_JSON: Final = "application/json"
_METRICS: Final = "text/plain; version=0.0.4"


class Pages:
    """A context manager: serves texts by their path on a free port of 127.0.0.1, one at a time."""

    def __init__(self, pages: Mapping[str, Callable[[], str]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                self.send_response(200 if page else 404)
                self.send_header("Content-Type", _JSON if self.path.endswith(".json") else _METRICS)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # who asked waits no longer
                    self.wfile.write(page().encode() if page else b"")

            def log_message(self, format: str, *arguments: object) -> None:
                pass  # nobody reads it

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Pages:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
