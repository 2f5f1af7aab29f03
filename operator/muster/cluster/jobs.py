"""The planner's jobs: what is told of each, and the arrays made from that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from muster.api.names import HOST_LABEL
from muster.cluster.eligibility import NodeFilter
from muster.cluster.queues import QueueInput
from muster.cluster.views import NodeView
from muster.scheduling.snapshot import (
    FOREVER,
    NONE,
    Alternative,
    Beyond,
    Index,
    Int,
    Jobs,
    JobState,
    Runs,
    Shape,
    Sizes,
    Terms,
    TopologyMode,
)

NO_ACCELERATOR: Final = ""
"""The flavour of jobs and nodes without accelerators: always index 0."""

LARGEST: Final = 2**47
"""A worker's amounts are counted up to here, which is 128 TiB: nobody means to ask for more, and the largest gang's
sum stays below `UNLIMITED`. Anyone may write `cpu: "1e16"` into a pod; it must not stop the planning of everybody
else's."""


BEYOND: Final = "+beyond"
"""Behind a job's uid: that of its workers beyond its base, which are a row of their own."""

NO_FABRIC: Final = "00000000-0000-0000-0000-000000000000"
"""NVML's cluster of GPUs that reach no other node's by NVLink: HGX H100s have it, and tools write it into the label of
NVLink domains all the same. Each node with it is such a domain by itself."""


@dataclass(frozen=True)
class LevelInput:
    """A topology level: its name and the node label that tells the domain."""

    name: str
    label: str

    def domain(self, node: NodeView) -> str:
        """The node's domain, in those of the wider levels; "" where it is in none."""
        value = node.labels.get(self.label, "")
        itself = value.startswith(NO_FABRIC) or (self.label == HOST_LABEL and not value)
        return node.name if itself else value


@dataclass(frozen=True)
class AlternativeInput:
    """Another kind of node that a job takes from `since` (seconds since the epoch) on."""

    node_filter: NodeFilter
    flavour: str
    since: float = 0.0


@dataclass(frozen=True)
class TermsInput:
    """What a job allows and demands, where that is not the plainest; see `Terms` and `Shape` of the planner's snapshot.

    Attributes:
        slices: (workers, name of the level), widest first.
        balanced: name of a level, or "".
        spares: workers' room beside the gang's own.
        opens, closes, reopens, limit, estimate, length, deadline: in seconds, as the arrays of `Terms`.
    """

    preemptible: bool = True
    saves: bool = True
    slices: tuple[tuple[int, str], ...] = ()
    balanced: str = ""
    spares: int = 0
    alternatives: tuple[AlternativeInput, ...] = ()
    opens: float = 0.0
    closes: float = FOREVER
    reopens: float = 0.0
    limit: float = FOREVER
    estimate: float = FOREVER
    length: float = FOREVER
    deadline: float = FOREVER
    reclaims: bool = True


@dataclass(frozen=True)
class BeyondInput:
    """Workers beyond the safe base of an elastic gang, on another kind of nodes; see `Beyond` of the planner's
    snapshot.

    Attributes:
        least: fewest of those that there are: above 0 where `workers.min` was raised since the gang started.
        most: 0 where there stay as many as there are, for the gang can't change its size any more.
    """

    node_filter: NodeFilter
    flavour: str
    wish: int = 0
    most: int = 0
    step: int = 1
    least: int = 0


@dataclass(frozen=True)
class RunInput:
    """What is known of a placement that stands; see `Runs` of the planner's snapshot. Moments: seconds since the epoch.

    Attributes:
        budget: preemptions that are still allowed now; None for any number.
        stops: how often the job was stopped for others so far.
        beneficiary: uid of the job for which it is being ended, its own when it is moved or resized, or "".
    """

    leaving: bool = False
    started: float = 0.0
    saved: float = 0.0
    restart: float = 0.0
    grace: float = 0.0
    ends: float = FOREVER
    bound: float = FOREVER
    budget: int | None = None
    stops: int = 0
    yields: bool = False
    beneficiary: str = ""


PLAIN_TERMS: Final = TermsInput()
NO_RUN: Final = RunInput()


@dataclass(frozen=True)
class JobInput:
    """One live job, as the planner needs it.

    Attributes:
        flavour: like `H100/on-demand`, "" for a job without GPUs.
        request: of one worker, in base units, `pods` = 1 included.
        level: name of the topology level that `mode` speaks of, or "".
        placed: node name by index while a placement stands, else empty. Behind the `workers` are the spares, "" for one
            that is lacking.
        generation: of that placement.
        attempts: (index, attempt) of the workers whose present pod is not the first of the placement.
        lost: indexes of workers of a running gang whose pods are to be made anew; they get another node where theirs is
            broken.
        shrinks: seconds since the epoch from which the gang goes on without those of them that get no node.
        holding: the job has a placement, or pods that are not gone.
        reserving: placed indices without a pod still hold room (False once the placement is being taken down).
        promised: node name by index, where room is promised to the job, spares behind; it is RESERVED unless it is
            `holding` too.
        sizes: fewest and most workers, and the step between them; None for a gang that is not elastic.
        partial: it may start with fewer than `workers`.
        beyond: of a gang with a safe base, which `workers` is the size of where it waits; it is not elastic by itself.
        base, promised_base: how many of the nodes `placed` and `promised` are the base's.
        namespace: in which its pods are; any others that name it as their owner are not its own.
    """

    uid: str
    queue: str
    workers: int
    request: Mapping[str, int]
    node_filter: NodeFilter = field(default_factory=NodeFilter)
    flavour: str = NO_ACCELERATOR
    priority: int = 0
    submitted: float = 0.0
    mode: TopologyMode = TopologyMode.UNCONSTRAINED
    level: str = ""
    placed: tuple[str, ...] = ()
    generation: int = 0
    attempts: tuple[tuple[int, int], ...] = ()
    lost: tuple[int, ...] = ()
    shrinks: float = FOREVER
    holding: bool = False
    reserving: bool = True
    promised: tuple[str, ...] = ()
    sizes: tuple[int, int, int] | None = None
    partial: bool = False
    terms: TermsInput = PLAIN_TERMS
    run: RunInput = NO_RUN
    beyond: BeyondInput | None = None
    base: int = 0
    promised_base: int = 0
    namespace: str = ""


def vector(amounts: tuple[tuple[str, int], ...], column: Mapping[str, int]) -> Int:
    """R, amounts by resource as a row; `column` by name. What no column names is left out."""
    vector = np.zeros(len(column), dtype=np.int64)
    for name, amount in amounts:
        if name in column:
            vector[column[name]] = min(amount, LARGEST)
    return vector


def filters_of(jobs: Sequence[JobInput]) -> tuple[list[NodeFilter], list[int]]:
    """Distinct filters, and the number of each job's own. Those of alternatives, and of workers beyond a base, come
    after all of them."""
    number: dict[NodeFilter, int] = {}
    index = [number.setdefault(job.node_filter, len(number)) for job in jobs]
    for job in jobs:
        for other in _others(job):
            number.setdefault(other.node_filter, len(number))
    return list(number), index


def _others(job: JobInput) -> Iterator[AlternativeInput | BeyondInput]:
    """Kinds of node that a job takes beside its first."""
    yield from job.terms.alternatives
    if job.beyond is not None:
        yield job.beyond


def index_of(names: Iterable[str | None], among: Sequence[str]) -> Index:
    """Places of `names` in `among`; NONE for None."""
    number = {name: index for index, name in enumerate(among)}
    return np.array([NONE if name is None else number[name] for name in names], dtype=np.int32)


def arrays(
    jobs: Sequence[JobInput],
    queues: Sequence[QueueInput],
    flavours: Sequence[str],
    resources: Sequence[str],
    levels: Sequence[LevelInput],
    filters: Sequence[int],
    held: Int,
    row: Mapping[str, int],
) -> Jobs:
    """The planner's arrays of jobs. `filters`, `held`: of each; `row`: of nodes by name."""
    column = {name: index for index, name in enumerate(resources)}
    level_row = {level.name: index for index, level in enumerate(levels)}
    requests = np.array([vector(tuple(job.request.items()), column) for job in jobs], dtype=np.int64)
    states = np.array([_state(job) for job in jobs], dtype=np.int32)
    workers = np.array([job.workers for job in jobs], dtype=np.int32)
    filter_row = {job.node_filter: filters[index] for index, job in enumerate(jobs)}
    for job in jobs:
        for other in _others(job):
            filter_row.setdefault(other.node_filter, len(filter_row))
    return Jobs(
        uids=tuple(job.uid for job in jobs),
        states=states,
        queues=index_of([job.queue for job in jobs], [queue.name for queue in queues]),
        flavours=index_of([job.flavour for job in jobs], flavours),
        priorities=np.array([job.priority for job in jobs], dtype=np.int32),
        submitted=np.array([job.submitted for job in jobs], dtype=np.float64),
        workers=workers,
        requests=requests.reshape(len(jobs), len(resources)),
        filters=np.array(filters, dtype=np.int32),
        modes=np.array([int(job.mode) for job in jobs], dtype=np.int32),
        levels=index_of([job.level or None for job in jobs], list(level_row)),
        held=np.where((states != JobState.PENDING)[:, None], held, 0),
        sizes=_sizes(jobs, workers),
        terms=_terms(jobs, level_row, filter_row, flavours),
        runs=_runs(jobs, row),
        beyond=_beyond(jobs, filter_row, flavours),
    )


def _beyond(
    jobs: Sequence[JobInput], filter_row: Mapping[NodeFilter, int], flavours: Sequence[str]
) -> dict[int, Beyond]:
    rows = {job.uid: index for index, job in enumerate(jobs) if job.uid.endswith(BEYOND)}
    number = {name: index for index, name in enumerate(flavours)}
    return {
        index: Beyond(
            filter=filter_row[more.node_filter],
            flavour=number[more.flavour],
            wish=more.wish,
            most=more.most,
            step=more.step,
            row=rows.get(job.uid + BEYOND, NONE),
        )
        for index, job in enumerate(jobs)
        if (more := job.beyond) is not None
    }


def _state(job: JobInput) -> JobState:
    if job.holding:
        return JobState.HOLDING
    return JobState.RESERVED if job.promised else JobState.PENDING


def _sizes(jobs: Sequence[JobInput], workers: Index) -> Sizes:
    sizes = Sizes.fixed(workers)
    for index, job in enumerate(jobs):
        if job.sizes is not None:
            sizes.least[index], sizes.most[index], sizes.step[index] = job.sizes
            sizes.partial[index] = job.partial
    return sizes


def _terms(
    jobs: Sequence[JobInput],
    level_row: Mapping[str, int],
    filter_row: Mapping[NodeFilter, int],
    flavours: Sequence[str],
) -> Terms:
    """Arrays of the plainest terms, and what some jobs say in their place."""
    terms, number = Terms.plain(len(jobs)), {name: index for index, name in enumerate(flavours)}
    shapes, alternatives = list(terms.shapes), list(terms.alternatives)
    for index, job in enumerate(jobs):
        said = job.terms
        if said is PLAIN_TERMS:
            continue
        terms.preemptible[index], terms.saves[index] = said.preemptible, said.saves
        terms.reclaims[index] = said.reclaims
        terms.opens[index], terms.closes[index], terms.limit[index] = said.opens, said.closes, said.limit
        terms.estimate[index], terms.deadlines[index] = said.estimate, said.deadline
        terms.length[index], terms.reopens[index] = said.length, said.reopens
        if said.slices or said.balanced or said.spares:
            shapes[index] = Shape(
                slices=tuple((workers, level_row[level]) for workers, level in said.slices),
                balanced=level_row[said.balanced] if said.balanced else NONE,
                spares=said.spares,
            )
        alternatives[index] = tuple(
            Alternative(filter_row[other.node_filter], number[other.flavour], other.since)
            for other in said.alternatives
        )
    return replace(terms, shapes=tuple(shapes), alternatives=tuple(alternatives))


def _runs(jobs: Sequence[JobInput], row: Mapping[str, int]) -> Runs:
    runs = Runs.none(len(jobs))
    uids = {job.uid: index for index, job in enumerate(jobs)}
    for index, job in enumerate(jobs):
        run = job.run
        if run is NO_RUN:
            continue
        runs.leaving[index], runs.yields[index] = run.leaving, run.yields
        runs.started[index], runs.saved[index] = run.started, run.saved
        runs.restart[index], runs.grace[index] = run.restart, run.grace
        runs.stops[index] = run.stops
        runs.ends[index], runs.bound[index] = run.ends, run.bound
        runs.beneficiary[index] = uids.get(run.beneficiary, NONE)
        if run.budget is not None:
            runs.budget[index] = run.budget
    first, placed = _rows([job.placed if job.holding else job.promised for job in jobs], row)
    promised_first, promised = _rows([job.promised if job.holding else () for job in jobs], row)
    lost = {index: np.array(job.lost, dtype=np.int64) for index, job in enumerate(jobs) if job.lost}
    return replace(
        runs,
        first=first,
        placed=placed,
        promised_first=promised_first,
        promised=promised,
        lost=lost,
        shrinks={index: jobs[index].shrinks for index in lost},
    )


def _rows(lists: Sequence[Sequence[str]], row: Mapping[str, int]) -> tuple[Int, Index]:
    """Lists of node names as one array of indices (NONE for a node that is gone) and where each list begins in it."""
    first = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(names) for names in lists], out=first[1:])
    return first, np.array([row.get(name, NONE) for names in lists for name in names], dtype=np.int32)
