"""The pulse: how a launcher sees what each of its ranks is at, without a message or a system call a step.

A file in `MUSTER_RUN_DIR` with 256 bytes for each rank of the pod, in the order of their local ranks. The launcher
makes it; a rank maps it into memory and writes its own bytes, little-endian:

    byte 0        the section (`Section`)
    byte 1        what its time counts as now (`Part`)
    bytes 8..16   beats: counts signs of life
    bytes 16..24  the run's step
    bytes 24..32  steps that this process has done, the first of them left out
    bytes 32..40  double: seconds that they took, without evaluations and checkpoints in them
    bytes 40..48  the process
    bytes 48..56  steps that the run had done before, which the launcher writes and the rank reads
    bytes 56..120 nanoseconds: when it wrote this (CLOCK_MONOTONIC), and what its time until then counts as, by part
    bytes 120..184 the same at the end of its last step
    bytes 184..192 double: of the seconds of its steps, those in which the rank worked by itself and waited for nobody
    bytes 192..   doubles: the seconds of its steps by stage (`Stage`), and beside them those of saves

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
from typing import Any, Final, Protocol

from muster_protocol import env
from muster_runtime.telemetry.goodput import Account, Part, Told

FILE_NAME: Final = "pulse"
_SIZE: Final = 256
_TIMES: Final = len(Part)
_REACHED: Final = struct.Struct("<48xQ")
_BEATS: Final = 2
"""Places in a word."""
_ACCOUNT: Final = 8
_SECOND: Final = 1e9
_NANOSECOND: Final = 1e-9


class Section(IntEnum):
    """What a rank is at. Each has a time of its own."""

    NONE = 0
    """No session was started, and perhaps none will be."""
    START = 1
    """From the loop's begin until its first step is done."""
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
    JOIN = 8
    """The ranks join: each waits for all others."""


_PARTS: Final = tuple(
    {
        Section.NONE: Part.STARTING,
        Section.SETUP: Part.STARTING,
        Section.START: Part.STARTING,
        Section.JOIN: Part.STARTING,
        Section.CHECKPOINT: Part.CHECKPOINT,
    }.get(section, Part.TRAINING)
    for section in Section
)
"""By section; a tuple, for these are looked up several times a step."""


class Stage(IntEnum):
    """What a step's time goes to."""

    DATA = 0
    """Waiting for a batch."""
    COMPUTE = 1
    """The script's own work, and forward and backward pass where nothing tells them apart."""
    FORWARD = 2
    BACKWARD = 3
    """From the model's end on: the loss, the gradients, and their sum over all ranks."""
    OPTIMIZER = 4
    BOUNDARY = 5
    """The step is done, and the others are waited for."""
    CHECKPOINT = 6
    """Training stands still for a save. Beside the steps: it is not part of their time."""
    NONE = 7
    """No step goes on."""


STAGES: Final = tuple(Stage)[: Stage.NONE]
"""Those whose time is told."""
_STAGE_OF: Final = tuple(
    {
        Section.STEP: Stage.COMPUTE,
        Section.BOUNDARY: Stage.BOUNDARY,
        Section.CHECKPOINT: Stage.CHECKPOINT,
    }.get(section, Stage.NONE)
    for section in Section
)
_NOW: Final = struct.Struct(f"<BB6xQQQdQQ{1 + _TIMES}q")
"""Of a word, what changes within a step."""
_WORD: Final = struct.Struct(f"<BB6xQQQdQQ{2 * (1 + _TIMES)}qd{len(STAGES)}d")
_OWN: Final = -1 - len(STAGES)
_DATA, _COMPUTE, _BOUNDARY, _CHECKPOINT = Stage.DATA, Stage.COMPUTE, Stage.BOUNDARY, Stage.CHECKPOINT
_DATA_WAIT: Final = Part.DATA_WAIT
"""Names of the module's own, which are found sooner than an enum's."""


@dataclass(frozen=True)
class Beat:
    """What a rank wrote last. `steps` and `seconds` count those that tell how long a step usually takes, and `stages`
    are their seconds by `STAGES`."""

    section: Section = Section.NONE
    beats: int = 0
    step: int = 0
    steps: int = 0
    seconds: float = 0.0
    pid: int = 0
    own: float = 0.0
    stages: tuple[float, ...] = (0.0,) * len(STAGES)


class DeviceTimer(Protocol):
    """Times a rank's work where it happens: on a device that runs behind the script."""

    def mark(self, stage: Stage, own: bool) -> None:
        """What the device is given from now on belongs to `stage`."""

    def take(self) -> tuple[list[float], float]:
        """Seconds by stage, `NONE` included, and those of them that were own work, between marks that the device has
        come past since the last call. Never waits."""


class Pulse:
    """A rank's side. Without a launcher it is written nowhere.

    A step's own time is what is in the section `STEP` and not between `shares` and `owns`. The wait for data is always
    own.
    """

    def __init__(self, local_rank: int = 0, run_dir: str | None = None) -> None:
        self.timer: DeviceTimer | None = None
        self._together = False
        self._stage, self._owned, self._settles = Stage.NONE, False, False
        self._own, self._stages = 0.0, [0.0] * len(STAGES)
        self._own_here, self._stages_here = 0, [0] * len(Stage)  # in this step, in nanoseconds
        self._turned = time.monotonic_ns()
        self._word = _map(run_dir or os.environ.get(env.RUN_DIR), local_rank)
        self._pid = os.getpid()
        self._section, self._beats = Section.NONE, 0
        self._step = self._steps = 0
        self._started = False
        self._seconds, self._here = 0.0, 0
        self._reached = _REACHED.unpack_from(self._word)[0] if self._word is not None else 0
        self._account = Account(time.monotonic_ns())

    @property
    def section(self) -> Section:
        return self._section

    @property
    def step(self) -> int:
        return self._step

    def enter(self, section: Section, part: Part | None = None) -> None:
        """The rank is at something else now; or at the same, and lives. `part`: what its time counts as, where that
        doesn't follow from the section."""
        self._enter(section, part, settles=not self._started)
        self._write()

    def _enter(self, section: Section, part: Part | None, *, settles: bool) -> None:
        now, before = time.monotonic_ns(), self._account.at
        if self._stage < _CHECKPOINT:
            self._here += now - before
        stage = _STAGE_OF[section]
        if stage is _COMPUTE and part is _DATA_WAIT:
            stage = _DATA
        self._turn(now, stage, self._together)
        self._section = section
        part = _PARTS[section] if part is None else part
        self._account.enter(part, now, again=self._step < self._reached, settles=settles)
        self._settles |= settles

    def shares(self, stage: Stage = Stage.BACKWARD) -> None:
        """What follows is done together with the other ranks: its time may be a wait for them."""
        self._turn(time.monotonic_ns(), stage if self._section is Section.STEP else self._stage, True)

    def owns(self, stage: Stage = Stage.COMPUTE) -> None:
        """What follows the rank does by itself."""
        self._turn(time.monotonic_ns(), stage if self._section is Section.STEP else self._stage, False)

    def _turn(self, now: int, stage: Stage, together: bool) -> None:
        passed, self._turned = now - self._turned, now
        self._stages_here[self._stage] += passed
        if self._owned:
            self._own_here += passed
        owned = stage is _DATA or (stage < _BOUNDARY and not together)
        if self.timer is not None and (stage is not self._stage or owned is not self._owned):
            self.timer.mark(stage, owned)
        self._stage, self._together, self._owned = stage, together, owned

    @contextmanager
    def during(self, section: Section, part: Part | None = None) -> Iterator[None]:
        before = self._section, self._account.part
        self.enter(section, part)
        try:
            yield
        finally:
            self.enter(*before)

    @contextmanager
    def waits_for_data(self) -> Iterator[None]:
        """While the loop, or an evaluation, waits for a batch. Before the loop that is the script's own matter."""
        before = self._section, self._account.part
        if self._section in (Section.NONE, Section.SETUP):
            yield
            return
        self.enter(self._section, Part.DATA_WAIT)
        try:
            yield
        finally:
            self.enter(*before)

    def evaluates(self) -> None:
        """A batch that isn't trained on is at hand: an evaluation, though the script doesn't call it one."""
        if self._section not in (Section.SETUP, Section.OUTSIDE):
            self.enter(Section.EVALUATION)

    def begin(self, step: int) -> None:
        """A loop begins after `step` steps. Its first one may compile, and tells nothing of the others."""
        self._enter(Section.START, None, settles=True)
        self._stand_at(step)
        self._started = False
        self._write()

    def step_opens(self) -> None:
        if self._stage is not _COMPUTE:  # else the end of the wait for its batch has told it
            self.enter(Section.STEP if self._started else Section.START, Part.TRAINING)

    def step_done(self, step: int) -> None:
        """`step` steps of the run are done, by all ranks."""
        self._enter(Section.STEP, None, settles=True)
        self.owns()
        here, own = [nanoseconds * _NANOSECOND for nanoseconds in self._stages_here], self._own_here * _NANOSECOND
        if self.timer is not None:
            on_device, own = self.timer.take()
            here[: Stage.BOUNDARY] = on_device[: Stage.BOUNDARY]
        if self._started:
            self._steps, self._seconds = self._steps + 1, self._seconds + self._here / _SECOND
            self._own += own
            self._stages = [before + more for before, more in zip(self._stages, here, strict=False)]
        self._stand_at(step)
        self._here, self._own_here, self._stages_here, self._started = 0, 0, [0] * len(Stage), True
        self._write()

    def _stand_at(self, step: int) -> None:
        self._reached, self._step = max(self._reached, self._step), step

    def leave(self) -> None:
        """The loop is over: what the script does now is its own."""
        self._enter(Section.OUTSIDE, None, settles=True)
        self._write()

    def _write(self) -> None:
        """All of the word where something settled, and else only what changes within a step."""
        self._beats += 1
        if self._word is None:
            return
        account = self._account
        now = (
            self._section,
            account.part,
            self._beats,
            self._step,
            self._steps,
            self._seconds,
            self._pid,
            self._reached,
            account.at,
            *account.times,
        )
        if not self._settles:
            self._word[: _NOW.size] = _NOW.pack(*now)
            return
        self._settles = False
        word = _WORD.pack(*now, account.settled_at, *account.settled, self._own, *self._stages)
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
    """The launcher's side: makes the file for `ranks` ranks of a run that has done `reached` steps before."""

    def __init__(self, run_dir: Path, ranks: int, reached: int = 0) -> None:
        path = run_dir / FILE_NAME
        path.write_bytes(_REACHED.pack(reached).ljust(_SIZE, b"\0") * ranks)
        with path.open("rb") as file:
            self._words = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, local_rank: int) -> Beat | None:
        """None where the rank is writing just now, or writes nonsense: whoever may write there isn't trusted."""
        word = self._read(local_rank)
        if word is None:
            return None
        section, _, beats, step, steps, seconds, pid, *_ = word
        try:
            return Beat(Section(section), beats, step, steps, seconds, pid, word[_OWN], word[_OWN + 1 :])
        except ValueError:
            return None

    def reached(self) -> int:
        """Steps that some rank has done; 0 where none tells."""
        beats = (self.read(local_rank) for local_rank in range(len(self._words) // _SIZE))
        return max((beat.step for beat in beats if beat is not None), default=0)

    def told(self, local_rank: int) -> Told | None:
        """What the rank's time counts as; None likewise, and before its session begins."""
        word = self._read(local_rank)
        if word is None or not word[_BEATS]:
            return None
        times, settled = word[_ACCOUNT : _ACCOUNT + _TIMES + 1], word[_ACCOUNT + _TIMES + 1 : _OWN]
        try:
            return Told(Part(word[1]), times[0], times[1:], settled[0], settled[1:])
        except ValueError:
            return None

    def _read(self, local_rank: int) -> tuple[Any, ...] | None:
        start = local_rank * _SIZE
        word = self._words[start : start + _WORD.size]
        if word != self._words[start : start + _WORD.size]:
            return None
        return _WORD.unpack(word)

    def close(self) -> None:
        self._words.close()
