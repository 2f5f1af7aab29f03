"""What threads beside the training cost ranks that wait for one another: niced ones, and those that run when idle.

Twice as many ranks as cores work for a millisecond and exchange a byte with all others, as in the steps of a gang on a
full machine; beside them run twice as many processes that only sum memory, as a storage process does. Exit code 1 if a
target is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from itertools import combinations
from multiprocessing.connection import Connection
from typing import Any, Final

from muster_runtime.checkpoint.crc import crc32
from muster_runtime.checkpoint.niceness import give_way, only_when_idle
from report import Target, report

WORK_SECONDS: Final = 0.001
TARGETS: Final = {"idle_share": Target(1.25)}
NOTES: Final = {
    "alone_ms": "a step with nothing beside it, median of the rounds",
    "niced_ms": "beside sums at nice 19",
    "idle_ms": "beside sums that run when idle, as a checkpoint's do",
    "niced_share": "niced_ms over alone_ms",
    "idle_share": "idle_ms over alone_ms",
}


def burn(give: Callable[[], None]) -> None:
    give()
    content = bytes(1 << 20)
    while True:
        crc32(content)


def train(links: list[Connection], steps: int, told: Any) -> None:
    began = time.monotonic()
    for _ in range(steps):
        until = time.process_time() + WORK_SECONDS
        while time.process_time() < until:
            pass
        for link in links:
            link.send_bytes(b"1")
        for link in links:
            link.recv_bytes()
    told.put((time.monotonic() - began) / steps * 1e3)


def step_ms(ranks: int, steps: int, give: Callable[[], None] | None) -> float:
    """The slowest rank's mean step."""
    links: dict[int, list[Connection]] = {rank: [] for rank in range(ranks)}
    for one, other in combinations(range(ranks), 2):
        ends = multiprocessing.Pipe()
        links[one].append(ends[0])
        links[other].append(ends[1])
    told: Any = multiprocessing.Queue()
    beside = [multiprocessing.Process(target=burn, args=(give,), daemon=True) for _ in range(2 * ranks if give else 0)]
    gang = [multiprocessing.Process(target=train, args=(links[rank], steps, told)) for rank in range(ranks)]
    try:
        for process in (*beside, *gang):
            process.start()
        return max(float(told.get()) for _ in gang)
    finally:
        for process in beside:
            process.kill()
        for process in (*beside, *gang):
            process.join()


def measure(rounds: int, steps: int) -> Mapping[str, float]:
    ranks = 2 * len(os.sched_getaffinity(0))
    ways: dict[str, Callable[[], None] | None] = {"alone": None, "niced": give_way, "idle": only_when_idle}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, give in ways.items():
            found[name].append(step_ms(ranks, steps, give))
    median = {name: statistics.median(each) for name, each in found.items()}
    shares = {f"{name}_share": median[name] / median["alone"] for name in ("niced", "idle")}
    return {**{f"{name}_ms": each for name, each in median.items()}, **shares}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    return 0 if report("yielding", measure(options.rounds, options.steps), TARGETS, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
