"""What a run's checkpoints take in the store, as rank 0 tells it: while it runs by its launcher's answers, which come
every ten seconds, and at its end by what the launcher leaves in its pod. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from muster.cluster.views import PodView
from muster_protocol import exits
from muster_protocol.launcher_status import Status as LauncherStatus

MOST_BYTES: Final = 2**62
"""More than any store has."""


@dataclass(frozen=True, slots=True, order=True)
class Left:
    """What an ended pod of index 0 told: `stored` bytes, of its placement's generation, after this incarnation; `at`
    its end, by its node's clock."""

    generation: int
    incarnation: int
    stored: int
    at: datetime | None = field(default=None, compare=False)


def left_by(pod: PodView) -> Left | None:
    """The last word of an ended pod; None where it is another's, or says nothing of it."""
    facts = exits.decode(pod.termination_message) if pod.index == 0 and pod.termination_message else None
    return (
        Left(pod.generation, facts.incarnation, facts.stored, pod.finished)
        if facts is not None and facts.stored is not None
        else None
    )


def stored(launcher: LauncherStatus | None, left: Left | None) -> int | None:
    """Bytes of all committed checkpoints by the newest word; None before there is one. What is told is not believed
    without limit.

    Args:
        launcher: the last answer of the present placement's leader. Of one incarnation, what was left came after it.
    """
    told = launcher.stored if launcher is not None else None
    if left is not None:
        answered = (launcher.generation, launcher.incarnation) if launcher is not None and told is not None else None
        if answered is None or (left.generation, left.incarnation) >= answered:
            told = left.stored
    return min(told, MOST_BYTES) if isinstance(told, int) and told >= 0 else None
