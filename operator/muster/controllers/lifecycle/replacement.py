"""Workers of a running gang are lost: they alone are made anew, while the others wait in their pods.

A loss is the end of a pod whose launcher had no time for a word: its node is gone or silent, its container was killed,
it was deleted by force. The launchers of the others notice, end their ranks and wait for the new pod, for longer than
the operator tries. One status write says who is replaced, and since when; it raises the attempt of each, which
makes the old pod a stranger, and the number of the membership that is then pushed to all launchers. The new pod goes to
the old one's node, or where that can't have it, to the one that the planner gives it (`muster.scheduling.mending`).

An elastic gang waits for that as long as its job says; then the planner lets it go on with fewer workers
(`muster.scheduling.reduction`). When the gang has not come together in time, it starts again whole (`failure`), as
after any other end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from muster.api.effective import EffectiveSpec
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.placement import Attempt, Placement, Replacing, format_indexes
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.status import is_true
from muster.controllers.lifecycle import blame, causes, failure, renewal, start, withdraw
from muster.controllers.lifecycle.causes import End, Kind
from muster.controllers.lifecycle.stopping import remove_strays
from muster.controllers.lifecycle.turn import Turn
from muster_protocol.launcher_status import Phase

AVOIDED: Final = 30
"""Seconds for which a node that turned a new pod away, or seems dead, is not tried again."""

MOST: Final = 5
"""Pods of one worker in one placement. What ends them all is not mended by a new one; a whole restart backs off."""

SHRINKING: Final = 30.0
"""Seconds that the planner has to make an elastic gang smaller before it starts again whole."""

_SHOWN: Final = 4
"""Losses that are told one by one."""


def replace_lost(turn: Turn) -> bool:
    """Replace what was lost, and see to it that the gang comes together again in time."""
    placement = turn.status.placement
    if placement is None or not is_true(turn.status, ConditionType.RUNNING):
        return False
    losses = _losses(turn, placement)
    if placement.replacing is not None:
        left = _limit(turn) - turn.since(placement.replacing.since)
        if not losses and _came_together(turn, placement):
            _finish(turn, placement)
            return False
        if left <= 0:
            _give_up(turn, placement)
            return True
        turn.wake_in(left)
        shrinks = shrinks_at(turn.status, turn.s.spec)
        if shrinks is not None and shrinks > turn.s.now:
            turn.wake_at(shrinks)
    if losses:
        _replace(turn, placement, losses)
    if turn.status.placement is not None and turn.status.placement.replacing is not None:
        for item in turn.status.avoided:
            if item.until > turn.s.now:
                turn.wake_at(item.until)
    return False


def shrinks_at(status: TrainingJobStatus, spec: EffectiveSpec) -> datetime | None:
    """When a gang that waits for lost workers may go on without those that get no node; None for one that keeps its
    size, or waits for nobody."""
    replacing = status.placement.replacing if status.placement is not None else None
    if replacing is None or not spec.elastic or status.fixed_size is not None:
        return None
    return replacing.since + timedelta(seconds=spec.shrink_after)


def _limit(turn: Turn) -> float:
    """Seconds in which the gang has to come together again; of one that may shrink, time enough for that."""
    if shrinks_at(turn.status, turn.s.spec) is None:
        return turn.s.replace_limit
    return max(turn.s.replace_limit, turn.s.spec.shrink_after + SHRINKING)


def _losses(turn: Turn, placement: Placement) -> list[End]:
    """The ends of workers that can be replaced alone; none where the gang as a whole has to stop, or is to."""
    away = _turned_away(turn, placement)
    found = [end for end in failure.ends(turn) if end.index not in away]
    losses = [*found, *away.values()]
    # Somebody has to outlive the round: new launchers alone know no incarnation, and count from 1 again.
    anew = {*placement.replaced, *(end.index for end in losses)}
    alone = all(end.abrupt for end in found) and len(anew) < placement.workers
    again = all(placement.attempt_of(end.index) + 1 < MOST for end in losses)
    # A gang whose launchers have never answered could not be told of its new members.
    reachable = turn.status.incarnation is not None
    as_made = not renewal.makes_no_pods(turn)
    return losses if alone and again and reachable and as_made and turn.s.claim is None else []


def _turned_away(turn: Turn, placement: Placement) -> dict[int, End]:
    """New pods that their nodes do not take, by index."""
    away, pods = dict[int, End](), turn.by_index()
    for index in placement.replaced:
        for obstacle in withdraw.of_pod(turn, pods[index]) if index in pods else ():
            if obstacle.node:
                away[index] = End(Kind.REJECTED, obstacle.message, index=index, node=obstacle.node)
                withdraw.avoid(turn, obstacle.node, obstacle.message, AVOIDED)
    return away


def _replace(turn: Turn, placement: Placement, losses: Sequence[End]) -> None:
    attempts = {item.index: item.attempt for item in placement.attempts}
    attempts |= {end.index: attempts.get(end.index, 0) + 1 for end in losses}
    pods = turn.by_index()
    for end in losses:
        blame.note(turn, end)
        if end.index in pods and causes.end_of(pods[end.index], lost_nodes=turn.s.lost_nodes) is None:
            withdraw.avoid(turn, end.node, end.message, AVOIDED)  # dead, it may be, and not known to be
    indexes = {*placement.replaced, *(end.index for end in losses)}
    since = placement.replacing.since if placement.replacing is not None else turn.s.now
    update = {
        "attempts": tuple(Attempt(index=index, attempt=attempt) for index, attempt in sorted(attempts.items())),
        "incarnation": (placement.incarnation or 1) + 1,
        "replacing": Replacing(indexes=format_indexes(indexes), since=since),
    }
    turn.draft.set(placement=placement.model_copy(update=update))
    ready = sum(pod.ready for pod in turn.by_index().values())
    turn.draft.set(ready=ready)
    message = f"{_workers(sorted(indexes))} lost and made anew; the others wait in their pods"
    turn.draft.condition(ConditionType.PODS_READY, False, Reason.POD_LOST.value, message)
    told = "; ".join(failure.sentence(end) for end in losses[:_SHOWN])
    more = f"; and {len(losses) - _SHOWN} more" if len(losses) > _SHOWN else ""
    turn.tell(EventReason.WORKER_FAILED, f"{told}{more}; {message}", warning=True)
    remove_strays(turn)


def _came_together(turn: Turn, placement: Placement) -> bool:
    """Whether the leader says so, who had been told of the new members before he was asked."""
    launcher, pods = turn.s.launcher, turn.by_index()
    if launcher is None or turn.s.told < (placement.incarnation or 1) or len(pods) < placement.workers:
        return False
    joined = launcher.phase not in (Phase.JOINING, Phase.PREFLIGHT) and not launcher.lost
    return joined and launcher.incarnation > (turn.status.incarnation or 0)


def _finish(turn: Turn, placement: Placement) -> None:
    assert turn.s.launcher is not None
    assert placement.replacing is not None
    indexes, nodes = placement.replaced, placement.node_of_index()
    turn.draft.set(
        placement=placement.model_copy(update={"replacing": None}),
        replacements=(turn.status.replacements or 0) + len(indexes),
        incarnation=turn.s.launcher.incarnation,
        ready=placement.workers,
    )
    message = start.pods_run(placement.workers)
    turn.draft.condition(ConditionType.PODS_READY, True, Reason.PODS_READY.value, message)
    where = ", ".join(sorted({nodes[index] for index in indexes[:_SHOWN]}))
    took = round(turn.since(placement.replacing.since))
    told = f"{_workers(indexes)} replaced within {took} s, on {where}; the others kept their pods"
    turn.tell(EventReason.WORKER_REPLACED, told)


def _give_up(turn: Turn, placement: Placement) -> None:
    """Start the whole gang again, as after any other loss."""
    indexes = placement.replaced
    limit = f"{_limit(turn):g} s"
    message = f"{_workers(indexes)} lost, and the gang did not come together again within {limit}"
    cause = End(Kind.LOST, message)
    failure.record(turn, cause)
    failure.go_on(turn, cause)


def _workers(indexes: Iterable[int]) -> str:
    """`worker 3 was`, `workers 3, 7-9 were`."""
    found = list(indexes)
    listed = format_indexes(found).replace(",", ", ")
    return f"worker {listed} was" if len(found) == 1 else f"workers {listed} were"
