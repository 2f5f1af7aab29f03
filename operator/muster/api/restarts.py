"""How often a job starts again after a failure: by cause, within a sliding window. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import takewhile
from typing import Final

from muster.api.jobparts import MAX_RESTARTS
from muster.api.trainingjob_status import PastFailure


class Group(str, Enum):
    """Causes that share a limit; the value is the field that sets it."""

    SCRIPT = "restart.limit"
    MEMORY = "restart.causes.outOfMemory"
    NETWORK = "restart.causes.network"
    PLATFORM = "restart.causes.platform"


@dataclass(frozen=True)
class InPlace:
    """How often the launchers of a gang may start its processes again in their pods: after crashes and hangs of the
    script, after want of memory, and where ranks have lost each other."""

    script: int = 0
    memory: int = 0
    network: int = 0


NO_RESTARTS: Final = InPlace()

_GROUPS: Final = {
    "user": Group.SCRIPT,
    "hang": Group.SCRIPT,
    "out-of-memory": Group.MEMORY,
    "network": Group.NETWORK,
    "node": Group.PLATFORM,
    "disrupted": Group.PLATFORM,
    "infrastructure": Group.PLATFORM,
    "peer": Group.PLATFORM,
    "preempted": Group.PLATFORM,
}


def group_of(cause: str) -> Group | None:
    """By `status.failure.cause`; None for causes after which no job starts again."""
    return _GROUPS.get(cause)


def of_script(one: PastFailure) -> bool:
    """Whether it was the script that failed, for want of memory it may be."""
    return group_of(one.cause) in (Group.SCRIPT, Group.MEMORY)


def used(past: Iterable[PastFailure], group: Group, window: float, now: datetime) -> int:
    """Failures of the group within the last `window` seconds."""
    return sum(group_of(one.cause) is group and (now - one.at).total_seconds() < window for one in past)


def alike(past: Sequence[PastFailure], this: PastFailure) -> int:
    """How many failures of the script, the last ones, were the same as `this`: nothing was mended in between, neither
    was progress made, nor the spec touched. What the platform did in between mends no script."""
    scripts = [one for one in past if of_script(one)]
    return sum(1 for _ in takewhile(lambda one: _known(one) == _known(this) and this.signature, reversed(scripts)))


def _known(one: PastFailure) -> tuple[str, int | None, int | None]:
    return one.signature, one.step, one.observed_generation


def booked(past: tuple[PastFailure, ...], *new: PastFailure) -> tuple[PastFailure, ...]:
    """`past` and `new`: of each group as many as a limit may count, the newest, in the order of their times."""
    counts: dict[Group | None, int] = {}
    kept = []
    for one in reversed((*past, *new)):
        group = group_of(one.cause)
        counts[group] = counts.get(group, 0) + 1
        if counts[group] <= MAX_RESTARTS + 1:
            kept.append(one)
    return tuple(reversed(kept))
