"""What jobs remember of their nodes' faults. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Final

from muster.api.trainingjob_status import NodeFault

KEPT: Final = 32
"""Faults that one job remembers, the newest."""


class FaultCause(str, Enum):
    """`status.nodeFaults[].cause`."""

    HARDWARE = "hardware"
    LOST = "lost"
    HANG = "hang"
    STRAGGLER = "straggler"


SURE: Final = frozenset({FaultCause.HARDWARE.value, FaultCause.LOST.value})
"""No script brings these about. A hang or a slow rank may be the script's doing."""


def booked(past: tuple[NodeFault, ...], new: NodeFault) -> tuple[NodeFault, ...]:
    """`past` with `new` in it, which takes the place of the same fault of the same placement."""
    others = [one for one in past if (one.node, one.cause, one.placement) != (new.node, new.cause, new.placement)]
    return (*others, new)[-KEPT:]


def gangs_hurt(faults: tuple[NodeFault, ...], node: str) -> int:
    """Placements of one job that met a fault on `node`."""
    return len({one.placement for one in faults if one.node == node})
