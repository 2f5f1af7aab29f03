"""How long it takes to choose victims, and how far the choice is from a lower bound: 1,000 candidates, one core.

12,500 full nodes of 8 GPUs in three levels; of what runs there, 1,000 jobs may be asked to go: gangs of 1 to 16 whole
nodes, and smaller jobs that share nodes, each with some work since its last checkpoint. One gang waits and gets room in
one of several ways. Each is decided over different clusters, by the code that decides over ten candidates as well.

What is lost is compared with the lower bound that the search itself gives (fractional knapsack in each domain): the gap
is 0 where the choice is proven to be the cheapest. Run it with `python bench/preemption.py`. Exit code 1 if a target is
missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import numpy as np

from muster.scheduling.demand import coming_back
from muster.scheduling.kinds import Kinds
from muster.scheduling.quota import Ledger
from muster.scheduling.room import Room
from muster.scheduling.snapshot import (
    NONE,
    PLAIN,
    UNLIMITED,
    Int,
    Jobs,
    JobState,
    Queues,
    Runs,
    Shape,
    Sizes,
    Snapshot,
    Terms,
    TopologyMode,
)
from muster.scheduling.topology import Tree
from muster.scheduling.victims import Victims, find_victims
from planner import PER_GPU, RESOURCES, cluster
from report import Target, report

NODES, CANDIDATES, REPEATS = 12_500, 1_000, 10
BLOCK, RACK, HOST = range(3)
NOW = 1e6
SEED = 20240611


@dataclass(frozen=True)
class Kind:
    """A gang that waits, and how its room is to be found.

    Attributes:
        lender: the gang's queue takes back what ten others have borrowed, and lacks quota too.
        elastic: half of the candidates can do without half of their workers.
        candidates: how many jobs may be asked.
        single: all candidates have one GPU each, eight on a node.
    """

    what: str
    workers: int
    gpus: int
    mode: TopologyMode
    level: int
    shape: Shape = PLAIN
    lender: bool = False
    elastic: bool = False
    candidates: int = CANDIDATES
    single: bool = False


KINDS = {
    "block": Kind("128 workers of 8 GPUs required in one block", 128, 8, TopologyMode.REQUIRED, BLOCK),
    "rack": Kind("16 workers of 8 required in one rack", 16, 8, TopologyMode.REQUIRED, RACK),
    "host": Kind("1 worker of 8 on one host", 1, 8, TopologyMode.REQUIRED, HOST),
    "anywhere": Kind("128 workers of 8 anywhere", 128, 8, TopologyMode.UNCONSTRAINED, NONE),
    "small": Kind("1,024 workers of 4 anywhere", 1_024, 4, TopologyMode.UNCONSTRAINED, NONE),
    "slices": Kind(
        "64 workers of 8 in one block, each 8 in one rack", 64, 8, TopologyMode.REQUIRED, BLOCK, Shape(((8, RACK),))
    ),
    "singles": Kind(
        "64 workers of 8 anywhere, all candidates have 1 GPU", 64, 8, TopologyMode.UNCONSTRAINED, NONE, single=True
    ),
    "reclaim": Kind(
        "a lender takes back 128 workers of 8, anywhere", 128, 8, TopologyMode.UNCONSTRAINED, NONE, lender=True
    ),
    "elastic": Kind(
        "128 workers of 8 in one block, half of the candidates are elastic",
        128,
        8,
        TopologyMode.REQUIRED,
        BLOCK,
        elastic=True,
    ),
    "few": Kind("4 workers of 8 in one rack, 10 candidates", 4, 8, TopologyMode.REQUIRED, RACK, candidates=10),
}
TARGETS = {f"{name}_max_ms": Target(100) for name in KINDS}
NOTES = {f"{name}_max_ms": kind.what for name, kind in KINDS.items()}


def placements(kind: Kind, nodes: int, rng: np.random.Generator) -> list[Int]:
    """Nodes of each candidate by rank: they lie in few racks when few nodes have to be found among few candidates."""
    if kind.single:
        return list(np.repeat(np.sort(rng.choice(nodes, size=kind.candidates // 8, replace=False)), 8)[:, None])
    start = np.sort(rng.choice(nodes, size=kind.candidates, replace=False))
    if kind.candidates < CANDIDATES:
        start = np.arange(kind.candidates) * 2
    room = np.diff(np.append(start, nodes))
    wanted = 2 ** rng.integers(0, 5, kind.candidates)
    sizes = np.minimum(wanted, room)
    return [np.arange(first, first + size) for first, size in zip(start.tolist(), sizes.tolist(), strict=True)]


def world(kind: Kind, nodes: int, rng: np.random.Generator) -> Snapshot:
    """A full cluster with its candidates, and the gang as row 0."""
    placed = placements(kind, nodes, rng)
    count = 1 + len(placed)
    shared = np.append(False, (rng.random(len(placed)) < 0.3) & (not kind.single))
    gpus = np.append(kind.gpus, np.where(shared[1:], 4, 1 if kind.single else 8))
    workers = np.append(kind.workers, [len(where) for where in placed]).astype(np.int32)
    holds = np.arange(count) > 0
    requests = gpus[:, None] * PER_GPU
    requests[:, 3] = 1
    there, levels = cluster(nodes, np.ones(nodes, dtype=np.bool_))
    started = NOW - rng.random(count) * 86_400
    runs = replace(
        Runs.none(count),
        first=np.concatenate([[0, 0], np.cumsum([len(where) for where in placed])]).astype(np.int64),
        placed=np.concatenate(placed).astype(np.int32),
        started=np.where(holds, started, 0.0),
        saved=np.where(holds, np.maximum(started, NOW - rng.random(count) * 3_600), 0.0),
        restart=rng.uniform(60, 300, count),
    )
    least = np.maximum(1, np.where(holds & (rng.random(count) < 0.5) & kind.elastic, workers // 2, workers))
    return Snapshot(
        RESOURCES,
        ("", "H100"),
        levels,
        replace(there, free=_half_shared(there.free.copy(), placed, shared[1:])),
        _queues(int((gpus * workers)[1:].sum()) if kind.lender else 0),
        Jobs(
            uids=tuple(f"job-{row:05}" for row in range(count)),
            states=np.where(holds, JobState.HOLDING, JobState.PENDING).astype(np.int32),
            queues=(np.where(holds, 1 + np.arange(count) % 10, 0) if kind.lender else np.zeros(count)).astype(np.int32),
            flavours=np.ones(count, dtype=np.int32),
            priorities=np.where(holds, 0, 1 - kind.lender).astype(np.int32),
            submitted=np.arange(count, dtype=np.float64),
            workers=workers,
            requests=requests.astype(np.int64),
            filters=np.zeros(count, dtype=np.int32),
            modes=np.where(holds, TopologyMode.UNCONSTRAINED, kind.mode).astype(np.int32),
            levels=np.where(holds, NONE, kind.level).astype(np.int32),
            held=(requests * (workers * holds)[:, None]).astype(np.int64),
            sizes=Sizes(least.astype(np.int32), workers, np.ones(count, np.int32), np.zeros(count, np.bool_)),
            terms=replace(Terms.plain(count), shapes=(kind.shape, *(PLAIN,) * (count - 1))),
            runs=runs,
        ),
        np.ones((1, nodes), dtype=np.bool_),
        now=NOW,
    )


def _half_shared(free: Int, placed: list[Int], shared: Int) -> Int:
    """Half of the nodes of jobs with 4 GPUs a worker have the other 4 free; on the others strangers hold them."""
    for where, half in zip(placed, shared, strict=True):
        if half:
            free[where[::2]] = 4 * PER_GPU
    free[:, 3] = 50
    return free


def _queues(lent: int) -> Queues:
    """One queue without limits; or a lender whose GPUs are all used by ten borrowers without any of their own."""
    if not lent:
        limit = np.full((1, 2, len(RESOURCES)), UNLIMITED, dtype=np.int64)
        return Queues.plain(("research",), np.array([NONE], dtype=np.int32), limit, limit, limit)
    limit = np.full((12, 2, len(RESOURCES)), UNLIMITED, dtype=np.int64)
    nominal = limit.copy()
    nominal[:11, 1, RESOURCES.index("nvidia.com/gpu")] = [lent, *(0,) * 10]
    parents = np.array([11] * 11 + [NONE], dtype=np.int32)
    return Queues.plain(("lender", *(f"borrower-{i}" for i in range(10)), "cohort"), parents, nominal, limit, limit)


def timed(there: Snapshot) -> tuple[float, Victims]:
    """Milliseconds of this thread's processor time for one decision, from rights to the gang's nodes."""
    kinds = Kinds(there, np.array([0]), elastic=False)
    workers, gang = kinds.workers, kinds.gang(kinds.of[0])
    tree = Tree(there.nodes.domains, there.levels)
    room, ledger = Room(there, tree, workers), Ledger(there.queues, there.jobs)
    start = time.thread_time()
    found = find_victims(there, tree, room, ledger, workers, gang, 0, coming_back(there, tree))
    spent = (time.thread_time() - start) * 1e3
    assert found is not None, "the gang found no victims"
    return spent, found


def measure(nodes: int, repeats: int, only: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    # numpy loads parts of itself when they are first used.
    timed(world(KINDS["few"], nodes, np.random.default_rng(SEED)))
    for name, kind in KINDS.items():
        if only and name != only:
            continue
        rng = np.random.default_rng(SEED)
        times, gaps, victims = [], [], []
        for _ in range(repeats):
            spent, found = timed(world(kind, nodes, rng))
            times.append(spent)
            gaps.append(found.decisive / found.bound - 1 if found.bound else 0.0)
            victims.append(len(found.rows))
        figures[f"{name}_max_ms"] = max(times)
        figures[f"{name}_mean_gap_percent"] = 100 * float(np.mean(gaps))
        figures[f"{name}_max_gap_percent"] = 100 * max(gaps)
        figures[f"{name}_victims"] = float(np.mean(victims))
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="clusters of each kind")
    parser.add_argument("--only", default="", choices=["", *KINDS], help="one kind alone")
    options = parser.parse_args()
    figures = measure(options.nodes, options.repeats, options.only)
    targets = {name: target for name, target in TARGETS.items() if name in figures}
    return 0 if report("preemption", figures, targets, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
