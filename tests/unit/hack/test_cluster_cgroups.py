"""The cgroups of local clusters, which kubelet and the kernel take away while others look at them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hack.cluster import cgroups

pytestmark = pytest.mark.unit


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pods, of which the second goes as soon as somebody has read that it is there."""
    for pod in ("pod-1", "pod-2"):
        (tmp_path / "kubepods" / pod).mkdir(parents=True)
    scan: Callable[..., Any] = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("pod-2"):
            os.rmdir(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(cgroups, "trees", lambda _slot: [tmp_path])
    return tmp_path


def test_who_lives_is_found_beside_a_cgroup_that_goes(tree: Path) -> None:
    (tree / "kubepods" / "pod-1" / "cgroup.procs").write_text("10\n11\n")
    assert cgroups.pids(0) == {10, 11}
    assert cgroups.pids(0, "node-9") == set()


def test_a_tree_is_removed_beside_a_cgroup_that_goes(tree: Path) -> None:
    assert cgroups.remove(0, timeout_s=0.0) == []
    assert not tree.exists()
