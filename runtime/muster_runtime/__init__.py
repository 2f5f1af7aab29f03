"""What runs inside a training pod: the session that a script uses, the launcher that starts it, the checkpoints.

Names are looked up when they are used, so that the launcher and the storage process, which import parts of this
package, don't load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster_runtime.errors import (
    CorruptCheckpointError,
    MusterError,
    StaleEpochError,
    StateError,
    StorageError,
    UsageError,
)

if TYPE_CHECKING:
    from muster_runtime.data.loader import Loader
    from muster_runtime.session.session import Session
    from muster_runtime.session.start import start

__all__ = [
    "CorruptCheckpointError",
    "Loader",
    "MusterError",
    "Session",
    "StaleEpochError",
    "StateError",
    "StorageError",
    "UsageError",
    "start",
]

_HOMES = {
    "Loader": "muster_runtime.data.loader",
    "Session": "muster_runtime.session.session",
    "start": "muster_runtime.session.start",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
