"""How long it takes to put 10,000 waiting jobs of 1,000 queues in order, and to open the books of their quota.

The pure part alone, on one core. Run it with `python bench/queues.py`. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from muster.scheduling.order import Ordering
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import Snapshot
from planner import crowded
from report import Target, report
from timing import fastest

NODES, RUNNING, WAITING = 12_500, 5_000, 10_000

TARGETS = {"order_ms": Target(60), "order_all_charged_ms": Target(100)}
NOTES = {
    "order_ms": f"{WAITING:,} waiting and {RUNNING:,} running jobs of 1,000 queues below 50 roots; none of them starts",
    "order_all_charged_ms": "the same when each of them starts",
    "ledger_ms": "use of quota by queue, its limits known from the plan before",
    "available_us": "what one queue may still use of one resource",
}


def ordered(world: Snapshot, *, charged: bool) -> int:
    """How many jobs were put in order."""
    ordering, count = Ordering(world), 0
    for job in ordering:
        count += 1
        if charged:
            ordering.charged(job)
    return count


def measure(repeats: int) -> dict[str, float]:
    world = crowded(NODES, RUNNING, WAITING, np.random.default_rng(20240607))
    books = Ledger(world.queues, world.jobs)
    queues, gpu = range(1_000), world.resources.index("nvidia.com/gpu")
    assert ordered(world, charged=False) == WAITING
    looks = fastest(lambda: [books.available(queue, 1, gpu) for queue in queues], repeats)
    return {
        "order_ms": fastest(lambda: ordered(world, charged=False), repeats),
        "order_all_charged_ms": fastest(lambda: ordered(world, charged=True), repeats),
        "ledger_ms": fastest(lambda: Ledger(world.queues, world.jobs), repeats),
        "available_us": looks / len(queues) * 1e3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    return 0 if report("queues", measure(parser.parse_args().repeats), TARGETS, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
