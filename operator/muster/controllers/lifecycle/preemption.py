"""A gang is asked to give its room to another, or to go on elsewhere: the stop is recorded, then carried out.

What makes a preemption safe against any cut is the order of three writes. The beneficiary's `status.promise` names
nodes and victims; it is written first. Each victim that finds itself named there gets its `status.stop`. The
beneficiary's `status.placement` is written when the planner sees the promised room free. Whoever runs the same code
again, in this process or the next, goes on where it was.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import NodeWorkers, Promise, Stop, Victim, nodes_with_workers, parse_indexes
from muster.cluster.status import MOVES, reason_of
from muster.controllers.lifecycle.turn import Claim, Note, Turn
from muster.scheduling.plan import MoveReason

OWN: Final = frozenset({MoveReason.GROWN.value, MoveReason.PROMOTED.value, MoveReason.WORKERS_LOST.value})
"""Moves for the job's own good: no preemptions, and its disruption budget does not count them."""

_NO_PREEMPTIONS: Final = OWN | {MoveReason.DRAINED.value}

NAMESPACE_ENDS: Final = "its namespace is being deleted"

REMEMBERED: Final = 32
"""Preemptions of which the moment is kept."""

_WHY: Final = {
    MoveReason.PREEMPTED: "which ranks before it",
    MoveReason.RECLAIMED: "whose queue takes back what it has lent",
    MoveReason.YIELDED: "ahead of which it had started on the condition that it gives way",
    MoveReason.SHRUNK: "which needs some of its workers' room",
    MoveReason.WORKERS_LOST: "",
    MoveReason.GROWN: "",
    MoveReason.PROMOTED: "",
    MoveReason.DEFRAGMENTED: "which only finds its room scattered",
    MoveReason.QUOTA_LOWERED: "",
    MoveReason.DRAINED: "",
}
_ALONE: Final = {
    MoveReason.PREEMPTED: "the gang gives its room up",
    MoveReason.RECLAIMED: "the gang gives back what its queue had borrowed",
    MoveReason.YIELDED: "the gang gives way to the job that it was let in before",
    MoveReason.SHRUNK: "the gang goes on with fewer workers",
    MoveReason.WORKERS_LOST: "no nodes came in place of those of lost workers: the gang goes on with fewer",
    MoveReason.GROWN: "there is idle room: the gang goes on with more workers",
    MoveReason.PROMOTED: "nodes of a kind that the job prefers are free: the gang moves there",
    MoveReason.DEFRAGMENTED: "the gang moves, so that a job fits that only finds its room scattered",
    MoveReason.QUOTA_LOWERED: (
        "its queue uses more than it may since a limit was lowered, or a queue was moved or deleted"
    ),
    MoveReason.DRAINED: "its queue is drained",
}


def give_way(turn: Turn) -> bool:
    """Stop a gang whose room is promised to another."""
    claim, placement = turn.s.claim, turn.status.placement
    if claim is None or placement is None or placement.generation != claim.victim.generation:
        return False
    stop = _stop_for(turn, claim)
    if claim.victim.nodes:
        turn.draft.set(promise=onward(turn, claim.victim.nodes, claim.victim.spares))
    turn.notes.append(note_of(stop))
    turn.record_stop(stop)
    return True


def _stop_for(turn: Turn, claim: Claim) -> Stop:
    victim, before = claim.victim, turn.status.stop
    # Another version of the operator may have promised the room, for a reason that this one doesn't have.
    reason = MoveReason(victim.reason) if victim.reason in MOVES else MoveReason.PREEMPTED
    return Stop(
        reason=reason.value,
        message=said(reason, claim.name, victim.lost, len(victim.nodes) > 0, saves=turn.s.spec.checkpoint is not None),
        requested_at=turn.s.now if before is None else before.requested_at,
        beneficiary=claim.beneficiary,
        lost=victim.lost,
    )


def onward(turn: Turn, nodes: tuple[NodeWorkers, ...], spares: tuple[NodeWorkers, ...] = ()) -> Promise:
    """The promise of a gang that stops, or has stopped, and goes on at once on `nodes`, with spares."""
    had = turn.status.placement or turn.status.promise
    assert had is not None
    return Promise(
        workers=sum(len(parse_indexes(item.indexes)) for item in nodes),
        nodes=nodes,
        spares=spares,
        queue=turn.s.spec.queue,
        flavour=had.flavour,
        spec=turn.s.promise_hash,
        base=had.base,
        yields=had.yields,
        promised_at=turn.s.now,
    )


def keep_room(turn: Turn, workers: int) -> None:
    """Promise a gang that is about to stop the nodes that so many of its workers are on, the first: nobody else gets
    them until it starts again."""
    placement = turn.status.placement
    assert placement is not None
    if workers == placement.workers:
        turn.draft.set(promise=onward(turn, placement.nodes, placement.spares))
    else:  # what is spare is found again
        turn.draft.set(promise=onward(turn, nodes_with_workers(placement.node_of_index()[:workers])))


def hand_over(turn: Turn) -> bool:
    """Give up the room that a gang has kept for its restart, where the planner promised it to another meanwhile. It
    goes on where the planner meant it to, if anywhere."""
    stop, claim = turn.status.stop, turn.s.claim
    why = stop.reason if stop is not None else reason_of(turn.status, ConditionType.ADMITTED)
    if claim is None or turn.status.promise is None or why != Reason.RESTARTING.value:
        return False
    if not claim.victim.nodes:
        turn.draft.set(promise=None)
        told = f"the gang failed while its room was given to {claim.name}; it queues again"
        turn.tell(EventReason.PROMISE_BROKEN, told)
    elif not give_way(turn):  # its last pod is gone already
        stop = _stop_for(turn, claim)
        turn.draft.set(promise=onward(turn, claim.victim.nodes, claim.victim.spares))
        turn.waits(stop.reason, stop.message)
        turn.notes.append(note_of(stop))
    return False


def drop_promise(turn: Turn) -> bool:
    """End a promise that no longer means this job: suspended, edited in what the planner looked at, or about to go with
    its namespace, which takes until the last pod there has ended."""
    promise = turn.status.promise
    if promise is None:
        return False
    if turn.s.spec.suspend:
        why = "spec.suspend is true"
    elif promise.spec and promise.spec != turn.s.promise_hash:
        why = "the spec has changed; the job is planned anew"
    elif turn.s.namespace_ends:
        why = f"{NAMESPACE_ENDS}, and the job with it"
    else:
        return False
    turn.draft.set(promise=None)
    turn.tell(EventReason.PROMISE_BROKEN, f"the room that was kept for the job is open again: {why}")
    return False


def count(turn: Turn, stop: Stop) -> None:
    """Book a stop that the planner asked for, now that its last pod is gone."""
    status = turn.status
    turn.draft.set(stop_seconds=max(0, round(turn.since(stop.requested_at))))
    if stop.reason == MoveReason.WORKERS_LOST.value:
        turn.draft.set(breakdowns=(status.breakdowns or 0) + 1)
    if stop.reason not in _NO_PREEMPTIONS:
        moments = (*status.preempted_at, turn.s.now)[-REMEMBERED:]
        lost = (status.lost_gpu_seconds or 0) + (0 if _saved(turn) else stop.lost)
        turn.draft.set(preemptions=(status.preemptions or 0) + 1, preempted_at=moments, lost_gpu_seconds=lost or None)


def _saved(turn: Turn) -> bool:
    """Whether the launchers have left that the last step they trained is in a committed checkpoint."""
    facts, progress = turn.s.facts, turn.status.progress
    trained = max(facts.step or 0, progress.step if progress is not None else 0)
    return facts.committed_step is not None and facts.committed_step >= trained


def said(reason: MoveReason, beneficiary: str, lost: int, goes_on: bool, cause: str = "", *, saves: bool = True) -> str:
    """One sentence: for whom, why, and what it costs. `cause`: of a move for nobody, where more is known of it.
    `saves`: it has a place for checkpoints."""
    why = _WHY[reason]
    told = f"the gang gives its room to {beneficiary}, {why}" if beneficiary and why else _ALONE[reason]
    told += f" ({cause})" if cause else ""
    then = "it goes on at once with its new size or place" if goes_on else "it queues again with its first submit time"
    of = "of lost work and the restart, fewer if it saves" if saves else "for it saves no checkpoints, and the restart"
    return f"{told}; this costs up to {lost} GPU-seconds, {of}; {then}"


def note_of(stop: Stop) -> Note:
    """The Event of a stop that the planner asked for."""
    moved = stop.reason in OWN or stop.reason in (MoveReason.SHRUNK.value, MoveReason.DEFRAGMENTED.value)
    reason = EventReason.MOVED if moved else EventReason.PREEMPTED
    return Note(reason, stop.message if stop.reason == reason.value else f"{stop.reason}: {stop.message}")


def budget_left(preempted_at: tuple[datetime, ...], budget: int | None, window: float, now: datetime) -> int | None:
    """Preemptions that the disruption budget allows now; None for any number. `window` in seconds."""
    if budget is None:
        return None
    return max(0, budget - sum((now - moment).total_seconds() < window for moment in preempted_at))


def nodes_of(promise: Promise | Victim) -> tuple[str, ...]:
    """Node names by index, spares behind; () for a promise that can't be read, which the planner then breaks."""
    try:
        return promise.places()
    except ValueError:
        return ()
