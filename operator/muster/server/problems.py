"""Errors as RFC 9457 has them: `application/problem+json`, with a sentence that says how to mend it."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

MEDIA_TYPE: Final = "application/problem+json"
TOKEN_HINT: Final = (
    "send `Authorization: Bearer TOKEN`; `kubectl create token SERVICEACCOUNT -n NAMESPACE` makes a token"
)


class BadField(BaseModel):
    """A parameter that can't be taken."""

    name: str
    message: str


class ProblemBody(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "about:blank",
                "title": "Forbidden",
                "status": 403,
                "detail": 'trainingjobs.muster.dev is forbidden: User "jane" cannot list resource "trainingjobs" in '
                'API group "muster.dev" in the namespace "vision"',
                "errors": [],
            }
        }
    )

    type: str = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="What happened, and how to mend it.")
    errors: list[BadField] = Field(default=[], description="Of a bad request: which parameters are wrong.")


class Problem(Exception):
    """An answer that is an error."""

    def __init__(
        self, status: int, detail: str, *, headers: Mapping[str, str] | None = None, errors: tuple[BadField, ...] = ()
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.errors = status, detail, dict(headers or {}), errors

    def response(self) -> Response:
        body = ProblemBody(
            title=HTTPStatus(self.status).phrase, status=self.status, detail=self.detail, errors=list(self.errors)
        )
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(body.model_dump_json(), self.status, headers, media_type=MEDIA_TYPE)


def unauthorized(why: str, *, token_given: bool) -> Problem:
    """401. `why` is the beginning of a sentence."""
    challenge = 'Bearer realm="muster"' + (', error="invalid_token"' if token_given else "")
    return Problem(401, f"{why}: {TOKEN_HINT}", headers={"WWW-Authenticate": challenge})


def unavailable(why: str, *, seconds: int = 2) -> Problem:
    """503, to be tried again after `seconds`."""
    return Problem(503, why, headers={"Retry-After": str(seconds)})


def bad_parameter(name: str, message: str) -> Problem:
    return Problem(400, f"{name}: {message}", errors=(BadField(name=name, message=message),))
