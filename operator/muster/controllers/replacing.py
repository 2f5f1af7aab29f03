"""What a replacement means for a job's status: other nodes for some workers of its promise, or for its spares and lost
workers while it runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import Placement, Promise, nodes_with_workers, spares_by_index
from muster.api.terms import Usage
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.status import Draft
from muster.controllers.lifecycle.turn import Note
from muster.controllers.planning import nodes_in_short, where
from muster.scheduling.amounts import few

_SHOWN: Final = 8
"""Workers that are told one by one."""


@dataclass(frozen=True)
class Replaced:
    """The new status, and the Event that tells of it."""

    status: TrainingJobStatus
    note: Note


def replaced(
    job: TrainingJob, moves: Mapping[int, str], spares: int, now: datetime, used: Usage, *, domain: str | None = None
) -> Replaced | None:
    """The status with the new nodes in it.

    Args:
        moves: node by index; "" for a spare that has none any more. Indexes count the spares that are there, or are
            asked for in a running gang, behind the workers.
        spares: how many the job asks for.
        now: a whole second, as it is written down.
        used: by the job up to now, with what its placement has held so far.
        domain: of the placement, where workers of it have moved.

    Returns:
        None when the job has neither a promise nor a placement any more.
    """
    draft, status = Draft(job, now), job.status
    if status.promise is not None:
        promise = _promise(status.promise, moves)
        draft.set(promise=promise)
        told = _told(moves, promise.workers, dict(enumerate(status.promise.places())))
    elif status.placement is not None and status.stop is None:
        before = dict(enumerate(status.placement.node_of_index())) | spares_by_index(status.placement.spares)
        after = _placement(status.placement, moves, spares)
        if domain is not None:
            after = after.model_copy(update={"domain": domain})
            draft.set(nodes=nodes_in_short(after))
            draft.condition(ConditionType.ADMITTED, True, Reason.ADMITTED.value, where(after))
        if after.held != status.placement.held:
            # From now on each second counts for more GPUs, or fewer: what was before is booked as it was.
            after = after.model_copy(update={"counted_at": now})
            draft.set(usage=used)
        draft.set(placement=after)
        told = _told(moves, status.placement.workers, before)
    else:
        return None
    return Replaced(draft.done(), Note(EventReason.WORKER_REPLACED, told))


def _promise(promise: Promise, moves: Mapping[int, str]) -> Promise:
    places = [moves.get(index, node) for index, node in enumerate(promise.places())]
    spares = [node for node in places[promise.workers :] if node]
    return promise.model_copy(
        update={
            "nodes": nodes_with_workers(places[: promise.workers]),
            "spares": nodes_with_workers(spares, promise.workers),
        }
    )


def _placement(placement: Placement, moves: Mapping[int, str], spares: int) -> Placement:
    nodes = [moves.get(index, node) for index, node in enumerate(placement.node_of_index())]
    before = spares_by_index(placement.spares)
    wanted = range(placement.workers, placement.workers + spares)
    after = [moves.get(index, before.get(index, "")) for index in wanted]
    kept = nodes_with_workers([node for node in after if node], placement.workers)
    return placement.model_copy(update={"nodes": nodes_with_workers(nodes), "spares": kept})


def _told(moves: Mapping[int, str], workers: int, before: Mapping[int, str]) -> str:
    """Which workers and spares go from where to where."""
    said = []
    for index, node in sorted(moves.items()):
        who = f"worker {index}" if index < workers else f"spare {index - workers}"
        left = before.get(index, "")
        where = f"goes to node {node}" if node else "has no room now"
        said.append(f"{who} {where}{f' in place of {left}' if left and node else ''}")
    others = "; the others keep their nodes" if any(index < workers for index in moves) else ""
    return f"{few(said[:_SHOWN], len(said))}{others}"
