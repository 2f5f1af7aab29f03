"""A trace on a cluster: what each job asks for, in the planner's terms. It never changes while a simulation runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from muster.scheduling.snapshot import NONE, Alternative, Index, Int, Mask, Shape, Sizes, TopologyMode
from muster.simulate.cells import CAPACITIES, Form
from muster.simulate.cluster import LEVELS, RESOURCES, Cluster
from muster.simulate.errors import SimulationError
from muster.simulate.trace import Trace
from muster.simulate.windows import Window
from muster_protocol.counts import counted
from muster_protocol.spelling import there_are

_MODES: Final = {"required": TopologyMode.REQUIRED, "preferred": TopologyMode.PREFERRED}


@dataclass(frozen=True)
class Workload:
    """
    Attributes:
        uids: J.
        flavour: J, of the cluster's; of several kinds of capacity the first, and of a job with a safe base that of it.
        beyond: J, that of its workers beyond the base, which are those above its fewest; NONE for a job without one.
            None: no job has one.
        alternatives: J, the others in their order; None: no job names several.
        workers: J, and each worker's GPUs in `each`; no worker is larger than the largest node of any of its flavours.
        sizes: of elastic jobs, in workers; None: no job is elastic.
        shapes: J, how each gang must lie, its spares among it; None: no job says anything of it.
        windows: in which jobs may run; `window`: J, which of them, NONE for a job that may at any time. None: all may.
        requests: J x R, of one worker.
        mode, level: J, the planner's.
        rank: J, place in the order (priority, submission) that FIFO and EASY keep; lower first.
        filters: V x N, nodes of each flavour.
    """

    cluster: Cluster
    trace: Trace
    uids: tuple[str, ...]
    flavour: Index
    workers: Index
    each: Index
    requests: Int
    mode: Index
    level: Index
    rank: Int
    filters: Mask
    alternatives: tuple[tuple[Alternative, ...], ...] | None = None
    sizes: Sizes | None = None
    beyond: Index | None = None
    shapes: tuple[Shape, ...] | None = None
    windows: tuple[Window, ...] = ()
    window: Index | None = None

    def window_of(self, job: int) -> Window | None:
        """That in which alone the job may run."""
        if self.window is None or self.window[job] == NONE:
            return None
        return self.windows[int(self.window[job])]

    def base_of(self, job: int) -> int:
        """How many workers, the first, are the job's safe base; 0 for a job without one."""
        if self.beyond is None or self.sizes is None or self.beyond[job] == NONE:
            return 0
        return int(self.sizes.least[job])

    def working(self, job: int, placed: int) -> int:
        """How many of those that are placed work; the others are spares."""
        most = self.workers if self.sizes is None else self.sizes.most
        return min(placed, int(most[job]))

    def may_have(self, job: int, placed: int) -> bool:
        """Whether a job may run with so many workers and spares."""
        sizes, workers = self.sizes, self.working(job, placed)
        if placed - workers > (0 if self.trace.spares is None else int(self.trace.spares[job])):
            return False
        if sizes is None:
            return workers == int(self.workers[job])
        least, most, step = int(sizes.least[job]), int(sizes.most[job]), int(sizes.step[job])
        return least <= workers <= most and (workers - least) % step == 0

    @property
    def restless(self) -> bool:
        """Whether jobs that run may be better off elsewhere or larger, also while nobody waits."""
        return self.alternatives is not None or self.sizes is not None or self.trace.spares is not None


def assemble(cluster: Cluster, trace: Trace) -> Workload:
    """Put a trace on a cluster.

    Raises:
        SimulationError: a job asks for a GPU type, level or window that the cluster lacks, or a size of an elastic job
            or a slice is not whole workers.
    """
    flavours, modes, levels = zip(*(_kind(cluster, trace, which) for which in range(len(trace.kinds))), strict=True)
    flavour = np.array([first for first, *_ in flavours], dtype=np.int32)[trace.kind]
    filters = np.arange(len(cluster.flavours))[:, None] == cluster.flavour[None, :]
    nodes = [int(cluster.gpus[mask].max(initial=1)) for mask in filters]
    largest = np.array([min(nodes[one] for one in each) for each in flavours])[trace.kind]
    beyond = None
    if trace.base is not None:
        beyond, flavour = np.where(trace.base == NONE, NONE, flavour).astype(np.int32), _bases(cluster, trace, flavour)
        largest = np.minimum(largest, np.array(nodes)[flavour])
    workers = -(-trace.gpus // largest)
    each = -(-trace.gpus // workers)
    sizes = None if trace.sizes is None else _elastic(trace, trace.sizes, largest, workers, each)
    requests = each[:, None].astype(np.int64) * cluster.per_gpu
    requests[:, RESOURCES.index("pods")] = 1
    count = len(trace)
    rank = np.empty(count, dtype=np.int64)
    rank[np.lexsort((np.arange(count), -trace.priority.astype(np.int64)))] = np.arange(count)
    return Workload(
        cluster=cluster,
        trace=trace,
        uids=tuple(f"job-{job:08}" for job in range(count)),
        flavour=flavour,
        workers=workers.astype(np.int32),
        each=each.astype(np.int32),
        requests=requests,
        mode=np.array(modes, dtype=np.int32)[trace.kind],
        level=np.array(levels, dtype=np.int32)[trace.kind],
        rank=rank,
        filters=filters,
        alternatives=_alternatives(cluster, trace, flavours),
        sizes=sizes,
        beyond=beyond,
        shapes=_shapes(trace, each),
        windows=_windows(cluster, trace),
        window=trace.window,
    )


def _elastic(trace: Trace, wanted: Index, largest: Int, workers: Int, each: Int) -> Sizes:
    """The sizes of elastic jobs in workers. Fills in `workers` and `each`: one worker has the GPUs of the job's step,
    or where the trace names none, as many as one of a job that is not elastic."""
    steps = np.ones(len(trace), dtype=np.int32)
    for job in np.flatnonzero(wanted[:, 0] < wanted[:, 1]).tolist():
        least, most, step = wanted[job].tolist()
        if step:
            steps[job] = -(-step // int(largest[job]))
            each[job] = -(-step // int(steps[job]))
            workers[job] = int(trace.gpus[job]) // int(each[job])
        one = int(each[job])
        for column, size in (("step", step), ("gpus", int(trace.gpus[job])), ("min", least), ("max", most)):
            if size % one:
                raise SimulationError(
                    f"{trace.told(job)}: an elastic job's sizes must be whole workers, which have "
                    f"{counted(one, 'GPU')} on this cluster: give {column} a multiple of {one}, not {size}, or "
                    "another step"
                )
    least_, most_ = (np.where(wanted[:, 0] < wanted[:, 1], wanted[:, at] // each, workers) for at in (0, 1))
    return Sizes(least_.astype(np.int32), most_.astype(np.int32), steps, least_ < workers)


def _shapes(trace: Trace, each: Int) -> tuple[Shape, ...] | None:
    """What each job says of how it lies, in workers of so many GPUs each. What says the same shares one object."""
    if trace.spares is None and trace.form is None:
        return None
    spares = [0] * len(trace) if trace.spares is None else trace.spares.tolist()
    forms = [Form()] * len(trace) if trace.form is None else [trace.forms[form] for form in trace.form.tolist()]
    shapes: dict[tuple[Form, int, int], Shape] = {}
    for job, key in enumerate(zip(forms, each.tolist(), spares, strict=True)):
        if key not in shapes:
            shapes[key] = _shape(trace, job, *key)
    return tuple(shapes[key] for key in zip(forms, each.tolist(), spares, strict=True))


def _shape(trace: Trace, job: int, form: Form, each: int, spares: int) -> Shape:
    for level, gpus in form.slices:
        if gpus % each:
            raise SimulationError(
                f"{trace.told(job)}: slices must be whole workers, which have {each} GPUs on this cluster: give "
                f"{level} a multiple of {each}, not {gpus}"
            )
    slices = tuple((gpus // each, LEVELS.index(level)) for level, gpus in form.slices)
    return Shape(slices, LEVELS.index(form.balanced) if form.balanced else NONE, spares)


def _windows(cluster: Cluster, trace: Trace) -> tuple[Window, ...]:
    """Those that the trace names."""
    known = cluster.file.windows
    for number, name in enumerate(trace.windows):
        if name not in known:
            assert trace.window is not None, "a trace that names a window has jobs in it"
            job = int(np.flatnonzero(trace.window == number)[0])
            mend = there_are(name, known) if known else "the cluster file has no `windows`; add it there"
            raise SimulationError(f"{trace.told(job)}: window names {name!r}, which the cluster file lacks; {mend}")
    return tuple(Window(known[name].rule, cluster.file.begins) for name in trace.windows)


def _bases(cluster: Cluster, trace: Trace, flavour: Index) -> Index:
    """The flavour of each job's first workers. `flavour`: of all of them, or of those beyond a base."""
    assert trace.base is not None, "asked of a trace in which jobs have a base"
    found = flavour.copy()
    for job in np.flatnonzero(trace.base != NONE).tolist():
        name = f"{cluster.flavours[flavour[job]].partition('/')[0]}/{CAPACITIES[trace.base[job]]}"
        if name not in cluster.flavours[1:]:
            there = ", ".join(cluster.flavours[1:])
            raise SimulationError(f"{trace.told(job)}: its base asks for {name}, which no node has; there are {there}")
        found[job] = cluster.flavours.index(name)
    return found


def _alternatives(
    cluster: Cluster, trace: Trace, flavours: Sequence[tuple[int, ...]]
) -> tuple[tuple[Alternative, ...], ...] | None:
    """Each job's second choice of nodes and those behind it. `flavours`: of each of the trace's kinds."""
    if all(len(each) == 1 for each in flavours):
        return None
    after = cluster.file.fallback_after
    return tuple(
        tuple(Alternative(one, one, submit + after * at) for at, one in enumerate(flavours[kind][1:], start=1))
        for submit, kind in zip(trace.submit.tolist(), trace.kind.tolist(), strict=True)
    )


def _kind(cluster: Cluster, trace: Trace, which: int) -> tuple[tuple[int, ...], int, int]:
    """Flavours, mode and level of one of the trace's kinds."""
    gpu_type, capacities, topology = trace.kinds[which]
    first_type, _, first_capacity = cluster.flavours[1].partition("/")
    flavours = []
    for capacity in capacities.split("|"):
        flavour = f"{gpu_type or first_type}/{capacity or (first_capacity if not gpu_type else 'on-demand')}"
        if flavour not in cluster.flavours[1:]:
            there_are = ", ".join(cluster.flavours[1:])
            raise SimulationError(
                f"{_first_of(trace, which)}: it asks for {flavour}, which no node of the cluster has; "
                f"there are {there_are}"
            )
        flavours.append(cluster.flavours.index(flavour))
    mode, _, level = topology.partition(":")
    if not mode:
        return tuple(flavours), int(TopologyMode.UNCONSTRAINED), NONE
    if level not in LEVELS:
        raise SimulationError(
            f"{_first_of(trace, which)}: topology names the level {level!r}; there are {', '.join(LEVELS)}"
        )
    return tuple(flavours), int(_MODES[mode]), LEVELS.index(level)


def _first_of(trace: Trace, kind: int) -> str:
    """Which job is the first of a kind, for people."""
    return trace.told(int(np.flatnonzero(trace.kind == kind)[0]))
