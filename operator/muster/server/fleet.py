"""Nodes and GPUs: what there is, what is used, and where the most is free. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from muster.api.names import GPU_RESOURCE, QUARANTINE_TAINT
from muster.cluster.gpus import capacity_of, gpu_type_of
from muster.cluster.jobs import LevelInput
from muster.cluster.snapshot import TERMINAL
from muster.cluster.views import NodeView, PodView
from muster.server.models import LevelRoom, NodeCounts, Pool
from muster.sizing import slices

UNKNOWN: Final = "unknown"
"""GPU type of a node that has GPUs and no label that names them."""


@dataclass(frozen=True)
class _Node:
    view: NodeView
    total: int
    used: int

    @property
    def free(self) -> int:
        takes_jobs = self.view.takes_pods and not quarantined(self.view)
        return max(0, self.total - self.used) if takes_jobs else 0


def quarantined(node: NodeView) -> bool:
    return any(taint.key == QUARANTINE_TAINT for taint in node.taints)


def counts(nodes: Sequence[NodeView]) -> NodeCounts:
    return NodeCounts(
        total=len(nodes),
        not_ready=sum(not node.ready for node in nodes),
        cordoned=sum(node.unschedulable for node in nodes),
        quarantined=sum(quarantined(node) for node in nodes),
    )


def pools(nodes: Iterable[NodeView], pods: Iterable[PodView] | None, levels: Sequence[LevelInput]) -> list[Pool]:
    """By GPU type and kind of capacity; slices of a node's GPUs by their own type. Without `pods` what is used and free
    stays untold."""
    used: dict[tuple[str, str], int] = defaultdict(int)
    for pod in pods or ():
        if pod.node and pod.phase not in TERMINAL:
            for resource, amount in pod.requests:
                used[pod.node, resource] += amount
    found: dict[tuple[str, str], list[_Node]] = defaultdict(list)
    for node in nodes:
        for resource, total in node.allocatable:
            kind = _type_of(resource, gpu_type_of(node.labels))
            if kind and total:
                found[kind, capacity_of(node.labels)].append(_Node(node, total, used[node.name, resource]))
    return [_pool(*kind, members, levels, told=pods is not None) for kind, members in sorted(found.items())]


def _type_of(resource: str, gpu_type: str) -> str:
    """Of the devices that a resource of such a node stands for; "" for one that is no GPU."""
    return gpu_type or UNKNOWN if resource == GPU_RESOURCE else slices.sliced(resource, gpu_type)


def _pool(gpu_type: str, capacity: str, nodes: list[_Node], levels: Sequence[LevelInput], *, told: bool) -> Pool:
    total, used, free = (sum(getattr(node, what) for node in nodes) for what in ("total", "used", "free"))
    pool = Pool(
        gpu_type=gpu_type,
        capacity=capacity,
        nodes=len(nodes),
        total=total,
        levels=[_room(nodes, levels[: depth + 1], told=told) for depth in range(len(levels))],
    )
    if told:
        pool.used, pool.free, pool.unavailable = used, free, max(0, total - used - free)
        pool.largest_free_node = max(node.free for node in nodes)
    return pool


def _room(nodes: Iterable[_Node], path: Sequence[LevelInput], *, told: bool) -> LevelRoom:
    """Of the last level of `path`; a domain has the same labels of all wider levels too."""
    free: dict[tuple[str, ...], int] = defaultdict(int)
    for node in nodes:
        domain = tuple(level.domain(node.view) for level in path)
        if all(domain):
            free[domain] += node.free
    room = LevelRoom(level=path[-1].name, domains=len(free))
    if told and free:
        best = min(free, key=lambda domain: (-free[domain], domain))
        room.largest_domain, room.largest_free = best[-1], free[best]
    return room
