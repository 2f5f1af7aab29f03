"""How a script ends that falls over an exception: told, cleaned up, and without Python's own teardown."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from functools import partial
from types import TracebackType
from typing import Final

_EXIT_CODE: Final = 1
"""Python's, after an exception."""
THREADS_SECONDS: Final = 10.0
"""How long a script that has fallen waits for its own threads. Python would wait for ever, and the other ranks with it,
for one that waits for what the main thread would have sent."""

_ending: Final = threading.Lock()


def end_soon(patience: float = THREADS_SECONDS) -> None:
    """From now on a process ends as soon as an exception of its script is told and all exit handlers have run.

    Python would take its modules apart then, torch's among them. That frees nothing that the kernel doesn't, and takes
    seconds, in which the other ranks wait for this one in a collective. Before its exit handlers it waits for threads,
    here at most for `patience` seconds.
    """
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Python sets `last_value` before its own call; a script that logs by this hook, and goes on, doesn't.
        if isinstance(error, Exception) and getattr(sys, "last_value", None) is error:
            timer = threading.Timer(patience, _end_without_threads)
            timer.daemon = True
            atexit.register(_end)  # the last to come is the first to run; other hooks may tell more until then
            atexit.register(timer.cancel)  # but for this one: exit handlers have their own time
            # Python calls this when it begins to wait for threads: this hook and those around it may take their time.
            threading._register_atexit(partial(_start, timer))  # type: ignore[attr-defined]
        before(kind, error, trace)

    sys.excepthook = told


def _start(timer: threading.Timer) -> None:
    with contextlib.suppress(RuntimeError):  # no thread can be started any more
        timer.start()


def _end_without_threads() -> None:
    ours = (threading.main_thread(), threading.current_thread())
    left = [one.name for one in threading.enumerate() if not one.daemon and one not in ours]
    told = f"the script has fallen, and ends without its threads that still run: {', '.join(left)}"
    sys.stderr.write(f"[muster] {told}\n")
    _end()


def _end() -> None:
    """Runs all other exit handlers, and leaves. Once, whichever thread comes first."""
    _ending.acquire()
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(_EXIT_CODE)
