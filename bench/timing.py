"""How long something takes, in processor time: other work on the machine is not the benchmark's."""

from __future__ import annotations

import time
from collections.abc import Callable


def fastest(run: Callable[[], object], repeats: int) -> float:
    """The fewest milliseconds of this thread's processor time that one of the calls took."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        run()
        times.append((time.thread_time() - start) * 1e3)
    return min(times)
