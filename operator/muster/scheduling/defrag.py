"""Defragmentation: jobs move aside so that a gang starts which fragmentation alone keeps out.

Nobody is preempted: all that move find new places at once, valid for them, beside the gang. They lose what a restart
loses, so only preemptible jobs are moved that save checkpoints, whose disruption budget allows it and whose priority is
not higher, the cheapest that free a valid shape, and only if the gang's gain is twice the loss: its accelerators times
the seconds by which it starts sooner, when those who move are gone. Nor is a job moved before it has run for so long
that stopping and starting is a small part of that (`claims.LOST_AT_MOST`): one that lies badly would else move again
and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.scheduling.claims import Right, effective_priorities, has_run, in_time, movable
from muster.scheduling.demand import Coming, Demand, demand
from muster.scheduling.gangs import Gang, Worker
from muster.scheduling.moves import (
    Choices,
    Move,
    OpenRoom,
    Pace,
    accelerators_each,
    gang_of,
    settled,
)
from muster.scheduling.placement import locate
from muster.scheduling.plan import MoveReason
from muster.scheduling.promises import base_stands
from muster.scheduling.quota import Ledger
from muster.scheduling.room import Room
from muster.scheduling.snapshot import NONE, Index, Int, Mask, Snapshot, TopologyMode
from muster.scheduling.topology import Tree, prefix_sums
from muster.scheduling.victims import Evicted, Victims, clear_room

_TRIES = 4
"""Searches for one gang; after each, the job that found no other place stays where it is."""


@dataclass(frozen=True)
class Rearrangement:
    """
    Attributes:
        nodes: where the gang starts, by rank, spares behind.
        places: N in tree order, how many of its workers each place gets.
        moves: jobs that make room and start again elsewhere. Their quota stays as it is.
        lost: accelerator-seconds, of all of them.
        room: R x N in tree order, what is open after all of it, when those who move are gone from where they are.
    """

    nodes: Index
    places: Int
    moves: tuple[Move, ...]
    lost: float
    room: Int


def defragment(
    snapshot: Snapshot,
    tree: Tree,
    room: Room,
    ledger: Ledger,
    workers: Sequence[Worker],
    gang: Gang,
    job: int,
    coming: Coming,
    wait: float,
    *,
    flavour: int | None = None,
    pace: Pace | None = None,
    kept: Mask | None = None,
) -> Rearrangement | None:
    """Moves that let a waiting gang start, if they pay.

    Args:
        room: `open` is what the job and those who move may take.
        ledger: the gang needs its quota there already; left as it was.
        wait: seconds that the gang would wait without; counted up to the pace's horizon.
        kept: N, nodes from which nobody moves: what comes back there is for jobs ahead.

    Returns:
        None if the gang lacks quota or more than order among what is there, or if moving does not pay.
    """
    pace = pace or Pace()
    wants = demand(snapshot, tree, room, ledger, workers, gang, job, coming, flavour)
    if wants is None or ledger.shortage(wants.queue, wants.flavour, wants.need, borrowing=wants.borrowing) is not None:
        return None
    each = int(accelerators_each(snapshot, np.array([job]))[0]) * gang.total
    most = min(wait, pace.horizon) * each / pace.gain  # else the loss of those who move is not worth it
    asked = _may_move(wants, coming, pace)
    if kept is not None:
        asked &= ~_on(snapshot, kept)
    for _ in range(_TRIES):
        rights = np.where(asked, int(Right.PRIORITY), int(Right.NONE)).astype(np.int32)
        found = clear_room(wants, rights, coming, elastic=False, most=most)
        if found is None or not found.evicted or found.bound > most:
            return None
        moves, left, stuck = _replace(wants, found, coming)
        if stuck is None:
            gone = float(snapshot.jobs.runs.grace[[move.row for move in moves]].max())
            if found.lost * pace.gain > min(wait - gone, pace.horizon) * each:
                return None
            return Rearrangement(found.nodes, found.places, moves, found.lost, left)
        asked[stuck] = False
    return None


def _may_move(wants: Demand, coming: Coming, pace: Pace) -> Mask:
    """J, who may be moved, and would find room somewhere in what is open already, however that lies."""
    snapshot, job, runs = wants.snapshot, wants.job, wants.snapshot.jobs.runs
    priorities = effective_priorities(snapshot)
    asked: Mask = movable(snapshot) & settled(snapshot, pace) & (runs.budget > 0)
    asked &= (priorities <= priorities[job]) & ~runs.yields & has_run(snapshot)
    asked &= in_time(snapshot, job)
    asked[list(coming.gone)] = False
    asked[job] = False
    same, elsewhere = _same(wants), _elsewhere(wants)
    for row, base in snapshot.jobs.bases.items():
        # Its gang would start again on the base's nodes, and may be unable to; and a base that moves goes on alone.
        asked[row] &= base_stands(snapshot, row)
        asked[base] &= not snapshot.jobs.sizes.least[row]
    rows, choices = np.flatnonzero(asked), Choices(snapshot)
    filters = np.array([choices.current(row) for row in rows.tolist()], dtype=np.int64)
    stays = ~same[rows] | elsewhere[filters]
    asked[rows[~stays]] = False
    rows, filters = rows[stays], filters[stays]
    open_ = OpenRoom(snapshot, wants.tree, wants.room.open + coming.room)
    asked[rows] = open_.totals(rows, filters) >= np.diff(runs.first)[rows]
    return asked


def _same(wants: Demand) -> Mask:
    """J, whose workers ask for what those of a gang do that may lie anywhere; nobody for other gangs.

    For each slot that such a worker leaves, it takes another, if it goes only where the gang's may run too. So its move
    leaves the number of slots as it is, and the gang needs nothing else.
    """
    gang, jobs = wants.gang, wants.snapshot.jobs
    if gang.mode == TopologyMode.REQUIRED or gang.shape.slices or gang.shape.balanced != NONE:
        return np.zeros(len(jobs.uids), dtype=np.bool_)
    same: Mask = (jobs.requests[:, wants.asked] == wants.divisors[:, 0]).all(axis=1)
    return same


def _elsewhere(wants: Demand) -> Mask:
    """By filter, whether there are nodes for it that the gang can't use."""
    snapshot, order = wants.snapshot, wants.tree.order
    usable = snapshot.eligible[:, order] & snapshot.nodes.usable[order]
    elsewhere: Mask = np.any(usable & ~wants.eligible, axis=1)
    return elsewhere


def _on(snapshot: Snapshot, nodes: Mask) -> Mask:
    """J, jobs with a worker on any of the nodes."""
    runs = snapshot.jobs.runs
    on = np.zeros(len(snapshot.jobs.uids), dtype=np.bool_)
    there = runs.placed != NONE
    owners = np.repeat(np.arange(len(on)), np.diff(runs.first))
    on[owners[there][nodes[runs.placed[there]]]] = True
    return on


def _replace(wants: Demand, found: Victims, coming: Coming) -> tuple[tuple[Move, ...], Int, int | None]:
    """New places for all who move, the largest first; what is open then, and the first who finds none."""
    snapshot, tree = wants.snapshot, wants.tree
    left = wants.room.open + coming.room
    left[:, found.freed_places] += found.freed
    where = np.flatnonzero(found.places)
    for resource, amount in wants.asks:
        left[resource, where] -= found.places[where] * amount
    moves, open_ = [], OpenRoom(snapshot, tree, left)
    runs = snapshot.jobs.runs
    for each in sorted(found.evicted, key=lambda one: (-len(runs.nodes_of(one.row)), one.row)):
        move = _place(snapshot, tree, open_, each)
        if move is None:
            return (), left, each.row
        moves.append(move)
    return tuple(moves), left, None


def _place(snapshot: Snapshot, tree: Tree, left: OpenRoom, mover: Evicted) -> Move | None:
    row = mover.row
    slots, _ = left.slots(row, Choices(snapshot).current(row))
    workers = len(snapshot.jobs.runs.nodes_of(row))
    gang = gang_of(snapshot, row, workers - snapshot.jobs.terms.shapes[row].spares)
    places = locate(tree, slots, prefix_sums(slots), gang, whole=np.zeros(len(slots), np.bool_), spared=None)
    if places is None:
        return None
    nodes, flavour = tree.order[places].astype(np.int32), int(snapshot.jobs.flavours[row])
    return Move(row, nodes, flavour, MoveReason.DEFRAGMENTED, mover.lost, *left.take(row, places))
