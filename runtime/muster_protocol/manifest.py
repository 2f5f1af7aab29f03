"""The objects of a checkpoint in S3, and what they hold. All metadata is JSON; no pickle is written or read.

Under a job's `checkpoint.uri`:

    LATEST                                  small JSON, changed only by compare-and-swap
    step-00000100/1-0/manifest.json         written after every shard
    step-00000100/1-0/<shard files>         named by the writer, listed in the manifest
    step-00000100/1-0/TOMBSTONE-<id>        somebody is deleting this checkpoint
    holds/<id>.json                         somebody reads a checkpoint, or has tagged it to be kept
    kept/<step>-<epoch>-<attempt>-<sha256>  this manifest was committed; retention deletes what else would name it
    metrics/...                             losses by step (`muster_protocol.losses`)

The folder below the step is `<epoch>-<attempt>`. A checkpoint is committed when LATEST's conditional write succeeded,
and by nothing else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Final, TypeVar, get_type_hints

from muster_protocol import pieces

LATEST_KEY: Final = "LATEST"
MANIFEST_NAME: Final = "manifest.json"
FORMAT_VERSION: Final = 1
TOMBSTONE: Final = "TOMBSTONE-"
HOLDS_PREFIX: Final = "holds/"
KEPT_PREFIX: Final = "kept/"
BLOCK_BYTES: Final = 2 << 20
"""Of a shard file: what a restore reads of it at least, and checks by a sum of its own."""
_END_OF_TIME: Final = 253402300800.0
"""Seconds since the epoch: the year 10000, which no calendar of Python's has."""
_WHOLE_TOO: Final[dict[Any, Any]] = {float: float | int, float | None: float | int | None}
"""JSON may have a float without a point."""


class NewerFormatError(ValueError):
    """A record that a newer Muster has written: it is whole, and nothing is to be put back."""


@dataclass(frozen=True)
class Latest:
    """The content of `LATEST`.

    Attributes:
        epoch: claimed by a gang when it starts, previous + 1; an older epoch can't commit.
        owner: UID of the job that claimed the epoch.
        nonce: random for every write, so that a writer can tell whether a write that timed out was its own.
        step: the committed step, or None when nothing is committed yet.
        manifest: key of the manifest below the uri, or "".
        sha256: hex digest of the manifest's bytes, or "".
        finished: the run has reached its end; resuming it is a no-op that succeeds.
        parent: key of the manifest that was committed before, or "": the way back when `manifest` is damaged.
        parent_sha256: hex digest of that manifest's bytes, or "".
    """

    epoch: int
    owner: str
    nonce: str
    step: int | None = None
    manifest: str = ""
    sha256: str = ""
    finished: bool = False
    parent: str = ""
    parent_sha256: str = ""
    version: int = FORMAT_VERSION


@dataclass(frozen=True)
class ShardFile:
    """One object of a checkpoint: key below the uri, size in bytes, CRC-32 (zlib's) as eight hex digits.

    `blocks`: the CRC-32 of each `BLOCK_BYTES` of it (the last may be shorter) one after the other, or "": not known, so
    that it is read as a whole.
    """

    key: str
    size: int
    crc32: str
    blocks: str = ""


@dataclass(frozen=True)
class Manifest:
    """All that is needed to read a checkpoint back.

    Attributes:
        parent: key of the manifest that this run restored from or committed before, or "".
        parent_sha256: hex digest of that manifest's bytes, or "".
        milestone: key of the newest manifest before this one that is kept for ever, or "". Parents are deleted in
            time; the milestones are a chain of their own.
        milestone_sha256: hex digest of that manifest's bytes, or "".
        planner: the checkpoint planner's metadata as JSON: tensors, their shards, and where each lies.
        world_size: ranks that wrote it.
        created_at: seconds since the epoch.
        metrics: what the script had reported when it was saved, and `loss`: by these the best are kept.
        measured: the step that each of them was reported in, but for `loss`, which is of all since the save before.
    """

    step: int
    epoch: int
    attempt: int
    parent: str
    files: tuple[ShardFile, ...]
    planner: dict[str, Any]
    world_size: int
    created_at: float
    job: str = ""
    parent_sha256: str = ""
    milestone: str = ""
    milestone_sha256: str = ""
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    measured: dict[str, int] = dataclasses.field(default_factory=dict)
    version: int = FORMAT_VERSION


@dataclass(frozen=True)
class Hold:
    """Nobody may delete what is held.

    Attributes:
        who: for people: who holds it and what for.
        expires: seconds since the epoch; None: a tag by hand, which holds until it is released.
        manifest: key of the checkpoint's manifest, or "" for every checkpoint of the run.
        sha256: hex digest of that manifest's bytes, or "". With it, the hold proves that it was committed.
    """

    id: str
    who: str
    expires: float | None
    manifest: str = ""
    sha256: str = ""
    version: int = FORMAT_VERSION


R = TypeVar("R", Latest, Manifest, ShardFile, Hold)


def step_prefix(step: int, epoch: int, attempt: int) -> str:
    """Folder of one attempt at one checkpoint, below the uri, with a trailing slash."""
    return f"step-{step:08d}/{epoch}-{attempt}/"


def encode(record: Latest | Manifest | Hold) -> bytes:
    """Keys stay in order: a state dict's order is part of it."""
    fields = vars(record)  # dataclasses.asdict copies all that is in them, which takes ten times as long as to write it
    if isinstance(record, Manifest):
        fields = {**fields, "files": [vars(file) for file in record.files]}
    return pieces.dumps(fields, depth=3)  # each of planner.tensors at once


def decode_latest(body: bytes) -> Latest:
    """Raises ValueError when `body` is not a LATEST that this version can read."""
    raw = _object(body, LATEST_KEY)
    return _known(Latest, raw)


def decode_manifest(body: bytes) -> Manifest:
    """Raises ValueError when `body` is not a manifest that this version can read."""
    raw = _object(body, MANIFEST_NAME)
    if not isinstance(raw.get("files"), list):
        raise ValueError(f"Manifest: files is {raw.get('files')!r}")
    record = _known(Manifest, {**raw, "files": tuple(_known(ShardFile, item) for item in raw["files"])})
    if trouble := next(_troubles(record), ""):
        raise ValueError(f"Manifest: {trouble}")
    return record


def _troubles(record: Manifest) -> Iterator[str]:
    """What can't be so, though its type is right."""
    for name in ("step", "epoch", "attempt", "world_size"):
        if getattr(record, name) < 0:
            yield f"{name} is {getattr(record, name)}"
    if not 0 <= record.created_at < _END_OF_TIME:
        yield f"created_at is {record.created_at}"
    for name, value in record.metrics.items():
        if not isinstance(value, float | int):
            yield f"metrics.{name} is {value!r}"
    for name, value in record.measured.items():
        if not isinstance(value, int):
            yield f"measured.{name} is {value!r}"
    for name in ("tensors", "trees"):
        if not isinstance(record.planner.get(name, {}), dict):
            yield f"planner.{name} is {record.planner[name]!r}"
    for file in record.files:
        if file.size < 0 or not is_key(file.key):
            yield f"a file of {file.size} bytes is named {file.key!r}"
        if file.blocks and not _fits(file):
            yield f"the sums of the blocks of {file.key} don't fit its {file.size} bytes"
    for key in (record.parent, record.milestone):
        if key and not is_key(key):
            yield f"it follows {key!r}"


def _fits(file: ShardFile) -> bool:
    return len(file.blocks) == 8 * -(-file.size // BLOCK_BYTES) and set(file.blocks) <= set("0123456789abcdef")


def is_key(text: str) -> bool:
    """Whether it names something below the uri: in a folder, '..' would lead out of it."""
    return "\0" not in text and not {"", ".", ".."} & set(text.split("/"))


def may_be_tracked(name: str) -> bool:
    """Whether an object in a checkpoint may have this name: those of its tensors begin with it and a dot, and those of
    the run's own with `muster.`."""
    return name not in ("", "muster") and "." not in name


def decode_hold(body: bytes) -> Hold:
    """Raises ValueError when `body` is not a hold that this version can read."""
    return _known(Hold, _object(body, "the hold"))


def _object(body: bytes, name: str) -> dict[str, Any]:
    raw = json.loads(body)
    if not isinstance(raw, dict) or not isinstance(raw.get("version"), int):
        raise ValueError(f"{name} is not a Muster record: no version in it")
    if raw["version"] > FORMAT_VERSION:
        raise NewerFormatError(
            f"{name} has format version {raw['version']}; this Muster reads up to {FORMAT_VERSION}. "
            "Use the Muster that wrote it, or a newer one."
        )
    return raw


def _known(kind: type[R], raw: Any) -> R:
    if not isinstance(raw, dict):
        raise ValueError(f"{kind.__name__}: {raw!r} is no record")
    types = _TYPES[kind]
    values = {name: raw[name] for name in types if name in raw}
    for name, value in values.items():
        if not isinstance(value, types[name]):
            raise ValueError(f"{kind.__name__}: {name} is {value!r}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _types(kind: type[Any]) -> dict[str, Any]:
    """What isinstance wants of each field. What is in a dict or a tuple isn't looked at."""
    hints = get_type_hints(kind)
    plain = {name: hint.__origin__ if isinstance(hint, GenericAlias) else hint for name, hint in hints.items()}
    return {name: _WHOLE_TOO.get(hint, hint) for name, hint in plain.items()}


_TYPES: Final[dict[type[Any], dict[str, Any]]] = {kind: _types(kind) for kind in (Latest, Manifest, ShardFile, Hold)}
