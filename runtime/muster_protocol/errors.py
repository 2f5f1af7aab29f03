"""Errors that anyone who works with checkpoints can meet. Each says what is wrong, where, and how to mend it."""

from __future__ import annotations

from muster_protocol.storage_errors import LASTING


class MusterError(Exception):
    """Base of everything that Muster raises into a script."""


class StateError(MusterError):
    """A state that can't be stored, or a checkpoint that doesn't fit what is asked of it."""


class StartError(StateError):
    """There is no such checkpoint of another run as `checkpoint.from` names, or it is not whole. So it would be for
    another start."""


class CorruptCheckpointError(MusterError):
    """A checkpoint, or a part of one, is missing or isn't what its manifest says."""


class StaleEpochError(MusterError):
    """Another gang has claimed this run's checkpoints; this one may not commit any more."""


class PathConflictError(StaleEpochError):
    """That other gang is another job's. Another start of this one would only take the run back from it."""


class StorageError(MusterError):
    """The checkpoint's store refuses, or can't be reached.

    `kind` is one of `muster_protocol.storage_errors.Kind`'s values.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message)  # both in args, so that it survives the way from rank to rank
        self.kind = kind

    def __str__(self) -> str:
        return str(self.args[1])


class StorageRefusedError(StorageError):
    """The store refuses for good: no such bucket, access denied, wrong settings. Somebody has to mend that."""


def storage_error(kind: str, message: str) -> StorageError:
    """The error for `kind`. Its class's name is in the traceback, which is all that the launcher sees of it."""
    lasting = kind in {k.value for k in LASTING}
    return StorageRefusedError(kind, message) if lasting else StorageError(kind, message)
