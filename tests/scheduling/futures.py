"""Clusters on which jobs run, and what may become of them: for tests of reservations and backfill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.kinds import Kinds
from muster.scheduling.room import Room
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import FOREVER, NONE, Int, JobState, Seconds, Snapshot
from muster.scheduling.topology import Tree

from .cases import Job, Node, snapshot

NOW = 1_000.0
GRACE = 30.0


@dataclass(frozen=True)
class Run:
    """A job that runs, one worker on each of `nodes` (names may repeat).

    Attributes:
        bound: seconds from now to its enforced end.
        ends: seconds from now to its end by its own progress.
    """

    job: Job
    nodes: tuple[str, ...]
    bound: float = FOREVER
    ends: float = FOREVER


def world(nodes: Sequence[Node], runs: Sequence[Run], waiting: Sequence[Job]) -> Snapshot:
    """Now is `NOW`, every grace is `GRACE`. Rows: the running jobs first, then the waiting ones."""
    jobs = [replace(run.job, workers=len(run.nodes), holding=True) for run in runs]
    base = snapshot(nodes, [*jobs, *waiting])
    names = {node.name: index for index, node in enumerate(nodes)}
    placed = [names[name] for run in runs for name in run.nodes]
    free = base.nodes.free.copy()
    for row, run in enumerate(runs):
        for name in run.nodes:
            free[names[name]] -= base.jobs.requests[row]
    lengths = [len(run.nodes) for run in runs] + [0] * len(waiting)
    idle = [FOREVER] * len(waiting)
    known = replace(
        base.jobs.runs,
        first=np.append(0, np.cumsum(lengths)).astype(np.int64),
        placed=np.array(placed, dtype=np.int32),
        started=np.array([NOW - 100.0] * len(runs) + [0.0] * len(waiting)),
        grace=np.full(len(lengths), GRACE),
        ends=NOW + np.array([run.ends for run in runs] + idle),
        bound=NOW + np.array([run.bound for run in runs] + idle),
    )
    return replace(base, nodes=replace(base.nodes, free=free), jobs=replace(base.jobs, runs=known), now=NOW)


@dataclass(frozen=True)
class Desk:
    """What the planner has at hand when it looks at the waiting jobs of a world."""

    world: Snapshot
    tree: Tree
    room: Room
    workers: list[Worker]
    gangs: list[Gang]
    waiting: Int
    gang_of: list[int]

    @classmethod
    def of(cls, world: Snapshot) -> Desk:
        waiting = np.flatnonzero(world.jobs.states == JobState.PENDING).astype(np.int64)
        kinds = Kinds(world, waiting, elastic=False)
        tree, gangs = Tree(world.nodes.domains, world.levels), [kinds.gang(kind) for kind in range(len(kinds.kinds))]
        gang_of = [kinds.of[row] for row in waiting.tolist()]
        return cls(world, tree, Room(world, tree, kinds.workers), kinds.workers, gangs, waiting, gang_of)

    def gang(self, index: int) -> tuple[Gang, Worker]:
        """Of the waiting job with this place in the order, from 0."""
        gang = self.gangs[self.gang_of[index]]
        return gang, self.workers[gang.worker]

    def slots(self, gang: Gang, free: Int) -> Int:
        return count_slots(free, self.workers[gang.worker], self.room.candidates(gang.worker))

    def given_back(self, free: Int, rows: Iterable[int]) -> Int:
        """R x N in tree order: `free` and what these running jobs hold."""
        place = np.empty(len(self.tree.order), dtype=np.int64)
        place[self.tree.order] = np.arange(len(place))
        grown = free.copy()
        for row in rows:
            for node in self.world.jobs.runs.nodes_of(row):
                assert node != NONE
                grown[:, place[node]] += self.world.jobs.requests[row]
        return grown


@st.composite
def worlds(draw: st.DrawFn) -> Snapshot:
    """Up to 6 nodes in two racks on which jobs of any size and bound run; a large gang and up to 5 others wait."""
    nodes = [
        Node(f"node-{index}", rack=f"r{index % 2}", gpus=4, cores=8, used_gpus=draw(st.sampled_from([0] * 9 + [1])))
        for index in range(draw(st.integers(2, 6)))
    ]
    left = {node.name: [node.gpus - node.used_gpus, node.cores] for node in nodes}
    runs = []
    for index in range(draw(st.integers(1, 6))):
        job = Job(f"run-{index}", gpus=draw(st.sampled_from([4, 4, 2, 1, 0])), cores=draw(st.integers(1, 2)))
        on: list[str] = []
        for name in draw(st.lists(st.sampled_from(sorted(left)), min_size=1, max_size=4)):
            if left[name][0] >= job.gpus and left[name][1] >= job.cores:
                left[name] = [left[name][0] - job.gpus, left[name][1] - job.cores]
                on.append(name)
        if on:
            moment = st.sampled_from([10.0, 50.0, 100.0, 200.0, FOREVER])
            runs.append(Run(job, tuple(on), bound=draw(moment), ends=draw(moment)))
    head = Job(
        "wait-0",
        workers=draw(st.integers(2, 6)),
        gpus=draw(st.sampled_from([4, 4, 2, 1])),
        cores=draw(st.integers(1, 2)),
        required=draw(st.sampled_from([None, None, "rack", "host"])),
    )
    others = [
        Job(
            f"wait-{index}",
            workers=draw(st.integers(1, 2)),
            gpus=draw(st.sampled_from([0, 1, 2, 4])),
            cores=draw(st.integers(1, 3)),
            required=draw(st.sampled_from([None, None, "rack", "host"])),
        )
        for index in range(1, draw(st.integers(2, 6)))
    ]
    return world(nodes, runs, [head, *others])


@st.composite
def large_runs(draw: st.DrawFn) -> Snapshot:
    """Whole nodes, gangs that give many of them back at once: room is left over beside the head."""
    count = draw(st.integers(4, 10))
    nodes = [Node(f"node-{index}", rack=f"r{index * 2 // count}", gpus=4, cores=8) for index in range(count)]
    names, runs = [node.name for node in nodes], []
    while names and draw(st.sampled_from([True, True, True, False])):
        size = draw(st.integers(2, 4))
        ends = draw(st.sampled_from([50.0, FOREVER]))
        runs.append(Run(Job(f"run-{len(runs)}", gpus=4), tuple(names[:size]), ends=ends))
        names = names[size:]
    head = Job("wait-0", workers=draw(st.integers(2, 8)), gpus=4, required=draw(st.sampled_from([None, "rack"])))
    others = [Job(f"wait-{index}", workers=draw(st.integers(1, 2)), gpus=4) for index in range(1, 4)]
    return world(nodes, runs, [head, *others])


def actual_ends(draw: st.DrawFn, world: Snapshot) -> Seconds:
    """When each running job's room comes back: early, at its bound and one grace, or late where nothing bounds it."""
    ends = np.full(len(world.jobs.uids), FOREVER)
    for row in np.flatnonzero(world.jobs.states == JobState.HOLDING).tolist():
        bound = float(world.jobs.runs.bound[row]) + GRACE
        early = NOW + draw(st.sampled_from([1.0, 5.0, 20.0, 60.0, 150.0, 400.0, FOREVER]))
        ends[row] = min(early, bound)
    return ends
