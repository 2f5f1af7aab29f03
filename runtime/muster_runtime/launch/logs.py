"""The ranks' output: passed on line by line with the rank before each line, and its tail kept for the exit facts."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from typing import Final

KEPT_LINES: Final = 200
"""Lines of each of a rank's streams that are kept; a traceback is looked for in those of stderr."""
LINE_LIMIT: Final = 64 * 1024
"""Bytes; a longer line is passed on in pieces."""
IDLE_FLUSH_SECONDS: Final = 5.0
"""A line without an end (a progress bar) is shown as it is after this long."""


class Sink:
    """One of the launcher's own streams. Lines of several ranks don't mix."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Waits when the reader of the log is slow, and so in the end the rank does. Drops what can't be written: when
        nobody reads, or while the disk is full."""
        with self._lock:
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    select.select([], [self._fd], [], 1.0)
                except OSError:
                    return


class Pump(threading.Thread):
    """Carries one pipe of one rank to a sink until its end.

    `prefix` is empty for a rank that is alone: its bytes are then passed on as they come, progress bars included.
    """

    def __init__(self, fd: int, sink: Sink, prefix: bytes) -> None:
        super().__init__(daemon=True, name=f"log {prefix.decode()}")
        self._fd = fd
        self._sink = sink
        self._prefix = prefix
        self._tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._tail_lock = threading.Lock()
        self._partial = b""
        self._cut = False  # whether what was passed on last is a line whose end has not come

    def tail(self) -> list[str]:
        """The last lines, without their ends; safe to call while the pump runs."""
        with self._tail_lock:
            return list(self._tail)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        since = 0.0  # when the line that has no end yet began
        try:
            while True:
                if not poll.poll(IDLE_FLUSH_SECONDS * 1000 if self._partial else None):
                    self._flush()
                    continue
                chunk = os.read(self._fd, 65536)
                if not chunk:
                    break
                if b"\n" in chunk or not self._partial:
                    since = time.monotonic()
                self._take(chunk)
                if self._partial and time.monotonic() - since > IDLE_FLUSH_SECONDS:
                    self._flush()
            self._flush()
        finally:
            os.close(self._fd)

    def _take(self, chunk: bytes) -> None:
        if not self._prefix:
            self._sink.write(chunk)
        if self._cut:
            self._cut, chunk = False, chunk.removeprefix(b"\n")
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        while len(self._partial) > LINE_LIMIT:
            lines.append(self._partial[:LINE_LIMIT])
            self._partial = self._partial[LINE_LIMIT:]
        if lines:
            self._pass_on(lines)

    def _flush(self) -> None:
        if self._partial:
            self._pass_on([self._partial])
            self._partial, self._cut = b"", True

    def _pass_on(self, lines: list[bytes]) -> None:
        shown = [_last_overwrite(line) for line in lines]
        if self._prefix:
            self._sink.write(b"".join(self._prefix + line + b"\n" for line in shown))
        with self._tail_lock:
            self._tail.extend(line.decode(errors="replace") for line in shown)


def _last_overwrite(line: bytes) -> bytes:
    r"""What a terminal would show of a line in which `\r` went back to its beginning."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
