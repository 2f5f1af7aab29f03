"""Finds what a test run left behind: processes, clusters, mounts, network namespaces, links and cgroups.

A run is recognised by two marks: an environment variable that every process it starts inherits, and a folder of its own
for the state of the clusters that it starts. So two runs on one machine never blame each other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.cluster import cgroups
from hack.cluster.paths import RUN_ROOT, cache_root
from hack.cluster.processes import TAG as CLUSTER_TAG

__all__ = ["TAG", "Mark", "Things", "cache_root", "find", "remove", "shared_things"]

TAG = "MUSTER_CHECKS_RUN"
"""Environment variable that names the run."""
_ENDING_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Mark:
    """How this run's things are recognised: the value of TAG, and the folder set as XDG_STATE_HOME."""

    run: str
    state: Path


@dataclass(frozen=True)
class Things:
    """What has no owner written on it: names of network namespaces, and of bridges."""

    namespaces: frozenset[str]
    bridges: frozenset[str]


def shared_things() -> Things:
    """What is there now; called before a run, so that only what is new is blamed on it."""
    named = Path("/run/netns")
    namespaces = {entry.name for entry in named.iterdir()} if named.is_dir() else set()
    links = Path("/sys/class/net")
    bridges = {link.name for link in links.iterdir() if (link / "bridge").exists()} if links.is_dir() else set()
    return Things(frozenset(namespaces), frozenset(bridges))


def find(mine: Mark, before: Things) -> list[str]:
    """One line for each thing that the run has left."""
    now = shared_things()
    return [
        *(f"process {pid}: {_command_line(pid)}" for pid in _lasting(mine)),
        *(f"cluster {path}" for path in _clusters(mine)),
        *(f"slot {path}" for path in _slots(mine)),
        *(f"mount {line}" for line in _mounts(mine)),
        *(f"network namespace {name}" for name in sorted(now.namespaces - before.namespaces)),
        *(f"bridge {name}" for name in sorted(now.bridges - before.bridges)),
        *(f"cgroup {path}" for path in _ownerless_cgroups()),
    ]


def remove(mine: Mark) -> None:
    """Ends the run's processes, having told of them, so that a failed run leaves the machine usable."""
    for pid in _processes(mine):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(mine.state / "muster", ignore_errors=True)


def _processes(mine: Mark) -> list[int]:
    own = {os.getpid(), os.getppid()}
    wanted = (f"{TAG}={mine.run}".encode(), f"{CLUSTER_TAG}={mine.state}/".encode())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        with contextlib.suppress(OSError):
            if any(word.startswith(wanted) for word in (entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return sorted(found)


def _lasting(mine: Mark) -> list[int]:
    """Those that don't end by themselves: multiprocessing's servers do so only when they see that their parent has."""
    until = time.monotonic() + _ENDING_SECONDS
    while (found := _processes(mine)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:160]
    return "(ended meanwhile)"


def _clusters(mine: Mark) -> list[Path]:
    folder = mine.state / "muster" / "clusters"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _slots(mine: Mark) -> list[Path]:
    found = []
    for path in sorted(RUN_ROOT.glob("slot-*")):
        with contextlib.suppress(OSError):
            if str(mine.state) in path.read_text():
                found.append(path)
    return found


def _mounts(mine: Mark) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(mine.state) in line]


def _ownerless_cgroups() -> list[Path]:
    """Cgroups of a cluster slot that nobody holds."""
    taken = {f"muster-{path.name.removeprefix('slot-')}" for path in RUN_ROOT.glob("slot-*")}
    found = {path for mount in cgroups.hierarchies() for path in mount.glob("muster-*") if path.is_dir()}
    return sorted(path for path in found if path.name not in taken)
