"""Random clusters for the naive planner: a few nodes, nearly full, and more jobs than they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.scheduling.snapshot import (
    FOREVER,
    NONE,
    PLAIN,
    Jobs,
    JobState,
    Preempts,
    Shape,
    Sizes,
    Snapshot,
)

from . import oracle
from .cases import GPU, LEVELS, Job, Node, Queue, snapshot

NOW = 1_000_000.0
Draw = np.random.Generator


def crowded(draw: Draw, *, lent: bool = False) -> Snapshot:
    """Nobody may be asked to go, but where it is `lent`."""
    hosts = [
        Node(
            f"node-{index}",
            block=["a", "a", "a", "b", None][draw.integers(0, 5)],
            rack=["r0", "r0", "r1", "r1", None][draw.integers(0, 5)],
            gpus=int(draw.choice([0, 2, 4, 4, 4])),
            cores=int(draw.choice([4, 8, 16])),
            pods=int(draw.choice([3, 9, 9])),
            fixed_cores=int(draw.integers(0, 2)),
            usable=bool(draw.random() < 0.95),
        )
        for index in range(draw.integers(2, 9))
    ]
    queues = _lenders(draw) if lent else _queues(draw)
    names = [queue.name for queue in queues]
    gpus = [0, 1, 1, 1, 2, 2, 4] if lent else [0, 1, 2, 4]
    borrowers = [names[0], names[0], names[0], *names]
    left = {host.name: [host.gpus, host.cores - host.fixed_cores, host.pods] for host in hosts}
    order = sorted(hosts, key=lambda host: (host.block or "z", (host.rack or "z") if host.block else "z"))
    jobs: list[Job] = []
    for index in range(10 if lent else 7):
        job = _running(draw, f"run-{index}", borrowers if lent else names, left, [host.name for host in order], gpus)
        if job is not None and not _exceeds_quota(snapshot(hosts, [*jobs, job], queues)):
            jobs.append(job)
    jobs += [_waiting(draw, f"job-{index}", names, list(left)) for index in range(draw.integers(2, 13))]
    return _with_terms(draw, snapshot(hosts, jobs, queues))


def _exceeds_quota(world: Snapshot) -> bool:
    use = oracle.usage(world)
    return any(
        oracle.draws_on(world, use, queue, 1, GPU) > oracle.may_draw(world, queue, 1, GPU)
        for queue in range(len(world.queues.names))
    )


def _queues(draw: Draw) -> list[Queue]:
    def limit() -> int | None:
        return None if draw.random() < 0.3 else int(draw.choice([0, 2, 4, 6, 8]))

    bound = draw.random() < 0.7
    return [
        Queue(
            f"queue-{index}",
            gpus=limit() if bound else None,
            borrowing=limit() if draw.random() < 0.3 else None,
            lending=limit() if draw.random() < 0.3 else None,
            cohort=int(draw.choice([NONE, 0, 0])),
            open=bool(draw.random() < 0.97),
            parent=f"queue-{draw.integers(0, index)}" if index and draw.random() < 0.3 else None,
            weight=float(draw.choice([1.0, 1.0, 3.0])),
            used=float(draw.choice([0.0, 0.0, 0.2])),
            shortest=bool(draw.random() < 0.5),
        )
        for index in range(draw.integers(1, 5))
    ]


def _lenders(draw: Draw) -> list[Queue]:
    def limit() -> int:
        return int(draw.choice([0, 2, 4, 6, 8]))

    return [
        Queue(
            f"queue-{index}",
            gpus=(int(draw.choice([0, 2, 4])) if index == 0 else limit()) if draw.random() < 0.9 else None,
            borrowing=limit() if draw.random() < 0.2 else None,
            lending=limit() if draw.random() < 0.2 else None,
            cohort=int(draw.choice([0, 0, 0, 1])),
            parent=f"queue-{draw.integers(0, index)}" if index and draw.random() < 0.3 else None,
            shortest=bool(draw.random() < 0.5),
        )
        for index in range(draw.integers(2, 5))
    ]


def _running(
    draw: Draw, uid: str, queues: list[str], left: dict[str, list[int]], order: list[str], sizes: list[int]
) -> Job | None:
    gpus, cores = int(draw.choice(sizes)), int(draw.integers(1, 3))
    on = []
    for name in draw.choice(order, size=draw.integers(1, 5)).tolist():
        if all(some >= ask for some, ask in zip(left[name], (gpus, cores, 1), strict=True)):
            left[name] = [left[name][0] - gpus, left[name][1] - cores, left[name][2] - 1]
            on.append(name)
    if not on:
        return None
    on.sort(key=order.index)
    queue, priority = draw.choice(queues), int(draw.integers(0, 2))
    return Job(uid, len(on), gpus, cores, queue=queue, priority=priority, holding=True, on=tuple(on))


def _waiting(draw: Draw, uid: str, queues: list[str], nodes: list[str]) -> Job:
    level = LEVELS[draw.choice([0, 0, 1, 1, 1, 2])]
    mode = draw.integers(0, 4)
    return Job(
        uid,
        workers=int(draw.integers(1, 5)),
        gpus=int(draw.choice([0, 1, 1, 2, 2, 4])),
        cores=int(draw.choice([1, 1, 2, 3])),
        queue=draw.choice(queues) if draw.random() < 0.99 else None,
        priority=int(draw.integers(0, 3)),
        required=level if mode == 1 else None,
        preferred=level if mode == 2 else None,
        only_on=tuple(nodes[: draw.integers(0, len(nodes))]) if draw.random() < 0.1 else None,
    )


def _with_terms(draw: Draw, world: Snapshot) -> Snapshot:
    jobs, count = world.jobs, len(world.jobs.uids)
    holding = jobs.states == JobState.HOLDING
    free = world.nodes.free.copy()
    for job in np.flatnonzero(holding).tolist():
        np.subtract.at(free, jobs.runs.nodes_of(job), jobs.requests[job])

    def maybe(chance: float, most: float) -> np.ndarray:
        return np.where(draw.random(count) < chance, (1 + draw.integers(0, most, count)).astype(np.float64), FOREVER)

    runs = replace(
        jobs.runs,
        started=np.where(holding, NOW - draw.integers(1, 5_000, count), 0.0),
        saved=np.where(holding, NOW - 10.0, 0.0),
        restart=np.full(count, 20.0),
        grace=np.full(count, 30.0),
        ends=np.where(holding, NOW + maybe(0.6, 3_000), FOREVER),
        bound=np.where(holding, NOW + maybe(0.5, 9_000), FOREVER),
        budget=np.zeros(count, dtype=np.int32),
    )
    estimate = maybe(0.5, 3_000)
    terms = replace(
        jobs.terms,
        preemptible=draw.random(count) < 0.7,
        opens=np.where(draw.random(count) < 0.1, NOW + 500.0, 0.0),
        limit=maybe(0.4, 3_000),
        estimate=estimate,
        length=np.where(draw.random(count) < 0.1, 100.0 * estimate, estimate),
        deadlines=NOW + maybe(0.2, 90_000),
        reclaims=np.zeros(count, dtype=np.bool_),
    )
    jobs = _with_sizes(draw, replace(jobs, terms=terms))
    submitted = NOW - draw.choice([0.0, 10.0, 30_000.0, 100_000.0], count) - draw.integers(0, 3, count)
    return replace(
        world,
        now=NOW,
        nodes=replace(world.nodes, free=free),
        jobs=_with_room_to_grow(draw, replace(jobs, submitted=submitted, runs=runs)),
    )


def _with_sizes(draw: Draw, jobs: Jobs) -> Jobs:
    """Of those who wait some may start with fewer workers, and some want room for spares, which have one size."""
    count, pending = len(jobs.uids), jobs.states == JobState.PENDING
    spares = np.where(pending & (draw.random(count) < 0.15), draw.integers(1, 3, count), 0)
    smaller = pending & (draw.random(count) < 0.4) & (spares == 0)
    least = np.where(smaller, draw.integers(1, jobs.workers + 1), jobs.workers).astype(np.int32)
    step, partial = draw.choice([1, 1, 2], count).astype(np.int32), draw.random(count) < 0.9
    shapes = tuple(Shape(spares=each) if each else PLAIN for each in spares.tolist())
    return replace(jobs, sizes=Sizes(least, jobs.workers, step, partial), terms=replace(jobs.terms, shapes=shapes))


def _with_room_to_grow(draw: Draw, jobs: Jobs) -> Jobs:
    """Of those who run some may have more workers than they have."""
    count, sizes = len(jobs.uids), jobs.sizes
    larger = (jobs.states == JobState.HOLDING) & (draw.random(count) < 0.5)
    most = np.where(larger, jobs.workers + draw.integers(1, 6, count), sizes.most).astype(np.int32)
    least = np.where(larger & (draw.random(count) < 0.5), np.maximum(1, sizes.least - sizes.step), sizes.least)
    step = np.where(larger & ((jobs.workers - least) % sizes.step > 0), 1, sizes.step).astype(np.int32)
    return replace(jobs, sizes=Sizes(least.astype(np.int32), most, step, sizes.partial))


def lending(draw: Draw) -> Snapshot:
    """The same, but that most queues lend to each other, most of what runs is borrowed, and may be taken back."""
    world = crowded(draw, lent=True)
    jobs, count, queues = world.jobs, len(world.jobs.uids), len(world.queues.names)
    holding = jobs.states == JobState.HOLDING
    runs = replace(
        jobs.runs,
        # No two sets of victims cost the same, and no two jobs were placed at once.
        started=np.where(holding, jobs.runs.started - draw.random(count), 0.0),
        saved=np.where(holding, NOW - draw.integers(1, 2_000, count) - draw.random(count), 0.0),
        stops=draw.choice([0, 0, 0, 1, 3], count).astype(np.int32),
        budget=draw.choice([0, 9], count).astype(np.int32),
    )
    policies = replace(
        world.queues,
        reclaim=draw.choice([Preempts.NEVER, 1, 2, 2, 2, 2], queues).astype(np.int32),
        borrower=draw.choice([Preempts.NEVER, Preempts.NEVER, 1], queues).astype(np.int32),
        within=draw.choice([Preempts.NEVER, 1], queues).astype(np.int32),
    )
    terms = replace(jobs.terms, reclaims=draw.random(count) < 0.95)
    # So few may shrink, and by so few, that all choices are looked at: one by any number, or two by one worker.
    least, step = jobs.sizes.least.copy(), jobs.sizes.step.copy()
    least[holding], step[holding] = jobs.workers[holding], 1
    several = draw.permutation(np.flatnonzero(holding & (jobs.workers > 1)))[: draw.integers(0, 3)]
    for row in several.tolist():
        least[row] = jobs.workers[row] - 1 if len(several) > 1 else draw.integers(1, jobs.workers[row])
    sizes = replace(jobs.sizes, least=least, step=step)
    return replace(world, queues=policies, jobs=replace(jobs, runs=runs, terms=terms, sizes=sizes))


def with_windows(draw: Draw, world: Snapshot) -> Snapshot:
    """The same with windows that close soon, some of them before those are gone who would be asked to go."""
    jobs, count = world.jobs, len(world.jobs.uids)
    soon = NOW + draw.choice([5.0, 6.0, 30.0, 31.0, 90.0, 500.0, 1_000.0, 3_000.0], count)
    closes = np.where((jobs.terms.opens <= NOW) & (draw.random(count) < 0.4), soon, FOREVER)
    terms = replace(jobs.terms, closes=closes, reopens=np.where(closes < FOREVER, closes + 4_000.0, 0.0))
    runs = replace(jobs.runs, grace=draw.choice([5.0, 30.0, 30.0, 90.0], count))
    return replace(world, jobs=replace(jobs, terms=terms, runs=runs))


def letting_in(draw: Draw, world: Snapshot) -> Snapshot:
    """The same where most of those who run were let in before their turn, and most who wait were stopped before: jobs
    that are alike but for their queues, and take turns on room that is kept for a large one."""
    jobs, count = world.jobs, len(world.jobs.uids)
    terms = replace(jobs.terms, preemptible=jobs.terms.preemptible | (draw.random(count) < 0.7))
    may = jobs.holding & terms.preemptible & (jobs.queues != NONE)
    lately = NOW - draw.choice([900.0, 5_000.0], count) - draw.random(count)  # no two jobs were placed at once
    runs = replace(
        jobs.runs,
        yields=may & (draw.random(count) < 0.7),
        stops=np.where(jobs.pending & (draw.random(count) < 0.7), 1, jobs.runs.stops).astype(np.int32),
        started=np.where(jobs.holding, np.maximum(jobs.runs.started, lately), 0.0),
    )
    alike = draw.random(count) < 0.8
    submitted = np.where(alike, NOW - 7_000.0 - draw.random(count), jobs.submitted)
    priorities = np.where(alike, 0, jobs.priorities).astype(np.int32)
    large = int(np.flatnonzero(jobs.pending)[0])
    priorities[large] = 2
    more = np.where(np.arange(count) == large, draw.integers(0, 6), 0).astype(np.int32)
    sizes = replace(jobs.sizes, least=jobs.sizes.least + more, most=jobs.sizes.most + more)
    jobs = replace(jobs, workers=jobs.workers + more, sizes=sizes, submitted=submitted, priorities=priorities)
    return replace(world, jobs=replace(jobs, terms=terms, runs=runs))
