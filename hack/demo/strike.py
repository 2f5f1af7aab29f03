"""Kills a worker, or one of its ranks, for real: SIGKILL to processes of its container, from outside the cluster.

Nothing of Kubernetes is asked to do it and nothing in the pod can prepare for it, as when the kernel runs out of memory
or a machine's owner pulls a plug.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from hack.cluster.processes import stat


def container_ids(pod: dict[str, Any]) -> tuple[str, ...]:
    """Ids of the pod's running containers, as containerd knows them."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    running = [status for status in statuses if "running" in status.get("state", {})]
    return tuple(status["containerID"].rpartition("/")[2] for status in running)


def processes(container_id: str) -> list[int]:
    """Pids, on this machine, of a container's processes: their cgroup's path ends with its id."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if container_id in (entry / "cgroup").read_text():
                    found.append(int(entry.name))
    return sorted(found)


def kill(pod: dict[str, Any]) -> list[int]:
    """Kills what runs in the pod's containers, the first process (the launcher) first. Returns the pids."""
    killed = []
    for container_id in container_ids(pod):
        for pid in processes(container_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed


def launcher(pod: dict[str, Any]) -> int | None:
    """Pid, on this machine, of the first process of the pod's container, or None when none runs."""
    found = [pid for container_id in container_ids(pod) for pid in processes(container_id)]
    return next((pid for pid in found if _pid_inside(pid) == 1), None)


def ranks(pod: dict[str, Any]) -> list[int]:
    """Pids, on this machine, of the pod's ranks; not of the processes that these have started."""
    found = [pid for container_id in container_ids(pod) for pid in processes(container_id) if _is_rank(pid)]
    return [pid for pid in found if not _is_rank(_parent(pid))]  # a child has a rank's environment, too


def _is_rank(pid: int) -> bool:
    try:
        return b"\0RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _parent(pid: int) -> int:
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def _pid_inside(pid: int) -> int:
    """A process's number in its own pid namespace; 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
