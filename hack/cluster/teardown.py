"""Takes a cluster away, whatever state it is in, and looks whether anything stayed."""

from __future__ import annotations

import shutil
from pathlib import Path

from hack.cluster import cgroups, network, processes, state
from hack.cluster.plan import Site


def remove(site: Site) -> list[str]:
    """Removes everything of the cluster; returns a line for each thing that is still there.

    Works from what is there, not from how far the start came, so it serves a whole cluster, an interrupted start and
    the remains of a crash alike, and may be run twice.
    """
    ours = state.holds_slot(site.directory, site.slot)
    slot = site.slot if ours else None
    processes.kill_all(site.directory, slot)
    if ours:
        network.disconnect_host(site)
        cgroups.remove(site.slot)
    left = leftovers(site, slot)
    if not left:
        shutil.rmtree(site.directory)
        if ours:
            state.release_slot(site.directory, site.slot)
    return left


def leftovers(site: Site, slot: int | None) -> list[str]:
    """What of the cluster still exists outside its folder: processes, mounts, links, cgroups."""
    found = [f"process {pid}: {_command(pid)}" for pid in sorted(processes.living(site.directory, slot))]
    found += [
        f"mount {line.split()[4]}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if f"{site.directory}/" in line
    ]
    if slot is not None:
        link = Path("/sys/class/net") / site.addresses.host_link
        found += [f"network interface {link.name}"] if link.exists() else []
        found += [f"cgroup {tree}" for tree in cgroups.trees(slot) if tree.exists()]
    return found


def _command(pid: int) -> str:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120] if path.exists() else "gone by now"
