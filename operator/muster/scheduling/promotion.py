"""Promotion: a job that took its second choice of nodes moves back to a better one when that has room again.

Asked after everybody who waits, and in the order of priority and submit. It must pay: what is left of the run, as far
as anybody knows, is at least ten times what the move loses, so that a job about to end stays where it is. So does one
that saves no checkpoints. Nobody moves to where it would leave less quota to a job that waits for some: one after the
other of those who run would pass that. It is no matter to one that its own queue's limit keeps from what others use.
Nor does anybody borrow there before a job of its queue that has a reservation, for that would be the one who borrows
when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Final

import numpy as np

from muster.scheduling.awaited import Awaited
from muster.scheduling.claims import movable
from muster.scheduling.moves import (
    Choice,
    Choices,
    Move,
    OpenRoom,
    Pace,
    by_rank,
    gang_of,
    need_of,
    remaining,
    settled,
)
from muster.scheduling.offers import lost_seconds
from muster.scheduling.placement import locate
from muster.scheduling.plan import MoveReason
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import Int, Snapshot
from muster.scheduling.topology import Tree, prefix_sums

PROMOTION: Final = Pace(gain=10.0)


def promote(
    snapshot: Snapshot,
    tree: Tree,
    room: Int,
    ledger: Ledger,
    pace: Pace = PROMOTION,
    awaited: Mapping[tuple[int, int], Set[int]] = MappingProxyType({}),
    own: Set[tuple[int, int]] = frozenset(),
) -> tuple[Move, ...]:
    """Which jobs move to nodes that they prefer.

    Args:
        room: R x N in tree order, what nobody holds or is to get. What is taken is subtracted; what the jobs leave
            behind is not there before they are gone.
        ledger: with all promises; the new flavour is charged, the old one discharged.
        awaited: queues whose jobs wait for quota, by their tree and its flavour.
        own: (queue, flavour) in which nobody moves by what is borrowed.
    """
    jobs, choices, waits = snapshot.jobs, Choices(snapshot), Awaited(ledger, awaited)
    open_ = OpenRoom(snapshot, tree, room)
    moves = []
    for row in _pays(snapshot, pace):
        if not jobs.terms.alternatives[row] or not snapshot.queues.open[jobs.queues[row]]:
            continue
        for choice in choices.better(row):
            move = _move(snapshot, tree, open_, ledger, row, choice, waits, own)
            if move is not None:
                moves.append(move)
                break
    return tuple(moves)


def _pays(snapshot: Snapshot, pace: Pace) -> list[int]:
    """Jobs that run on for long enough, first in rank first."""
    runs, rows = snapshot.jobs.runs, np.flatnonzero(movable(snapshot) & settled(snapshot, pace)).astype(np.int64)
    since = np.maximum(0.0, snapshot.now - np.maximum(runs.saved[rows], runs.started[rows]))
    enough = remaining(snapshot, rows, pace) >= pace.gain * (since + runs.restart[rows])
    ranked: list[int] = by_rank(snapshot, rows[enough]).tolist()
    return ranked


def _move(
    snapshot: Snapshot,
    tree: Tree,
    room: OpenRoom,
    ledger: Ledger,
    row: int,
    choice: Choice,
    awaited: Awaited,
    own_alone: Set[tuple[int, int]],
) -> Move | None:
    jobs = snapshot.jobs
    workers = len(jobs.runs.nodes_of(row))
    slots, there = room.slots(row, choice.filter)
    if there < workers:
        return None
    queue, own, need = int(jobs.queues[row]), int(jobs.flavours[row]), need_of(snapshot, row, workers)
    if own == choice.flavour != 0:
        return None
    borrowing = (queue, choice.flavour) not in own_alone
    if own != choice.flavour and ledger.shortage(queue, choice.flavour, need, borrowing=borrowing) is not None:
        return None  # without accelerators it takes its quota along
    if own != choice.flavour and awaited.would_lose(queue, choice.flavour, need):
        return None
    gang = gang_of(snapshot, row, workers - jobs.terms.shapes[row].spares)
    places = locate(tree, slots, prefix_sums(slots), gang, whole=np.zeros(len(slots), np.bool_), spared=None)
    if places is None:
        return None
    ledger.discharge(queue, own, need)
    ledger.charge(queue, choice.flavour, need)
    awaited.changed(queue)
    lost = float(lost_seconds(snapshot, np.array([row]))[0])
    nodes = tree.order[places].astype(np.int32)
    return Move(row, nodes, choice.flavour, MoveReason.PROMOTED, lost, *room.take(row, places))
