"""When the gangs' launchers are asked, and what it says when one does not answer.

Of ten thousand calm gangs each is asked every few minutes. So the age of an answer says nothing about life and death:
only questions do that were asked and left unanswered. A gang in doubt, for a node of it is unreachable or a worker of
it is missed, is asked before all others. Where that is thousands at once, as when a zone goes dark, they take turns,
and each keeps what it has until it has had its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

POLL_SECONDS: Final = 10.0
"""A calm gang is asked at most this often."""

POLLS_PER_SECOND: Final = 50
"""Of all calm gangs together, so that ten thousand of them can't drown the operator."""

JOINING_POLL: Final = 2.0
"""Seconds between two questions to a gang that has not passed its barrier yet."""

DOUBTS_PER_ROUND: Final = 200
"""Gangs in doubt that are asked in one round, at most."""

DOUBTS_AT_ONCE: Final = 400
"""Gangs in doubt whose answers are awaited at once: the dead keep the operator waiting for seconds each."""

IN_A_ROW: Final = 2 * POLL_SECONDS
"""Seconds between two unanswered questions to a calm gang, over which nothing is known of the time between."""


class Stand(Enum):
    """How urgent it is to ask a gang."""

    DOUBTFUL = 0
    JOINING = 1
    CALM = 2


@dataclass(frozen=True, slots=True)
class Silence:
    """Questions in a row that a leader left unanswered since its last answer, in monotonic seconds.

    Attributes:
        since: the first of them was given up.
        until: the last of them was.
    """

    since: float
    until: float

    @property
    def lasts(self) -> float:
        """Seconds between the first and the last; nobody asked after that, so nothing is known of it."""
        return self.until - self.since


def longer(silence: Silence | None, now: float, *, doubtful: bool) -> Silence:
    """`silence` with one more question, given up now. A gang in doubt is asked again as soon as its turn comes, and its
    questions count however far apart; those to a calm one only where they followed each other."""
    follows = silence is not None and (doubtful or now - silence.until <= IN_A_ROW)
    return Silence(silence.since if silence is not None and follows else now, now)


def at_doubt(silence: Silence | None, now: float) -> Silence | None:
    """What of `silence` counts for a gang that is in doubt from `now` on: all of it, if it is not over for long."""
    return silence if silence is not None and now - silence.until <= IN_A_ROW else None


def due(
    asked: Mapping[str, float], stands: Mapping[str, Stand], busy: Collection[str], now: float, since_last_round: float
) -> list[str]:
    """Which gangs (by their jobs' UIDs) to ask now, those in doubt first, of each kind the longest unasked first.

    Args:
        asked: when each was last asked.
        busy: those whose answers are awaited.
        since_last_round: seconds, which give calm gangs their budget.
    """

    def unasked(uid: str) -> float:
        return now - asked.get(uid, float("-inf"))

    free = sorted((uid for uid in stands if uid not in busy), key=lambda uid: (-unasked(uid), uid))
    doubtful = [uid for uid in free if stands[uid] is Stand.DOUBTFUL]
    joining = [uid for uid in free if stands[uid] is Stand.JOINING and unasked(uid) >= JOINING_POLL]
    calm = [uid for uid in free if stands[uid] is Stand.CALM and unasked(uid) >= POLL_SECONDS]
    awaited = sum(stands.get(uid) is Stand.DOUBTFUL for uid in busy)
    room = max(0, min(DOUBTS_PER_ROUND, DOUBTS_AT_ONCE - awaited))
    budget = max(1, int(POLLS_PER_SECOND * min(since_last_round, POLL_SECONDS)))
    return [*doubtful[:room], *joining, *calm[:budget]]
