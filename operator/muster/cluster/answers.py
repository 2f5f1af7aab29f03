"""What the API server's answers say: a document, an error, or the events of a watch."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from muster.cluster.errors import ApiError, ApiUnreachable

Object = dict[str, Any]

DEEPEST: Final = 200
"""Levels that are kept of a document which is too deep to be read as it is."""
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
"""A text, or where a level of a JSON document begins or ends."""


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


def document_of(answer: Answer, asked: str) -> Object:
    """The JSON object that was `asked` for, like `GET /api/v1/nodes`. What comes with 200 and is none, as a proxy's
    page or what one has cut off, says nothing of the API server: a write may have happened."""
    if not 200 <= answer.status < 300:
        raise error_of(answer)
    try:
        document = _parsed(answer.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ApiUnreachable(
            f"{asked}: what came is no answer of an API server: {answer.body[:100]!r}; is a proxy before it?"
        )
    return document


def version_of(document: Object) -> str:
    """`metadata.resourceVersion` of a list or an object. Raises ApiUnreachable for what is neither."""
    metadata = document.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str):
        raise ApiUnreachable(f"what came is neither a list nor an object of an API server: {str(document)[:100]}")
    return version


def _parsed(text: bytes) -> Any:
    """One object may have ten thousand levels, of which Python reads a tenth: it must not take the others with it."""
    try:
        return json.loads(text)
    except RecursionError:
        return json.loads(_cut(text))


def _cut(text: bytes) -> bytes:
    """The document with null for whatever lies deeper than `DEEPEST`."""
    kept: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(text):
        if token[0] in (b"[", b"{"):
            if depth == DEEPEST:
                kept += [text[start : token.start()], b"null"]
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
            if depth == DEEPEST:
                start = token.end()
    return b"".join([*kept, text[start:]])


def error_of(answer: Answer) -> ApiError:
    with suppress(ValueError):
        document = _parsed(answer.body)
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
        event = _parsed(line)
        kind, found = event["type"], event["object"]
        if not isinstance(found, dict):
            raise TypeError("its object is none")
    except (ValueError, KeyError, TypeError) as error:
        raise ApiUnreachable(f"the watch sent what is no event: {line[:100]!r}") from error
    if kind == "ERROR":
        raise ApiError.from_status(500, found)
    return WatchEvent(kind, found)
