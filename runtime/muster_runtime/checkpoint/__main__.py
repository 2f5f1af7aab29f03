"""Looks at the checkpoints of a run: `python -m muster_runtime.checkpoint ls|verify URI`. Needs no torch."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from muster_protocol.checkpoints.chain import Found, candidates, manifest_keys, read_manifest
from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.store import Store
from muster_protocol.manifest import ShardFile
from muster_runtime.checkpoint.store import open_store
from muster_runtime.errors import CorruptCheckpointError, MusterError, StorageError

_PIECE: Final = 8 << 20


@dataclass(frozen=True)
class Listed:
    """One checkpoint of the run: what its manifest says, or why it can't be read.

    `committed`: `LATEST` or a committed checkpoint names it. Others were never committed, and nothing restores them.
    """

    key: str
    found: Found | None
    trouble: str = ""
    committed: bool = True


def checkpoints(store: Store) -> tuple[list[Listed], str]:
    """All checkpoints, the committed ones first, each newest first; and the key `LATEST` names ("" without one)."""
    claim = read_latest(store)
    latest = claim.latest.manifest if claim else ""
    keys = manifest_keys(store)
    listed = []
    for link in candidates(store, claim.latest) if claim and latest else ():
        if isinstance(link, Found):
            listed.append(Listed(link.key, link))
        elif link.key in keys or link.key == latest:  # retention has deleted the others
            listed.append(Listed(link.key, None, link.reason))
    known = {entry.key for entry in listed}
    return listed + [_stray(store, key) for key in keys if key not in known], latest


def _stray(store: Store, key: str) -> Listed:
    try:
        return Listed(key, read_manifest(store, key), committed=False)
    except CorruptCheckpointError as error:
        return Listed(key, None, str(error), committed=False)


def damage(store: Store, found: Found) -> Iterator[str]:
    """One sentence for each file that is missing or isn't what the manifest says."""
    for file in found.manifest.files:
        try:
            digest = _digest(store, file)
        except StorageError as error:
            if error.kind != "NotFound":
                raise
            yield str(error)
            continue
        if digest != file.sha256:
            yield f"{store.uri}/{file.key}: SHA-256 is {digest}, the manifest says {file.sha256}"


def _digest(store: Store, file: ShardFile) -> str:
    digest = hashlib.sha256()
    for start in range(0, file.size, _PIECE):
        digest.update(store.read(file.key, start, min(_PIECE, file.size - start)))
    return digest.hexdigest()


def _row(listed: Listed, latest: str) -> str:
    mark = "LATEST" if listed.key == latest else "" if listed.committed else "not committed"
    if listed.found is None:
        return f"{listed.key:>50}  {listed.trouble}"
    record = listed.found.manifest
    size = sum(file.size for file in record.files)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created_at))
    return (
        f"{record.step:>10}  {record.epoch:>5}  {record.world_size:>5}  {len(record.files):>5}  "
        f"{size / 1e6:>12.2f}  {when}  {mark}"
    )


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 when all is well, 1 when something is damaged, 2 when the store can't be read."""
    parser = argparse.ArgumentParser(prog="python -m muster_runtime.checkpoint", description=__doc__)
    parser.add_argument("command", choices=["ls", "verify"])
    parser.add_argument("uri", help="s3://BUCKET/PREFIX or file:///FOLDER")
    given = parser.parse_args(arguments)
    try:
        store = open_store(given.uri)
    except ValueError as error:
        parser.error(str(error))
    try:
        return _run(store, verify=given.command == "verify")
    except MusterError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        store.close()


def _run(store: Store, *, verify: bool) -> int:
    listed, latest = checkpoints(store)
    if not listed:
        print(f"{store.uri} has no checkpoints")
        return 0
    print(f"{'step':>10}  {'epoch':>5}  {'ranks':>5}  {'files':>5}  {'MB':>12}  saved at")
    bad = 0
    for entry in listed:
        print(_row(entry, latest), flush=True)
        troubles = [entry.trouble] if entry.found is None else list(damage(store, entry.found)) if verify else []
        bad += bool(troubles) and entry.committed
        for trouble in troubles if entry.found else ():
            print(f"    DAMAGED: {trouble}")
    if verify:
        committed = sum(entry.committed for entry in listed)
        print(f"{committed - bad} of {committed} checkpoints are whole")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
