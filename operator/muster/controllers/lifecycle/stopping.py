"""Ends a placement: its pods are deleted with their grace, and it holds quota and room until the last is gone."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from muster.api.names import ConditionType, Reason
from muster.cluster.hindrances import keeps_pods
from muster.cluster.status import MOVES, is_true
from muster.controllers.lifecycle import preemption
from muster.controllers.lifecycle.facts import take_facts, tell_unsaved
from muster.controllers.lifecycle.turn import Turn

LAST_WORDS: Final = 15.0
"""Seconds in which the launchers of a failed job may follow the first that ended. A pod that is deleted meanwhile takes
its log with it, and that is the log of the cause where another launcher was seen to end first."""


def remove_strays(turn: Turn) -> bool:
    """Delete pods of other placements than the present one, and those that others have replaced in it: left by a cut,
    or late fruits of a request given up."""
    placement = turn.status.placement
    turn.remove(pod for pod in turn.s.pods if placement is None or pod.generation != placement.generation)
    if placement is not None:
        turn.dismiss(pod for pod in turn.gang if pod.attempt < placement.attempt_of(pod.index))
    return False


def continue_stop(turn: Turn) -> bool:
    """While `status.stop` stands nothing else happens; when the last pod is gone, the placement is."""
    stop = turn.status.stop
    if stop is None:
        return False
    turn.remove(turn.s.pods)
    turn.remove_unshown()
    if pods_remain(turn):
        return True
    take_facts(turn)
    tell_unsaved(turn)
    if stop.reason in MOVES:
        preemption.count(turn, stop)
    turn.draft.set(placement=None, stop=None, replicas=0, ready=0, nodes=None)
    turn.waits(stop.reason, stop.message)
    turn.draft.condition(ConditionType.RUNNING, False, Reason.NO_PODS.value, stop.message)
    if not keeps_pods(stop.reason):
        turn.draft.condition(ConditionType.PODS_READY, False, Reason.NO_PODS.value, stop.message)
    return False


def pods_remain(turn: Turn) -> bool:
    """Whether a pod of the job is left. One that was deleted on a node that is lost counts as gone: its kubelet can't
    say so, names carry the generation and checkpoints the epoch, so the next placement need not wait. It still counts
    against its node."""
    left = [pod for pod in turn.s.pods if not (pod.terminating and pod.node in turn.s.lost_nodes)]
    return bool(left or turn.s.unshown)


def clean_finished(turn: Turn) -> bool:
    """A finished job keeps its ended pods, for their logs; the others go, and with the last of them its hold."""
    if turn.status.finished_at is None:
        return False
    turn.draft.confirm(ConditionType.SUCCEEDED, ConditionType.FAILED)
    clean_up(turn)
    living = [pod for pod in turn.s.pods if not pod.over]
    held = [pod for pod in living if not (pod.terminating and pod.node in turn.s.lost_nodes)]
    if not held and not turn.s.unshown and (turn.status.placement is not None or turn.status.stop is not None):
        take_facts(turn)
        tell_unsaved(turn)
        turn.draft.set(placement=None, stop=None, replicas=0, ready=0)
    _expire(turn, turn.status.finished_at)
    return True


def clean_up(turn: Turn) -> None:
    """Remove what still runs of a job that has ended, but for launchers that are about to follow one that has."""
    left = LAST_WORDS - turn.since(turn.status.finished_at)
    follow = left > 0 and is_true(turn.status, ConditionType.FAILED) and any(pod.over for pod in turn.gang)
    end_soon = [
        pod
        for pod in turn.gang
        if follow and pod.phase == "Running" and pod.outlived_since is None and pod.node not in turn.s.lost_nodes
    ]
    turn.remove(pod for pod in turn.s.pods if not pod.over and pod not in end_soon)
    turn.remove_unshown()
    if end_soon:
        turn.wake_in(left)


def _expire(turn: Turn, finished_at: datetime) -> None:
    if turn.s.spec.ttl is None:
        return
    left = turn.s.spec.ttl - turn.since(finished_at)
    if left <= 0:
        turn.delete_job = True
    else:
        turn.wake_in(left)
