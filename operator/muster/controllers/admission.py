"""What keeps a job from the planner's order: things that only the cluster's state can tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from muster.api.effective import EffectiveSpec
from muster.api.jobparts import TopologyMode
from muster.api.names import DEFAULT_TOPOLOGY, Reason
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.gpus import PRODUCT_LABELS, same_type
from muster.cluster.snapshot import LevelInput
from muster.cluster.views import NamespaceView, NodeView
from muster.sizing.price_file import slip
from muster_protocol.spelling import nearest, there_are

_OWN_NAME: Final = "kubernetes.io/metadata.name"
"""Label that every namespace has, with its name."""


@dataclass(frozen=True)
class Obstacle:
    """Why a job can't be planned: a condition reason, and a sentence that says how to mend it."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class World:
    """The cluster's state that admission looks at.

    Attributes:
        priorities: value by name of PriorityClass.
        gpu_types: short names of the GPU types that nodes have, sorted.
        products: a label mapping of one node for each distinct GPU product.
        grows: an autoscaler may bring nodes of a kind that there is none of.
        gangs_priority: name of the PriorityClass that all gangs' pods get, which is not meant for jobs.
        spent: why by name of each queue whose budget of the month, or that of a queue above it, is used up.
        unreadable: names of queues that are there, and can't be read.
    """

    queues: Mapping[str, TrainingQueue]
    namespaces: Mapping[str, NamespaceView]
    priorities: Mapping[str, int]
    levels: Sequence[LevelInput]
    has_topology: bool
    gpu_types: Sequence[str]
    products: Sequence[Mapping[str, str]]
    grows: bool = False
    gangs_priority: str = ""
    spent: Mapping[str, str] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()


def products(nodes: Sequence[NodeView]) -> list[Mapping[str, str]]:
    """Labels of one node for each distinct set of GPU labels."""
    found = {tuple(node.labels.get(label, "") for label in PRODUCT_LABELS): node.labels for node in nodes}
    return [labels for key, labels in sorted(found.items(), key=lambda item: item[0]) if any(key)]


OBSTACLES: Final = frozenset(
    reason.value
    for reason in (
        Reason.QUEUE_NOT_FOUND,
        Reason.NAMESPACE_NOT_ALLOWED,
        Reason.BUDGET_EXHAUSTED,
        Reason.PRIORITY_CLASS_NOT_FOUND,
        Reason.UNKNOWN_GPU_TYPE,
        Reason.TOPOLOGY_NOT_FOUND,
        Reason.LEVEL_NOT_FOUND,
        Reason.LEVELS_OUT_OF_ORDER,
    )
)
"""The reasons of what `obstacle` finds."""


def obstacle(namespace: str, spec: EffectiveSpec, world: World, *, ranked: bool = False) -> Obstacle | None:
    """The first thing that keeps the job from being planned, or None. `ranked`: it has a priority from when it ran,
    which counts while there is no PriorityClass of the name that its spec has."""
    priority = None if ranked else _priority(spec, world)
    return _queue(namespace, spec, world) or priority or _gpu_type(spec, world) or _level(spec, world)


def _queue(namespace: str, spec: EffectiveSpec, world: World) -> Obstacle | None:
    queue = world.queues.get(spec.queue)
    if queue is None and spec.queue in world.unreadable:
        return Obstacle(
            Reason.QUEUE_NOT_FOUND,
            f"the operator can't read TrainingQueue {spec.queue!r}: the queue's condition Ready says which field to "
            "correct; the job starts then",
        )
    if queue is None and not world.queues:
        return Obstacle(
            Reason.QUEUE_NOT_FOUND,
            f"there is no TrainingQueue {spec.queue!r}, nor any other: have one made; the job starts when it is there",
        )
    if queue is None:
        return Obstacle(
            Reason.QUEUE_NOT_FOUND,
            f"there is no TrainingQueue {spec.queue!r}; {there_are(spec.queue, world.queues)}. Ask for one of them in "
            "spec.queue, or have the queue made: the job starts when there is one",
        )
    labels = _labels(namespace, world)
    if unmet := _unmet(queue, labels):
        return Obstacle(
            Reason.NAMESPACE_NOT_ALLOWED,
            f"TrainingQueue {spec.queue!r} is not open to namespace {namespace!r}: the queue's spec.namespaces wants "
            f"of its labels: {', '.join(unmet)}. {_open(namespace, unmet, labels)} ask for another queue in spec.queue",
        )
    if spec.queue in world.spent:
        return Obstacle(Reason.BUDGET_EXHAUSTED, world.spent[spec.queue])
    return None


def open_to(queue: TrainingQueue | None, namespace: str, world: World) -> bool:
    """Whether jobs of the namespace may be in the queue; one that is not there shuts nobody out."""
    return queue is None or not _unmet(queue, _labels(namespace, world))


def _labels(namespace: str, world: World) -> dict[str, str]:
    view = world.namespaces.get(namespace)
    return {**(view.labels if view else {}), _OWN_NAME: namespace}


def _unmet(queue: TrainingQueue, labels: dict[str, str]) -> Sequence[str]:
    """What the queue wants of a namespace's labels that these are not."""
    return queue.spec.namespaces.unmet(labels) if queue.spec.namespaces is not None else ()


def _open(namespace: str, unmet: Sequence[str], labels: Mapping[str, str]) -> str:
    """The command that gives a namespace what it lacks, where that is labels with one value, up to "or"."""
    wanted = [label.partition("=") for label in unmet]
    if any(not equals or key == _OWN_NAME for key, equals, _ in wanted):
        return "Have the queue opened to it, or"
    overwrites = " --overwrite" if any(key in labels for key, _, _ in wanted) else ""
    return f"Have it labelled (kubectl label namespace {namespace} {' '.join(unmet)}{overwrites}), or"


def _priority(spec: EffectiveSpec, world: World) -> Obstacle | None:
    told = no_priority_class(spec.priority_class, world.priorities, world.gangs_priority)
    return Obstacle(Reason.PRIORITY_CLASS_NOT_FOUND, told) if told else None


def no_priority_class(name: str, priorities: Mapping[str, int], gangs_priority: str) -> str:
    """What is wrong with the PriorityClass that a job names; "" where nothing is. Kubernetes' own, and that of all
    gangs' pods, are there and not meant for jobs."""
    if not name or name in priorities:
        return ""
    known = [one for one in priorities if not one.startswith("system-") and one != gangs_priority]
    if known:
        return f"there is no PriorityClass {name!r} for jobs; {there_are(name, known)}"
    make = f"kubectl create priorityclass {name} --value=1000"
    return f"there is no PriorityClass {name!r}, nor any other for jobs: have one made ({make}), or name none"


def _gpu_type(spec: EffectiveSpec, world: World) -> Obstacle | None:
    if not spec.gpu_type or world.grows or any(same_type(spec.gpu_type, labels) for labels in world.products):
        return None
    return Obstacle(
        Reason.UNKNOWN_GPU_TYPE,
        f"no node has GPUs of type {spec.gpu_type!r}; {there_are(slip(spec.gpu_type), world.gpu_types)}",
    )


def _level(spec: EffectiveSpec, world: World) -> Obstacle | None:
    """Every level that the job names must be one of the cluster's, and slices go from wide to narrow."""
    asked = [("topology.level", spec.level)] if spec.level and spec.mode is not TopologyMode.UNCONSTRAINED else []
    slices = [(f"topology.slices[{number}].level", level) for number, (_, level) in enumerate(spec.slices)]
    balanced = [("topology.balanced", spec.balanced)] if spec.balanced else []
    names = [level.name for level in world.levels]
    for path, name in (*asked, *slices, *balanced):
        if name not in names:
            return _unknown_level(path, name, names, world.has_topology)
    required = asked if spec.mode is TopologyMode.REQUIRED else []
    for (wide, wider), (path, name) in pairwise([*required, *slices]):
        if names.index(name) <= names.index(wider):
            return Obstacle(
                Reason.LEVELS_OUT_OF_ORDER,
                f"{path} is {name!r}, which is not narrower than {wide}, {wider!r}; the levels, widest first, are: "
                f"{', '.join(names)}. Name a narrower one, or leave the slice out",
            )
    return None


def _unknown_level(path: str, name: str, names: Sequence[str], has_topology: bool) -> Obstacle:
    if not has_topology:
        return Obstacle(
            Reason.TOPOLOGY_NOT_FOUND,
            f"{path} is {name!r}, but there is no Topology {DEFAULT_TOPOLOGY!r} that says what it is; "
            f"without one the levels are: {', '.join(names)}",
        )
    meant = nearest(name, names)
    return Obstacle(
        Reason.LEVEL_NOT_FOUND,
        f"{path} is {name!r}, but the Topology {DEFAULT_TOPOLOGY!r} has the levels: {', '.join(names)}"
        f"{f'. Did you mean {meant!r}?' if meant is not None else ''}",
    )
