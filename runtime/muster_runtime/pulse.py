"""The pulse: how a launcher sees what each of its ranks is at, without a message or a system call a step.

A file in `MUSTER_RUN_DIR` with 64 bytes for each rank of the pod, in the order of their local ranks. The launcher makes
it; a rank maps it into memory and writes its own bytes, little-endian:

    byte 0        the section (`Section`)
    bytes 8..16   beats: counts signs of life
    bytes 16..24  the run's step
    bytes 24..32  steps that this process has done, the first of them left out
    bytes 32..40  double: seconds that they took, without evaluations and checkpoints in them
    bytes 40..48  the process

A rank may be stopped in the middle of a write, so the launcher believes nothing that would do harm.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from muster_protocol import env

FILE_NAME: Final = "pulse"
_SIZE: Final = 64
_WORD: Final = struct.Struct("<B7xQQQdQ")


class Section(IntEnum):
    """What a rank is at. Each has a time of its own."""

    NONE = 0
    """No session was started, and perhaps none will be."""
    START = 1
    """The ranks join; then, from the loop's begin until its first step is done."""
    STEP = 2
    BOUNDARY = 3
    """The step is done, and the others are waited for."""
    EVALUATION = 4
    """Also what stands between two epochs."""
    CHECKPOINT = 5
    """A save or a restore."""
    OUTSIDE = 6
    """The loop is over: what the script does now is its own."""
    SETUP = 7
    """The loop hasn't begun: what the script does is its own as well, if it ever comes to a loop."""


@dataclass(frozen=True)
class Beat:
    """What a rank wrote last. `steps` and `seconds` count those that tell how long a step usually takes."""

    section: Section = Section.NONE
    beats: int = 0
    step: int = 0
    steps: int = 0
    seconds: float = 0.0
    pid: int = 0


class Pulse:
    """A rank's side. Without a launcher it is written nowhere."""

    def __init__(self, local_rank: int = 0, run_dir: str | None = None) -> None:
        self._word = _map(run_dir or os.environ.get(env.RUN_DIR), local_rank)
        self._pid = os.getpid()
        self._section, self._beats = Section.NONE, 0
        self._step = self._steps = 0
        self._started = False
        self._seconds = self._here = 0.0
        self._since = time.monotonic()

    @property
    def section(self) -> Section:
        return self._section

    def enter(self, section: Section) -> None:
        """The rank is at something else now; or at the same, and lives."""
        now = time.monotonic()
        if self._section in (Section.STEP, Section.BOUNDARY):
            self._here += now - self._since
        self._since, self._section = now, section
        self._write()

    @contextmanager
    def during(self, section: Section) -> Iterator[None]:
        before = self._section
        self.enter(section)
        try:
            yield
        finally:
            self.enter(before)

    def evaluates(self) -> None:
        """A batch that isn't trained on is at hand: an evaluation, though the script doesn't call it one."""
        if self._section not in (Section.SETUP, Section.OUTSIDE):
            self.enter(Section.EVALUATION)

    def begin(self, step: int) -> None:
        """A loop begins after `step` steps. Its first one may compile, and tells nothing of the others."""
        self._step, self._started = step, False
        self.enter(Section.START)

    def step_opens(self) -> None:
        self.enter(Section.STEP if self._started else Section.START)

    def step_done(self, step: int) -> None:
        """`step` steps of the run are done, by all ranks."""
        self.enter(Section.STEP)
        if self._started:
            self._steps, self._seconds = self._steps + 1, self._seconds + self._here
        self._step, self._here, self._started = step, 0.0, True
        self._write()

    def _write(self) -> None:
        self._beats += 1
        if self._word is not None:
            word = _WORD.pack(self._section, self._beats, self._step, self._steps, self._seconds, self._pid)
            self._word[: _WORD.size] = word


def _map(folder: str | None, local_rank: int) -> memoryview | None:
    """The bytes of `local_rank`; None where no launcher has made room for them."""
    if not folder:
        return None
    try:
        with (Path(folder) / FILE_NAME).open("r+b") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0))
    except (OSError, ValueError):  # ValueError: it is empty
        return None
    own = whole[local_rank * _SIZE : (local_rank + 1) * _SIZE]
    return own if len(own) == _SIZE else None


class PulseReader:
    """The launcher's side: makes the file for `ranks` ranks."""

    def __init__(self, run_dir: Path, ranks: int) -> None:
        path = run_dir / FILE_NAME
        path.write_bytes(bytes(_SIZE * ranks))
        with path.open("rb") as file:
            self._words = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, local_rank: int) -> Beat | None:
        """None where the rank is writing just now, or writes nonsense: whoever may write there isn't trusted."""
        start = local_rank * _SIZE
        word = self._words[start : start + _WORD.size]
        if word != self._words[start : start + _WORD.size]:
            return None
        section, *rest = _WORD.unpack(word)
        try:
            return Beat(Section(section), *rest)
        except ValueError:
            return None

    def close(self) -> None:
        self._words.close()
