"""What reservations, backfill and expected starts cost: 12,500 nodes, 5,000 running and 10,000 waiting jobs, one core.

Run it with `make bench-reservations`. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from muster.scheduling.backfill import delays, guard
from muster.scheduling.expected import Lacking, expected_starts
from muster.scheduling.kinds import Kinds
from muster.scheduling.quota import Ledger
from muster.scheduling.room import Room
from muster.scheduling.slots import Taken
from muster.scheduling.snapshot import Jobs, JobState, Runs, Snapshot, TopologyMode
from muster.scheduling.timeline import Timeline
from muster.scheduling.topology import Tree
from planner import jobs, shapes, snapshot
from report import Target, report

NOW = 1e9
TARGETS = {"reservation_p50_ms": Target(20), "guard_p50_ms": Target(20), "expected_starts_p50_ms": Target(60)}
NOTES = {
    "reservation_p50_ms": "the earliest time and place of a gang of 128 workers that is required in one block",
    "guard_p50_ms": "once a job that waits for room: what the proof of backfill needs to know of it",
    "delays_p50_ms": "once a kind of newcomer that cannot be preempted",
    "expected_starts_p50_ms": "all 10,000 waiting jobs, half of them short of quota",
}


def world(nodes: int, running: int, waiting: int) -> Snapshot:
    """A full cluster: gangs of 1 to 32 nodes side by side; 500 shapes and 1,000 queues wait."""
    rng = np.random.default_rng(1)
    every = jobs(running + waiting, shapes(500, rng), rng)
    base = snapshot(nodes, np.ones(nodes, dtype=np.bool_), every)
    lengths = rng.multinomial(nodes, np.full(running, 1 / running))
    first = np.append(0, np.cumsum(np.append(lengths, np.zeros(waiting, dtype=np.int64))))
    holds = np.arange(running + waiting) < running
    requests = every.requests.copy()
    requests[:running] = (192_000, 2 * 2**40, 8, 1)
    started = np.where(holds, NOW - rng.random(len(holds)) * 86_400, 0.0)
    ends = np.where(holds & (rng.random(len(holds)) < 0.7), NOW + rng.random(len(holds)) * 86_400, np.inf)
    runs = replace(
        Runs.none(len(holds)),
        first=first.astype(np.int64),
        placed=rng.permutation(nodes).astype(np.int32),
        started=started,
        ends=ends,
        bound=np.where(holds, NOW + rng.random(len(holds)) * 200_000, np.inf),
        grace=np.full(len(holds), 60.0),
    )
    terms = replace(every.terms, estimate=np.where(rng.random(len(holds)) < 0.5, rng.random(len(holds)) * 9e4, np.inf))
    workers = np.where(holds, np.append(lengths, every.workers[running:]), every.workers).astype(np.int32)
    full: Jobs = replace(
        every,
        states=np.where(holds, JobState.HOLDING, JobState.PENDING).astype(np.int32),
        workers=workers,
        requests=requests,
        held=np.where(holds[:, None], requests * workers[:, None], 0),
        runs=runs,
        terms=terms,
    )
    return replace(base, jobs=full, now=NOW)


def with_head(base: Snapshot, waiting: int) -> Snapshot:
    """The first waiting job becomes a gang of 128 nodes required in one block."""
    row = len(base.jobs.uids) - waiting
    base.jobs.workers[row], base.jobs.requests[row] = 128, (192_000, 2**41, 8, 1)
    base.jobs.modes[row], base.jobs.levels[row] = TopologyMode.REQUIRED, 0
    return base


def milliseconds(times: int, work: Callable[[], object]) -> float:
    """Median of this thread's processor time."""
    took = []
    for _ in range(times):
        start = time.thread_time()
        work()
        took.append(time.thread_time() - start)
    return float(np.median(took)) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--running", type=int, default=5_000)
    parser.add_argument("--waiting", type=int, default=10_000)
    asked = parser.parse_args()
    base = with_head(world(asked.nodes, asked.running, asked.waiting), asked.waiting)
    waiting = np.flatnonzero(base.jobs.states == JobState.PENDING).astype(np.int64)
    kinds = Kinds(base, waiting, elastic=False)
    workers = kinds.workers
    tree = Tree(base.nodes.domains, base.levels)
    room, ledger = Room(base, tree, workers), Ledger(base.queues, base.jobs)
    gang = kinds.gang(kinds.of[int(waiting[0])])
    worker = workers[gang.worker]
    room.slots_when_empty(gang.worker)
    timeline = Timeline(base, tree)
    reservation = timeline.reserve(room, gang, worker)
    watched = guard(timeline, tree, room, gang, worker, reservation)
    newcomer = workers[kinds.gang(kinds.of[int(waiting[1])]).worker]
    taken = Taken(np.arange(4, dtype=np.int64), np.ones(4, dtype=np.int64))
    short, pools = np.arange(len(waiting)) % 2 == 0, np.arange(len(base.queues.names))
    size = base.jobs.workers[waiting].astype(np.int64)
    lacking = Lacking(waiting, size, short, pools, ledger.left_by_queue(), ledger.left_by_queue())
    reserved = {int(waiting[0]): (reservation.start, reservation.basis)}
    figures = {
        "reservation_p50_ms": milliseconds(11, lambda: Timeline(base, tree).reserve(room, gang, worker)),
        "guard_p50_ms": milliseconds(11, lambda: guard(timeline, tree, room, gang, worker, reservation)),
        "delays_p50_ms": milliseconds(
            11, lambda: delays(watched, room, newcomer, taken, until=np.inf, preemptible=False)
        ),
        "expected_starts_p50_ms": milliseconds(
            11, lambda: expected_starts(base, timeline, tree, room, lacking, reserved)
        ),
    }
    return 0 if report("reservations", figures, TARGETS, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
