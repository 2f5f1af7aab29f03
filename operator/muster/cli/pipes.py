"""Who reads what a command writes may leave, as `head` does. The command ends then, and says nothing of it."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any, Final

LEFT: Final = 128 + signal.SIGPIPE
"""The exit code, as a shell has it for other commands whose reader has left."""


class _Pipe(io.FileIO):
    """Ends the command in order at the first write that nobody reads: neither Typer nor rich, which would each end it
    with 1, see an error."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            with open(os.devnull, "wb") as nowhere:  # for what is still in buffers
                os.dup2(nowhere.fileno(), self.fileno())
            raise SystemExit(LEFT) from None


def watch_stdout() -> None:
    """From now on a reader of stdout who leaves ends the command with `LEFT`."""
    before = sys.stdout
    if not isinstance(before, io.TextIOWrapper):
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Pipe(before.fileno(), "w", closefd=False)),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
