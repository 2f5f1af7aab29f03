"""Freezes what the operator knows into the planner's arrays.

What a node has given away is a union, by pod UID, of every pod bound or pinned to it that has not ended (those being
deleted included, until they are gone) and of every placed index whose pod isn't made yet, or has failed: the gang may
start again there. So a placement holds its room from the moment it is written, whatever the watch has shown by then.
A worker that has ended well holds none, nor does one of a gang that is being taken down whose pod is gone: such room is
free already, and does not come back with the others'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from muster.cluster.bases import parted
from muster.cluster.eligibility import Matcher, NodeFilter
from muster.cluster.gpus import capacity_of, flavour_of, gpu_type_of, same_type
from muster.cluster.jobs import BEYOND, LARGEST, filters_of, index_of, vector
from muster.cluster.jobs import NO_ACCELERATOR as NO_ACCELERATOR
from muster.cluster.jobs import JobInput as JobInput
from muster.cluster.jobs import LevelInput as LevelInput
from muster.cluster.jobs import arrays as job_arrays
from muster.cluster.queues import QueueInput as QueueInput
from muster.cluster.queues import QuotaInput as QuotaInput
from muster.cluster.queues import arrays as queue_arrays
from muster.cluster.queues import within_limits
from muster.cluster.views import NodeView, PodView
from muster.scheduling.beyond import beside_their_bases
from muster.scheduling.snapshot import (
    NONE,
    ONE_A_NODE,
    Index,
    Int,
    Levels,
    Mask,
    Nodes,
    Snapshot,
)
from muster.sizing.slices import device_price

FAILED: Final = "Failed"
TERMINAL: Final = frozenset({"Succeeded", FAILED})
"""Pod phases that hold no room."""

_ALWAYS: Final = ("cpu", "memory", "pods")


class Masks:
    """Which nodes each filter allows, kept from plan to plan. Only nodes whose labels or taints have changed, and new
    ones, are looked at again: in a large cluster there is always one that has just come, gone or got a taint.

    Nodes that a job stays away from for now are taken off what is kept: other jobs seldom stay away from the same.
    """

    def __init__(self) -> None:
        self._nodes: Sequence[NodeView] = ()
        self._row: dict[str, int] = {}
        self._masks: dict[NodeFilter, Mask] = {}

    def mask(self, node_filter: NodeFilter) -> Mask:
        """N, of the nodes that `renew` was told of last."""
        anywhere = _anywhere(node_filter)
        found = self._masks.get(anywhere)
        if found is None:
            found = self._masks[anywhere] = eligible(anywhere, self._nodes)
        avoided = [self._row[name] for name in node_filter.avoided if name in self._row]
        if avoided:
            found = found.copy()
            found[avoided] = False
        return found

    def renew(self, nodes: Sequence[NodeView], wanted: Iterable[NodeFilter]) -> None:
        """Forget what was kept of other nodes, and for filters that no job has any more."""
        keep = {_anywhere(one) for one in wanted}
        before, rows = self._nodes, [self._row.get(node.name, NONE) for node in nodes]
        self._nodes, self._row = nodes, {node.name: index for index, node in enumerate(nodes)}
        masks = {one: mask for one, mask in self._masks.items() if one in keep}
        fresh = [index for index, row in enumerate(rows) if row == NONE or not _alike(nodes[index], before[row])]
        if fresh or len(nodes) < len(before):
            masks = {one: self._carried(one, mask, rows, fresh) for one, mask in masks.items()}
        self._masks = masks

    def _carried(self, node_filter: NodeFilter, mask: Mask, rows: Sequence[int], fresh: Sequence[int]) -> Mask:
        """What is known of the nodes in their old rows (any, of those that are `fresh`), and looked up of these."""
        found: Mask = mask[rows] if len(mask) else np.zeros(len(rows), dtype=np.bool_)
        found[fresh] = eligible(node_filter, [self._nodes[index] for index in fresh])
        return found


def _anywhere(node_filter: NodeFilter) -> NodeFilter:
    return replace(node_filter, avoided=frozenset()) if node_filter.avoided else node_filter


def _alike(node: NodeView, other: NodeView) -> bool:
    """Whether a filter says the same of both, whose name is the same."""
    return node is other or (node.labels == other.labels and node.taints == other.taints)


def eligible(node_filter: NodeFilter, nodes: Sequence[NodeView]) -> Mask:
    """N, the nodes that labels, taints, GPU type, capacity kind and avoidance allow."""
    matcher = Matcher(node_filter)
    return np.fromiter(
        (of_kind(node_filter, node) and matcher.allows(node) for node in nodes), dtype=np.bool_, count=len(nodes)
    )


def of_kind(node_filter: NodeFilter, node: NodeView) -> bool:
    """Whether the node has the GPU type and the kind of capacity that a filter asks for."""
    wanted, product, kinds = node_filter.gpu_type, node_filter.product, node_filter.capacity
    if (wanted and gpu_type_of(node.labels) != wanted) or (product and not same_type(product, node.labels)):
        return False
    return not kinds or capacity_of(node.labels) in kinds


def build(
    *,
    nodes: Sequence[NodeView],
    pods: Iterable[PodView],
    jobs: Sequence[JobInput],
    queues: Sequence[QueueInput],
    levels: Sequence[LevelInput],
    masks: Masks | None = None,
    now: float = 0.0,
    prices: Mapping[str, float] | None = None,
) -> Snapshot:
    """The cluster at this moment, `now` in seconds since the epoch. The order of every axis is by name or uid, so equal
    inputs give equal snapshots. `prices`: money for an hour of one GPU by flavour; what is not named costs nothing."""
    nodes = sorted(nodes, key=lambda node: node.name)
    jobs = parted(sorted(jobs, key=lambda job: job.uid))
    queues = _with_deleted(sorted(queues, key=lambda queue: queue.name), jobs)
    resources = _resources(jobs, queues)
    flavours = _flavours(nodes, jobs, queues)
    row = {name: index for index, name in enumerate(node.name for node in nodes)}
    column = {name: index for index, name in enumerate(resources)}
    allocatable = _allocatable(nodes, resources, column)
    used, held, fixed, ended = _used(pods, jobs, row, column)
    jobs = [_without(job, ended[index]) if ended.get(index) else job for index, job in enumerate(jobs)]
    domains, domain_names = _domains(nodes, levels)
    filters, filter_index = filters_of(jobs)
    shares = queue_arrays(queues, flavours, resources)
    masks = masks or Masks()
    masks.renew(nodes, filters)
    allowed = np.array([masks.mask(one) for one in filters], dtype=np.bool_).reshape(len(filters), len(nodes))
    planned = within_limits(job_arrays(jobs, queues, flavours, resources, levels, filter_index, held, row), shares)
    planned, allowed = beside_their_bases(planned, allowed, domains)
    return Snapshot(
        resources=resources,
        flavours=flavours,
        levels=Levels(tuple(level.name for level in levels), domain_names),
        nodes=Nodes(
            names=tuple(row),
            free=allocatable - used,
            allocatable=allocatable,
            usable=np.array([node.takes_pods for node in nodes], dtype=np.bool_),
            domains=domains,
            flavours=index_of([flavour_of(node.labels) or None for node in nodes], flavours),
            fixed=fixed,
        ),
        queues=shares,
        jobs=planned,
        eligible=allowed,
        now=now,
        prices=np.array([device_price(prices, name) or 0.0 for name in flavours]) if prices else None,
    )


def _with_deleted(queues: list[QueueInput], jobs: Sequence[JobInput]) -> list[QueueInput]:
    """Queues that are gone while jobs of theirs hold room stay, closed, so that their use stays counted."""
    known = {queue.name for queue in queues}
    lost = sorted({job.queue for job in jobs} - known)
    return queues + [QueueInput(name, open=False) for name in lost]


def _resources(jobs: Sequence[JobInput], queues: Sequence[QueueInput]) -> tuple[str, ...]:
    """Only resources that a job asks for or a quota names: nothing else can stand in a job's way."""
    names = {name for job in jobs for name in job.request} | {line.resource for q in queues for line in q.quotas}
    return _ALWAYS + tuple(sorted(names - set(_ALWAYS)))


def _flavours(nodes: Sequence[NodeView], jobs: Sequence[JobInput], queues: Sequence[QueueInput]) -> tuple[str, ...]:
    names = {flavour_of(node.labels) for node in nodes} | {job.flavour for job in jobs}
    names |= {other.flavour for job in jobs for other in job.terms.alternatives}
    names |= {job.beyond.flavour for job in jobs if job.beyond is not None}
    for queue in queues:
        names |= {line.flavour for line in queue.quotas}
    return (NO_ACCELERATOR, *sorted(names - {NO_ACCELERATOR}))


def _allocatable(nodes: Sequence[NodeView], resources: Sequence[str], column: Mapping[str, int]) -> Int:
    allocatable = np.zeros((len(nodes), len(resources)), dtype=np.int64)
    for index, node in enumerate(nodes):
        for name, amount in node.allocatable:
            if name in column:
                # A node that claims 1Ei stops nobody's planning, and takes none of the workers that count as `LARGEST`.
                allocatable[index, column[name]] = min(amount, LARGEST - 1)
    for name, index in column.items():
        if name.startswith(ONE_A_NODE):
            allocatable[:, index] = 1
    return allocatable


def _used(
    pods: Iterable[PodView], jobs: Sequence[JobInput], row: Mapping[str, int], column: Mapping[str, int]
) -> tuple[Int, Int, Int, dict[int, set[int]]]:
    """(N x R given away on nodes, J x R held by jobs, N x R of what is given away that never comes back; by job, the
    placed indexes that hold nothing). `row` and `column` are of nodes and resources by name."""
    used = np.zeros((len(row), len(column)), dtype=np.int64)
    fixed = np.zeros_like(used)
    held = np.zeros((len(jobs), len(column)), dtype=np.int64)
    job_row = {(job.namespace, job.uid): index for index, job in enumerate(jobs)}
    bases = {index: job.base for index, job in enumerate(jobs) if job.base}
    vectors: dict[tuple[tuple[str, int], ...], Int] = {}
    attempts = {index: dict(job.attempts) for index, job in enumerate(jobs) if job.attempts}
    made, living, ended = dict[int, set[int]](), dict[int, set[int]](), dict[int, set[int]]()
    seen: set[str] = set()
    for pod in pods:
        job, worker = job_row.get((pod.namespace, pod.owner_uid)) if pod.owner_uid else None, pod.index
        if job in bases and worker >= bases[job]:
            beyond = job_row.get((pod.namespace, pod.owner_uid + BEYOND))
            job, worker = (job, worker) if beyond is None else (beyond, worker - bases[job])
        present = job is not None and pod.generation == jobs[job].generation
        # One that another has replaced holds its room until it is gone, but its index holds its share of quota once. So
        # it is with those of older placements: the present one was not made before they were given up.
        replaced = job is not None and (
            pod.attempt < attempts.get(job, {}).get(worker, 0) if present else bool(jobs[job].placed)
        )
        in_place = job is not None and present and not replaced and _in_place(jobs[job], worker, pod)
        of = job if in_place else None  # whose placed index it is
        if of is not None and pod.phase != FAILED:
            made.setdefault(of, set()).add(worker)
            if pod.phase in TERMINAL:
                ended.setdefault(of, set()).add(worker)
        if pod.phase in TERMINAL or pod.uid in seen:
            continue
        seen.add(pod.uid)
        if of is not None and not jobs[of].reserving:
            living.setdefault(of, set()).add(worker)
        amounts = vectors.get(pod.requests)
        if amounts is None:
            amounts = vectors[pod.requests] = vector(pod.requests, column)
        if pod.node in row:
            used[row[pod.node]] += amounts
            if pod.fixed:
                fixed[row[pod.node]] += amounts
        if job is not None and not replaced:
            held[job] += amounts
    for index, job_input in enumerate(jobs):
        if job_input.placed and job_input.reserving:
            _reserve(index, job_input, made.get(index, set()), row, column, used, held)
            continue
        if job_input.placed:
            ended[index] = set(range(len(job_input.placed))) - living.get(index, set())
        if job_input.promised and not job_input.holding:
            held[index] = vector(tuple(job_input.request.items()), column) * len(job_input.promised)
    return used, held, fixed, ended


def _without(job: JobInput, gone: set[int]) -> JobInput:
    """The job as if the nodes of these workers and spares were not there."""
    return replace(job, placed=tuple(["" if at in gone else node for at, node in enumerate(job.placed)]))


def _in_place(job: JobInput, worker: int, pod: PodView) -> bool:
    """Whether it is the pod of that index where the placement has it. Labels are anyone's to write: what lies elsewhere
    takes its room there, and the index keeps its own."""
    return 0 <= worker < len(job.placed) and job.placed[worker] == pod.node


def _reserve(
    index: int, job: JobInput, made: set[int], row: Mapping[str, int], column: Mapping[str, int], used: Int, held: Int
) -> None:
    """Count the placed indices without a pod on their nodes, and the whole gang in its queue, with the spares that are
    there."""
    amounts = vector(tuple(job.request.items()), column)
    for worker, node in enumerate(job.placed):
        if worker not in made and node in row:
            used[row[node]] += amounts
    spares = sum(node in row for node in job.placed[job.workers :])
    np.maximum(held[index], amounts * (min(job.workers, len(job.placed)) + spares), out=held[index])


def _domains(nodes: Sequence[NodeView], levels: Sequence[LevelInput]) -> tuple[Index, tuple[tuple[str, ...], ...]]:
    """N x L domain of each node at each level, and the domains' names.

    A domain is known by its whole path: rack-1 of one block is not rack-1 of another, and then says so in its name.
    """
    domains = np.full((len(nodes), len(levels)), NONE, dtype=np.int32)
    paths: list[tuple[str, ...]] = [()] * len(nodes)
    alive = [True] * len(nodes)
    names: list[tuple[str, ...]] = []
    for depth, level in enumerate(levels):
        for index, node in enumerate(nodes):
            value = level.domain(node)
            alive[index] = alive[index] and bool(value)
            if alive[index]:
                paths[index] = (*paths[index], value)
        found = sorted({path for path, labelled in zip(paths, alive, strict=True) if labelled})
        number = {path: position for position, path in enumerate(found)}
        unique = len({path[-1] for path in found}) == len(found)
        names.append(tuple(path[-1] if unique else "/".join(path) for path in found))
        for index in range(len(nodes)):
            if alive[index]:
                domains[index, depth] = number[paths[index]]
    return domains, tuple(names)
