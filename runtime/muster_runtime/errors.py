"""Errors that a training script can meet: those of checkpoints, and those of its own use of the session."""

from __future__ import annotations

import os
import sys
from typing import Final

from muster_protocol.errors import (
    CorruptCheckpointError,
    MusterError,
    PathConflictError,
    StaleEpochError,
    StartError,
    StateError,
    StorageError,
    StorageRefusedError,
    storage_error,
)

__all__ = [
    "CorruptCheckpointError",
    "MusterError",
    "NumericsError",
    "PathConflictError",
    "StaleEpochError",
    "StartError",
    "StateError",
    "StorageError",
    "StorageRefusedError",
    "TornSaveError",
    "UsageError",
    "caller",
    "is_ours",
    "storage_error",
]

_OWN_FOLDER: Final = os.path.dirname(os.path.abspath(__file__))


class UsageError(MusterError):
    """The script uses the session in a way that would lose or mix up state. Names the line to change."""


class TornSaveError(MusterError):
    """What a save copied beside the training may have changed meanwhile. It is left out; nothing is lost but that."""


class NumericsError(MusterError):
    """Losses or gradients are not sound, and the run can't go on as the job asks for. Starting again wouldn't help."""


def is_ours(filename: str) -> bool:
    """Whether a frame's file is of this package."""
    return os.path.abspath(filename).startswith(_OWN_FOLDER + os.sep)


def caller() -> str:
    """`file:line` of the nearest frame that is neither ours nor torch's: the user's line."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        library = f"{os.sep}torch{os.sep}" in name or name.startswith("<") or name.endswith("contextlib.py")
        if not is_ours(name) and not library:
            return f"{name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "an unknown line"
