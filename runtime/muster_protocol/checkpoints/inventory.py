"""What lies under a run's uri: its committed checkpoints, and everything else.

What is committed is told in `muster_protocol.checkpoints.chain`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from muster_protocol.checkpoints.chain import (
    Damaged,
    Found,
    Link,
    folder_of,
    links_of,
    named,
    named_by_folder,
    newest_links,
    read_manifest,
    recorded,
)
from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.holds import read_holds
from muster_protocol.checkpoints.store import Item, Store, StreamingStore, Unfinished
from muster_protocol.errors import CorruptCheckpointError, StartError, StateError, StorageRefusedError
from muster_protocol.manifest import KEPT_PREFIX, LATEST_KEY, MANIFEST_NAME, TOMBSTONE, Hold, Latest, step_prefix
from muster_protocol.spelling import nearest
from muster_protocol.storage_errors import Kind

FOLDERS_LOOKED_INTO: Final = 200


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint that is still there. `bytes` are its shards'; `links` lead to those committed before."""

    key: str
    sha256: str
    step: int
    epoch: int
    attempt: int
    created_at: float
    world_size: int
    bytes: int
    job: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)
    links: tuple[Link, ...] = ()

    @property
    def prefix(self) -> str:
        return step_prefix(self.step, self.epoch, self.attempt)


@dataclass(frozen=True)
class Folder:
    """All objects of one attempt at one checkpoint, committed or not."""

    prefix: str
    step: int
    epoch: int
    attempt: int
    items: tuple[Item, ...]

    @property
    def tombstones(self) -> list[Item]:
        return [item for item in self.items if item.key.startswith(self.prefix + TOMBSTONE)]

    @property
    def manifest(self) -> str:
        """Key of its manifest, or "" when it has none."""
        key = self.prefix + MANIFEST_NAME
        return key if any(item.key == key for item in self.items) else ""

    @property
    def bytes(self) -> int:
        return sum(item.size for item in self.items)

    @property
    def modified(self) -> float:
        return max(item.modified for item in self.items)


@dataclass(frozen=True)
class Inventory:
    """All that lies there.

    Attributes:
        committed: the chain of LATEST, newest first, then what only tags and records still name.
        damaged: committed, and its manifest can't be read.
        kept: the records of what was committed, by their key.
        complete: no link was lost on the way along the chain, so what isn't in `committed` was never committed.
        unlisted: why it isn't known what is unfinished, or "".
    """

    uri: str
    latest: Latest | None
    committed: tuple[Checkpoint, ...]
    damaged: tuple[Damaged, ...]
    folders: Mapping[str, Folder]
    holds: tuple[Hold, ...]
    kept: Mapping[str, Link]
    complete: bool
    unfinished: tuple[Unfinished, ...] = ()
    unlisted: str = ""

    @property
    def newest_first(self) -> list[Checkpoint]:
        """`committed` in the order in which it was: what records alone lead to lies between what the chain leads to."""
        return sorted(self.committed, key=lambda each: (each.epoch, each.step, each.attempt), reverse=True)

    @property
    def empty(self) -> bool:
        """Nothing of a run lies here, not even what was cut."""
        return not (self.latest or self.folders or self.unfinished or self.kept or self.holds or self.unlisted)

    @property
    def orphans(self) -> list[Folder]:
        """Folders that no committed checkpoint accounts for: saves that failed, were cut, or are under way."""
        known = {checkpoint.prefix for checkpoint in self.committed}
        known |= {damaged.key.removesuffix(MANIFEST_NAME) for damaged in self.damaged}
        return [folder for prefix, folder in self.folders.items() if prefix not in known]

    def may_be_committed(self, orphan: Folder) -> bool:
        """Whether it has a manifest, to which a link that is lost may have led."""
        return bool(orphan.manifest) and not self.complete

    @property
    def newest_lost(self) -> Damaged | None:
        """The checkpoint that `LATEST` names, where it can't be read."""
        return next(
            (lost for lost in self.damaged if self.latest is not None and lost.key == self.latest.manifest), None
        )

    @property
    def unnamed(self) -> str:
        """That `LATEST`, which is written before all else, is missing; or ""."""
        if self.latest is not None or not self.folders:
            return ""
        return (
            f"{self.uri}/{LATEST_KEY} is missing, though checkpoints lie there, so nothing says which were committed, "
            "and a prune deletes none; put back a version of it"
        )


def take(
    store: Store,
    known: Mapping[str, Checkpoint] | None = None,
    *,
    unfinished: bool = True,
    read: Callable[[str, str], Checkpoint] | None = None,
) -> Inventory:
    """Reads what lies there. Manifests in `known` (by key) aren't read again: their content never changes.

    Who may not look for what is `unfinished` is told of none. `read`: what a manifest says, by its key and digest, as
    `summary` of `read_manifest`; for who has another process read it.
    """
    read = read or (lambda key, sha256: summary(read_manifest(store, key, sha256)))
    found = read_latest(store)  # before the listing: what it names is there then, or was deleted
    latest = found.latest if found else None
    holds = read_holds(store)
    kept = recorded(store.objects(KEPT_PREFIX))
    folders = _folders(store.objects("step-"))
    present = {folder.manifest for folder in folders.values()}
    links = [*(newest_links(latest) if latest is not None else ()), *named(holds, kept.values())]
    gap = False
    committed: dict[str, Checkpoint] = {}
    damaged: dict[str, Damaged] = {}
    while links:
        key, sha256 = links.pop(0)
        if not key or key in committed or key in damaged:
            continue
        if key not in present:
            if latest is not None and key == latest.manifest:
                damaged[key] = Damaged(key, f"{store.uri}/{key} is missing, though LATEST names it")
            gap = True
            continue  # retention has deleted it
        checkpoint = (known or {}).get(key)
        if checkpoint is None or checkpoint.sha256 != sha256:
            try:
                checkpoint = read(key, sha256)
            except CorruptCheckpointError as error:
                damaged[key] = Damaged(key, str(error))
                continue
            except StorageRefusedError as error:
                if error.kind != Kind.ARCHIVED.value:
                    raise
                damaged[key] = Damaged(key, str(error))
                continue
        committed[key] = checkpoint
        links = [*checkpoint.links, *links]  # depth first: the chain of LATEST before all others
    left, unlisted = _unfinished(store) if unfinished else ((), "")
    return Inventory(
        store.uri,
        latest,
        tuple(committed.values()),
        tuple(damaged.values()),
        folders,
        tuple(holds),
        kept,
        not damaged and (bool(kept) or not gap),
        left,
        unlisted,
    )


def _unfinished(store: Store) -> tuple[tuple[Unfinished, ...], str]:
    """What is unfinished, or why that isn't known: S3 has a permission of its own for it, some servers don't list it,
    and the rest needs none."""
    try:
        return tuple(store.unfinished()), ""
    except StorageRefusedError as error:
        why = {
            Kind.ACCESS_DENIED.value: "; S3 wants s3:ListBucketMultipartUploads for that",
            Kind.NOT_IMPLEMENTED.value: "",
        }.get(error.kind)
        if why is None:
            raise
        return (), f"uploads that nobody ended can't be listed, so they stay{why}: {error}"


def summary(found: Found) -> Checkpoint:
    record = found.manifest
    return Checkpoint(
        found.key,
        found.sha256,
        record.step,
        record.epoch,
        record.attempt,
        record.created_at,
        record.world_size,
        sum(file.size for file in record.files),
        record.job,
        record.metrics,
        record.measured,
        tuple(link for link in links_of(record) if link[0]),
    )


def choose(inventory: Inventory, step: int | None) -> Checkpoint:
    """The committed checkpoint at `step`, or the newest whose manifest can be read. StateError when there is none.

    Of two at one step, the one on LATEST's chain.
    """
    if not inventory.committed and inventory.unnamed:
        raise StateError(inventory.unnamed)
    if not inventory.committed:
        troubles = " ".join(damaged.reason for damaged in inventory.damaged)
        mend = "is it some job's spec.checkpoint.uri?"
        if place := named_by_folder(inventory.uri):
            mend = f"it lies in one checkpoint's own folder: write {place}"
        raise StateError(f"{inventory.uri} has no committed checkpoint{': ' + troubles if troubles else ''}; {mend}")
    for checkpoint in inventory.committed:
        if step in (None, checkpoint.step):
            return checkpoint
    raise StateError(_why_not(inventory, step))


def _why_not(inventory: Inventory, step: int | None) -> str:
    """Why there is no checkpoint of `step` among the committed ones, some of which there are."""
    have = ", ".join(str(checkpoint.step) for checkpoint in sorted(inventory.committed, key=lambda each: each.step))
    if (lost := next((lost for lost in inventory.damaged if lost.step == step), None)) is not None:
        return f"{lost.reason}, so the checkpoint of step {step} can't be read; these can: {have}"
    if any(folder.step == step and inventory.may_be_committed(folder) for folder in inventory.orphans):
        reasons = "; ".join(damaged.reason for damaged in inventory.damaged) or "a later manifest is missing"
        return (
            f"{inventory.uri} has a checkpoint of step {step}, but whether it was committed is not known any more: "
            f"{reasons}. These were: {have}"
        )
    return f"{inventory.uri} has no committed checkpoint of step {step}; it has: {have}"


def runs_below(store: StreamingStore) -> tuple[list[str], bool]:
    """Prefixes below the store's that hold a run, and whether all was looked at.

    Level by level, and into no run, so that neither shards nor data sets beside them are listed.
    """
    top = store.level("")
    runs, folders, looked, whole = [], top.folders, 0, top.whole
    while folders and looked < FOLDERS_LOOKED_INTO:
        folder = folders.pop(0)
        looked += 1
        try:
            level = store.level(folder)
        except StorageRefusedError:
            whole = False  # others' folders
            continue
        if folder + LATEST_KEY in level.keys:
            runs.append(folder.rstrip("/"))
        else:
            folders += level.folders
            whole = whole and level.whole
    return sorted(runs), not folders and whole


def meant(beside: StreamingStore, name: str) -> str | None:
    """The prefix right below `beside`'s that holds a run and that `name` was most likely meant to be; None for none."""
    folders = {folder.rstrip("/"): folder for folder in beside.level("").folders}
    near = nearest(name, folders)
    return near if near is not None and folders[near] + LATEST_KEY in beside.level(folders[near]).keys else None


def find_start(store: Store, step: int | None) -> Found:
    """The checkpoint of another run to start from: at `step`, or its committed one. StartError when there is none."""
    found = read_latest(store)
    if step is None and found is not None and found.latest.manifest:
        return read_manifest(store, found.latest.manifest, found.latest.sha256)
    try:
        chosen = choose(take(store, unfinished=False), step)
    except StateError as error:
        raise StartError(f"checkpoint.from can't be taken: {error}") from error
    return read_manifest(store, chosen.key, chosen.sha256)


def record_key(checkpoint: Checkpoint) -> str:
    """Key of the record that a checkpoint was committed. The key says it all, so that a listing tells of every one."""
    return f"{KEPT_PREFIX}{checkpoint.step:08d}-{checkpoint.epoch}-{checkpoint.attempt}-{checkpoint.sha256}"


def _folders(items: list[Item]) -> dict[str, Folder]:
    grouped: dict[tuple[int, int, int], list[Item]] = {}
    for item in items:
        name = folder_of(item.key)
        if name is not None:
            grouped.setdefault(name, []).append(item)
    return {step_prefix(*name): Folder(step_prefix(*name), *name, tuple(group)) for name, group in grouped.items()}
