"""Whoever reads what a command writes gets each line as it comes, also through a pipe, and may leave, as `head` does.
The command ends then, and says nothing of it. Where there is no room for what it writes, it says so. Characters that
the terminal's encoding lacks are written by their numbers, `\\u2026`: a log may have any."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

LEFT: Final = 128 + signal.SIGPIPE
"""The exit code, as a shell has it for other commands whose reader has left."""


class _ReaderLeft(Exception):
    """No OSError: those of a broken pipe are ended with 1 by Typer, and by rich."""


class _NotWritten(Exception):
    """What the system says of it."""


class _Pipe(io.FileIO):
    """Raises `_ReaderLeft` at the first write that nobody reads, `_NotWritten` at one that fails."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            with open(os.devnull, "wb") as nowhere:  # for what is still in buffers
                os.dup2(nowhere.fileno(), self.fileno())
            raise (_ReaderLeft if isinstance(error, BrokenPipeError) else _NotWritten)(error.strerror) from None


@contextmanager
def watched_streams() -> Iterator[None]:
    """Within, a reader of stdout or stderr who leaves ends the command with `LEFT`; a full disk does with 2."""
    try:
        sys.stdout, sys.stderr = _watched(sys.stdout), _watched(sys.stderr)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # it was closed
                    stream.flush()
    except _ReaderLeft:
        raise SystemExit(LEFT) from None
    except _NotWritten as error:
        with suppress(OSError):  # it was stderr
            os.write(2, f"muster: what the command tells can't be written to where it goes: {error}\n".encode())
        raise SystemExit(2) from None


def _watched(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # it is closed, or a test's
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=True,
        write_through=stream.write_through,
    )
