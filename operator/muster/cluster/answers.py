"""What the API server's answers say: a document, an error, or the events of a watch."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from muster.cluster.errors import ApiError, ApiUnreachable

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """`type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


@dataclass(frozen=True, slots=True)
class Answer:
    """`retry_after`: seconds after which the server may be asked again, 0 where it says none."""

    status: int
    body: bytes
    reason: str
    retry_after: int = 0


def retry_after(value: str | None) -> int:
    """Of the header `Retry-After`: seconds. (API servers send no dates there; one from a proxy counts as a second.)"""
    return int(value) if value and value.isdecimal() else int(bool(value))


def document_of(answer: Answer) -> Object:
    if answer.status >= 400:
        raise error_of(answer)
    document: Object = json.loads(answer.body)
    return document


def error_of(answer: Answer) -> ApiError:
    with suppress(ValueError):
        document = json.loads(answer.body)
        if isinstance(document, dict):
            return ApiError.from_status(answer.status, document)
    text = answer.body[:500].decode(errors="replace").strip()
    return ApiError(answer.status, answer.reason.replace(" ", ""), text or f"the API server answered {answer.status}")


async def lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own reader has a limit, and an object may be larger."""
    rest: list[bytes] = []
    async for chunk in content.iter_any():
        *whole, tail = chunk.split(b"\n")
        for line in whole:
            joined = b"".join([*rest, line])
            rest.clear()
            if joined:
                yield joined
        if tail:
            rest.append(tail)


def event_of(line: bytes) -> WatchEvent:
    try:
        event = json.loads(line)
        kind, found = event["type"], event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ApiUnreachable(f"the watch sent what is no event: {line[:100]!r}") from error
    if kind == "ERROR":
        raise ApiError.from_status(500, found)
    return WatchEvent(kind, found)
