"""Which replicas of elastic jobs leave, when the usual choice asks for more than it must.

An elastic job offers the replicas that promise most where room is wanted (`offers.without`), each job for itself. What
that leaves out: a slot that makes a slice whole only beside one of another job, room that yet others free on the same
node, and queues that borrow less than all that the job can do without, or than all such jobs of theirs together. Then
somebody is evicted where shrinking is enough. Where few jobs may be asked, all choices of their replicas are looked at,
so that nobody is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from math import comb, prod

import numpy as np

from muster.scheduling.claims import Right
from muster.scheduling.demand import Demand
from muster.scheduling.offers import replicas_to_spare
from muster.scheduling.snapshot import Index, Int, Mask

Leaving = Mapping[int, Mask]
"""By row: W, the workers that may leave. Who is not in it does not shrink: it stays as it is, or goes."""

_FEW, _CHOICES = 10, 32
"""With more jobs that may be asked, or more choices of their replicas, the usual one stands."""


def choices_of_replicas(wants: Demand, rights: Index, asked: Int) -> Iterator[Leaving]:
    """All choices of replicas of the elastic jobs among those that may be asked, where these are few."""
    if len(asked) > _FEW:
        return
    elastic = {
        row: spare
        for row in asked.tolist()
        if rights[row] != int(Right.YIELDS) and (spare := replicas_to_spare(wants.snapshot, row))
    }
    if not elastic:
        return
    counts = {row: _replicas(wants, row) for row in elastic}
    if max(counts.values()) > _CHOICES:  # there are as many choices of one alone; of thousands the others are no number
        return
    sizes = {row: sum(comb(counts[row], size) for size in range(1, spare + 1)) for row, spare in elastic.items()}
    if prod(sizes.values()) > _CHOICES:
        return
    each: list[list[Mask | None]] = [list(_sets(wants, row, counts[row], spare)) for row, spare in elastic.items()]
    # What one of a queue gives back may be what another of it may not be asked for any more.
    bound = [rights[row] >= int(Right.RECLAIM) for row in elastic]
    if any(bound) and prod(size + stays for size, stays in zip(sizes.values(), bound, strict=True)) <= _CHOICES:
        each = [[*sets, None] if stays else sets for sets, stays in zip(each, bound, strict=True)]
    for some in product(*each):
        yield {row: leaving for row, leaving in zip(elastic, some, strict=True) if leaving is not None}


def _replicas(wants: Demand, row: int) -> int:
    jobs = wants.snapshot.jobs
    size = len(jobs.runs.nodes_of(row)) - jobs.terms.shapes[row].spares
    return size // max(1, int(jobs.sizes.step[row]))


def _sets(wants: Demand, row: int, count: int, most: int) -> Iterator[Mask]:
    """Up to so many replicas that leave, but for those that leave the same nodes; as `offers.without` counts them."""
    jobs = wants.snapshot.jobs
    nodes, step = jobs.runs.nodes_of(row), max(1, int(jobs.sizes.step[row]))
    first, seen = len(nodes) - jobs.terms.shapes[row].spares - count * step, set()
    for some in range(1, most + 1):
        for blocks in combinations(range(count), some):
            leaving = np.zeros(len(nodes), dtype=np.bool_)
            for block in blocks:
                leaving[first + block * step : first + (block + 1) * step] = True
            left = tuple(sorted(nodes[leaving].tolist()))
            if left not in seen:
                seen.add(left)
                yield leaving
