"""What can go wrong in a call to the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """The API server answered with an error.

    Attributes:
        status: HTTP status code.
        reason: Kubernetes' word for it, such as NotFound, AlreadyExists, Conflict, Forbidden, Invalid, Expired.
        message: the server's sentence.
        details: the server's details: name, kind, causes.
    """

    def __init__(self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{' '.join(filter(None, (str(status), reason)))}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}

    @classmethod
    def from_status(cls, code: int, document: Mapping[str, Any]) -> ApiError:
        """From a `Status` object; a proxy's error may have other things under the same names."""
        own, details = document.get("code"), document.get("details")
        return cls(
            own if isinstance(own, int) and own else code,
            str(document.get("reason") or ""),
            str(document.get("message") or f"the API server answered {code}"),
            details if isinstance(details, Mapping) else None,
        )

    @property
    def exists(self) -> bool:
        """Whether a POST failed only because the object is there already."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def gone(self) -> bool:
        """Whether a resourceVersion or a page's token is too old: list afresh."""
        return self.status == 410 or self.reason in ("Expired", "Gone")


class ApiUnreachable(OSError):
    """No answer: the connection failed, broke or was silent. A write may or may not have happened."""


def away(error: BaseException) -> bool:
    """Whether the API server, or what it passes a question on to, is away for a while: asked again it may answer."""
    return isinstance(error, ApiUnreachable) or (isinstance(error, ApiError) and error.status >= 500)


class LeadershipLost(Exception):
    """This process may not write any more: its Lease has run out, or another holds it."""
