"""The standard streams. A process may be started without them, by a daemon or a shell's `<&-`, or close them itself."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

_STANDARD: Final = range(3)
SESSIONS: Final = "muster: "
"""Begins each line of the session's own, by which the script's are told from it."""


def keep_standard() -> None:
    """Opens those of descriptors 0 to 2 that are closed, to nowhere.

    What is opened next would get such a number: the ranks' output would be written to it, and a child that is to
    inherit it has its own stdin there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) in _STANDARD:
        os.set_inheritable(number, True)
    os.close(number)


def tell(message: str) -> None:
    """One line of the session's on stderr. No run ends because its script, or what has that in place, has closed it."""
    with suppress(OSError, ValueError):
        print(f"{SESSIONS}{message}", file=sys.stderr, flush=True)
