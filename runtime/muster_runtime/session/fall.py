"""How a script ends that falls over an exception: told, cleaned up, and without Python's own teardown."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from types import TracebackType
from typing import Final

_EXIT_CODE: Final = 1
"""Python's, after an exception."""


def end_soon() -> None:
    """From now on a process ends as soon as an exception of its script is told and all exit handlers have run.

    Python would take its modules apart then, torch's among them. That frees nothing that the kernel doesn't, and takes
    seconds, in which the other ranks wait for this one in a collective.
    """
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Python sets `last_value` before its own call; a script that logs by this hook, and goes on, doesn't.
        if isinstance(error, Exception) and getattr(sys, "last_value", None) is error:
            atexit.register(_end)  # the last to come is the first to run; other hooks may tell more until then
        before(kind, error, trace)

    sys.excepthook = told


def _end() -> None:
    """Runs all other exit handlers, and leaves."""
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(_EXIT_CODE)
