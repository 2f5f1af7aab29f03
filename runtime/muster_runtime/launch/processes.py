"""What the kernel tells of processes: who is whose child, and who listens to a signal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
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


def descendants(pid: int, spares: Callable[[int], bool] = lambda _: False) -> list[int]:
    """All that live below `pid`, but for those that it spares and what is below those."""
    below = _by_parent()
    found, left = [], [pid]
    while left:
        children = [child.pid for child in below.get(left.pop(), ()) if not spares(child.pid)]
        found += children
        left += children
    return found


def hearers(pid: int, number: int) -> list[int]:
    """To whom a signal for `pid` has to go: a shell dies of it and passes nothing on, so what it has started gets it in
    its place. A shell with a trap hears for itself.

    Who reads what another writes (`train.py | tee log`) ends after it by itself, and sooner would break its pipe: it is
    left alone where another listens.
    """
    below = _by_parent() if _is_shell(pid) else {}

    def find(pid: int) -> Iterator[int]:
        children = below.get(pid, ()) if _is_shell(pid) and not listens(pid, number) else ()
        if not children:
            yield pid
        for child in children:
            yield from find(child.pid)

    found = list(find(pid))
    listening = {one for one in found if listens(one, number)}
    return [one for one in found if one in listening or not (listening and _reads_a_pipe(one))]


def knows(pid: int, variable: str) -> bool:
    """Whether the process was started with this environment variable. False where nobody may look."""
    try:
        return any(one.startswith(f"{variable}=".encode()) for one in _entries(pid, "environ"))
    except OSError:
        return False


def listens(pid: int, number: int) -> bool:
    """Whether the process has a handler of the signal."""
    try:
        caught = _CAUGHT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def state(pid: int) -> str:
    """The kernel's letter for the process; "" when it is gone."""
    found = _stat(pid)
    return "" if found is None else found["state"]


def _reads_a_pipe(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/0").startswith("pipe:")
    except OSError:
        return False


def _is_shell(pid: int) -> bool:
    """Also where a script is started by its own name, for its first line: then that is the process's."""
    process = _read(pid)
    if process is None:
        return False
    try:
        program = _entries(pid, "cmdline")[0]
    except OSError:
        return False
    return process.name in _SHELLS or os.path.basename(os.fsdecode(program)) in _SHELLS


def _entries(pid: int, name: str) -> list[bytes]:
    return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")


def _by_parent() -> dict[int, list[Process]]:
    found: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        process = _read(int(name)) if name.isdigit() else None
        if process is not None:
            found.setdefault(process.parent, []).append(process)
    return found


def _stat(pid: int) -> re.Match[str] | None:
    try:
        return _STAT.match(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return None


def _read(pid: int) -> Process | None:
    """None for one that has ended."""
    found = _stat(pid)
    if found is None or found["state"] in "ZX":
        return None
    return Process(pid, found["name"], int(found["parent"]))
