"""What the kernel of this machine knows of pods' processes, and what it does to them when told so."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hack.cluster import cgroups
from hack.cluster.processes import run, stat

PERIOD_US = 100_000
_TABLE = "muster_chaos"


def state(pid: int) -> str:
    """The letter of a process's state: R, S, T (stopped) and so on; empty when it has ended."""
    return next(iter(stat(pid)), "")


def cgroup(pid: int, controller: str) -> Path:
    """The folder of a process's cgroup, of that controller where each has its own (version 1)."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers and cgroups.is_version_2():
            return cgroups.hierarchies()[0] / path.lstrip("/")
        if controller in controllers.split(","):
            mount = next(m for m in cgroups.hierarchies() if controller in m.resolve().name.split(","))
            return mount / path.lstrip("/")
    raise OSError(f"process {pid} has no cgroup of {controller}")


def memory_kills(folder: Path) -> int:
    """How many processes of a memory cgroup the kernel has killed for want of memory."""
    return _counter(folder / ("memory.events" if cgroups.is_version_2() else "memory.oom_control"), "oom_kill")


def throttled(folder: Path) -> int:
    """In how many periods a cpu cgroup had to wait."""
    return _counter(folder / "cpu.stat", "nr_throttled")


def throttle(folder: Path, share: float | None) -> None:
    """Gives a cpu cgroup so much of one processor, or as much as there is."""
    quota = None if share is None else int(share * PERIOD_US)
    if cgroups.is_version_2():
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD_US}")
    else:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))


def _counter(path: Path, name: str) -> int:
    found = [line.split() for line in path.read_text().splitlines()]
    return next((int(words[1]) for words in found if words[0] == name), 0)


def cut_off(pid: int, address: str) -> None:
    """Drops all packets between the network namespace of a process and an address, and counts them."""
    rules = f"""
    table inet {_TABLE} {{
        chain input {{ type filter hook input priority 0; ip saddr {address} counter drop; }}
        chain output {{ type filter hook output priority 0; ip daddr {address} counter drop; }}
    }}
    """
    run([*_in_network(pid), "nft", "-f", "-"], stdin=rules)


def dropped(pid: int) -> int:
    """How many packets `cut_off` has dropped."""
    words = run([*_in_network(pid), "nft", "list", "table", "inet", _TABLE]).split()
    return sum(int(words[index + 1]) for index, word in enumerate(words) if word == "packets")


def connect_again(pid: int) -> None:
    """Takes back what `cut_off` did, where the namespace is still there."""
    subprocess.run([*_in_network(pid), "nft", "delete", "table", "inet", _TABLE], capture_output=True)


def _in_network(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", "--net", "--"]
