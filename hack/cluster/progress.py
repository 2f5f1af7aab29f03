"""Lines that say what a start is doing, for how long, and how long that usually takes, on a terminal or in a log."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hack.cluster.paths import cache_root, write_atomically

_SOON_S = 3.0
"""Where no spinner can be shown, a part that runs for so many seconds is told for the first time,"""
_LONG_S = 30.0
"""and after so many more again."""

_FIRST_S = {"build etcd": 350.0, "build versitygw": 55.0, "build containerd": 230.0, "Debian bookworm": 70.0}
"""Seconds that long parts take on 2 cores, by how their names begin: for a machine that has not done them yet."""


def usually(name: str) -> float | None:
    """Seconds that a part took the last time on this machine, else on another of 2 cores; None when nobody knows."""
    return _told().get(name) or next((known for begin, known in _FIRST_S.items() if name.startswith(begin)), None)


def _remember(name: str, seconds: float) -> None:
    # Two that write at once lose one of the two figures: it is for people.
    with contextlib.suppress(OSError):
        write_atomically(_record(), json.dumps({**_told(), name: round(seconds, 1)}, indent=1))


def _told() -> dict[str, float]:
    try:
        known: dict[str, float] = json.loads(_record().read_text())
    except (OSError, ValueError):
        return {}
    return known


def _record() -> Path:
    return cache_root() / "log" / "durations.json"


@dataclass(frozen=True)
class _Running:
    """A part that runs, as a line that is drawn anew while it does."""

    name: str
    started: float
    usual: float | None

    def __rich__(self) -> str:
        usual = f", usually {format_seconds(self.usual)}" if self.usual and round(self.usual) else ""
        return f"{self.name}, {format_seconds(time.monotonic() - self.started)} so far{usual}"


def format_seconds(seconds: float) -> str:
    """`40 s`, `5 min 50 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


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
        running = _Running(name, time.monotonic(), usually(name))
        with self._alive(running):
            try:
                yield
            except BaseException:
                self.say(f"  failed  {name} after {time.monotonic() - running.started:.1f} s")
                raise
        took = time.monotonic() - running.started
        _remember(name, took)
        self.say(f"  done    {name} ({took:.1f} s)")

    @contextlib.contextmanager
    def _alive(self, running: _Running) -> Iterator[None]:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if self._quiet:
            yield
        elif self._console.is_terminal and on_main_thread:
            with self._console.status(running):
                yield
        else:
            ended = threading.Event()
            teller = threading.Thread(target=self._tell, args=(running, ended), daemon=True)
            teller.start()
            try:
                yield
            finally:
                ended.set()
                teller.join()

    def _tell(self, running: _Running, ended: threading.Event) -> None:
        pause = _SOON_S
        while not ended.wait(pause):
            self.say(f"  ...     {running.__rich__()}")
            pause = _LONG_S


def fail(text: str) -> None:
    """An error's one line, on stderr."""
    print(f"error: {text}", file=sys.stderr)
