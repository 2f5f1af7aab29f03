"""What is kept of older versions: an entry of the cache that no pin names and nobody has used for a month goes."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from hack.cluster import build, images, seed, torchtree, versions
from hack.cluster.paths import cache_root

KEPT_S = 30 * 86_400.0
"""Seconds that an entry of another version stays after it was last used: older checkouts share the cache."""

_BY_VERSION = ("bin", "src", "rootfs", "images", "seed", "torch")
"""Folders whose entries carry what they were made of in their names."""
_NOT_OURS = ("built",)
"""Entries of these that others put there."""


def current() -> set[Path]:
    """The entries that this checkout's pins name, as far as they are there."""
    folders = [build.binaries_folder(workspace) for workspace in versions.WORKSPACES]
    sources = [cache_root() / "src" / folder.name for folder in folders]
    named = [*folders, *sources, *images.entries(), *torchtree.entries()]
    archives = images.standard_archives()
    if archives:
        named.append(seed.folder_of(archives))
    return {path for path in named if path.exists()}


def mark_used() -> None:
    """To be told of each start: an entry's own time is when it was last used."""
    for path in current():
        os.utime(path)


def prune(keep: Collection[Path], now: float | None = None) -> list[Path]:
    """Removes what is not in `keep` and was not used for `KEPT_S`. To be called while no other cluster is up.

    Returns:
        What was removed.
    """
    before = (time.time() if now is None else now) - KEPT_S
    stale = [path for path in _entries() if path not in keep and path.stat().st_mtime < before]
    for path in stale:
        doomed = path.with_name(f".pruned-{path.name}")
        path.rename(doomed)  # whole or gone: what is cut here goes at the next call
    for folder in _BY_VERSION:
        for doomed in (cache_root() / folder).glob(".pruned-*"):
            shutil.rmtree(doomed) if doomed.is_dir() else doomed.unlink()
    return stale


def _entries() -> Iterator[Path]:
    for folder in _BY_VERSION:
        root = cache_root() / folder
        if root.is_dir():
            yield from (path for path in sorted(root.iterdir()) if path.name[0] != "." and path.name not in _NOT_OURS)
