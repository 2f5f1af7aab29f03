"""Who held which node from when to when, in one placement of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from muster.api.placement import Placement, spares_by_index
from muster.cluster.views import PodView
from muster.controllers.devices import of_worker
from muster.controllers.lifecycle.turn import TERMINAL
from muster.controllers.sight import Sight, Worker
from muster.telemetry.cost.intervals import Interval

CLOCKS: Final = timedelta(seconds=2)
"""How far a node's clock may be from ours. Beyond it, what it says of a container's end is not believed."""


def workers_of(placement: Placement) -> dict[Worker, str]:
    """Nodes of the workers, without spares."""
    numbers = {item.index: item.attempt for item in placement.attempts}
    return {(index, numbers.get(index, 0)): node for index, node in enumerate(placement.node_of_index())}


def intervals_of(
    known: Mapping[Worker, Interval],
    alive: frozenset[Worker],
    absent: frozenset[Worker],
    placement: Placement,
    pods: Mapping[Worker, PodView],
    sight: Sight,
) -> dict[Worker, Interval]:
    """Of the present placement, those that have ended included."""
    found = dict(known)
    workers = workers_of(placement)
    spares = {(index, _number(known, index)): node for index, node in spares_by_index(placement.spares).items()}
    replaced = {worker: pod.node for worker, pod in pods.items() if worker not in workers and pod.node}
    for worker, node in (replaced | workers | spares).items():
        if worker in absent:
            continue
        pod = pods.get(worker)
        first = not known or (worker[1] == 0 and worker in workers)
        begins = placement.placed_at if first and worker[1] == 0 else pod.created if pod is not None else None
        found[worker] = _held(found.get(worker), worker, node, begins or sight.now, placement.generation, sight)
    ended = {worker for worker, pod in pods.items() if pod.phase in TERMINAL}
    vanished = alive - pods.keys()
    for worker, one in found.items():
        if one.ends is None:
            over = (worker not in workers and worker not in spares) or worker in ended or worker in vanished
            guessed = worker in pods or worker in alive
            found[worker] = ending(one, sight, guessed=guessed) if over else _finished(one, sight)
        else:
            found[worker] = _finished(one, sight)  # its pod may have gone on for a while
    return found


def _number(known: Mapping[Worker, Interval], index: int) -> int:
    """Of a spare's room: counts how often there was none for it."""
    number = 0
    while (index, number) in known and known[index, number].ends is not None:
        number += 1
    return number


def _held(
    before: Interval | None, worker: Worker, node: str, begins: datetime, generation: int, sight: Sight
) -> Interval:
    if before is not None and (before.node == node or before.ends is not None):
        return before
    of_node, capacity = sight.flavour(node)
    found = of_worker(sight.spec.gpus_per_worker, sight.spec.requests, of_node)
    if before is not None:  # its pod could not be made there: the room has moved
        return replace(
            before, node=node, gpu_type=found.gpu_type or before.gpu_type, capacity=capacity or before.capacity
        )
    index, number = worker
    return Interval(
        job=sight.job.metadata.uid,
        attempt=generation,
        index=index,
        replacement=number,
        node=node,
        gpu_type=found.gpu_type,
        capacity=capacity,
        gpus=found.count,
        begins=min(begins, sight.now),
    )


def _finished(one: Interval, sight: Sight) -> Interval:
    """With the end of its containers, where kubelet has told it."""
    end = sight.finished.get((one.attempt, one.index, one.replacement))
    if end is None:
        return one
    if one.begins - CLOCKS <= end.at <= end.heard + CLOCKS:
        return replace(one, ends=max(one.begins, min(end.at, end.heard)), estimated=False)
    return one if one.ends is not None else replace(one, ends=max(sight.now, one.begins), estimated=True)


def ending(one: Interval, sight: Sight, *, guessed: bool) -> Interval:
    """It is over: when its containers finished, or now. `guessed`: a pod of it ran, whose end was not seen."""
    known = _finished(one, sight)
    return known if known.ends is not None else replace(one, ends=max(sight.now, one.begins), estimated=guessed)
