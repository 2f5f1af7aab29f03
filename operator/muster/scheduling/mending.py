"""Puts right what broken nodes have done to gangs, in the plan that sees it, before anybody else is looked at.

* **Promises.** A gang that starts again is promised the nodes that it was on, like one that others make room for. Where
  some of these are gone, cordoned, not ready, or no longer suit it, only the workers there get another place, spares
  first (`muster.scheduling.replacement`); the others keep their node and their rank. Where there is none, an elastic
  gang that starts again does so with fewer workers (`muster.scheduling.reduction`). A promise that cannot be mended
  so is left as it is: `muster.scheduling.promises` breaks it, and the gang is placed anew as a whole. Room that
  strangers have taken, while nobody leaves it, is like a broken node; only those wait for it for whom somebody is still
  to go. Where it is enough for some of those to whom it is promised, the last in rank lose it; but before them gangs
  that start again: a worker of theirs may have ended before the gang did, and its room is others' since.
* **Gangs that run.** A worker that was lost goes back to its node while the others wait in their pods; where the node
  is broken it gets another place in the same way, but not in room that is promised to others. An elastic gang that has
  waited for that for long enough goes on with fewer workers.
* **Spares.** A spare of a running gang whose node is broken moves, and one that is lacking is found again. That takes
  only room that is kept for nobody, and quota as any start does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from muster.scheduling.gangs import Gang
from muster.scheduling.moves import by_rank, gang_of, need_of, take_room, worker_of
from muster.scheduling.plan import Promise, Replacement
from muster.scheduling.promises import base_stands, moving, promised_nodes, reserved_by_rank, stands, victims_of
from muster.scheduling.quota import Ledger, Need
from muster.scheduling.reduction import reduce_gang, smaller_sizes
from muster.scheduling.replacement import replace_workers
from muster.scheduling.slots import by_resource, count_slots
from muster.scheduling.snapshot import NONE, Index, Int, Mask, Snapshot
from muster.scheduling.topology import Tree


def mend_promises(snapshot: Snapshot, tree: Tree) -> tuple[Snapshot, tuple[Replacement, ...], tuple[Promise, ...]]:
    """Give the workers of promises another node where theirs is broken, or make their gangs smaller.

    A lacking spare of a promise is not looked for: it is found when the gang runs.

    Returns:
        The snapshot with the new promises, the workers that have another node, and the promises of fewer workers.
    """
    rows = [*reserved_by_rank(snapshot), *moving(snapshot)]
    if not rows:
        return snapshot, (), ()
    snapshot = _without_given_up(snapshot, rows)
    broken = [row for row in rows if not stands(snapshot, row, promised_nodes(snapshot, row)).all()]
    free = _left_by_promises(snapshot, rows)
    strangers = _overdrawn_by_strangers(snapshot, rows, free)
    if not broken and not strangers.any():
        return snapshot, (), ()
    replacements, reduced, mended = [], list[Promise](), dict[int, Index]()
    for row in rows:
        before = promised_nodes(snapshot, row)
        lost = _lost_promised(snapshot, row, before, strangers)
        if not lost.any():
            continue
        found = _mend(snapshot, tree, free, row, before, lost, strangers)
        if found is not None:
            after = before.copy()
            after[found.indexes] = found.nodes
            _take(snapshot, free, row, before[found.indexes], back=True)
            _take(snapshot, free, row, found.nodes)
            replacements.append(found)
            mended[row] = after[after != NONE]
        elif (fewer := _reduced_promise(snapshot, tree, free, row, before, lost, strangers)) is not None:
            _take(snapshot, free, row, before, back=True)
            _take(snapshot, free, row, fewer)
            reduced.append(Promise(snapshot.jobs.uids[row], fewer, int(snapshot.jobs.flavours[row])))
            mended[row] = fewer
    mended |= _without_taken(snapshot, free, [row for row in rows if row not in mended], strangers)
    return _with_promises(snapshot, mended) if mended else snapshot, tuple(replacements), tuple(reduced)


def mend_gangs(snapshot: Snapshot, tree: Tree) -> tuple[Snapshot, tuple[Replacement, ...]]:
    """Give lost workers of gangs that run another node where theirs is broken. Returns the snapshot with the new nodes.

    A gang for which there is no such place is left as it is.
    """
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    waiting = [row for row in runs.lost if jobs.holding[row] and not runs.leaving[row]]
    if not waiting:
        return snapshot, ()
    free = snapshot.nodes.free.copy()
    for row in [*reserved_by_rank(snapshot), *moving(snapshot)]:
        _take(snapshot, free, row, promised_nodes(snapshot, row))
    replacements = []
    for row in by_rank(snapshot, np.array(waiting, dtype=np.int64)).tolist():
        found = _mend_gang(snapshot, tree, free, row)
        if found is not None:
            _take(snapshot, free, row, snapshot.jobs.runs.nodes_of(row)[found.indexes], back=True)
            _take(snapshot, free, row, found.nodes)
            snapshot = _with_workers(snapshot, row, found)
            replacements.append(found)
    return snapshot, tuple(replacements)


def reduce_gangs(snapshot: Snapshot, tree: Tree, free: Int) -> dict[int, Index]:
    """Elastic gangs that have waited long enough for nodes of lost workers: where they go on, by row.

    Args:
        free: N x R, what nobody holds and nobody is promised.
    """
    runs, free = snapshot.jobs.runs, free.copy()
    due = [row for row, moment in runs.shrinks.items() if moment <= snapshot.now and not runs.leaving[row]]
    found: dict[int, Index] = {}
    for row in by_rank(snapshot, np.array(due, dtype=np.int64)).tolist():
        nodes = runs.nodes_of(row)
        standing = stands(snapshot, row, nodes)
        if standing[runs.lost[row]].all():
            continue
        if not base_stands(snapshot, row):
            continue  # the gang can't go on without its base
        # New pods are made for all, so those that live on a broken node are left behind too.
        fewer = _reduced(snapshot, tree, free, row, nodes, ~standing)
        if fewer is not None:
            _take(snapshot, free, row, fewer)
            found[row] = fewer
    return found


def mend_spares(
    snapshot: Snapshot, tree: Tree, room: Int, ledger: Ledger, allows: Callable[[int, int, Need], bool]
) -> tuple[Replacement, ...]:
    """Find new places for broken and lacking spares of gangs that run.

    Args:
        room: R x N in tree order, what nobody holds or is to get. What spares take is subtracted.
        ledger: with all promises; what spares take is charged.
        allows: whether owners leave a need of a flavour to a queue: see `Owners.allow`.
    """
    rows = by_rank(snapshot, np.flatnonzero([shape.spares for shape in snapshot.jobs.terms.shapes])).tolist()
    found = (_mend_spares(snapshot, tree, room, ledger, allows, row) for row in rows if _may_get(snapshot, row))
    return tuple([each for each in found if each is not None])


def _at(mask: Mask, nodes: Index) -> Mask:
    """What a mask over nodes says of these; False for those that are gone."""
    found: Mask = nodes != NONE
    found[found] = mask[nodes[found]]
    return found


def _places(tree: Tree, nodes: Index) -> Int:
    """Places of these nodes in tree order; NONE for those that are gone."""
    places = nodes.astype(np.int64)
    places[nodes != NONE] = tree.place_of[nodes[nodes != NONE]]
    return places


def _suitable(snapshot: Snapshot, row: int, nodes: Index) -> Mask:
    """N, nodes like those that a job has already. Without accelerators no flavour tells these apart: then they are of
    the first of its kinds that most of them are of."""
    jobs, there = snapshot.jobs, nodes[nodes != NONE]
    filters = [int(jobs.filters[row]), *(other.filter for other in jobs.terms.alternatives[row])]
    if jobs.flavours[row] == 0:
        filters = [max(filters, key=lambda each: int(snapshot.eligible[each, there].sum()))]
    suits: Mask = np.logical_or.reduce(snapshot.eligible[filters], axis=0) & snapshot.nodes.usable
    if jobs.flavours[row] != 0:
        suits = suits & np.isin(snapshot.nodes.flavours, np.unique(snapshot.nodes.flavours[there]))
    return suits


def _take(snapshot: Snapshot, free: Int, row: int, nodes: Index, *, back: bool = False) -> None:
    change = np.add if back else np.subtract
    change.at(free, nodes[nodes != NONE], snapshot.jobs.requests[row])


def _overdrawn_by_strangers(snapshot: Snapshot, rows: list[int], free: Int) -> Mask:
    """N, nodes on which somebody unknown has taken what is promised: nobody there is leaving, and it is not enough.
    `free`: see `_left_by_promises`."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    overdrawn = np.zeros(len(snapshot.nodes.names), dtype=np.bool_)
    reserved = [row for row in rows if jobs.reserved[row]]
    if not reserved:
        return overdrawn
    for row in reserved:
        nodes, asked = promised_nodes(snapshot, row), jobs.requests[row] > 0
        nodes = nodes[nodes != NONE]
        overdrawn[nodes] |= (free[nodes][:, asked] < 0).any(axis=1)
    for row in np.flatnonzero(runs.leaving & jobs.holding).tolist():
        nodes = runs.nodes_of(row)
        overdrawn[nodes[nodes != NONE]] = False
    return overdrawn


def _left_by_promises(snapshot: Snapshot, rows: list[int]) -> Int:
    """N x R, what is free beside what is promised to these jobs; negative where that is still to come back."""
    free = snapshot.nodes.free.copy()
    for row in rows:
        _take(snapshot, free, row, promised_nodes(snapshot, row))
    return free


def _without_given_up(snapshot: Snapshot, rows: list[int]) -> Snapshot:
    """The snapshot in which gangs that start again are promised no room that others have, or are promised, by now:
    where a worker had ended before the gang did, it was theirs no longer."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    own = [row for row in rows if runs.beneficiary[row] == row]
    again = [row for row in own if jobs.reserved[row] or (runs.nodes_of(row) == NONE).any()]
    if not again:
        return snapshot
    free, left = _left_by_promises(snapshot, rows), dict[int, Index]()
    for row in np.flatnonzero(runs.leaving & jobs.holding).tolist():
        _take(snapshot, free, row, runs.nodes_of(row), back=True)
    for row in reversed(again):
        nodes, request = promised_nodes(snapshot, row).copy(), jobs.requests[row]
        overdrawn: Mask = np.any(free[:, request > 0] < 0, axis=1)
        for at in np.flatnonzero(_at(overdrawn, nodes)).tolist():
            if (free[nodes[at], request > 0] < 0).any():
                free[nodes[at]] += request
                nodes[at] = NONE
                left[row] = nodes
    return _with_promises(snapshot, left) if left else snapshot


def _without_taken(snapshot: Snapshot, free: Int, rows: list[int], strangers: Mask) -> dict[int, Index]:
    """The promises of those for whom nobody is still to go, without nodes that strangers have taken: what is not there
    is broken. While pods are ending of which nobody knows any more whose nodes they are on, only gangs that start again
    are sure that nobody is.

    Args:
        free: N x R, less all promises; what comes back is added.
    """
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    unknown = bool((np.diff(runs.first)[runs.leaving & jobs.holding] == 0).any())
    found: dict[int, Index] = {}
    for row in reversed(rows):
        if not jobs.reserved[row] or victims_of(snapshot, row) or (unknown and runs.beneficiary[row] != row):
            continue
        nodes, asked = promised_nodes(snapshot, row), snapshot.jobs.requests[row] > 0
        taken = _at(strangers & (free[:, asked] < 0).any(axis=1), nodes)
        if taken.any():
            _take(snapshot, free, row, nodes, back=True)
            found[row] = np.where(taken, np.int32(NONE), nodes)
    return found


def _lost_promised(snapshot: Snapshot, row: int, nodes: Index, strangers: Mask) -> Mask:
    """Which of the nodes that a job is promised it can't have."""
    lost = ~stands(snapshot, row, nodes)
    return lost | _at(strangers, nodes) if snapshot.jobs.reserved[row] else lost


def _reduced_promise(
    snapshot: Snapshot, tree: Tree, free: Int, row: int, nodes: Index, lost: Mask, strangers: Mask
) -> Index | None:
    """The nodes of a job that starts again and has to do so with fewer workers; None for one that is promised room that
    others leave, and waits for its turn again instead."""
    if snapshot.jobs.runs.beneficiary[row] != row:
        return None
    return _reduced(snapshot, tree, free, row, nodes, lost, strangers)


def _reduced(
    snapshot: Snapshot, tree: Tree, free: Int, row: int, nodes: Index, lost: Mask, closed: Mask | None = None
) -> Index | None:
    sizes = smaller_sizes(snapshot, row, len(nodes))
    if not sizes or lost.all():
        # Of the workers beyond a base, none need be left; others that are all lost have nowhere to go on from.
        return np.empty(0, dtype=np.int32) if sizes and sizes[-1] == 0 else None
    slots = _slots(snapshot, tree, by_resource(free, tree.order), row, nodes, closed)
    placed = np.where(lost, NONE, _places(tree, nodes))
    places = reduce_gang(tree, slots, gang_of(snapshot, row, len(nodes)), placed, sizes)
    return None if places is None else tree.order[places].astype(np.int32)


def _mend(
    snapshot: Snapshot, tree: Tree, free: Int, row: int, nodes: Index, lost: Mask, strangers: Mask
) -> Replacement | None:
    there = replace_workers(
        tree,
        _slots(snapshot, tree, by_resource(free, tree.order), row, nodes, strangers),
        _gang(snapshot, row, len(nodes)),
        _places(tree, nodes),
        np.flatnonzero(lost),
    )
    return None if there is None else _replacement(snapshot, tree, row, there.indexes, there.places)


def _mend_gang(snapshot: Snapshot, tree: Tree, free: Int, row: int) -> Replacement | None:
    nodes, size = snapshot.jobs.runs.nodes_of(row), int(snapshot.jobs.workers[row])
    standing, lost = stands(snapshot, row, nodes), snapshot.jobs.runs.lost[row]
    broken = lost[~standing[lost]]
    gone = np.flatnonzero(nodes[:size] == NONE)
    if not broken.size or not np.isin(gone, broken).all():
        return None  # of one whose node is gone while its pod isn't: it will be lost as well, or its node comes back
    if len(broken) == size:
        return None  # nobody waits for them: the gang starts again as a whole
    there = replace_workers(
        tree,
        _slots(snapshot, tree, by_resource(free, tree.order), row, nodes),
        _gang(snapshot, row, len(nodes)),
        _places(tree, nodes),
        np.concatenate([broken, size + np.flatnonzero(~standing[size:])]),
    )
    if there is None:
        return None
    had = nodes[there.indexes] != NONE  # spares that are lacking are found when the gang runs, and charged then
    told = had | (there.indexes < size)
    return _replacement(snapshot, tree, row, there.indexes[told], there.places[told])


def _with_workers(snapshot: Snapshot, row: int, found: Replacement) -> Snapshot:
    """The snapshot in which these workers of a gang that runs have their new nodes."""
    free, runs = snapshot.nodes.free.copy(), snapshot.jobs.runs
    nodes = runs.nodes_of(row).copy()
    _take(snapshot, free, row, nodes[found.indexes], back=True)
    _take(snapshot, free, row, found.nodes)
    nodes[found.indexes] = found.nodes
    first, placed = _joined(runs.first, runs.placed, {row: nodes})
    runs = replace(runs, first=first, placed=placed)
    return replace(snapshot, nodes=replace(snapshot.nodes, free=free), jobs=replace(snapshot.jobs, runs=runs))


def _gang(snapshot: Snapshot, row: int, total: int) -> Gang:
    """The gang that is promised `total` nodes, with as many spares as are among them. An elastic gang has none."""
    shape = snapshot.jobs.terms.shapes[row]
    size = min(total, int(snapshot.jobs.workers[row])) if shape.spares else total
    return replace(gang_of(snapshot, row, size), shape=replace(shape, spares=total - size))


def _slots(snapshot: Snapshot, tree: Tree, room: Int, row: int, nodes: Index, closed: Mask | None = None) -> Int:
    """N in tree order, workers of a job that each place has room for, on nodes like those that it has already."""
    suits = _suitable(snapshot, row, nodes)
    if closed is not None:
        suits = suits & ~closed
    return count_slots(room, worker_of(snapshot, row, int(snapshot.jobs.filters[row])), suits[tree.order])


def _replacement(snapshot: Snapshot, tree: Tree, row: int, indexes: Int, places: Int) -> Replacement:
    nodes = places.astype(np.int32)
    nodes[places != NONE] = tree.order[places[places != NONE]]
    return Replacement(snapshot.jobs.uids[row], indexes.astype(np.int32), nodes)


def _with_promises(snapshot: Snapshot, mended: dict[int, Index]) -> Snapshot:
    """The snapshot in which these jobs have these nodes promised."""
    jobs, runs = snapshot.jobs, snapshot.jobs.runs
    reserved = {row: nodes for row, nodes in mended.items() if jobs.reserved[row]}
    held = jobs.held.copy()
    for row, nodes in reserved.items():
        held[row] = jobs.requests[row] * len(nodes)
    first, placed = _joined(runs.first, runs.placed, reserved)
    runs = replace(runs, first=first, placed=placed)
    if runs.promised_first is not None and runs.promised is not None:
        others = {row: nodes for row, nodes in mended.items() if row not in reserved}
        promised_first, promised = _joined(runs.promised_first, runs.promised, others)
        runs = replace(runs, promised_first=promised_first, promised=promised)
    return replace(snapshot, jobs=replace(jobs, held=held, runs=runs))


def _joined(first: Int, values: Index, changed: dict[int, Index]) -> tuple[Int, Index]:
    """Lists that lie behind each other, with some of them changed."""
    lists = [changed.get(row, values[first[row] : first[row + 1]]) for row in range(len(first) - 1)]
    return np.concatenate([[0], np.cumsum([len(each) for each in lists])]).astype(np.int64), np.concatenate(lists)


def _may_get(snapshot: Snapshot, row: int) -> bool:
    """Whether a gang runs that has room for its spares to ask for."""
    jobs, queues = snapshot.jobs, snapshot.queues
    queue = int(jobs.queues[row])
    if not jobs.holding[row] or jobs.runs.leaving[row] or queue == NONE:
        return False
    whole = len(jobs.runs.nodes_of(row)) == int(jobs.workers[row]) + jobs.terms.shapes[row].spares
    return whole and bool(queues.open[queue]) and not bool(queues.drain[queue])


def _mend_spares(
    snapshot: Snapshot, tree: Tree, room: Int, ledger: Ledger, allows: Callable[[int, int, Need], bool], row: int
) -> Replacement | None:
    jobs, size = snapshot.jobs, int(snapshot.jobs.workers[row])
    nodes = jobs.runs.nodes_of(row)
    lost = size + np.flatnonzero(~stands(snapshot, row, nodes)[size:])
    if not lost.size or (nodes[:size] == NONE).any():
        return None
    there = replace_workers(
        tree,
        _slots(snapshot, tree, room, row, nodes),
        _gang(snapshot, row, len(nodes)),
        _places(tree, nodes),
        lost,
    )
    if there is None:
        return None
    found = there.places != NONE
    indexes, places = there.indexes[found], there.places[found]
    anew = int((nodes[indexes] == NONE).sum())
    queue, flavour = int(jobs.queues[row]), int(jobs.flavours[row])
    need, borrowing = need_of(snapshot, row, anew), bool(jobs.terms.preemptible[row])
    lacks = ledger.shortage(queue, flavour, need, borrowing=borrowing) is not None or not allows(queue, flavour, need)
    if not len(indexes) or (anew and lacks):
        return None
    if not (ledger.within(queue, flavour, need) or ledger.borrows(queue, flavour, [each for each, _ in need])):
        return None  # whoever takes back what is borrowed for a spare ends the whole gang
    ledger.charge(queue, flavour, need)
    take_room(snapshot, room, row, places)
    return _replacement(snapshot, tree, row, indexes, places)
