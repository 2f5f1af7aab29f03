"""Threads that work beside the training give way to it."""

from __future__ import annotations

import os
import threading
from typing import Final

NICENESS: Final = 19
"""Two such threads and a training thread on one core: it keeps 97 % of it. At 10 it would be 82 %."""


def give_way() -> None:
    """This thread alone. For threads of a process whose others must not wait for them: on a full machine such a thread
    may stand still while it holds the interpreter, the longer the lower its priority."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def only_when_idle() -> None:
    """This thread alone. It leaves a core at once when a rank has something to do there.

    A niced thread keeps it for its whole slice, some milliseconds, though the rank that wakes has nearly all the right
    to it. Ranks sleep and wake at each of their exchanges, and who wakes late holds up all others.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # a sandbox that knows no such policy
        give_way()
