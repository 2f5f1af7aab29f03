"""Random clusters in which jobs stand on nodes and one waits, for tests of preemption, growth and moves; all small.

Drawn from one seed each: what matters is how parts meet (who stands where, who borrows), and a seed gives crowded
clusters far more often than draws one by one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from muster.scheduling.snapshot import NONE, PLAIN, Beyond, JobState, Preempts, Runs, Shape, Sizes, Snapshot, Terms

from .cases import Job, Node, Queue, snapshot

NOW = 10_000.0
Draw = np.random.Generator


def standing(
    *,
    elastic: bool = False,
    slices: bool = False,
    quota: bool = True,
    claimant: bool = True,
    jobs: int = 8,
    bases: bool = False,
) -> st.SearchStrategy[Snapshot]:
    """A few nodes with running jobs on them; row 0 waits."""
    return st.integers(0, 2**32 - 1).map(
        lambda seed: world_of(
            seed, elastic=elastic, slices=slices, quota=quota, claimant=claimant, jobs=jobs, bases=bases
        )
    )


def world_of(
    seed: int,
    *,
    elastic: bool = False,
    slices: bool = False,
    quota: bool = True,
    claimant: bool = True,
    jobs: int = 8,
    bases: bool = False,
) -> Snapshot:
    """One of them. `bases`: some have workers beyond a safe base, which are a row behind theirs."""
    draw = np.random.default_rng(seed)
    hosts = [
        Node(
            f"node-{index}",
            rack=["r0", "r0", "r1", None][draw.integers(0, 4)],
            gpus=int(draw.choice([1, 2, 4, 4])),
            cores=int(draw.choice([2, 4, 8])),
            usable=bool(draw.random() < 0.9),
        )
        for index in range(draw.integers(1, 5))
    ]
    queues = _queues(draw, quota and draw.random() < 0.6)
    names = [queue.name for queue in queues]
    made = [_claimant(draw, names)] if claimant else []
    left = {host.name: [host.gpus, host.cores] for host in hosts}
    for index in range(draw.integers(2, jobs + 1)):
        job = _standing(draw, f"job-{index}", names, left)
        if job is not None:
            made.append(job)
        if job is not None and bases and draw.random() < 0.4:
            beyond = _standing(draw, f"{job.uid}-beyond", [str(job.queue)], left, job)
            made += [beyond] if beyond is not None else []
    if not made:
        made.append(_claimant(draw, names))
    used = {host.name: (host.gpus - left[host.name][0], host.cores - left[host.name][1]) for host in hosts}
    hosts = [replace(host, used_gpus=used[host.name][0], used_cores=used[host.name][1]) for host in hosts]
    return _with_bases(_with_details(draw, snapshot(hosts, made, queues), elastic=elastic, slices=slices))


def _queues(draw: Draw, quota: bool) -> list[Queue]:
    def limit() -> int | None:
        return None if not quota or draw.random() < 0.2 else int(draw.choice([0, 2, 4, 4, 6]))

    return [
        Queue(
            f"queue-{index}",
            gpus=limit(),
            borrowing=limit() if draw.random() < 0.3 else None,
            lending=limit() if draw.random() < 0.3 else None,
            cohort=int(draw.choice([NONE, 0, 0, 0])),
        )
        for index in range(draw.integers(1, 4))
    ]


def _claimant(draw: Draw, queues: list[str]) -> Job:
    return Job(
        "claimant",
        workers=int(draw.integers(1, 5)),
        gpus=int(draw.choice([0, 1, 1, 2, 2, 2])),
        cores=int(draw.integers(0, 3)),
        queue=draw.choice(queues),
        priority=int(draw.choice([0, 1, 2, 2, 2, 2])),
        required=[None, "rack", "rack", "host"][draw.integers(0, 4)],
    )


def _standing(
    draw: Draw, uid: str, queues: list[str], left: dict[str, list[int]], base: Job | None = None
) -> Job | None:
    gpus, cores = int(draw.choice([0, 1, 1, 2])), int(draw.integers(0, 3))
    if base is not None:
        gpus, cores = base.gpus, base.cores
    on = []
    for name in draw.choice(sorted(left), size=draw.integers(1, 5)).tolist():
        if left[name][0] >= gpus and left[name][1] >= cores:
            left[name][0] -= gpus
            left[name][1] -= cores
            on.append(name)
    if not on:
        return None
    return Job(
        uid,
        workers=len(on),
        gpus=gpus,
        cores=cores,
        queue=draw.choice(queues),
        priority=int(draw.choice([0, 0, 0, 1, 1, 2])),
        submitted=float(draw.integers(0, 3)),
        holding=True,
        on=tuple(on),
        leaving=bool(draw.random() < 0.05),
    )


def _with_details(draw: Draw, world: Snapshot, *, elastic: bool, slices: bool) -> Snapshot:
    jobs = world.jobs
    holding = jobs.states == JobState.HOLDING
    policies = replace(
        world.queues,
        within=draw.choice([Preempts.NEVER, 1, 1, 1], len(world.queues.names)).astype(np.int32),
        reclaim=draw.choice([Preempts.NEVER, 1, 2, 2], len(world.queues.names)).astype(np.int32),
        borrower=draw.choice([Preempts.NEVER, 1], len(world.queues.names)).astype(np.int32),
    )
    return replace(
        world,
        now=NOW,
        queues=policies,
        jobs=replace(
            jobs,
            runs=_runs(draw, jobs.runs, holding),
            terms=_terms(draw, jobs.terms, jobs.workers, slices),
            sizes=_sizes(draw, jobs.workers, holding) if elastic else jobs.sizes,
        ),
    )


def _with_bases(world: Snapshot) -> Snapshot:
    """The rows of workers beyond a base say what their base says. They may all go; the base has one size."""
    jobs, uids = world.jobs, world.jobs.uids
    bases = {row: uids.index(uid.removesuffix("-beyond")) for row, uid in enumerate(uids) if uid.endswith("-beyond")}
    if not bases:
        return world
    of = np.array([bases.get(row, row) for row in range(len(uids))])
    runs = jobs.runs
    runs = replace(
        runs,
        started=runs.started[of],
        saved=runs.saved[of],
        restart=runs.restart[of],
        budget=runs.budget[of],
        yields=runs.yields[of],
        stops=runs.stops[of],
        leaving=runs.leaving[of],
    )
    least, most = jobs.sizes.least.copy(), jobs.sizes.most.copy()
    for row, base in bases.items():
        least[row], most[row] = 0, max(most[row], jobs.workers[row])
        least[base] = most[base] = jobs.workers[base]
    step = np.where(least == 0, 1, jobs.sizes.step).astype(np.int32)
    return replace(
        world,
        jobs=replace(
            jobs,
            priorities=jobs.priorities[of],
            submitted=jobs.submitted[of],
            runs=runs,
            terms=replace(jobs.terms, preemptible=jobs.terms.preemptible[of]),
            sizes=replace(jobs.sizes, least=least, most=most, step=step),
            beyond={
                base: Beyond(int(jobs.filters[row]), int(jobs.flavours[row]), 0, int(most[row]), 1, row)
                for row, base in bases.items()
            },
        ),
    )


def _runs(draw: Draw, runs: Runs, holding: np.ndarray) -> Runs:
    count = len(holding)
    started = NOW - draw.integers(0, 20, count) * 100.0
    return replace(
        runs,
        started=np.where(holding, started, 0.0),
        saved=np.where(holding, np.minimum(NOW, started + draw.integers(0, 20, count) * 100.0), 0.0),
        restart=(draw.integers(1, 9, count) * 10).astype(np.float64),
        budget=draw.choice([0, 1, 9, 9, 9, 9], count).astype(np.int32),
        yields=(draw.random(count) < 0.1) & holding,
        stops=draw.choice([0, 0, 0, 1, 4], count).astype(np.int32),
    )


def _terms(draw: Draw, terms: Terms, workers: np.ndarray, slices: bool) -> Terms:
    shapes = list(terms.shapes)
    if slices and workers[0] % 2 == 0:
        shapes[0] = [PLAIN, Shape(slices=((2, 2),)), Shape(slices=((2, 1),))][draw.integers(0, 3)]
    return replace(terms, preemptible=draw.random(len(workers)) < 0.9, shapes=tuple(shapes))


def _sizes(draw: Draw, workers: np.ndarray, holding: np.ndarray) -> Sizes:
    count = len(workers)
    step = draw.choice([1, 1, 2], count)
    less, more = draw.integers(0, 3, count) * step, draw.integers(0, 4, count) * step
    least = np.where(holding, np.where(workers > less, workers - less, workers), workers)
    most = np.where(holding, workers + more, workers)
    return Sizes(least.astype(np.int32), most.astype(np.int32), step.astype(np.int32), np.zeros(count, np.bool_))
