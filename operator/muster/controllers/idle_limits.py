"""What a queue says of jobs whose GPUs are idle: its own `idle`, or that of the nearest queue above it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.api.trainingqueue import IDLE_BELOW_PERCENT, IDLE_SECONDS, Idle, IdleAction, TrainingQueue
from muster_protocol.durations import parse_duration


@dataclass(frozen=True)
class IdleLimit:
    """
    Attributes:
        queue: that says it.
        after: seconds.
        below: percent of each minute.
        suspends: jobs stop for it.
    """

    queue: str
    after: int
    below: int
    suspends: bool


def idle_limit(queue: str, queues: Mapping[str, TrainingQueue]) -> IdleLimit | None:
    """Of the queue of that name, among all that there are; None where nobody looks."""
    name, passed = queue, set[str]()
    while name in queues and name not in passed:  # parents may lead in a circle
        passed.add(name)
        spec = queues[name].spec
        if spec.idle is not None:
            return _limit(name, spec.idle)
        name = spec.parent or ""
    return None


def _limit(queue: str, idle: Idle) -> IdleLimit | None:
    if idle.action is IdleAction.NONE:
        return None
    after = IDLE_SECONDS if idle.after is None else parse_duration(idle.after)
    below = IDLE_BELOW_PERCENT if idle.below is None else idle.below
    return IdleLimit(queue, after, below, idle.action is IdleAction.SUSPEND)
