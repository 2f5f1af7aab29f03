"""Where a gang goes, by the words of docs/scheduling.md and nothing else: loops over nodes and domains."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from muster.scheduling.gangs import is_accelerator
from muster.scheduling.snapshot import NONE, Snapshot, TopologyMode

Free = list[list[int]]
"""By node and resource."""
Counts = list[int]
"""Workers by node."""
_LAST = 10**9


def asks(world: Snapshot, job: int) -> dict[int, int]:
    """By resource what one worker asks for."""
    return {resource: amount for resource, amount in enumerate(world.jobs.requests[job].tolist()) if amount > 0}


def suits(world: Snapshot, job: int, node: int) -> bool:
    return bool(world.eligible[world.jobs.filters[job], node])


def slots(world: Snapshot, job: int, free: Free, *, away: bool = False) -> Counts:
    """Workers of the job that fit on each node that suits it; with `away` also where no pod can start now."""
    counts = []
    for node, left in enumerate(free):
        there = suits(world, job, node) and (away or bool(world.nodes.usable[node]))
        counts.append(max(0, min(left[resource] // amount for resource, amount in asks(world, job).items())) * there)
    return counts


def domains(world: Snapshot, level: int) -> list[list[int]]:
    """The nodes of each domain of a level, in the order of the tree."""
    found: dict[int, list[int]] = {}
    for node in in_tree_order(world):
        if _label(world, node, level) != _LAST:
            found.setdefault(_label(world, node, level), []).append(node)
    return list(found.values())


def in_tree_order(world: Snapshot) -> list[int]:
    """Nodes by their domains, widest first; those without a label behind their neighbours."""
    levels = range(len(world.levels.names))
    return sorted(range(len(world.nodes.names)), key=lambda node: [_label(world, node, each) for each in levels])


def fits(world: Snapshot, job: int, counts: Counts, need: int) -> bool:
    """Whether so many of its workers, spares among them, fit where they may lie together."""
    return any(sum(counts[node] for node in each) >= need for each in reach(world, job))


def reach(world: Snapshot, job: int) -> list[list[int]]:
    """The sets of nodes of which one must hold the whole gang."""
    if world.jobs.modes[job] == TopologyMode.REQUIRED:
        level = int(world.jobs.levels[job])
        return [] if level == NONE else domains(world, level)
    return [list(range(len(world.nodes.names)))]


def place(world: Snapshot, job: int, counts: Counts, empty: Counts, need: int) -> Counts:
    """How many of `need` workers and spares each node gets; these must fit. `empty`: slots when nothing runs."""
    everywhere = in_tree_order(world)
    pools = [counts]
    if not any(is_accelerator(world.resources[resource]) for resource in asks(world, job)):
        pools.insert(0, [0 if _has_idle_accelerators(world, node) else count for node, count in enumerate(counts)])
    mode, level = int(world.jobs.modes[job]), int(world.jobs.levels[job])
    if mode == TopologyMode.UNCONSTRAINED or (mode == TopologyMode.PREFERRED and level == NONE):
        return _anywhere(everywhere, pools, [some >= most for some, most in zip(counts, empty, strict=True)], need)
    widest = level if mode == TopologyMode.REQUIRED else NONE
    for at in range(len(world.levels.names) - 1, widest - 1, -1):
        for pool in pools:
            site = everywhere if at == NONE else _tightest_domain(world, at, pool, need)
            if site and sum(pool[node] for node in site) >= need:
                return _inside(world, site, at + 1, pool, need)
    raise AssertionError("the gang does not fit")


def anywhere(world: Snapshot, counts: Counts, need: int) -> Counts:
    """Where so many more workers of a job go that runs and may lie anywhere."""
    return _anywhere(in_tree_order(world), [counts], [False] * len(counts), need)


def _label(world: Snapshot, node: int, level: int) -> int:
    """A node that lacks a wider level's label is in no narrower domain either."""
    labels = world.nodes.domains[node, : level + 1].tolist()
    return _LAST if NONE in labels else int(labels[-1])


def _has_idle_accelerators(world: Snapshot, node: int) -> bool:
    free = world.nodes.free[node].tolist()
    idle = any(is_accelerator(name) and some > 0 for name, some in zip(world.resources, free, strict=True))
    return idle and world.nodes.flavours[node] != NONE


def _tightest_domain(world: Snapshot, level: int, pool: Counts, need: int) -> list[int]:
    """The domain with the fewest slots that holds the gang, then the one in the fullest wider domain."""
    able = [each for each in domains(world, level) if sum(pool[node] for node in each) >= need]

    def fullness(site: list[int]) -> list[int]:
        around = [next(each for each in domains(world, wide) if site[0] in each) for wide in range(level, -1, -1)]
        return [sum(pool[node] for node in each) for each in around]

    return min(able, key=fullness, default=[])


def _inside(world: Snapshot, site: list[int], level: int, pool: Counts, need: int) -> Counts:
    """Level by level: the tightest child that holds all that is left, else as few as possible, the largest first."""
    if level == len(world.levels.names):
        children, loose = [[node] for node in site], lambda child: False
    else:
        labels = dict.fromkeys(_label(world, node, level) for node in site)
        children = [[node for node in site if _label(world, node, level) == label] for label in labels]
        loose = lambda child: _label(world, child[0], level) == _LAST  # noqa: E731
    given = [0] * len(pool)
    for child, part in _share(children, pool, need, loose):
        if level == len(world.levels.names):
            given[child[0]] = part
        else:
            given = [a + b for a, b in zip(given, _inside(world, child, level + 1, pool, part), strict=True)]
    return given


def _share(
    children: list[list[int]], pool: Counts, need: int, loose: Callable[[list[int]], bool]
) -> Iterable[tuple[list[int], int]]:
    """The largest children filled whole until one holds what is left; of those that do the tightest gets it."""
    left = list(children)
    while need:
        room = {id(child): sum(pool[node] for node in child) for child in left}
        largest = min(left, key=lambda child: (loose(child), -room[id(child)]))
        if room[id(largest)] >= need:
            holding = [child for child in left if room[id(child)] >= need]
            yield min(holding, key=lambda child: (loose(child), room[id(child)])), need
            return
        left.remove(largest)
        need -= room[id(largest)]
        if room[id(largest)]:
            yield largest, room[id(largest)]


def _anywhere(order: list[int], pools: list[Counts], whole: list[bool], need: int) -> Counts:
    """Nodes in use first, and as few untouched ones as possible."""
    taken = [0] * len(whole)
    for pool in pools:
        left = [some - used for some, used in zip(pool, taken, strict=True)]
        part = min(need, sum(left))
        broken = [node for node in order if not (whole[node] and not taken[node])]
        untouched = [node for node in order if whole[node] and not taken[node]]
        in_broken = sum(left[node] for node in broken)
        on_untouched = 0
        for room in sorted((left[node] for node in untouched), reverse=True):
            if in_broken + on_untouched < part:
                on_untouched += room
        on_untouched = min(part, on_untouched)
        for nodes, some in ((untouched, on_untouched), (broken, part - on_untouched)):
            for child, count in _share([[node] for node in nodes], left, some, lambda child: False):
                taken[child[0]] += count
        need -= part
    return taken
