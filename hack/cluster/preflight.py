"""Looks for what a machine lacks before anything is made, and says how to mend it, one line each."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from hack.cluster import cgroups
from hack.cluster.errors import ClusterError
from hack.cluster.paths import cache_root, state_root
from hack.cluster.plan import Options

_NEEDED_GIB_COLD, _NEEDED_GIB_WARM = 12, 2


def check(options: Options, warm: bool) -> None:
    """Raises ClusterError with every problem found; `warm` says that programs and images are cached already."""
    problems = [*_machine(), *_kernel(options), *_disk(warm)]
    if problems:
        raise ClusterError("this machine cannot run the cluster:\n" + "\n".join(f"  - {line}" for line in problems))


def _machine() -> list[str]:
    problems = []
    if platform.system() != "Linux":
        problems.append(f"Linux is needed, this is {platform.system()}: use a Linux machine, or Docker with kind")
    if platform.machine() not in ("x86_64", "aarch64"):
        problems.append(f"processor {platform.machine()}: x86-64 or arm64 is needed")
    if hasattr(os, "geteuid") and os.geteuid() != 0:
        problems.append("not root: run it as root (sudo -E make cluster), or in a virtual machine of your own")
    problems += [
        f"`{tool}` is missing: apt-get install util-linux"
        for tool in ("unshare", "nsenter", "setsid")
        if shutil.which(tool) is None
    ]
    problems += [
        f"{root} is hidden inside the nodes: set XDG_CACHE_HOME and XDG_STATE_HOME elsewhere"
        for root in (cache_root(), state_root())
        if str(root).startswith(("/run/", "/var/lib/kubelet/", "/var/lib/cni/"))
    ]
    return problems


def _kernel(options: Options) -> list[str]:
    if platform.system() != "Linux" or os.geteuid() != 0:
        return []
    problems = []
    if not Path("/proc/self/ns/net").exists() or not _can_unshare():
        problems.append(
            "no network and mount namespaces can be made: CAP_SYS_ADMIN is needed (in Docker: --privileged)"
        )
    if options.real_nodes:
        missing = cgroups.missing_controllers()
        if missing:
            problems.append(f"cgroup controllers {', '.join(missing)} are not mounted: see the kernel's cgroup options")
        elif not os.access(cgroups.hierarchies()[0], os.W_OK):
            problems.append(f"{cgroups.hierarchies()[0]} is read-only: remount it writable (in Docker: --privileged)")
        if "\toverlay" not in Path("/proc/filesystems").read_text() and not _module("overlay"):
            problems.append("the kernel has no overlay file system: modprobe overlay")
        if not Path("/proc/sys/net/netfilter").exists() and not _module("nf_tables"):
            problems.append("the kernel has no nftables: modprobe nf_tables nf_conntrack")
    return problems


def _can_unshare() -> bool:
    done = subprocess.run(["unshare", "--net", "--mount", "--", "true"], capture_output=True)
    return done.returncode == 0


def _module(name: str) -> bool:
    return shutil.which("modprobe") is not None and subprocess.run(["modprobe", name]).returncode == 0


def _disk(warm: bool) -> list[str]:
    problems = []
    for root, needed in ((cache_root(), _NEEDED_GIB_WARM if warm else _NEEDED_GIB_COLD), (state_root(), 2)):
        existing = next(path for path in (root, *root.parents) if path.exists())
        free = shutil.disk_usage(existing).free / 2**30
        if free < needed:
            problems.append(f"{existing} has {free:.1f} GiB free of {needed} needed: make room, or set XDG_CACHE_HOME")
    return problems
