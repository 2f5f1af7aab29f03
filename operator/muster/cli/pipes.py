"""Who reads what a command writes may leave, as `head` does. The command ends then, and says nothing of it."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

LEFT: Final = 128 + signal.SIGPIPE
"""The exit code, as a shell has it for other commands whose reader has left."""


class _ReaderLeft(Exception):
    """No OSError: those of a broken pipe are ended with 1 by Typer, and by rich."""


class _Pipe(io.FileIO):
    """Raises `_ReaderLeft` at the first write that nobody reads."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            with open(os.devnull, "wb") as nowhere:  # for what is still in buffers
                os.dup2(nowhere.fileno(), self.fileno())
            raise _ReaderLeft from None


@contextmanager
def watched_stdout() -> Iterator[None]:
    """Within, a reader of stdout who leaves ends the command with `LEFT`."""
    before = sys.stdout
    if not isinstance(before, io.TextIOWrapper):  # it is closed, or a test's
        yield
        return
    sys.stdout = watched = io.TextIOWrapper(
        io.BufferedWriter(_Pipe(before.fileno(), "w", closefd=False)),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    try:
        try:
            yield
        finally:
            watched.flush()
    except _ReaderLeft:
        raise SystemExit(LEFT) from None
