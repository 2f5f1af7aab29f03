"""Finding what to restore: the committed checkpoint, then its parents.

A manifest that merely lies in the store proves nothing: its commit may have failed. Committed is what `LATEST` names,
what a committed manifest names, and what a tag or a record in `kept/` names: both are written for committed checkpoints
alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.holds import read_holds, tombstones
from muster_protocol.checkpoints.store import Item, Store
from muster_protocol.errors import CorruptCheckpointError
from muster_protocol.manifest import KEPT_PREFIX, MANIFEST_NAME, Hold, Latest, Manifest, step_prefix

_OF_STEP: Final = r"step-(\d{8,})/(\d+)-(\d+)"
"""As `step_prefix` writes it: a run below this one may well be named step-5."""
_FOLDER: Final = re.compile(rf"^{_OF_STEP}/")
_INSIDE: Final = re.compile(rf"^(.+?)/{_OF_STEP}(/|$)")
"""Of a uri: one within such a folder."""
_RECORD: Final = re.compile(rf"^{KEPT_PREFIX}(\d+)-(\d+)-(\d+)-([0-9a-f]{{64}})$")
Link = tuple[str, str]
"""A manifest's key and the hex SHA-256 of its bytes."""


@dataclass(frozen=True)
class Found:
    """A manifest that was read: its key, the digest of its bytes, what it says."""

    key: str
    sha256: str
    manifest: Manifest


@dataclass(frozen=True)
class Damaged:
    """A checkpoint that can't be used, and why."""

    key: str
    reason: str

    @property
    def step(self) -> int | None:
        folder = folder_of(self.key)
        return None if folder is None else folder[0]


def folder_of(key: str) -> tuple[int, int, int] | None:
    """(step, epoch, attempt) of an object that belongs to a checkpoint, else None."""
    match = _FOLDER.match(key)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def named_by_folder(uri: str) -> str:
    """`URI@STEP` of the checkpoint in whose own folder `uri` lies, as that of a manifest does; "" where in none."""
    match = _INSIDE.match(uri)
    return f"{match[1]}@{int(match[2])}" if match else ""


def read_manifest(store: Store, key: str, sha256: str = "") -> Found:
    """CorruptCheckpointError when it is missing, unreadable, or isn't the one that `sha256` names."""
    body = store.get(key)
    return found_in(None if body is None else body.content, store.uri, key, sha256)


def found_in(content: bytes | None, uri: str, key: str, sha256: str) -> Found:
    """As `read_manifest`, of what lies there; None: nothing does."""
    if content is None:
        raise CorruptCheckpointError(f"{uri}/{key} is missing")
    digest = hashlib.sha256(content).hexdigest()
    if sha256 and digest != sha256:
        raise CorruptCheckpointError(f"{uri}/{key} is not the manifest that was committed (SHA-256 differs)")
    try:
        return Found(key, digest, manifests.decode_manifest(content))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(f"{uri}/{key} can't be read: {error}") from error


def candidates(store: Store, latest: Latest) -> Iterator[Found | Damaged]:
    """What may be restored: the committed checkpoint and those that were committed before it, newest first; then what
    only tags and records lead to, newest first as well.

    Where a parent is gone (retention deletes them) or damaged, the chain goes on at the last that is kept for ever.
    """
    seen: set[str] = set()
    yield from _along(store, newest_links(latest), seen)
    for link in named(read_holds(store), recorded(store.objects(KEPT_PREFIX)).values()):
        yield from _along(store, [link], seen)


def _along(store: Store, links: list[Link], seen: set[str]) -> Iterator[Found | Damaged]:
    """A chain from where its `links` lead, but for what was `seen`."""
    while links:
        key, sha256 = links.pop(0)
        if not key or key in seen:
            continue
        seen.add(key)
        try:
            found = read_manifest(store, key, sha256)
        except CorruptCheckpointError as error:
            yield Damaged(key, str(error))
            continue
        yield found
        links = links_of(found.manifest)


def newest_links(latest: Latest) -> list[Link]:
    """The committed checkpoint and the one before it; a key is "" where there is none."""
    return [(latest.manifest, latest.sha256), (latest.parent, latest.parent_sha256)]


def links_of(record: Manifest) -> list[Link]:
    """What was committed before a checkpoint: its parent, and the last that is kept for ever; "" as above."""
    return [(record.parent, record.parent_sha256), (record.milestone, record.milestone_sha256)]


def named(holds: Iterable[Hold], records: Iterable[Link]) -> list[Link]:
    """What tags and records name, newest first."""
    tagged = ((hold.manifest, hold.sha256) for hold in holds if hold.sha256)
    return sorted((*tagged, *records), key=_by_age, reverse=True)


def _by_age(link: Link) -> tuple[int, int, int]:
    step, epoch, attempt = folder_of(link[0]) or (0, 0, 0)
    return epoch, step, attempt


def recorded(items: Iterable[Item]) -> dict[str, Link]:
    """What each record names, by the record's key. `items` lie in `kept/`."""
    found = {}
    for item in items:
        match = _RECORD.match(item.key)
        if match:
            found[item.key] = (step_prefix(*(int(number) for number in match.groups()[:3])) + MANIFEST_NAME, match[4])
    return found


def restorable(store: Store, latest: Latest) -> Iterator[Found | Damaged]:
    """`candidates`, for whoever holds the whole run: what a prune was deleting before is damaged."""
    for found in candidates(store, latest):
        if isinstance(found, Found) and found.key != latest.manifest and tombstones(store, found.key):
            yield Damaged(found.key, f"{store.uri}/{found.key} is being deleted by a prune")
        else:
            yield found
