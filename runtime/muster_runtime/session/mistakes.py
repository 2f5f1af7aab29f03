"""How an error of ours ends a script: the script's own lines, then the sentence that says what to change, last."""

from __future__ import annotations

import sys
from types import TracebackType

from muster_runtime.errors import MusterError, is_ours


def tell_shortly() -> None:
    """From now on a `MusterError` that nobody catches is told without our frames and without what led to it.

    Its sentence holds all that a person needs; a traceback through ours only hides the line that is to be changed.
    """
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, MusterError):
            trace = of_script(trace)
            error.__cause__, error.__suppress_context__ = None, True
            error = error.with_traceback(trace)
        before(kind, error, trace)

    sys.excepthook = told


def of_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback down to where this package was entered."""
    if trace is None or is_ours(trace.tb_frame.f_code.co_filename):
        return None
    return TracebackType(of_script(trace.tb_next), trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
