"""Where the local cluster keeps things: a cache that outlives clusters, and the state of each one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

RUN_ROOT = Path("/run/muster")
"""Unix sockets may have at most 107 characters in their path, so they live here."""
_SOON_S = 3.0
"""Whoever waits for a lock is told after so many seconds."""


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/muster`: built programs, root file systems, images; safe to delete while no cluster is up."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "muster"


def state_root() -> Path:
    """`$XDG_STATE_HOME/muster/clusters`: one folder a cluster, gone when the cluster is."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "muster" / "clusters"


@contextlib.contextmanager
def locked(path: Path, timeout_s: float = 3600.0) -> Iterator[None]:
    """Holds an exclusive lock on the file at `path`; the kernel drops it when the process dies.

    Whoever waits for long is told why: the other one may be building for minutes. Raises TimeoutError when another
    process keeps it longer than `timeout_s` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    began, told = time.monotonic(), False
    with path.open("a") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - began
                if waited > timeout_s:
                    raise TimeoutError(f"another process holds {path}") from None
                if waited > _SOON_S and not told:
                    print(f"  ...     another process is at this already: waiting for {path}", file=sys.stderr)
                    told = True
                time.sleep(0.1)
        yield


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Writes a whole file or nothing: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.chmod(mode)
    temporary.replace(path)
