"""Elastic gangs: growth into room that nobody else can use. How they shrink is in `muster.scheduling.victims`.

A gang grows by whole steps (`Sizes.step`) up to its most, and only

* when all who wait were looked at: into room that is neither taken nor kept for anybody, and quota likewise;
* if it saves checkpoints, for a gang grows by a stop and a start. One that isn't preemptible must have committed one
  where it stands, for perhaps its script can't save, and only growth would ever stop it;
* if it isn't preemptible: within its queue's own quota, for it could not give back what is borrowed;
* where its topology allows it: inside its required domain, in whole slices. Gangs that lie balanced keep their size;
* when it pays: the accelerator-seconds that it wins until it ends, or within an hour, are twice what its restart loses;
* once its placement has stood for a while, so that jobs which come and go do not make it grow and shrink with them.

Jobs grow in the order of priority, then of their submit. Each takes all that it can use.

A gang with a safe base (`muster.scheduling.beyond`) grows beyond that in the same way, on the other kind of nodes and
by their quota. One that starts gets as many of these as it wishes at once, for that costs nobody anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from muster.scheduling.gangs import Gang
from muster.scheduling.moves import (
    Choices,
    Move,
    OpenRoom,
    Pace,
    accelerators_each,
    by_rank,
    gang_of,
    has_accelerators,
    need_of,
    remaining,
    settled,
)
from muster.scheduling.offers import lost_seconds
from muster.scheduling.placement import fits, locate
from muster.scheduling.plan import MoveReason
from muster.scheduling.promises import base_stands, stands
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import NONE, PLAIN, Index, Int, Seconds, Snapshot, TopologyMode
from muster.scheduling.topology import Tree, prefix_sums

NEVER_PAYS: Final = 2**31
"""Steps of growth, in place of more: of a gang that is about to end."""


def grow(
    snapshot: Snapshot,
    tree: Tree,
    room: Int,
    ledger: Ledger,
    pace: Pace | None = None,
    own: Set[tuple[int, int]] = frozenset(),
    used: Ledger | None = None,
) -> tuple[Move, ...]:
    """Which elastic gangs grow now, and where. To be asked after everybody who waits.

    Args:
        room: R x N in tree order, what nobody holds or is to get. What growth takes is subtracted.
        ledger: with all promises; what growth takes is charged.
        own: (queue, flavour) in which nobody grows by what is borrowed.
        used: with what those still hold who leave. A gang with a base would start again without what it can't have yet,
            so that it grows only by what is there; that is charged.
    """
    pace = pace or Pace()
    moves, open_, choices = [], OpenRoom(snapshot, tree, room), Choices(snapshot)
    jobs = snapshot.jobs
    for wish in _wishes(snapshot, pace):
        row, more = wish.row, jobs.beyond.get(wish.row)
        flavour = int(jobs.flavours[row]) if more is None else more.flavour
        nodes = jobs.runs.nodes_of(row)
        if not may_grow(snapshot, row, nodes):
            continue
        filter_ = choices.current(row) if more is None else more.filter
        based = more is not None or row in jobs.bases
        ledgers = (ledger,) if used is None or not based else (ledger, used)
        places = _find(snapshot, tree, open_, ledgers, wish, nodes, filter_, flavour, own)
        if places is not None:
            joined = _join(snapshot, tree, row, nodes, places) if more is None else _behind(tree, nodes, places)
            taken = open_.take(row, places)
            moves.append(Move(row, joined, int(jobs.flavours[row]), MoveReason.GROWN, wish.lost, *taken))
    return tuple(moves)


def start_with_more(
    snapshot: Snapshot,
    tree: Tree,
    room: Int,
    ledgers: Sequence[Ledger],
    starting: Iterable[tuple[int, Index]],
    own: Set[tuple[int, int]] = frozenset(),
) -> dict[int, Index]:
    """Nodes of the workers that gangs get beyond their base when they start, by row; as `grow`.

    Args:
        ledgers: with all promises, and with what is used.
        starting: rows of gangs with a safe base, and the nodes of that.
    """
    found, open_ = dict[int, Index](), OpenRoom(snapshot, tree, room)
    for row, nodes in starting:
        more = snapshot.jobs.beyond[row]
        wish = _Wish(row, more.step, 0, min(more.wish, more.most) // more.step, 1, 0.0)
        if not wish.steps or not is_open(snapshot, row) or not may_grow(snapshot, row, nodes):
            continue
        places = _find(snapshot, tree, open_, ledgers, wish, nodes, more.filter, more.flavour, own)
        if places is not None:
            open_.take(row, places)
            found[row] = tree.order[np.sort(places)].astype(np.int32)
    return found


@dataclass(frozen=True)
class _Wish:
    """What a gang may grow by.

    Attributes:
        step, begun: see `steps_left`.
        steps, least: most steps, and the fewest that pay.
        lost: accelerator-seconds that it costs.
    """

    row: int
    step: int
    begun: int
    steps: int
    least: int
    lost: float

    def workers(self, steps: int) -> int:
        """How many more it has after so many steps."""
        return steps * self.step - self.begun


def _wishes(snapshot: Snapshot, pace: Pace) -> list[_Wish]:
    """Gangs that may be larger and for which it may pay, first in rank first."""
    jobs = snapshot.jobs
    step, begun, steps = steps_left(snapshot)
    larger = (steps > 0) & settled(snapshot, pace)
    larger &= jobs.terms.preemptible | (jobs.runs.saved > jobs.runs.started)
    larger[larger] &= snapshot.queues.open[jobs.queues[larger]] & ~snapshot.queues.drain[jobs.queues[larger]]
    rows = by_rank(snapshot, np.flatnonzero(larger).astype(np.int64))
    least, lost = fewest_that_pay(snapshot, rows, pace, step, begun)
    pays = np.flatnonzero(least <= steps[rows])
    columns = (rows, step[rows], begun[rows], steps[rows], least, lost)
    return [_Wish(*each) for each in zip(*(column[pays].tolist() for column in columns), strict=True)]


def steps_left(snapshot: Snapshot) -> tuple[Int, Int, Int]:
    """J each: workers in one step, those of the first step that it has already (its spec was edited, and it has none of
    its sizes now), and steps up to the most that it may have; 0 for a gang of one size."""
    size, fewest, most, step = _sizes(snapshot)
    begun = np.where(size < fewest, size - fewest + step, (size - fewest) % step)
    steps = np.where(fewest < most, np.maximum(0, (most - size + begun) // step), 0)
    return step, begun, steps


def fewest_that_pay(snapshot: Snapshot, rows: Int, pace: Pace, step: Int, begun: Int) -> tuple[Int, Seconds]:
    """Of each of these rows the fewest steps that win enough to pay for its restart, and the accelerator-seconds which
    that costs."""
    lost = lost_seconds(snapshot, rows)
    worth = remaining(snapshot, rows, pace) * accelerators_each(snapshot, rows)
    # What is won counts for each worker, also where none has accelerators, and so does what is lost.
    counts = np.where(has_accelerators(snapshot, rows), lost, lost * np.diff(snapshot.jobs.runs.first)[rows])
    steps = np.ceil((pace.gain * counts / np.maximum(worth, 1e-9) + begun[rows]) / step[rows])
    return np.clip(steps, 1, NEVER_PAYS).astype(np.int64), lost


def is_open(snapshot: Snapshot, row: int) -> bool:
    """Whether its queue lets a gang have more: one that starts again goes on in a closed one, with what it had."""
    queues, queue = snapshot.queues, int(snapshot.jobs.queues[row])
    return bool(queues.open[queue] and not queues.drain[queue])


def _sizes(snapshot: Snapshot) -> tuple[Int, Int, Int, Int]:
    """J each: workers that may become more, fewest and most of them, and their step. Of a base these are the workers
    beyond it as long as there are none: those that there are have a row of their own."""
    jobs = snapshot.jobs
    spares = np.array([shape.spares for shape in jobs.terms.shapes], dtype=np.int64)
    size = np.diff(jobs.runs.first) - spares
    fewest, most = jobs.sizes.least.astype(np.int64), jobs.sizes.most.astype(np.int64)
    step = np.maximum(1, jobs.sizes.step).astype(np.int64)
    for row, more in jobs.beyond.items():
        if more.row == NONE:
            size[row], fewest[row], most[row], step[row] = 0, 0, more.most, more.step
    return size, fewest, most, step


def may_grow(snapshot: Snapshot, row: int, nodes: Index) -> bool:
    """Whether a gang on these nodes may have more workers, of the right number."""
    return grows_in_shape(snapshot, row) and starts_there(snapshot, row, nodes)


def grows_in_shape(snapshot: Snapshot, row: int) -> bool:
    """Whether the shape of a gang lets it have more workers: in whole slices, and not where it lies balanced."""
    jobs = snapshot.jobs
    more = jobs.beyond.get(row)
    shape, step = jobs.terms.shapes[row], max(1, int(jobs.sizes.step[row]) if more is None else more.step)
    whole = not shape.slices or step % shape.slices[0][0] == 0
    return shape.balanced == NONE and whole


def starts_there(snapshot: Snapshot, row: int, nodes: Index) -> bool:
    """Whether a gang could start on these nodes again: those that it has, and its base's."""
    return bool(stands(snapshot, row, nodes).all()) and base_stands(snapshot, row)


def _find(
    snapshot: Snapshot,
    tree: Tree,
    room: OpenRoom,
    ledgers: Sequence[Ledger],
    wish: _Wish,
    nodes: Index,
    filter_: int,
    flavour: int,
    own: Set[tuple[int, int]],
) -> Int | None:
    """Places of as many more workers as there is room and quota for, which is charged; None for fewer than pay.

    Args:
        ledgers: all of them have the quota.
        nodes: that the gang has.
        filter_, flavour: of the nodes that the others may have.
    """
    jobs, row = snapshot.jobs, wish.row
    slots, there = room.slots(row, filter_)
    queue = int(jobs.queues[row])
    borrowing = bool(jobs.terms.preemptible[row]) and (queue, flavour) not in own

    def has_quota(some: int) -> bool:
        need = need_of(snapshot, row, wish.workers(some))
        return all(ledger.shortage(queue, flavour, need, borrowing=borrowing) is None for ledger in ledgers)

    steps = _largest(min(wish.steps, (there + wish.begun) // wish.step), has_quota)
    if steps < wish.least:
        return None
    for gang, pool in sites(snapshot, tree, row, nodes, slots):
        prefix = prefix_sums(pool)
        count = _largest(steps, lambda some: fits(tree, prefix, replace(gang, size=wish.workers(some))))  # noqa: B023
        if count < wish.least:
            continue
        gang = replace(gang, size=wish.workers(count))
        places = locate(tree, pool, prefix, gang, whole=np.zeros(len(pool), np.bool_), spared=None)
        assert places is not None, "a growth that fits was not placed"
        for ledger in ledgers:
            ledger.charge(queue, flavour, need_of(snapshot, row, gang.size))
        return places
    return None


def _largest(most: int, allowed: Callable[[int], bool]) -> int:
    """The largest count up to `most` that is allowed; smaller ones are allowed where larger ones are. 0: none."""
    return most - bisect_left(range(most), True, key=lambda index: allowed(most - index))


def sites(snapshot: Snapshot, tree: Tree, row: int, own: Index, slots: Int) -> list[tuple[Gang, Int]]:
    """Where new workers may go, the closest first: a gang to place, and slots outside the site left out."""
    gang = gang_of(snapshot, row, 1)
    gang = replace(gang, shape=replace(PLAIN, slices=gang.shape.slices))
    anywhere = replace(gang, mode=TopologyMode.UNCONSTRAINED, level=NONE)
    if gang.mode == TopologyMode.UNCONSTRAINED:
        return [(anywhere, slots)]
    if gang.mode == TopologyMode.REQUIRED and gang.level == NONE:
        return []
    domains = snapshot.nodes.domains
    widest = gang.level if gang.mode == TopologyMode.REQUIRED else 0
    found = []
    for level in range(tree.depth - 1, widest - 1, -1):
        here = domains[own, level]
        if here[0] != NONE and (here == here[0]).all():
            found.append((anywhere, np.where(domains[tree.order, level] == here[0], slots, 0)))
    if gang.mode == TopologyMode.PREFERRED:
        found.append((anywhere, slots))
    return found


def _behind(tree: Tree, nodes: Index, places: Int) -> Index:
    """The base, whose workers keep their ranks, and behind it those beyond it, in whole slices in tree order."""
    return np.concatenate([nodes, tree.order[np.sort(places)]]).astype(np.int32)


def _join(snapshot: Snapshot, tree: Tree, row: int, nodes: Index, places: Int) -> Index:
    """Old and new workers in tree order, in whole slices; spares behind."""
    shape = snapshot.jobs.terms.shapes[row]
    size, slice_ = len(nodes) - shape.spares, shape.slices[0][0] if shape.slices else 1
    slices = np.concatenate([tree.place_of[nodes[:size]], places]).reshape(-1, slice_)
    every = slices[np.argsort(slices[:, 0], kind="stable")].ravel()
    return np.concatenate([tree.order[every], nodes[size:]]).astype(np.int32)
