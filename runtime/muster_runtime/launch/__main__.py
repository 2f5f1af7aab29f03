"""`python -m muster_runtime.launch`, and what `muster-launch` calls."""

from __future__ import annotations

import signal
from typing import Final, NoReturn

from muster_runtime.streams import keep_standard

EARLY: Final[list[int]] = []
"""Signals that came before the launcher was ready for them."""


def main() -> NoReturn:
    """Never returns: the process exits by the exit facts.

    A pod that is deleted right after its start gets its SIGTERM while Python still imports, and a process 1 without a
    handler never hears of it: so the handlers come first, and the imports after them.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: EARLY.append(caught))
    keep_standard()
    from muster_runtime.launch.command import run

    run(asked_early=lambda: bool(EARLY))


if __name__ == "__main__":
    main()
