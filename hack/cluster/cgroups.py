"""The cgroups of a cluster: one tree a slot, with one branch a node. Version 1 (also mixed with 2) and version 2."""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from pathlib import Path

from hack.cluster.errors import ClusterError

NEEDED = frozenset({"cpu", "cpuset", "memory", "pids"})
_VERSION_2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids", "rdma", "misc")


@cache
def _mounted() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Mount points of version 1 hierarchies and of version 2."""
    version_1, version_2 = [], []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        if kind == "cgroup":
            version_1.append(Path(mount))
        elif kind == "cgroup2":
            version_2.append(Path(mount))
    return tuple(version_1), tuple(version_2)


def hierarchies() -> tuple[Path, ...]:
    """The hierarchies that kubelet uses: every version 1 controller's, or else the one of version 2."""
    version_1, version_2 = _mounted()
    return version_1 or version_2[:1]


def trees(slot: int) -> list[Path]:
    """Where a slot's cgroups may be: beside version 1, runc makes some in an idle version 2 hierarchy too."""
    version_1, version_2 = _mounted()
    return [hierarchy / f"muster-{slot}" for hierarchy in (*version_1, *version_2)]


def is_version_2() -> bool:
    return (hierarchies()[0] / "cgroup.controllers").exists()


def missing_controllers() -> list[str]:
    """Controllers that a kubelet cannot do without and this kernel does not offer."""
    if not hierarchies():
        return sorted(NEEDED)
    if is_version_2():
        offered = set((hierarchies()[0] / "cgroup.controllers").read_text().split())
    else:
        offered = {name for path in hierarchies() for name in path.resolve().name.split(",")}
    return sorted(NEEDED - offered)


def path(slot: int, node: str) -> str:
    """kubelet's `cgroupRoot` on that node."""
    return f"/muster-{slot}/{node}"


def daemon_procs(slot: int, node: str) -> list[Path]:
    """The files that a daemon of the node writes its pid to. Version 1: pids alone, to be found again; the rest of
    the daemon's accounting stays with whoever started the cluster."""
    if is_version_2():
        return [hierarchies()[0] / f"muster-{slot}" / node / "daemons" / "cgroup.procs"]
    tracker = next((h for h in hierarchies() if h.name == "pids"), hierarchies()[0])
    return [tracker / f"muster-{slot}" / node / "daemons" / "cgroup.procs"]


def create(slot: int, node: str) -> None:
    """Makes the node's branch in every hierarchy."""
    for hierarchy in hierarchies():
        branch = hierarchy
        for part in (f"muster-{slot}", node):
            if is_version_2():
                _delegate(branch)
            parent, branch = branch, branch / part
            branch.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if not is_version_2() and (branch / name).exists() and not (branch / name).read_text().strip():
                    (branch / name).write_text((parent / name).read_text())
        if is_version_2():
            _delegate(branch)
    for procs in daemon_procs(slot, node):
        procs.parent.mkdir(exist_ok=True)


def _delegate(branch: Path) -> None:
    offered = (branch / "cgroup.controllers").read_text().split()
    for controller in _VERSION_2_CONTROLLERS:
        if controller in offered:
            try:
                (branch / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError as error:
                if controller in NEEDED:
                    raise ClusterError(
                        f"cgroup controller {controller} cannot be enabled below {branch} ({error.strerror}): inside a"
                        " container, move its processes out of the root cgroup first, or use a virtual machine"
                    ) from error


def _branches(slot: int, node: str | None = None) -> list[Path]:
    return [top / node if node else top for top in trees(slot)]


def pids(slot: int, node: str | None = None) -> set[int]:
    """Every process in the tree, or in a node's branch of it."""
    found: set[int] = set()
    for top in _branches(slot, node):
        for folder, _, _ in os.walk(top):  # unlike Path.rglob it goes on where a cgroup goes while we look
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (Path(folder) / "cgroup.procs").read_text().split())
    return found


def remove(slot: int, node: str | None = None, timeout_s: float = 5.0) -> list[str]:
    """Removes the tree or a node's branch, leaves first; returns what could not be removed in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = []
        for top in _branches(slot, node):
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if top.exists():
                left.append(str(top))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
