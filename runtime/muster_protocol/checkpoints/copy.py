"""Copies one checkpoint to another uri, as a run of its own with this one commit."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import defaultdict
from contextlib import suppress
from typing import Final

from muster_protocol import manifest as manifests
from muster_protocol.checkpoints.chain import Found, named_by_folder
from muster_protocol.checkpoints.checks import check_of
from muster_protocol.checkpoints.commit import TOOL, Claim, claim_epoch, claimant, commit
from muster_protocol.checkpoints.inventory import runs_below
from muster_protocol.checkpoints.store import Store, StreamingStore, whole_or_nothing
from muster_protocol.checkpoints.tensors import Chunk, Passage, demand, tensors_of
from muster_protocol.errors import CorruptCheckpointError, StateError, StorageRefusedError
from muster_protocol.manifest import MANIFEST_NAME, Latest, ShardFile, step_prefix

OWNER: Final = f"{TOOL}cp"


def copy(source: Store, found: Found, target: StreamingStore) -> int:
    """The bytes that were copied; every chunk is checked on the way.

    StateError when the target has a run already. A copy that was cut is begun anew by the next.
    """
    claim = claim_empty(target, OWNER)
    prefix = step_prefix(found.manifest.step, claim.latest.epoch, 0)
    chunks: dict[str, list[Chunk]] = defaultdict(list)
    for tensor in tensors_of(found.manifest).values():
        for chunk in tensor.chunks:
            chunks[chunk.file.key].append(chunk)
    files = tuple(
        _copy_file(source, file, target, prefix + file.key.rpartition("/")[2], chunks[file.key])
        for file in found.manifest.files
    )
    record = dataclasses.replace(
        found.manifest,
        epoch=claim.latest.epoch,
        attempt=0,
        files=files,
        parent="",
        parent_sha256="",
        milestone="",
        milestone_sha256="",
    )
    body = manifests.encode(record)
    target.put(prefix + MANIFEST_NAME, body)
    commit(
        target,
        claim,
        step=record.step,
        manifest_key=prefix + MANIFEST_NAME,
        sha256=hashlib.sha256(body).hexdigest(),
        finished=False,
    )
    return sum(file.size for file in files)


def claim_empty(target: StreamingStore, owner: str) -> Claim:
    """Claims a prefix where no run is but what this very tool has left unfinished. StateError when there is one, or
    others lie below it: who would delete this one would delete them."""

    def refuse(before: Latest) -> None:
        if before.manifest or before.owner != owner:
            what = f"a checkpoint of step {before.step}" if before.manifest else f"been claimed by {claimant(before)}"
            raise StateError(f"{target.uri} has {what} already; choose another prefix, or delete what is there first")

    if taken := named_by_folder(target.uri):  # what deletes that one would delete this
        raise StateError(f"{target.uri} lies in the folder of the checkpoint {taken}; name a prefix of its own")
    with suppress(StorageRefusedError):  # the right to list is not needed for anything else here
        if below := runs_below(target)[0]:
            others = f", and {len(below) - 1} more" if len(below) > 1 else ""
            raise StateError(f"{target.uri} has runs below it, such as {below[0]}{others}; name a prefix of its own")
    return claim_epoch(target, owner, refuse=refuse)


def _copy_file(source: Store, file: ShardFile, target: StreamingStore, key: str, chunks: list[Chunk]) -> ShardFile:
    """Streams one object; its chunks and its own sum are checked as they pass."""
    passage = Passage(source, file)
    with whole_or_nothing(target.writer(key)) as writer:
        for chunk in sorted((chunk for chunk in chunks if chunk.length), key=lambda chunk: chunk.at):
            for piece in passage.up_to(chunk.at):
                writer.write(piece)
            check = check_of(chunk.checksum)
            for piece in passage.up_to(chunk.at + chunk.length):
                check.update(piece)
                writer.write(piece)
            demand(source, chunk, check)
        for piece in passage.up_to(file.size):
            writer.write(piece)
        written = writer.close()
    if written.crc32 != file.crc32:
        raise CorruptCheckpointError(f"{source.uri}/{file.key} is not what was saved (CRC-32 differs)")
    return dataclasses.replace(written, blocks=file.blocks)
