"""Brute force for placements: tries worker after worker on every node, and knows nothing of trees and prefix sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from muster.scheduling.gangs import Gang
from muster.scheduling.snapshot import NONE, Index, TopologyMode


@dataclass(frozen=True)
class Ground:
    """A cluster as the definitions see it.

    Attributes:
        domains: for each node its domain at each level, NONE without the label.
        slots: workers that each node takes.
    """

    domains: tuple[tuple[int, ...], ...]
    slots: tuple[int, ...]

    @classmethod
    def of(cls, domains: Index, slots: Sequence[int]) -> Ground:
        return cls(tuple(tuple(row) for row in domains.tolist()), tuple(slots))


def is_valid(ground: Ground, gang: Gang, nodes: Sequence[int]) -> bool:
    """Whether worker i may be on `nodes[i]`, the spares being the last: word by word what `Shape` says."""
    if len(nodes) != gang.size + gang.shape.spares:
        return False
    if any(count > ground.slots[node] for node, count in Counter(nodes).items()):
        return False
    if gang.mode == TopologyMode.REQUIRED and not _share(ground, nodes, gang.level):
        return False
    workers = nodes[: gang.size]
    for size, level in gang.shape.slices:
        if gang.size % size:
            return False
        if not all(_share(ground, workers[at : at + size], level) for at in range(0, gang.size, size)):
            return False
    return gang.shape.balanced == NONE or _balanced(ground, workers, gang.shape.balanced)


def _share(ground: Ground, nodes: Sequence[int], level: int) -> bool:
    domains = {ground.domains[node][level] if level != NONE else NONE for node in nodes}
    return len(domains) == 1 and NONE not in domains


def _balanced(ground: Ground, nodes: Sequence[int], level: int) -> bool:
    counts = Counter(ground.domains[node][level] for node in nodes)
    return NONE not in counts and len(set(counts.values())) == 1


def fewest_domains(ground: Ground, gang: Gang) -> int | None:
    """The fewest domains of the balanced level in any valid placement."""
    found = [
        domains
        for domains in range(1, gang.size + 1)
        if gang.size % domains == 0 and _search(ground, gang, gang.size // domains)
    ]
    return min(found) if found else None


def exists(ground: Ground, gang: Gang) -> bool:
    """Whether any valid placement exists."""
    if gang.shape.balanced != NONE:
        return fewest_domains(ground, gang) is not None
    return _search(ground, gang, None)


def _search(ground: Ground, gang: Gang, share: int | None) -> bool:
    """Try every node for each worker in turn. `share`: workers in each domain of the balanced level that is used."""
    if any(gang.size % size for size, _ in gang.shape.slices):
        return False
    required = gang.level if gang.mode == TopologyMode.REQUIRED else None
    nodes = range(len(ground.slots))
    total = gang.size + gang.shape.spares

    @cache
    def place(worker: int, left: tuple[int, ...], around: tuple[int, ...], counts: frozenset[tuple[int, int]]) -> bool:
        """`around`: domain that the gang, then each open slice, is bound to; NONE where it is not bound yet."""
        used = dict(counts)
        if worker == gang.size and share is not None and any(count != share for count in used.values()):
            return False
        if worker == total:
            return True
        bound = [around[0]]
        for at, (size, _) in enumerate(gang.shape.slices, start=1):
            bound.append(NONE if worker % size == 0 else around[at])
        for node in nodes:
            if not left[node]:
                continue
            now = _bind(ground.domains[node], required, gang, bound, in_slices=worker < gang.size)
            if now is None:
                continue
            then = counts
            if share is not None and worker < gang.size:
                domain = ground.domains[node][gang.shape.balanced]
                if domain == NONE or used.get(domain, 0) == share:
                    continue
                then = frozenset((used | {domain: used.get(domain, 0) + 1}).items())
            fewer = (*left[:node], left[node] - 1, *left[node + 1 :])
            if place(worker + 1, fewer, now, then):
                return True
        return False

    return place(0, ground.slots, (NONE,) * (1 + len(gang.shape.slices)), frozenset())


def _bind(
    domains: tuple[int, ...], required: int | None, gang: Gang, bound: Sequence[int], *, in_slices: bool
) -> tuple[int, ...] | None:
    """What the gang and its slices are bound to after a worker came to a node of these domains; None: it may not."""
    now = list(bound)
    levels = [required] + ([level for _, level in gang.shape.slices] if in_slices else [])
    for at, level in enumerate(levels):
        if level is None:
            continue
        domain = domains[level] if level != NONE else NONE
        if domain == NONE or bound[at] not in (NONE, domain):
            return None
        now[at] = domain
    return tuple(now)


def may_stand(ground: Ground, gang: Gang, nodes: Sequence[int | None], share: int | None) -> bool:
    """Whether workers may be where they are, as far as they are anywhere (None: nowhere yet).

    Args:
        nodes: of the gang's workers, without spares.
        share: of a balanced gang: so many neighbours in rank share a domain of their own.
    """
    if gang.mode == TopologyMode.REQUIRED and not _may_share(ground, nodes, gang.level):
        return False
    parts = [*gang.shape.slices] + ([] if share is None else [(share, gang.shape.balanced)])
    for size, level in parts:
        if not all(_may_share(ground, nodes[at : at + size], level) for at in range(0, len(nodes), size)):
            return False
    if share is None:
        return True
    level = gang.shape.balanced
    groups = [
        {ground.domains[node][level] for node in nodes[at : at + share] if node is not None}
        for at in range(0, len(nodes), share)
    ]
    used = [domain for group in groups for domain in group]
    return len(used) == len(set(used))


def _may_share(ground: Ground, nodes: Sequence[int | None], level: int) -> bool:
    there = [node for node in nodes if node is not None]
    return not there or _share(ground, there, level)


def can_replace(ground: Ground, gang: Gang, nodes: Sequence[int | None]) -> bool:
    """Whether the workers that are nowhere can go somewhere while the others stay; `ground.slots` is for them."""
    return any(_replace(ground, gang, list(nodes), list(ground.slots), share) for share in shares(gang))


def shares(gang: Gang) -> list[int | None]:
    """How many workers each domain of a balanced gang may have."""
    if gang.shape.balanced == NONE:
        return [None]
    return [share for share in range(1, gang.size + 1) if gang.size % share == 0]


def _replace(ground: Ground, gang: Gang, nodes: list[int | None], left: list[int], share: int | None) -> bool:
    if not may_stand(ground, gang, nodes, share):
        return False
    if None not in nodes:
        return True
    worker = nodes.index(None)
    for node in range(len(left)):
        if not left[node]:
            continue
        nodes[worker], left[node] = node, left[node] - 1
        found = _replace(ground, gang, nodes, left, share)
        nodes[worker], left[node] = None, left[node] + 1
        if found:
            return True
    return False
