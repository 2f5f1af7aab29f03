"""Holds: who reads a checkpoint, or has tagged it, keeps it from being deleted.

A reader writes its hold, then looks for a tombstone; whoever deletes writes a tombstone, then looks for holds. The
second of them sees the other and gives way, so nobody reads what is being deleted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.store import Store
from muster_protocol.errors import CorruptCheckpointError, StateError, StorageError, StorageRefusedError
from muster_protocol.manifest import HOLDS_PREFIX, LATEST_KEY, TOMBSTONE, Hold
from muster_protocol.storage_errors import Kind

HOLD_SECONDS: Final = 900.0
"""A reader's hold lasts so long after its last renewal; three are missed before it ends."""
SKEW_SECONDS: Final = 300.0
"""A hold counts so much longer: clocks differ."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_READERS: Final = re.compile(r"\d+-[0-9a-f]{8}")
"""As `held` names its holds."""


def tombstones(store: Store, manifest_key: str) -> list[str]:
    """Keys of the tombstones of one checkpoint."""
    folder = manifest_key.rpartition("/")[0] + "/"
    return [item.key for item in store.objects(folder + TOMBSTONE)]


def read_holds(store: Store) -> list[Hold]:
    """All holds, expired ones too. One that can't be read holds everything, for it is damaged, or a newer Muster's: a
    tag by its name until it is released, a reader's until that would be over.

    A reader's lasts `HOLD_SECONDS` by the store's clock at least, whatever the reader's own says."""
    found = []
    for item in store.objects(HOLDS_PREFIX):
        name = _id(item.key)
        if "/" in name or name == LATEST_KEY:  # of another run, whose uri ends in this folder's name
            continue
        body = store.get(item.key)
        if body is None:
            continue
        until = item.modified + HOLD_SECONDS
        try:
            hold = manifests.decode_hold(body.content)
        except ValueError as error:
            is_tag = item.key == key_of(name) and _NAME.fullmatch(name) and not _READERS.fullmatch(name)
            hold = Hold(name, f"{item.key}, which can't be read: {error}", None if is_tag else until)
        expires = None if hold.expires is None else max(hold.expires, until)
        # its name is its key's, whatever it says: by that it is deleted
        found.append(dataclasses.replace(hold, id=name, expires=expires))
    return found


def holders(holds: Iterable[Hold], manifest_key: str, now: float) -> list[Hold]:
    """Those that hold this checkpoint at `now`."""
    return [hold for hold in holds if hold.manifest in ("", manifest_key) and not is_over(hold, now)]


def is_over(hold: Hold, now: float) -> bool:
    return hold.expires is not None and hold.expires + SKEW_SECONDS < now


def key_of(hold_id: str) -> str:
    return f"{HOLDS_PREFIX}{hold_id}.json"


class held:  # noqa: N801 - used like a function: `with held(...)`
    """Holds one checkpoint ("": all of the run) while the block runs, by a thread that renews it.

    CorruptCheckpointError when it is being deleted already, or gone. A store that may only be read, or is full, is read
    without a hold, after a warning.

    No generator: one that was left behind would let go, by requests to the store, wherever the interpreter happens to
    collect it.
    """

    def __init__(
        self, store: Store, manifest_key: str, who: str, warn: Callable[[str], None], *, seconds: float = HOLD_SECONDS
    ) -> None:
        self._store, self._manifest_key, self._who, self._warn, self._seconds = store, manifest_key, who, warn, seconds
        self._id = f"{int(time.time())}-{secrets.token_hex(4)}"
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._holds = False

    def __enter__(self) -> None:
        try:
            self._renew()
        except StorageError as error:
            if not isinstance(error, StorageRefusedError) and error.kind != Kind.FULL.value:
                raise
            self._warn(f"reading without a hold, so a prune at the same time may delete what is read: {error}")
            with contextlib.suppress(StorageRefusedError):  # who may not write perhaps may not list either
                self._look()
            return
        thread = threading.Thread(target=self._keep_renewing, name="muster-hold", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._warn(
                f"reading under a hold that ends in {self._seconds / 60:.0f} minutes, as it can't be renewed: {error}; "
                "the pod or machine has reached its limit of threads, or is out of memory"
            )
        else:
            self._thread = thread
        self._holds = True
        try:
            self._look()
        except BaseException:
            self._let_go()
            raise

    def __exit__(self, *_raised: object) -> None:
        self._let_go()

    def _look(self) -> None:
        if self._manifest_key:
            refuse_if_doomed(self._store, self._manifest_key)

    def _renew(self) -> None:
        hold = Hold(self._id, self._who, time.time() + self._seconds, self._manifest_key)
        self._store.put(key_of(self._id), manifests.encode(hold))

    def _keep_renewing(self) -> None:
        while not self._over.wait(self._seconds / 3):
            with contextlib.suppress(StorageError):  # two more tries before it expires
                self._renew()

    def _let_go(self) -> None:
        if not self._holds:
            return
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(StorageError):  # it expires by itself
            self._store.delete([key_of(self._id)])


def tag(store: Store, manifest_key: str, sha256: str, name: str, who: str) -> Hold:
    """Keeps a committed checkpoint until the tag is released. StateError when the name is taken or is no name."""
    if not _NAME.fullmatch(name):
        raise StateError(f"{name!r} is no name for a tag; use small letters, digits, '.', '_' and '-', 63 at most")
    hold = Hold(name, who, None, manifest_key, sha256)
    before = _tag_named(store, name)
    if before is not None and before.manifest != manifest_key:
        where = f"on {before.manifest.rpartition('/')[0]}" if before.manifest else "there, though it can't be read,"
        raise StateError(f"the tag {name!r} is {where} already; release it first, or choose another --name")
    store.put(key_of(name), manifests.encode(hold))
    try:
        refuse_if_doomed(store, manifest_key)
    except CorruptCheckpointError:
        store.delete([key_of(name)])
        raise
    return hold


def release(store: Store, name: str) -> None:
    """Takes a tag away. StateError when there is no tag of that name."""
    if _tag_named(store, name) is None:
        tags = sorted(hold.id for hold in read_holds(store) if hold.expires is None)
        raise StateError(f"{store.uri} has no tag {name!r}; it has {', '.join(tags) or 'none'}")
    store.delete([key_of(name)])


def _tag_named(store: Store, name: str) -> Hold | None:
    return next((hold for hold in read_holds(store) if hold.id == name and hold.expires is None), None)


def refuse_if_doomed(store: Store, manifest_key: str) -> None:
    """CorruptCheckpointError when a prune deletes it, or has."""
    if tombstones(store, manifest_key):
        raise CorruptCheckpointError(
            f"{store.uri}/{manifest_key} is being deleted by a prune; choose another step (muster checkpoint ls)"
        )
    # In this order: a prune that was over before the first look has taken the manifest before its tombstone.
    if not store.objects(manifest_key):
        raise CorruptCheckpointError(
            f"{store.uri}/{manifest_key} was deleted meanwhile; choose another step (muster checkpoint ls)"
        )


def _id(key: str) -> str:
    return key.removeprefix(HOLDS_PREFIX).removesuffix(".json")
