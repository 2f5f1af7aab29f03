"""What of the local cluster's cache is removed: old versions that nobody has used for long, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hack.cluster import __main__ as command
from hack.cluster import api, build, cache, torchtree, versions
from hack.cluster.progress import Progress

pytestmark = pytest.mark.unit

NOW = 1_800_000_000.0
DAY = 86_400.0


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "muster"


def entry(path: Path, *, days: float) -> Path:
    """A folder with something in it, last used so many days ago."""
    path.mkdir(parents=True)
    (path / "file").write_text("x")
    os.utime(path, (NOW - days * DAY,) * 2)
    return path


def test_old_versions_go_after_a_month_and_what_a_pin_names_stays(root: Path) -> None:
    pinned = [entry(build.binaries_folder(workspace), days=400) for workspace in versions.WORKSPACES]
    pinned.append(entry(torchtree.folder(), days=400))
    old = entry(root / "bin" / "kubernetes-1.30.0-amd64-00000000", days=31)
    recent = entry(root / "bin" / "kubernetes-1.31.0-amd64-00000000", days=29)
    archive = root / "images" / "pause-0000000000.tar"
    archive.parent.mkdir()
    archive.write_text("x")
    os.utime(archive, (NOW - 31 * DAY,) * 2)
    assert cache.prune(cache.current(), NOW) == [old, archive]
    assert not old.exists()
    assert not archive.exists()
    assert all(path.exists() for path in (recent, *pinned))
    assert not list(root.rglob(".pruned-*"))


def test_what_is_not_named_by_a_version_stays(root: Path) -> None:
    others = [root / "locks" / "apt", root / "log" / "seed", root / "uv" / "bin", root / "images" / "built"]
    for path in others:
        entry(path, days=400)
    assert cache.prune(cache.current(), NOW) == []
    assert all(path.exists() for path in others)


def test_a_start_marks_what_it_uses_so_that_another_checkout_leaves_it(root: Path) -> None:
    mine = entry(build.binaries_folder(versions.STORAGE_WORKSPACE), days=400)
    cache.mark_used()
    assert cache.prune((), mine.stat().st_mtime + 29 * DAY) == []
    assert cache.prune((), mine.stat().st_mtime + 31 * DAY) == [mine]


def test_what_a_cut_left_half_removed_goes_at_the_next_start(root: Path) -> None:
    left = entry(root / "seed" / ".pruned-0123456789ab", days=0)
    assert cache.prune((), NOW) == []
    assert not left.exists()


def test_nothing_is_removed_while_another_cluster_is_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be an older checkout's, and use what it was started with long ago."""
    old = entry(root / "torch" / "py3.11-torch-1.0", days=10_000)
    monkeypatch.setattr(api, "names", lambda: ["mine", "other"])
    command._prune(Progress(quiet=True), beside="mine")
    assert old.exists()
    monkeypatch.setattr(api, "names", lambda: ["mine"])
    command._prune(Progress(quiet=True), beside="mine")
    assert not old.exists()
