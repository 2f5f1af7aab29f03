"""How long one plan takes: 12,500 nodes of 8 GPUs in 3 levels and 10,000 waiting jobs, on one core.

The planner alone: arrays in, plan out. Run it with `python bench/planner.py`; `--nodes` and `--jobs` make it smaller.
Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace

import numpy as np

from muster.controllers.garbage import no_looks, short_looks
from muster.scheduling.plan import Plan, WaitReason
from muster.scheduling.planner import plan
from muster.scheduling.policy import DEFAULT, Policy
from muster.scheduling.snapshot import (
    NONE,
    UNLIMITED,
    Jobs,
    JobState,
    Levels,
    Mask,
    Nodes,
    Queues,
    Runs,
    Sizes,
    Snapshot,
    Terms,
    TopologyMode,
)
from report import Target, report

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "pods")
NODE = np.array([192_000, 2 * 2**40, 8, 110], dtype=np.int64)
PER_GPU = np.array([16_000, 160 * 2**30, 1, 0], dtype=np.int64)
NODES_PER_RACK, RACKS_PER_BLOCK = 32, 16
LEVELS = ("block", "rack", "host")
QUEUES, COHORTS = 1_000, 50
NOW = 1e9

TARGETS = {
    "required_gang_p50_ms": Target(5),
    "required_gang_p99_ms": Target(20),
    "replan_few_shapes_ms": Target(250),
    "replan_many_shapes_ms": Target(1_500),
    "replan_quota_ms": Target(1_500),
    "full_cycle_ms": Target(250),
    "admit_all_ms": Target(10_000),
}
NOTES = {
    "required_gang_p50_ms": "one gang of 1,024 GPUs required in one block, cluster half full, whole call",
    "required_gang_p99_ms": "the same",
    "replan_few_shapes_ms": "full cluster, all jobs wait, 8 shapes: nothing to admit, every reason told",
    "replan_many_shapes_ms": "the same with 500 shapes, half of them with topology",
    "replan_quota_ms": "the same, and each of 1,000 queues has a thousandth of the GPUs and borrows in its cohort",
    "full_cycle_ms": "10,000 wait, 5,000 run, 500 shapes, 1,000 queues: reason, position and expected start for all",
    "full_cycle_read_ms": "the same, and everybody's sentence is read",
    "admit_all_ms": "empty cluster, all jobs of 1 to 16 workers start until it is full",
    "admitted_jobs": "jobs that the last figure started",
    "simulator_plan_ms": "256 nodes of 8 GPUs, 150 run, 40 wait, no quota; decided, not explained",
    "decide_2000_alike_ms": "640 nodes, 30 queues in 5 cohorts, 360 run, 2,000 of 9 kinds wait; decided, not explained",
    "explain_2000_alike_ms": "the same, and each is told why",
    "decide_14000_alike_ms": "the same with 14,000 that wait, decided",
    "explain_14000_alike_ms": "and explained",
}


@dataclass(frozen=True)
class Shapes:
    """Kinds of gangs: GPUs of a worker, workers, mode and level; one row a shape."""

    gpus: np.ndarray
    workers: np.ndarray
    modes: np.ndarray
    levels: np.ndarray


def cluster(nodes: int, busy: Mask) -> tuple[Nodes, Levels]:
    """`busy` nodes give everything away, the others nothing."""
    index = np.arange(nodes)
    rack = index // NODES_PER_RACK
    domains = np.stack([rack // RACKS_PER_BLOCK, rack, index], axis=1).astype(np.int32)
    allocatable = np.tile(NODE, (nodes, 1))
    free = np.where(busy[:, None], 0, allocatable)
    names = tuple(f"node-{node}" for node in index)
    levels = Levels(
        LEVELS, (*(tuple(f"{LEVELS[at]}-{d}" for d in range(domains[:, at].max() + 1)) for at in (0, 1)), names)
    )
    return (
        Nodes(names, free, allocatable, np.ones(nodes, np.bool_), domains, np.ones(nodes, np.int32)),
        levels,
    )


def queues(gpus: int) -> Queues:
    """Equal shares of the cluster, borrowing and lending without limit below 50 roots."""
    shape = (QUEUES + COHORTS, 2, len(RESOURCES))
    nominal = np.full(shape, UNLIMITED, dtype=np.int64)
    nominal[:QUEUES, 1, RESOURCES.index("nvidia.com/gpu")] = max(1, gpus // QUEUES)
    limit = np.full(shape, UNLIMITED, dtype=np.int64)
    names = (*(f"queue-{queue}" for queue in range(QUEUES)), *(f"cohort {cohort}" for cohort in range(COHORTS)))
    parents = np.concatenate([QUEUES + np.arange(QUEUES) % COHORTS, np.full(COHORTS, NONE)]).astype(np.int32)
    return Queues.plain(names, parents, nominal, limit, limit)


def shapes(count: int, rng: np.random.Generator) -> Shapes:
    modes = np.where(np.arange(count) % 2, TopologyMode.UNCONSTRAINED, rng.choice([1, 2], count))
    return Shapes(
        gpus=rng.choice([1, 2, 4, 8, 8, 8], count),
        workers=rng.integers(1, 17, count) if count > 16 else 2 ** rng.integers(0, 5, count),
        modes=modes,
        levels=np.where(modes == TopologyMode.UNCONSTRAINED, NONE, rng.choice([0, 1], count)),
    )


def jobs(count: int, kinds: Shapes, rng: np.random.Generator) -> Jobs:
    kind = rng.integers(0, len(kinds.gpus), count)
    requests = kinds.gpus[kind][:, None] * PER_GPU
    # Shapes that ask for the same GPUs still differ a little in memory, as real ones do.
    requests[:, 1] += (kind % 97) * 2**20
    requests[:, 3] = 1
    return Jobs(
        uids=tuple(f"job-{job:06}" for job in range(count)),
        states=np.full(count, JobState.PENDING, dtype=np.int32),
        queues=rng.integers(0, QUEUES, count).astype(np.int32),
        flavours=np.ones(count, dtype=np.int32),
        priorities=rng.integers(0, 3, count).astype(np.int32),
        submitted=rng.random(count) * 1e6,
        workers=kinds.workers[kind].astype(np.int32),
        requests=requests.astype(np.int64),
        filters=np.zeros(count, dtype=np.int32),
        modes=kinds.modes[kind].astype(np.int32),
        levels=kinds.levels[kind].astype(np.int32),
        held=np.zeros((count, len(RESOURCES)), dtype=np.int64),
        sizes=Sizes.fixed(kinds.workers[kind].astype(np.int32)),
        terms=Terms.plain(count),
        runs=Runs.none(count),
    )


def snapshot(nodes: int, busy: Mask, waiting: Jobs) -> Snapshot:
    there, levels = cluster(nodes, busy)
    return Snapshot(
        RESOURCES, ("", "H100"), levels, there, queues(nodes * 8), waiting, np.ones((1, nodes), dtype=np.bool_)
    )


def crowded(nodes: int, running: int, waiting: int, rng: np.random.Generator) -> Snapshot:
    """A cluster at work: gangs on nine tenths of its nodes, 10,000 wait, every queue has a thousandth of the GPUs.

    Gangs run on 1 to 32 whole nodes. Two thirds tell by their progress when they will end, and half are bounded.
    """
    used = nodes * 9 // 10
    every = jobs(running + waiting, shapes(500, rng), rng)
    count = running + waiting
    lengths = 1 + rng.multinomial(used - running, rng.dirichlet(np.full(running, 0.5)))
    holds = np.arange(count) < running
    requests = every.requests.copy()
    requests[:running] = (*(PER_GPU * 8)[:3], 1)
    workers = np.where(holds, np.append(lengths, every.workers[running:]), every.workers).astype(np.int32)
    placed = np.sort(rng.permutation(nodes)[:used]).astype(np.int32)
    busy = np.zeros(nodes, dtype=np.bool_)
    busy[placed] = True
    started = NOW - rng.random(count) * 86_400
    runs = replace(
        Runs.none(count),
        first=np.append(0, np.cumsum(np.append(lengths, np.zeros(waiting, dtype=np.int64)))).astype(np.int64),
        placed=placed,
        started=np.where(holds, started, 0.0),
        saved=np.where(holds, NOW - rng.random(count) * 1_800, 0.0),
        restart=np.full(count, 120.0),
        grace=np.full(count, 60.0),
        ends=np.where(holds & (rng.random(count) < 0.67), NOW + rng.random(count) * 86_400, np.inf),
        bound=np.where(holds & (rng.random(count) < 0.5), NOW + rng.random(count) * 200_000, np.inf),
    )
    terms = replace(every.terms, estimate=np.where(rng.random(count) < 0.5, rng.random(count) * 90_000, np.inf))
    full = replace(
        every,
        states=np.where(holds, JobState.HOLDING, JobState.PENDING).astype(np.int32),
        submitted=NOW - rng.random(count) * 86_400,
        workers=workers,
        sizes=Sizes.fixed(workers),
        requests=requests,
        held=np.where(holds[:, None], requests * workers[:, None], 0),
        runs=runs,
        terms=terms,
    )
    return replace(snapshot(nodes, busy, full), now=NOW)


def timed(world: Snapshot, policy: Policy = DEFAULT, *, read: bool = False) -> tuple[float, Plan]:
    """Milliseconds of this thread's processor time: other work on the machine is not the planner's.

    Args:
        read: look at each who waits, so that its sentence is made as well.
    """
    start = time.thread_time()
    with no_looks():  # as the operator does
        made = plan(world, policy)
    if read:
        made = replace(made, waiting=tuple(made.waiting))
    return (time.thread_time() - start) * 1e3, made


def alike(waiting: int, rng: np.random.Generator) -> Snapshot:
    """640 nodes of 96 cores in 10 racks, 30 queues in 5 cohorts that all use their quota, 9 kinds of gangs that wait.

    The cluster of `bench/admission.py`: gangs of 2, 4 and 8 on one core each and more, of three priorities; 20 cores a
    queue are in use, half of them by small gangs.
    """
    nodes, queues_, cohorts = 640, 30, 5
    index = np.arange(nodes)
    size, cores = np.repeat([2, 4, 8], 3), np.repeat([500, 1250, 2500], 3)
    kind = np.append(np.tile([0] * 10 + [3] * 2, queues_), rng.integers(0, 9, waiting))
    holds = np.arange(len(kind)) < len(kind) - waiting
    queue = np.append(np.repeat(np.arange(queues_), 12), rng.integers(0, queues_, waiting)).astype(np.int32)
    requests = np.zeros((len(kind), 3), dtype=np.int64)
    requests[:, 0], requests[:, 2] = cores[kind], 1
    workers = size[kind].astype(np.int32)
    placed = rng.integers(0, nodes, int(workers[holds].sum())).astype(np.int32)
    allocatable = np.tile(np.array([96_000, 256 * 2**30, 110], dtype=np.int64), (nodes, 1))
    free = allocatable.copy()
    np.subtract.at(free, placed, np.repeat(requests[holds], workers[holds], axis=0))
    shape = (queues_ + cohorts, 1, 3)
    nominal = np.full(shape, UNLIMITED, dtype=np.int64)
    nominal[:queues_, 0, 0] = 20_000
    limit = np.full(shape, UNLIMITED, dtype=np.int64)
    parents = np.append(queues_ + np.arange(queues_) % cohorts, np.full(cohorts, NONE)).astype(np.int32)
    names = tuple(f"queue-{row}" for row in range(queues_ + cohorts))
    started = np.where(holds, NOW - 60 * rng.random(len(kind)), 0.0)
    runs = replace(
        Runs.none(len(kind)),
        first=np.append(0, np.cumsum(np.where(holds, workers, 0))).astype(np.int64),
        placed=placed,
        started=started,
        saved=started.copy(),
        restart=np.full(len(kind), 30.0),
        grace=np.full(len(kind), 30.0),
    )
    modes = np.array([TopologyMode.REQUIRED, TopologyMode.PREFERRED, TopologyMode.UNCONSTRAINED] * 3)[kind]
    every = Jobs(
        uids=tuple(f"job-{job:06}" for job in range(len(kind))),
        states=np.where(holds, JobState.HOLDING, JobState.PENDING).astype(np.int32),
        queues=queue,
        flavours=np.zeros(len(kind), dtype=np.int32),
        priorities=np.repeat([50, 100, 200], 3)[kind].astype(np.int32),
        submitted=NOW - 60 * rng.random(len(kind)),
        workers=workers,
        requests=requests,
        filters=np.zeros(len(kind), dtype=np.int32),
        modes=modes.astype(np.int32),
        levels=np.where(modes == TopologyMode.UNCONSTRAINED, NONE, 1).astype(np.int32),
        held=np.where(holds[:, None], requests * workers[:, None], 0),
        sizes=Sizes.fixed(workers),
        terms=Terms.plain(len(kind)),
        runs=runs,
    )
    domains = np.stack([index // nodes, index // 64, index], axis=1).astype(np.int32)
    hosts = tuple(f"node-{node}" for node in index)
    levels = Levels(LEVELS, (("block",), tuple(f"rack-{rack}" for rack in range(10)), hosts))
    there = Nodes(hosts, free, allocatable, np.ones(nodes, np.bool_), domains, np.full(nodes, NONE, np.int32))
    shares = Queues.plain(names, parents, nominal, limit, limit)
    return Snapshot(("cpu", "memory", "pods"), ("",), levels, there, shares, every, np.ones((1, nodes), np.bool_), NOW)


def small(repeats: int) -> dict[str, float]:
    """Plans as the simulator and the operator make them several times a second."""
    rng = np.random.default_rng(20240607)
    figures: dict[str, float] = {}
    silent = replace(DEFAULT, explain=False)
    busy = crowded(256, 150, 40, rng)
    busy = replace(busy, queues=replace(busy.queues, nominal=busy.queues.lending))
    figures["simulator_plan_ms"] = min(timed(busy, silent)[0] for _ in range(repeats))
    for waiting in (2_000, 14_000):
        world = alike(waiting, rng)
        for name, policy in (("decide", silent), ("explain", DEFAULT)):
            figures[f"{name}_{waiting}_alike_ms"] = min(timed(world, policy)[0] for _ in range(repeats))
    return figures


def measure(nodes: int, count: int, repeats: int) -> dict[str, float]:
    rng = np.random.default_rng(20240607)
    figures: dict[str, float] = {}
    gang = Shapes(*(np.array([value]) for value in (8, min(128, nodes // 8), TopologyMode.REQUIRED, 0)))
    times = []
    for _ in range(repeats):
        world = snapshot(nodes, rng.random(nodes) < 0.5, jobs(1, gang, rng))
        world = replace(world, queues=replace(world.queues, nominal=world.queues.lending))
        spent, made = timed(world)
        assert made.admissions, f"the gang was not placed: {made.waiting[0].message}"
        times.append(spent)
    figures["required_gang_p50_ms"], figures["required_gang_p99_ms"] = np.percentile(times, [50, 99]).tolist()

    for name, kinds in (("few", 8), ("many", 500)):
        world = snapshot(nodes, np.ones(nodes, np.bool_), jobs(count, shapes(kinds, rng), rng))
        world = replace(world, queues=replace(world.queues, nominal=world.queues.lending))
        spent, made = min((timed(world, read=True) for _ in range(3)), key=lambda pair: pair[0])
        assert len(made.waiting) == count
        figures[f"replan_{name}_shapes_ms"] = spent

    world = snapshot(nodes, np.ones(nodes, np.bool_), jobs(count, shapes(500, rng), rng))
    figures["replan_quota_ms"], made = timed(world, read=True)
    assert len(made.waiting) == count

    world = crowded(nodes, max(1, nodes * 2 // 5), count, rng)
    cycles = [timed(world) for _ in range(5)]
    figures["full_cycle_ms"] = min(spent for spent, _ in cycles)
    figures["full_cycle_read_ms"] = min(timed(world, read=True)[0] for _ in range(3))
    _check_told(world, cycles[0][1])

    world = snapshot(nodes, np.zeros(nodes, np.bool_), jobs(count, shapes(500, rng), rng))
    figures["admit_all_ms"], made = timed(world)
    figures["admitted_jobs"] = len(made.admissions)
    return figures


def _check_told(world: Snapshot, made: Plan) -> None:
    """Everybody who waits has a reason, a position and, if it could start one day, an expected start."""
    decided = {entry.uid for entry in made.admissions} | {entry.uid for entry in made.waiting}
    assert decided == {uid for uid, state in zip(world.jobs.uids, world.jobs.states, strict=True) if state == 0}
    for waiting in made.waiting:
        assert waiting.message, waiting
        assert waiting.position >= 1, waiting
        if waiting.reason not in (WaitReason.EXCEEDS_CLUSTER, WaitReason.EXCEEDS_QUOTA, WaitReason.NO_ELIGIBLE_NODES):
            assert waiting.expected < np.inf, waiting


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=12_500)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=100, help="of the single gang, and of small plans")
    parser.add_argument("--small", action="store_true", help="only the plans that are made several times a second")
    options = parser.parse_args()
    with short_looks():  # as the operator does
        figures = small(options.repeats) if options.small else measure(options.nodes, options.jobs, options.repeats)
    targets = {name: target for name, target in TARGETS.items() if name in figures}
    return 0 if report("planner", figures, targets, NOTES) else 1


if __name__ == "__main__":
    sys.exit(main())
