"""Does a store keep conditional writes? Every commit is one, so a store that takes a write whose condition does not
hold lets a gang that was replaced take back what its successor has committed.

Asked on scratch objects, whose names nobody else has. Each write has a content of its own, so that reading back tells
whose write stands: a refusal alone does not, as the HTTP library repeats a request whose answer was lost.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

RACES: Final = 3
"""Pairs of writes at once, of either kind. One pair may miss a store that looks and then writes."""
_RACE_SECONDS: Final = 10.0
"""A store that takes longer for its first pairs isn't asked for more."""
_TRIES: Final = 6
_PAUSE_SECONDS: Final = 0.05
"""Before a write is tried again that met another (409), on average; doubled each time."""


class Refused(Exception):
    """The store refuses a write, its condition not holding (412)."""


class Met(Exception):
    """A write has met another one and is to be tried again (409)."""


class NotKept(Exception):
    """What the store has done that it must not, as a sentence without its subject."""


@dataclass(frozen=True)
class Found:
    """An object's content, and the tag (ETag) by which a conditional write names it."""

    tag: str
    content: bytes


class Objects(Protocol):
    """Calls to the store; each may also raise what is wrong with the store as a whole."""

    def put(self, key: str, content: bytes, tag: str | None) -> str:
        """Writes if the object has `tag` (If-Match), with None if there is none (If-None-Match: *). The new tag.

        Raises Refused, Met, or NotKept where the store knows no such condition.
        """

    def get(self, key: str) -> Found | None:
        """None when there is no such object."""


def probe(objects: Objects, key: str) -> tuple[str, ...]:
    """Tries stale writes, and then pairs of writes at once. Raises NotKept.

    Returns the keys of the objects that it leaves; when it raises, `scratch` has all that there may be.
    """
    _alone(objects, key)
    names, until = scratch(key), time.monotonic() + _RACE_SECONDS
    done = 1
    for name in names[1:]:
        if done > 1 and time.monotonic() > until:
            break
        first = _race(objects, name, None)
        _race(objects, name, first.tag)
        done += 1
    return names[:done]


def scratch(key: str) -> tuple[str, ...]:
    """The keys of all objects that a probe at `key` may write."""
    return (key, *(f"{key}-{number}" for number in range(1, RACES + 1)))


def _alone(objects: Objects, key: str) -> None:
    """One write after another."""
    first = _taken(objects, key, None)
    if not _refuses(objects, key, None):
        raise NotKept("it took a write that was to create an object (If-None-Match: *) over one that was there")
    second = _taken(objects, key, first.tag)
    if second.tag == first.tag:
        raise NotKept("it gives two contents of an object the same tag (ETag)")
    found = objects.get(key)
    if found is None or found.content != second.content:
        raise NotKept("an object that was read had not the content of the last write that it took")
    if not _refuses(objects, key, first.tag):
        raise NotKept("it took a write whose tag (If-Match) had been right once, after the object was overwritten")
    _taken(objects, key, found.tag)  # who reads has the tag from another answer than who writes


def _race(objects: Objects, key: str, tag: str | None) -> Found:
    """Two writes at once on the same condition, which holds: one has to win. What stands then."""
    contents, together = (_content(), _content()), threading.Barrier(2)

    def write(content: bytes) -> bool:
        together.wait()
        try:
            _patiently(objects, key, content, tag)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(1, thread_name_prefix="storage preflight") as beside:
        # Where the container has no more threads, this fails before anybody waits for the other.
        other = beside.submit(write, contents[1])
        said = [write(contents[0]), other.result()]
    won = [content for content, done in zip(contents, said, strict=True) if done]
    if len(won) == 2:
        raise NotKept(f"it took both of two writes at once {_on(tag)}, where the second has to be refused")
    found = objects.get(key)
    if found is None or found.content not in contents:
        raise NotKept(f"of two writes at once {_on(tag)} {'it has lost the one that it took' if won else 'none won'}")
    if won and found.content != won[0]:
        raise NotKept(f"of two writes at once {_on(tag)} it kept the one that it had refused")
    return found


def _taken(objects: Objects, key: str, tag: str | None) -> Found:
    """Writes on a condition that holds. What stands then."""
    content = _content()
    try:
        return Found(_patiently(objects, key, content, tag), content)
    except Refused:
        found = objects.get(key)
    if found is None or found.content != content:  # else the first try was done, and its answer lost
        raise NotKept(f"it refused a write whose condition held ({_on(tag)})")
    return found


def _refuses(objects: Objects, key: str, tag: str | None) -> bool:
    """Whether a write whose condition does not hold is refused."""
    try:
        _patiently(objects, key, _content(), tag)
    except Refused:
        return True
    return False


def _patiently(objects: Objects, key: str, content: bytes, tag: str | None) -> str:
    """A write, tried again while it meets others. To meet one each time is to be refused."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(random.uniform(0, 2 * _PAUSE_SECONDS * 2 ** (attempt - 1)))  # apart from who is met
        try:
            return objects.put(key, content, tag)
        except Met:
            continue
    raise Refused


def _on(tag: str | None) -> str:
    return "with If-None-Match: *" if tag is None else "with the right If-Match"


def _content() -> bytes:
    return f"muster preflight {secrets.token_hex(8)}\n".encode()
