"""How a rank shows its Python stacks when it doesn't get on: at a signal, without running any of its code.

`faulthandler` writes them from the signal's handler, so that a rank that waits in a collective, or loops for ever,
shows them, too. A script's own handlers of that signal stay.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path
from typing import Final

from muster_protocol import env

SIGNAL: Final = signal.SIGRTMIN + 7
"""None of those that scripts, debuggers and batch systems use."""


def file_of(run_dir: Path, rank: int) -> Path:
    """Where rank `rank` writes its stacks. It is there once the rank listens."""
    return run_dir / f"stacks-{rank}"


def flight_ears(run_dir: Path, rank: int) -> Path:
    """The socket at which rank `rank` is asked for what torch's flight recorder has."""
    return run_dir / f"flight-{rank}"


def flight_file(run_dir: Path, rank: int) -> Path:
    """Where it writes that, at once and whole."""
    return run_dir / f"flight-{rank}.json"


def show_when_asked(rank: int) -> None:
    """From now on `SIGNAL` writes this process's stacks to its file. Without a launcher nothing happens."""
    folder = os.environ.get(env.RUN_DIR)
    if not folder or signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    with contextlib.suppress(OSError):  # a folder that is full or gone costs the stacks, not the training
        file = os.open(file_of(Path(folder), rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(SIGNAL, file=file, all_threads=True)
