"""The few API calls that a start needs, on the standard library alone, so that a start does not wait for imports."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable
from typing import Any

from hack.cluster.errors import ClusterError
from hack.cluster.plan import API_PORT, Site

Json = dict[str, Any]


class ApiClient:
    """One keep-alive connection as the administrator. Not for use by several threads at once."""

    def __init__(self, site: Site) -> None:
        self._context = ssl.create_default_context(cafile=str(site.directory / "pki" / "ca.crt"))
        self._host = site.addresses.hub
        self._headers = {"Authorization": f"Bearer {site.secrets['admin']}", "Accept": "application/json"}
        self._connection: http.client.HTTPSConnection | None = None

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Json]:
        """One request: status code and document. Raises OSError or http.client.HTTPException when unreachable."""
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(self._host, API_PORT, timeout=10, context=self._context)
        payload = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, payload, {**self._headers, "Content-Type": kind})
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            self._connection = None
            raise
        if not (response.getheader("Content-Type") or "").startswith("application/json"):
            return response.status, {"text": text.decode(errors="replace")}
        document: Json = json.loads(text)
        return response.status, document

    def get(self, path: str) -> Json | None:
        """The document at `path`, or None if there is none."""
        status, document = self.call("GET", path)
        if status == 404:
            return None
        return self._checked("GET", path, status, document)

    def apply(self, path: str, document: Json) -> Json:
        """Server-side apply, so that doing it twice is doing it once."""
        full = f"{path}/{document['metadata']['name']}?fieldManager=muster-local-cluster&force=true"
        status, answer = self.call("PATCH", full, document, "application/apply-patch+yaml")
        return self._checked("apply", full, status, answer)

    def create(self, path: str, document: Json) -> Json:
        """POST; an object of that name that exists already is left as it is."""
        status, answer = self.call("POST", path, document)
        return answer if status == 409 else self._checked("POST", path, status, answer)

    def merge(self, path: str, patch: Json) -> Json:
        """JSON merge patch."""
        status, answer = self.call("PATCH", path, patch, "application/merge-patch+json")
        return self._checked("PATCH", path, status, answer)

    @staticmethod
    def _checked(verb: str, path: str, status: int, document: Json) -> Json:
        if status >= 400:
            raise ClusterError(f"API server: {verb} {path}: {status} {document.get('message', document)}")
        return document


def wait_for(what: str, ready: Callable[[], bool], timeout_s: float, why_not: Callable[[], str]) -> None:
    """Polls `ready` until it is true; an unreachable API server counts as not ready.

    Raises ClusterError with what `why_not` knows after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    pause = 0.05
    while True:
        try:
            if ready():
                return
        except (OSError, http.client.HTTPException):
            pass
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} within {timeout_s:.0f} s did not happen:\n{why_not()}")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.3)
