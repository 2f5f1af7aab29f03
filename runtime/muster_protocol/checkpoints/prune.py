"""Deletes what `retention` names, so that no crash and no race at any point loses anything that was to stay.

For each checkpoint, the oldest first: a tombstone; then the holds and LATEST are read again, before each delete; then
the manifest, then the shards, its record, and the tombstone as the last. What is half deleted has a tombstone and no
manifest: nobody can take it for a checkpoint, and the next prune ends what was begun.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.holds import holders, read_holds
from muster_protocol.checkpoints.inventory import record_key
from muster_protocol.checkpoints.retention import Plan, Removal
from muster_protocol.checkpoints.store import Store, Unfinished
from muster_protocol.errors import StaleEpochError, StorageError, StorageRefusedError, storage_error
from muster_protocol.manifest import KEPT_PREFIX, TOMBSTONE
from muster_protocol.storage_errors import Kind

BATCH: Final = 64
"""Shards that are deleted between two looks at LATEST and the holds."""
_TAKEN_OVER: Final = "another prune has taken it over"


@dataclass
class Outcome:
    """What was done. `spared`: (folder, why) of those that somebody came to need meanwhile."""

    removed: list[Removal] = field(default_factory=list)
    spared: list[tuple[str, str]] = field(default_factory=list)
    forgotten: tuple[Unfinished, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(removal.bytes for removal in self.removed) + sum(each.size for each in self.forgotten)


def carry_out(store: Store, plan: Plan, clock: Callable[[], float]) -> Outcome:
    """Does what the plan says. StaleEpochError when a gang has claimed the run since: then the plan is void.
    StorageRefusedError where nothing may be deleted: then nothing was begun.
    """
    outcome = Outcome()
    # The oldest first: what a prune that is cut has left is still named by the manifests that come after it.
    removals = sorted(plan.removals, key=lambda each: (each.folder.epoch, each.folder.step, each.folder.attempt))
    deletions = [_Deletion(store, plan.epoch, removal, clock) for removal in removals]
    if deletions:
        deletions[0].try_out()
    store.forget(list(plan.unfinished))  # before anything is written: a bucket that is full may have room again
    outcome.forgotten = plan.unfinished
    if deletions:
        with _told_when_full(f"{store.uri}/{removals[0].folder.prefix}"):
            for checkpoint in plan.records:
                store.put(record_key(checkpoint), b"")
            for removal, deletion in zip(removals, deletions, strict=True):
                reason = deletion.run()
                if reason:
                    outcome.spared.append((removal.folder.prefix, reason))
                else:
                    outcome.removed.append(removal)
    store.delete([*plan.stale, *plan.leftovers])
    return outcome


@contextmanager
def _told_when_full(first: str) -> Iterator[None]:
    """`first`: the folder that goes first. Who prunes to get room is told how, where there is none for a mark."""
    try:
        yield
    except StorageError as error:
        if error.kind != Kind.FULL.value:
            raise
        told = f"{error}. What goes is marked before, which takes some bytes: delete {first} by hand, and prune again"
        raise storage_error(error.kind, told) from None


class _Deletion:
    """Of one folder."""

    def __init__(self, store: Store, epoch: int, removal: Removal, clock: Callable[[], float]) -> None:
        self._store, self._epoch, self._removal, self._clock = store, epoch, removal, clock
        self._prefix = removal.folder.prefix
        self._tombstone = f"{self._prefix}{TOMBSTONE}{secrets.token_hex(4)}"

    def try_out(self) -> None:
        """Deletes what was never there. Who may write and not delete could not take a tombstone back, and nobody reads
        what has one. Not the tombstone's own name: a request may come twice, the second time when the tombstone stands.
        """
        self._store.delete([f"{self._prefix}{TOMBSTONE}{secrets.token_hex(4)}"])

    def run(self) -> str:
        """Why it was spared, or "" when it is gone."""
        store = self._store
        store.put(self._tombstone, json.dumps({"why": self._removal.why, "at": self._clock()}).encode())
        try:
            reason = self._needed()
        except StaleEpochError:
            store.delete([self._tombstone])
            raise
        if reason:
            if self._removal.record and reason != _TAKEN_OVER:
                store.put(self._removal.record, b"")  # what leads to it may be the next that goes
            store.delete([self._tombstone])
            return reason
        if self._removal.manifest:
            self._delete_manifest()
        for batch in _batches([key for key in self._left() if not key.startswith(self._prefix + TOMBSTONE)]):
            reason = self._needed()
            if reason:
                return reason  # its manifest is gone: the next prune ends this
            store.delete(batch)
        name = self._prefix.removeprefix("step-").replace("/", "-")
        store.delete([item.key for item in store.objects(f"{KEPT_PREFIX}{name}")])
        store.delete(self._left())
        return ""

    def _delete_manifest(self) -> None:
        try:
            self._store.delete([self._removal.manifest])
        except StorageRefusedError:  # it is there, and can be read
            with suppress(StorageError):
                self._store.delete([self._tombstone])
            raise

    def _left(self) -> list[str]:
        return [item.key for item in self._store.objects(self._prefix)]

    def _needed(self) -> str:
        """Why it has to stay after all, or "".

        Holds before LATEST: a gang that has fallen back on this lets go of its hold when LATEST leads to it.
        """
        holds = read_holds(self._store)
        claim = read_latest(self._store)
        epoch = claim.latest.epoch if claim else 0
        if claim is None or epoch != self._epoch:
            raise StaleEpochError(
                f"{self._store.uri} was claimed by another gang meanwhile (epoch {epoch}, it was {self._epoch}), so "
                "pruning has stopped; what was deleted before was not needed by it. Run it again"
            )
        mark = self._store.objects(self._tombstone)
        if not mark:
            return _TAKEN_OVER
        key = self._removal.manifest
        if key and key in (claim.latest.manifest, claim.latest.parent):
            return "LATEST names it now"
        # our clock may be fast, and holds count by the store's, too: by that it is no later than the tombstone
        held = holders(holds, key, min(self._clock(), mark[0].modified)) if key else []
        return f"held by {held[0].who}" if held else ""


def _batches(keys: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), BATCH):
        yield keys[start : start + BATCH]
