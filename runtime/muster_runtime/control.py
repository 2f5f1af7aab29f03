"""The control word: how a launcher tells its ranks to stop, without a signal and without a system call a step.

A file of 64 bytes in `MUSTER_RUN_DIR` that the launcher writes and every rank maps into memory:

    byte 0        0 run on, 1 stop
    bytes 8..16   little-endian double: when the grace ends, on this machine's monotonic clock, in seconds
    bytes 16..40  the last profile that was asked for: its number, steps, flags (1 all ranks, 2 memory, too) and when,
                  in seconds since the epoch
    bytes 40..48  little-endian double: hours between two failures of one node, as the operator has told; 0 before
    bytes 48..56  little-endian: how many saves were asked for

The deadline is written before the flag, so a rank that sees the flag also sees the deadline.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster_protocol import env

FILE_NAME: Final = "control"
SIZE: Final = 64
_DEADLINE: Final = struct.Struct("<d")
_PROFILE: Final = struct.Struct("<QIId")
_PROFILE_AT: Final = 16
_EVERYBODY, _MEMORY = 1, 2
_HOURS: Final = struct.Struct("<d")
_HOURS_AT: Final = 40
_SAVES: Final = struct.Struct("<Q")
_SAVES_AT: Final = 48


@dataclass(frozen=True)
class Wish:
    """A profile that was asked for. `at`: seconds since the epoch."""

    number: int
    steps: int
    everybody: bool
    memory: bool
    at: float


class ControlWriter:
    """The launcher's side."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / FILE_NAME
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._word = mmap.mmap(file.fileno(), SIZE)

    def ask_stop(self, deadline: float) -> None:
        """`deadline` is on the monotonic clock. Asking again may only bring the deadline nearer."""
        if self._word[0] and deadline >= self._deadline():
            return
        self._word[8:16] = _DEADLINE.pack(deadline)
        self._word[0] = 1

    def ask_profile(self, wish: Wish) -> None:
        flags = wish.everybody * _EVERYBODY + wish.memory * _MEMORY
        word = _PROFILE.pack(wish.number, wish.steps, flags, wish.at)
        self._word[_PROFILE_AT : _PROFILE_AT + len(word)] = word

    def tell_node_hours(self, hours: float) -> None:
        self._word[_HOURS_AT : _HOURS_AT + _HOURS.size] = _HOURS.pack(hours)

    def ask_save(self, number: int) -> None:
        """`number` is how many were asked for, this one included."""
        self._word[_SAVES_AT : _SAVES_AT + _SAVES.size] = _SAVES.pack(number)

    def _deadline(self) -> float:
        (value,) = _DEADLINE.unpack(self._word[8:16])
        return float(value)

    def close(self) -> None:
        self._word.close()


class ControlReader:
    """A rank's side. Without a launcher it never asks to stop."""

    def __init__(self, run_dir: str | None = None) -> None:
        folder = run_dir or os.environ.get(env.RUN_DIR)
        self._word: mmap.mmap | None = None
        self.folder = Path(folder) if folder else None
        if folder:
            with (Path(folder) / FILE_NAME).open("rb") as file:
                self._word = mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ)

    def stop_requested(self) -> bool:
        return self._word is not None and self._word[0] == 1

    def wish(self) -> Wish | None:
        """The last profile that was asked for."""
        if self._word is None:
            return None
        number, steps, flags, at = _PROFILE.unpack_from(self._word, _PROFILE_AT)
        return Wish(number, steps, bool(flags & _EVERYBODY), bool(flags & _MEMORY), at) if number else None

    def node_hours(self) -> float | None:
        """Hours between two failures of one node, as they were told last; None before."""
        if self._word is None:
            return None
        (hours,) = _HOURS.unpack(self._word[_HOURS_AT : _HOURS_AT + _HOURS.size])
        return float(hours) or None

    def saves_asked(self) -> int:
        """How many saves people have asked for."""
        if self._word is None:
            return 0
        (number,) = _SAVES.unpack_from(self._word, _SAVES_AT)
        return int(number)

    def deadline(self) -> float | None:
        """When the grace ends, on the monotonic clock; None while nobody asked to stop."""
        if self._word is None or not self.stop_requested():
            return None
        (value,) = _DEADLINE.unpack(self._word[8:16])
        return float(value)
