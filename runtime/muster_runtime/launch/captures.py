"""What processes that don't get on are at: their Python stacks, and how the kernel sees them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from muster_runtime import stacks
from muster_runtime.launch.processes import listens, state

CAPTURE_SECONDS: Final = 2.0
"""How long stacks are waited for. Writing them takes milliseconds; a process that doesn't now, doesn't at all."""
_LOOK_SECONDS: Final = 0.05
_STOPPED: Final = "Tt"
_BYTES_AT_MOST: Final = 8 * 1024 * 1024
_COLLECTIVES_SHOWN: Final = 5
_WAITING: Final = {"T": "is stopped by a signal", "t": "is stopped by a debugger", "D": "waits in the kernel"}


def explained(pid: int, letter: str) -> str:
    """How a process is that shows no stack, for people: `is stopped by a signal (T, do_signal_stop)`."""
    where = ""
    with contextlib.suppress(OSError):
        where = Path(f"/proc/{pid}/wchan").read_text().strip("0\n")
    told = ", ".join(filter(None, (letter, where)))
    return f"{_WAITING.get(letter, 'shows no stack')}{f' ({told})' if told else ''}"


async def capture(pids: Mapping[int, int], folder: Path) -> dict[int, str]:
    """What the processes, by rank, have written of the stacks of their threads, those that write anything.

    One that is stopped would write when it goes on, so it isn't asked; nor is one without a handler, which would end.
    """
    asked = {rank: pid for rank, pid in pids.items() if state(pid) not in _STOPPED and listens(pid, stacks.SIGNAL)}
    before = {rank: _size(stacks.file_of(folder, rank)) for rank in asked}
    for pid in asked.values():
        with contextlib.suppress(OSError):
            os.kill(pid, stacks.SIGNAL)
    sizes, until = dict(before), time.monotonic() + CAPTURE_SECONDS
    pending = set(before)
    while pending and time.monotonic() < until:
        await asyncio.sleep(_LOOK_SECONDS)
        for rank in tuple(pending):
            size = _size(stacks.file_of(folder, rank))
            if size == sizes[rank] > before[rank]:
                pending.remove(rank)  # it has written, and writes no more
            sizes[rank] = size
    return {rank: _read(stacks.file_of(folder, rank), start) for rank, start in before.items() if sizes[rank] > start}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the run folder may go meanwhile
        return 0


def _read(path: Path, start: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(_BYTES_AT_MOST).decode(errors="replace")
    except OSError:
        return ""


def main_thread(dump: str) -> str:
    """Of what `faulthandler` wrote, the main thread's calls, the innermost first, without the line that names it.

    Threads stand in the order of their start, the newest first.
    """
    block = dump.strip().split("\n\n")[-1]
    return "\n".join(line for line in block.split("\n") if line.startswith("  "))


async def flight(pids: Mapping[int, int], folder: Path) -> dict[int, str]:
    """What torch's flight recorder has of the collectives of the processes, by rank, as JSON; of those that have a
    recorder and aren't stopped."""
    asked = set()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
        mouth.setblocking(False)
        for rank in (rank for rank, pid in pids.items() if state(pid) not in _STOPPED):
            with contextlib.suppress(OSError):
                stacks.flight_file(folder, rank).unlink(missing_ok=True)
                mouth.sendto(b"?", str(stacks.flight_ears(folder, rank)))
                asked.add(rank)
    until, found = time.monotonic() + CAPTURE_SECONDS, {}
    while asked and time.monotonic() < until:
        await asyncio.sleep(_LOOK_SECONDS)
        for rank in tuple(asked):
            if record := _read(stacks.flight_file(folder, rank), 0):
                found[rank] = record
                asked.remove(rank)
    return found


def collectives(record: str) -> list[str]:
    """The last ones in a flight recorder's JSON, a line each: number in their process group, name, sizes, state."""
    try:
        entries = json.loads(record)["entries"]
        return [
            f"collective {one.get('collective_seq_id')} of group {(one.get('process_group') or ['?'])[0]}: "
            f"{one.get('profiling_name')} {one.get('input_sizes')} {one.get('state')}"
            for one in entries[-_COLLECTIVES_SHOWN:]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return []
