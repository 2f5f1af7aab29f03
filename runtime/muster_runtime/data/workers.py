"""The end of a data loader's workers.

They do nothing on SIGTERM (`muster_runtime.data.seeded.WorkerInit`). Multiprocessing sends just that to those that are
left when their process ends, and then waits for them for ever: so they are killed right before. One that is stuck in a
library's deadlock would not even have run a handler of its own.
"""

from __future__ import annotations

import signal
from functools import cache
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any
from weakref import WeakSet


def ending_with_rank(items: Any) -> Any:
    """The same iterator of a DataLoader, whose workers, if it has some, are killed when this process ends."""
    _living().update(getattr(items, "_workers", ()))
    return items


@cache
def _living() -> WeakSet[BaseProcess]:
    found = WeakSet[BaseProcess]()
    # It runs before multiprocessing's own SIGTERM, and in no process that this one forks.
    Finalize(None, _kill, (found,), exitpriority=0)
    return found


def _kill(workers: WeakSet[BaseProcess]) -> None:
    left = [worker for worker in workers if worker.is_alive()]
    if left:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise that a worker was killed
    for worker in left:
        worker.kill()
