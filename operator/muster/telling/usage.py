"""What a queue has and uses, by flavour, and in one word whether it takes jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from muster.api.trainingqueue import Quota, TrainingQueue
from muster.cluster.gpus import named_types
from muster.cluster.quantities import amount as in_units
from muster.cluster.quantities import limit

Use = dict[tuple[str, str], dict[str, int]]
"""By flavour (GPU type, capacity) and resource, in base units."""


def nominals(every: Sequence[TrainingQueue]) -> dict[str, Use]:
    """By queue: its own nominal and that of all queues below it."""
    parents = {queue.metadata.name: queue.spec.parent for queue in every}
    has: dict[str, Use] = {name: {} for name in parents}
    types = sorted({use.gpu_type for queue in every for use in queue.status.usage})
    for queue in every:
        for name in (queue.metadata.name, *names_above(queue.metadata.name, parents)):
            _add(has[name], queue.spec.quotas or (), types)
    return has


def state(queue: TrainingQueue) -> str:
    """`open`, or in one word each what is wrong, once; empty while no operator has seen the queue."""
    faults = dict.fromkeys(each.reason for each in queue.status.conditions if each.status == "False")
    return ", ".join(faults) or ("open" if queue.status.conditions else "")


def in_use(queue: TrainingQueue) -> tuple[Use, Use]:
    """(in use, borrowed of that)."""
    used: Use = {}
    borrowed: Use = {}
    for each in queue.status.usage:
        key = (each.gpu_type, each.capacity.value if each.gpu_type else "")
        used[key] = {item.name: in_units(item.name, item.used) for item in each.resources}
        borrowed[key] = {item.name: in_units(item.name, item.borrowed or 0) for item in each.resources}
    return used, borrowed


def names_above(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """The names of the queues above one. None is above those that lead in a circle: each of them counts as a root."""
    found: list[str] = []
    parent = parents[name]
    while parent is not None and parent in parents and parent not in (name, *found):
        found.append(parent)
        parent = parents[parent]
    if parent == name:
        return []
    return found[: found.index(parent) + 1] if parent in found else found


def line_of(name: str, every: Sequence[TrainingQueue]) -> tuple[TrainingQueue, ...]:
    """A queue and those above it, the nearest first; () where there is none of that name."""
    return tuple(way_up(name, {queue.metadata.name: queue for queue in every}))


def way_up(name: str, queues: Mapping[str, TrainingQueue]) -> Iterator[TrainingQueue]:
    """A queue and those above it, the nearest first; of a circle, each once."""
    seen = set[str]()
    while name in queues and name not in seen:
        seen.add(name)
        yield queues[name]
        name = queues[name].spec.parent or ""


def _add(total: Use, quotas: Sequence[Quota], types: Sequence[str]) -> None:
    """Under the GPU types that use is told by, `types`: a quota may name a whole product. What can't be read is left
    out: the API server takes 1e99, and the queue's condition `Ready` names it."""
    meant = named_types((quota.gpu_type for quota in quotas), types)
    for quota in quotas:
        key = (meant[quota.gpu_type], quota.capacity.value) if quota.gpu_type else ("", "")
        amounts = total.setdefault(key, {})
        for item in quota.resources:
            with suppress(ValueError):
                amounts[item.name] = amounts.get(item.name, 0) + limit(item.name, item.nominal)
