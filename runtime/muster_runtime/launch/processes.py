"""What the kernel tells of processes: who is whose child, and who listens to a signal."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh", "busybox"})
_STAT: Final = re.compile(r"\d+ \((?P<name>.*)\) (?P<state>\S) (?P<parent>\d+) ", re.DOTALL)
_CAUGHT: Final = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    parent: int


def descendants(pid: int, spared: Container[int] = ()) -> list[int]:
    """All that live below `pid`, but for `spared` and what is below those."""
    below = _by_parent()
    found, left = [], [pid]
    while left:
        children = [child.pid for child in below.get(left.pop(), ()) if child.pid not in spared]
        found += children
        left += children
    return found


def hearers(pid: int, number: int) -> list[int]:
    """To whom a signal for `pid` has to go: a shell dies of it and passes nothing on, so what it has started gets it in
    its place. A shell with a trap hears for itself."""
    below = _by_parent() if _is_shell(pid) else {}

    def find(pid: int) -> Iterator[int]:
        children = below.get(pid, ()) if _is_shell(pid) and not listens(pid, number) else ()
        if not children:
            yield pid
        for child in children:
            yield from find(child.pid)

    return list(find(pid))


def listens(pid: int, number: int) -> bool:
    """Whether the process has a handler of the signal."""
    try:
        caught = _CAUGHT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def _is_shell(pid: int) -> bool:
    process = _read(pid)
    return process is not None and process.name in _SHELLS


def _by_parent() -> dict[int, list[Process]]:
    found: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        process = _read(int(name)) if name.isdigit() else None
        if process is not None:
            found.setdefault(process.parent, []).append(process)
    return found


def _read(pid: int) -> Process | None:
    """None for one that has ended."""
    try:
        found = _STAT.match(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return None
    if found is None or found["state"] in "ZX":
        return None
    return Process(pid, found["name"], int(found["parent"]))
