"""Lines that say what a start is doing and for how long, on a terminal or in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from rich.console import Console

_LONG_S = 30.0
"""Where no spinner can be shown, a running part says again that it lives after this many seconds."""


class Progress:
    """Writes to stderr, so that stdout stays free for what `env` and `status` print."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet

    def say(self, text: str) -> None:
        """One plain line."""
        if not self._quiet:
            self._console.print(text, markup=False)

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Shows `name` while the block runs and its seconds when it ends; a failure is marked and raised on."""
        started = time.monotonic()
        with self._alive(name, started):
            try:
                yield
            except BaseException:
                self.say(f"  failed  {name} after {time.monotonic() - started:.1f} s")
                raise
        self.say(f"  done    {name} ({time.monotonic() - started:.1f} s)")

    @contextlib.contextmanager
    def _alive(self, name: str, started: float) -> Iterator[None]:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if self._quiet:
            yield
        elif self._console.is_terminal and on_main_thread:
            with self._console.status(name):
                yield
        else:
            ended = threading.Event()
            teller = threading.Thread(target=self._tell, args=(name, started, ended), daemon=True)
            teller.start()
            try:
                yield
            finally:
                ended.set()
                teller.join()

    def _tell(self, name: str, started: float, ended: threading.Event) -> None:
        while not ended.wait(_LONG_S):
            self.say(f"  ...     {name}, {time.monotonic() - started:.0f} s so far")


def fail(text: str) -> None:
    """An error's one line, on stderr."""
    print(f"error: {text}", file=sys.stderr)
