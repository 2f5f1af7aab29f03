"""Threads that work beside the training give way to it."""

from __future__ import annotations

import os
import threading
from typing import Final

NICENESS: Final = 19
"""Two such threads and a training thread on one core: it keeps 97 % of it. At 10 it would be 82 %."""


def give_way() -> None:
    """This thread alone: sums, uploads and copies wait for the training, which waits for what is fetched back."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
