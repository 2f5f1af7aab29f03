"""Workers that no node tells apart, so that their slots are counted once.

People ask for about as much memory and CPU beside the same accelerators, and for exactly as much seldom; and on most
nodes it is the accelerators that run out. Where the one that asks for least of everything fits a node as often as the
one that asks for most, so do all between them. A family is counted as these two, and falls apart as soon as they differ
on any place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from muster.scheduling.gangs import Worker, is_accelerator


@dataclass(frozen=True, eq=False)
class Family:
    """Workers of one filter that ask for the same resources and as many accelerators.

    Attributes:
        members: indices of the list of workers, at least two.
        least, most: what asks for the least, and for the most, of each resource that any of them asks for.
    """

    members: tuple[int, ...]
    least: Worker
    most: Worker


def families(workers: Sequence[Worker], resources: Sequence[str]) -> dict[int, Family]:
    """The family of each worker that has one."""
    accelerators = frozenset(index for index, name in enumerate(resources) if is_accelerator(name))
    alike: dict[tuple[int, tuple[tuple[int, int], ...]], list[int]] = {}
    for index, worker in enumerate(workers):
        if worker.accelerated:
            asks = tuple([(resource, amount * (resource in accelerators)) for resource, amount in worker.asks])
            alike.setdefault((worker.filter, asks), []).append(index)
    found: dict[int, Family] = {}
    for members in alike.values():
        if len(members) > 1:
            family = _family(workers, members)
            found.update((member, family) for member in members)
    return found


def _family(workers: Sequence[Worker], members: Sequence[int]) -> Family:
    one = workers[members[0]]
    resources = [resource for resource, _ in one.asks]
    amounts = list(zip(*([amount for _, amount in workers[member].asks] for member in members), strict=True))
    least = Worker(tuple(zip(resources, map(min, amounts), strict=True)), one.filter, one.accelerated)
    most = Worker(tuple(zip(resources, map(max, amounts), strict=True)), one.filter, one.accelerated)
    return Family(tuple(members), least, most)
