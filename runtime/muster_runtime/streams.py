"""A process may be started without stdin, stdout or stderr: by a daemon, or a shell's `<&-`."""

from __future__ import annotations

import os
from typing import Final

_STANDARD: Final = range(3)


def keep_standard() -> None:
    """Opens those of descriptors 0 to 2 that are closed, to nowhere.

    What is opened next would get such a number: the ranks' output would be written to it, and a child that is to
    inherit it has its own stdin there.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) in _STANDARD:
        os.set_inheritable(number, True)
    os.close(number)
