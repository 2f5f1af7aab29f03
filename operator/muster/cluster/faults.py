"""Fault points: the process ends before or after its n-th write, where a test asks for it. Off unless asked for.

MUSTER_FAULT=before:17 ends the process (exit code 99) just before its 17th write is sent, `after:17` just after its
answer has come, `before:create-pods:3` before the third write of that kind. MUSTER_FAULT_LOG=FILE appends one line a
write, `NUMBER VERB-RESOURCE PATH`, so that a test can enumerate them.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Final

EXIT_CODE: Final = 99

_DRILL: Final = os.environ.get("MUSTER_FAULT", "")
_LOG: Final = os.environ.get("MUSTER_FAULT_LOG", "")
_counts: Counter[str] = Counter()


def before_write(kind: str, path: str) -> int:
    """Count a write; may not return. Returns its number, for `after_write`. `kind` is like `create-pods`."""
    if not _DRILL and not _LOG:
        return 0
    _counts[""] += 1
    _counts[kind] += 1
    if _LOG:
        with Path(_LOG).open("a") as log:
            log.write(f"{_counts['']} {kind} {path}\n")
    _end_if_asked("before", kind, _counts[""], _counts[kind])
    return _counts[kind] << 32 | _counts[""]


def after_write(kind: str, number: int) -> None:
    """The write that got `number` has been answered; may not return."""
    if _DRILL:
        _end_if_asked("after", kind, number & 0xFFFFFFFF, number >> 32)


def _end_if_asked(moment: str, kind: str, number: int, of_kind: int) -> None:
    if _DRILL in (f"{moment}:{number}", f"{moment}:{kind}:{of_kind}"):
        os._exit(EXIT_CODE)
