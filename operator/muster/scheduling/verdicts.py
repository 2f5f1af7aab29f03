"""What a plan finds out of one job: what keeps it waiting, or where it can be placed; and what is left to grow into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from muster.scheduling.moves import Pace
from muster.scheduling.quota import Ledger
from muster.scheduling.slots import Taken
from muster.scheduling.snapshot import Int


class Fate(Enum):
    """What keeps a job waiting."""

    # Members are compared by identity; Enum's own hash is of the name, and in Python.
    __hash__ = object.__hash__

    NO_NODES = "no node suits"
    TOO_LARGE = "exceeds the cluster"
    NODES_AWAY = "exceeds the nodes that are usable now"
    CLOSED = "queue closed"
    WINDOW = "window closed"
    NEVER = "exceeds the quota for ever"
    QUOTA = "waits for quota"
    ROOM = "waits for room"
    PROMISED = "an earlier plan promised room to it"
    CLEARED = "room is promised to it; others are giving it back"


class Verdict(NamedTuple):
    """Why a job waits. A tuple: thousands are made in one plan.

    Attributes:
        choice: the one of its kind's choices that came closest.
        common: it holds for every job of its queue, kind and priority, until room or quota change.
    """

    job: int
    fate: Fate
    choice: int = 0
    common: bool = True


@dataclass(frozen=True)
class Found:
    """A placement that is valid now.

    Attributes:
        places: the place, in tree order, of each worker in order of rank.
        taken: workers by place.
    """

    size: int
    places: Int
    taken: Taken


@dataclass(frozen=True)
class Left:
    """What there was for gangs to grow into when each had grown that could.

    Attributes:
        room: R x N in tree order.
        used: with what those still hold who leave, for gangs with a safe base; None: there are none.
        contested: by tree of queues in which nobody grows, the first job that waits for quota there.
    """

    room: Int
    used: Ledger | None
    contested: Mapping[int, int]
    pace: Pace
