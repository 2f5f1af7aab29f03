"""Torch's flight recorder, when the launcher asks for it: this rank's last collectives, and how far each has come.

A thread waits for the launcher's word and writes what the recorder has. It needs the interpreter for a moment, so a
rank that hangs in foreign code with the lock in its hands shows its stacks alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from muster_protocol import env
from muster_runtime import stacks


def show_when_asked(rank: int, device: torch.device) -> None:
    """From now on. Nothing happens without a launcher, or where this torch has no recorder for the device."""
    folder, dump = os.environ.get(env.RUN_DIR), _recorder(device)
    if not folder or dump is None:
        return
    ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        ears.bind(str(stacks.flight_ears(Path(folder), rank)))
    except OSError:  # a folder that is full or gone costs the record, not the training
        ears.close()
        return
    target = stacks.flight_file(Path(folder), rank)
    serving = threading.Thread(target=_serve, args=(ears, target, dump), daemon=True, name="muster-flight-recorder")
    try:
        serving.start()
    except RuntimeError:  # nor does a container that has no more threads
        ears.close()


def _recorder(device: torch.device) -> Callable[[], str | bytes] | None:
    """Of NCCL on CUDA, else of gloo, as far as this torch has them."""
    c10d = getattr(torch._C, "_distributed_c10d", None)
    dump = getattr(c10d, "_dump_nccl_trace_json" if device.type == "cuda" else "_dump_fr_trace_json", None)
    return None if dump is None else lambda: dump(includeCollectives=True, onlyActive=False)


def _serve(ears: socket.socket, target: Path, dump: Callable[[], str | bytes]) -> None:
    while ears.recv(1):
        text = dump()
        with contextlib.suppress(OSError):
            part = target.with_suffix(".part")
            part.write_bytes(text.encode() if isinstance(text, str) else text)
            part.rename(target)
