"""`LATEST`: claiming an epoch and committing a checkpoint, each by one compare-and-swap.

A write that times out may have been done all the same. Every write carries a nonce of its own, so reading `LATEST` back
tells: our nonce means done, the old tag means not done (write again), anything else means that somebody else won.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from muster_protocol import manifest
from muster_protocol.checkpoints.chain import folder_of, read_manifest
from muster_protocol.checkpoints.store import Store
from muster_protocol.errors import (
    CorruptCheckpointError,
    PathConflictError,
    StaleEpochError,
    StorageError,
    storage_error,
)
from muster_protocol.manifest import LATEST_KEY, Latest
from muster_protocol.storage_errors import PASSING, Kind

TOOL: Final = "muster checkpoint "
"""How the owner begins that `muster checkpoint` claims a run as. A job's is its UID."""
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.5
"""Before asking a store again that did not answer; doubled each time."""


@dataclass(frozen=True)
class Claim:
    """What this gang holds: the content of `LATEST` as it last wrote it, and its tag.

    `tried` are the nonces of claims that it has sent on top of that without an answer: any of them may have been done.
    """

    latest: Latest
    etag: str
    tried: tuple[str, ...] = ()


class LostRace(Exception):
    """Another writer changed `LATEST` in between."""


def read_latest(store: Store) -> Claim | None:
    """`LATEST` as it stands, or None. CorruptCheckpointError when it can't be read."""
    body = store.get(LATEST_KEY)
    if body is None:
        return None
    try:
        return Claim(manifest.decode_latest(body.content), body.etag)
    except manifest.NewerFormatError as error:
        raise CorruptCheckpointError(f"{store.uri}/{LATEST_KEY} can't be read: {error}") from error
    except ValueError as error:
        raise CorruptCheckpointError(
            f"{store.uri}/{LATEST_KEY} is damaged ({error}); put back a version of it that names a manifest, "
            "or start the job with another checkpoint.uri"
        ) from error


def claim_epoch(
    store: Store,
    owner: str,
    held: Claim | None = None,
    *,
    refuse: Callable[[Latest], None] | None = None,
    sends: Callable[[str], None] = lambda _: None,
) -> Claim:
    """Takes the next epoch, keeping the committed checkpoint. Gangs that claimed before can't commit any more.

    `owner` may be another than that of `LATEST`: a job goes on from what one before it has left. But not where its gang
    lives, and has `held` the run until that other took it.

    `refuse` raises where the run that it is given is not to be taken, whoever has begun it meanwhile. `sends` hears the
    nonce of a claim that follows what is `held`, with nobody else's in between, before it is sent.

    CorruptCheckpointError when `LATEST` can't be read, or is missing where it must have been.
    """
    while True:
        found = read_latest(store)
        if found is None and _has_folders(store) and (found := read_latest(store)) is None:
            raise CorruptCheckpointError(
                f"{store.uri}/{LATEST_KEY} is missing, though checkpoints lie there; the run was not begun anew. Put "
                "back a version of it, or start the job with another checkpoint.uri"
            )
        if held is not None and found is not None and _taken(held, found):
            raise _conflict(store, held, found, "so it does not go on")
        if refuse is not None and found is not None:
            refuse(found.latest)
        before = found.latest if found else Latest(epoch=0, owner="", nonce="")
        wanted = dataclasses.replace(before, epoch=before.epoch + 1, owner=owner, nonce=_nonce())
        if held is not None and (before.epoch <= held.latest.epoch or before.nonce in held.tried):
            sends(wanted.nonce)
        try:
            return _swap(store, found, wanted)
        except LostRace:
            continue  # somebody claimed at the same moment; theirs is older than the one we take now


def _has_folders(store: Store) -> bool:
    """Whether some run has saved here, and not only below."""
    return any(folder_of(item.key) for item in store.objects("step-"))


def commit(
    store: Store,
    held: Claim,
    *,
    step: int,
    manifest_key: str,
    sha256: str,
    finished: bool,
    parent: tuple[str, str] = ("", ""),
) -> Claim:
    """Makes a whole checkpoint the committed one. StaleEpochError when the epoch isn't ours any more, PathConflictError
    when it is another job's.

    `parent` is the key and the digest of the manifest that it follows.
    """
    while True:
        wanted = dataclasses.replace(
            held.latest,
            nonce=_nonce(),
            step=step,
            manifest=manifest_key,
            sha256=sha256,
            finished=finished,
            parent=parent[0],
            parent_sha256=parent[1],
        )
        try:
            return _swap(store, held, wanted)
        except LostRace:
            found = read_latest(store)
        if found is None or (found.latest.epoch != held.latest.epoch and found.latest.nonce not in held.tried):
            break
        # a write of ours that looked lost has arrived late; nobody else holds our epoch
        held = dataclasses.replace(found, tried=held.tried)
    if found is None:
        raise StaleEpochError(
            f"{store.uri}/{LATEST_KEY} is gone: somebody has deleted it, or a rule of the bucket for old objects, so "
            f"the checkpoint of step {step} was not committed. If other checkpoints are left there, put it back"
        )
    if _is_tool(held.latest):
        raise StaleEpochError(
            f"{store.uri} was claimed by {claimant(found.latest)} while {held.latest.owner} wrote there, so nothing of "
            "that was committed; see what is there by `muster checkpoint ls`, or choose another prefix"
        )
    if _taken(held, found):
        raise _conflict(store, held, found, f"so the checkpoint of step {step} was not committed")
    if _is_tool(found.latest):
        raise StaleEpochError(
            f"{store.uri} was claimed by {found.latest.owner}, which was told that nobody trains into it any more, so "
            f"the checkpoint of step {step} was not committed. Another start goes on from the last one that was"
        )
    raise StaleEpochError(
        f"{store.uri}/{LATEST_KEY} is now epoch {found.latest.epoch} of {found.latest.owner!r}, this gang holds epoch "
        f"{held.latest.epoch}: another gang has taken over, so the checkpoint of step {step} was not committed. Two "
        "jobs may not share a checkpoint.uri"
    )


def _taken(held: Claim, found: Claim) -> bool:
    """Whether another job has claimed the run after this gang did."""
    owner = found.latest.owner
    return (
        found.latest.epoch > held.latest.epoch and owner not in ("", held.latest.owner) and not _is_tool(found.latest)
    )


def _conflict(store: Store, held: Claim, found: Claim, lost: str) -> PathConflictError:
    return PathConflictError(
        f"{store.uri} is {_who(store, found.latest)} now: {LATEST_KEY} has its epoch {found.latest.epoch}, and this "
        f"gang holds epoch {held.latest.epoch}. That job has taken over the run while this one trained, {lost}. Two "
        "jobs may not share a checkpoint.uri, and to start this one again would only take the run back: end one of "
        "them. This one can go on under a checkpoint.uri of its own; checkpoint.from begins it with what lies there"
    )


def claimant(latest: Latest) -> str:
    """Who has claimed the run, for people: a tool by its own name."""
    return latest.owner if _is_tool(latest) else "a job"


def _is_tool(latest: Latest) -> bool:
    """Whether it was claimed by hand, by someone who goes on with nothing there."""
    return latest.owner.startswith(TOOL)


def _who(store: Store, latest: Latest) -> str:
    """Whose the run is. Before its first commit only its UID is known."""
    folder, job = folder_of(latest.manifest), ""
    if folder is not None and folder[1] == latest.epoch:
        with suppress(CorruptCheckpointError, StorageError):
            job = read_manifest(store, latest.manifest, latest.sha256).manifest.job
    return f"job {job}'s (owner {latest.owner!r})" if job else f"another job's (owner {latest.owner!r})"


def _nonce() -> str:
    return secrets.token_hex(8)


def _swap(store: Store, found: Claim | None, wanted: Latest) -> Claim:
    """`wanted` has a nonce of its own."""
    content, etag = manifest.encode(wanted), found.etag if found else None
    pause = _PAUSE_SECONDS
    for attempt in range(_TRIES):
        try:
            return Claim(wanted, store.put_if(LATEST_KEY, content, etag))
        except StorageError as error:
            if Kind(error.kind) not in PASSING | {Kind.PRECONDITION_FAILED}:
                raise
            refused = error
        # The client may have repeated a write that had been done: even a refusal is looked at twice.
        try:
            now = read_latest(store)
        except StorageError as error:
            refused, now = error, found
        if now is not None and now.latest.nonce == wanted.nonce:
            return now
        if (now.etag if now else None) != etag:
            raise LostRace
        if attempt + 1 < _TRIES:
            time.sleep(pause)
            pause *= 2
    if found is None and refused.kind == Kind.PRECONDITION_FAILED.value:
        raise storage_error(
            Kind.NO_CONDITIONS.value,
            f"{store.uri}/{LATEST_KEY} does not exist, and the store refuses to create it as if it did. In a bucket "
            "with versions some servers take the marker of a deleted object for an object: delete that marker and all "
            f"other versions of {LATEST_KEY}, or choose another prefix",
        ) from refused
    raise refused
