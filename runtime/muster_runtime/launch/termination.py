"""The pod's termination message, and the kernel's count of processes killed for memory."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from pathlib import Path
from typing import Final

from muster_protocol import exits
from muster_protocol.exits import ExitFacts
from muster_runtime.launch.logs import Sink

_OOM_FILES: Final = (
    Path("/sys/fs/cgroup/memory.events"),
    Path("/sys/fs/cgroup/memory/memory.oom_control"),
)
_OOM_KILLS: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


_LOG: Final = Sink(2)


def write(path: Path | None, facts: ExitFacts) -> None:
    """Leaves `facts` where kubelet finds them. A file that can't be written is a warning: the exit code remains."""
    if path is None:
        return
    try:
        path.write_text(exits.encode(facts))
    except OSError as error:
        say(f"the termination message can't be written to {path}: {error.strerror or error}")


def clear(path: Path | None) -> None:
    """Takes back what was written: the pod goes on."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.write_text("")


def say(text: str, prefix: str = "") -> None:
    """One line of the launcher's own on stderr, behind `prefix`. Never waits: whoever reads the log may be slow. But
    where no thread can be started for that."""
    line = f"{prefix}[muster] {text}\n"
    if _teller is None:
        try:
            _start_teller()
        except RuntimeError:
            _write(line)
            return
    _lines.put(line)


def flush(seconds: float) -> None:
    """Returns when all that was said is written, at the latest after `seconds`."""
    if _teller is not None:
        _lines.put(None)
        _teller.join(seconds)


_lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
_teller: threading.Thread | None = None


def _start_teller() -> None:
    global _teller
    teller = threading.Thread(target=_tell, daemon=True, name="launcher's log")
    teller.start()
    _teller = teller


def _tell() -> None:
    for line in iter(_lines.get, None):
        _write(line)


def _write(line: str) -> None:
    _LOG.write(line.encode(errors="backslashreplace"))


def oom_kills(files: tuple[Path, ...] = _OOM_FILES) -> int:
    """Processes that the OOM killer ended in this container since it began; 0 where the kernel does not tell."""
    for path in files:
        try:
            found = _OOM_KILLS.search(path.read_text())
        except OSError:
            continue
        if found:
            return int(found[1])
    return 0
