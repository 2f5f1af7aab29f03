"""Measures the node before the ranks start: memory, disk, shared memory and, where there are GPUs, those.

Without GPUs that is a few system calls. GPUs are asked in a process of their own, so that a driver that hangs hangs
nobody else, and so that this process needs no torch.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from muster_protocol import env
from muster_protocol.messages import Figures, GpuFigures
from muster_runtime import vendored
from muster_runtime.launch.environment import library_path
from muster_runtime.launch.termination import say
from muster_runtime.telemetry.gpus import Watch

PROBE: Final = (sys.executable, "-m", "muster_runtime.launch.gpu_probe")
PROBE_SECONDS: Final = 60.0
"""Torch and a driver start within ten seconds on a busy node; one that takes a minute won't."""
_CONTROL: Final = Path("/dev/nvidiactl")
_HIDDEN: Final = ("", "-1")
_AVAILABLE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Machine:
    """Where to look; tests look elsewhere.

    Attributes:
        folders: for the launcher's files, the first that can be written counts.
        visible: the GPUs that the container runtime was told to show.
        hidden: the job's own environment hides them all from its ranks, which then train on the CPU.
    """

    meminfo: Path = Path("/proc/meminfo")
    folders: Sequence[Path] = (Path(env.MOUNT_PATH), Path(os.environ.get("TMPDIR") or "/tmp"))
    shm: Path = Path("/dev/shm")
    visible: str = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    hidden: bool = os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDDEN
    gpu_control: Path = _CONTROL
    probe: Sequence[str] = PROBE
    probe_seconds: float = PROBE_SECONDS


def gpus(machine: Machine | None = None) -> Watch | None:
    """Who looks at this pod's GPUs while it trains; None where there is no driver."""
    machine = machine or Machine()
    return Watch(_nvml, machine.visible, say) if machine.gpu_control.exists() else None


def _nvml() -> Any:
    vendored.use()
    import pynvml

    return pynvml


async def measure(machine: Machine, node: str = "") -> Figures:
    """This node's figures."""
    there = machine.gpu_control.exists()
    if there and machine.hidden:
        say("CUDA_VISIBLE_DEVICES hides this pod's GPUs: its ranks train on the CPU")
    error, gpus = await _gpus(machine) if there and not machine.hidden else ("", ())
    return Figures(
        node=node,
        memory_free=_memory(machine.meminfo),
        disk_free=_disk(machine.folders),
        shm_free=_shm(machine.shm),
        gpus_wanted=0 if machine.hidden else _given(machine.visible),
        gpus=gpus,
        gpu_error=error,
    )


def _given(visible: str) -> int:
    """GPUs that the container runtime was told to show; 0 where it says no number."""
    names = [name for name in visible.split(",") if name]
    return 0 if set(names) & {"all", "none", "void"} else len(names)


def _memory(meminfo: Path) -> int | None:
    try:
        found = _AVAILABLE.search(meminfo.read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _disk(folders: Sequence[Path]) -> int | None:
    """Of the first folder that can be written: what is read-only may call itself full."""
    folder = next((folder for folder in folders if os.access(folder, os.W_OK)), None)
    found = _statvfs(folder) if folder is not None else None
    return found.f_bavail * found.f_frsize if found is not None else None


def _shm(folder: Path) -> int | None:
    """None where more than half is free: then it may be small, but nobody has left anything there."""
    found = _statvfs(folder)
    if found is None or 2 * found.f_bavail > found.f_blocks:
        return None
    return found.f_bavail * found.f_frsize


def _statvfs(folder: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


async def _gpus(machine: Machine) -> tuple[str, tuple[GpuFigures, ...]]:
    """What is wrong with all of them, or ""; and each one's figures."""
    process = await asyncio.create_subprocess_exec(
        *machine.probe,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **library_path(os.environ)},
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), machine.probe_seconds)
    except asyncio.TimeoutError:
        return f"they gave no answer within {machine.probe_seconds:g} s", ()
    finally:
        if process.returncode is None:
            process.kill()
    try:
        found: dict[str, Any] = json.loads(output)
        return str(found["error"]), tuple(GpuFigures(**one) for one in found["gpus"])
    except (ValueError, TypeError, KeyError):
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["without a word"]
        return f"the look at them ended with exit code {process.returncode}: {last[0][:300]}", ()
