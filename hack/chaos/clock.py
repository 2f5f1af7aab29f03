"""A clock of the day that can be set for one pod: a library that its processes load."""

from __future__ import annotations

from pathlib import Path

from hack.cluster import packages
from hack.cluster.processes import run
from hack.cluster.progress import Progress

LIBRARY = "clock.so"
_SOURCE = Path(__file__).with_name("clock.c")


def build(folder: Path) -> None:
    """Puts LIBRARY there."""
    packages.ensure([("gcc", "/usr/bin/gcc"), ("libc6-dev", "/usr/include/time.h")], Progress(quiet=True))
    run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(folder / LIBRARY), str(_SOURCE)])
