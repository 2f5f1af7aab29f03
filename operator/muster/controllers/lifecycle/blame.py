"""Which ends are a node's doing: kept in `status.nodeFaults`, from where they are counted over all jobs
(`muster.controllers.quarantine`), and by which the job itself stays away from a node for a while."""

from __future__ import annotations

from typing import Final

from muster.api import nodefaults
from muster.api.nodefaults import FaultCause
from muster.api.trainingjob_status import NodeFault
from muster.controllers.lifecycle import withdraw
from muster.controllers.lifecycle.causes import End, Kind
from muster.controllers.lifecycle.turn import Turn

REPEATED: Final = 2
"""Placements of a job that a node has to hurt before the job stays away from it, unless its hardware is broken."""


def fault_of(end: End) -> FaultCause | None:
    """What the end says against the node where it happened; None: nothing."""
    if not end.node:
        return None
    if end.kind is Kind.NODE:
        return FaultCause.HARDWARE
    if end.kind is Kind.LOST:
        return FaultCause.LOST
    return FaultCause.HANG if end.kind is Kind.HANG and end.suspect else None


def note(turn: Turn, end: End) -> None:
    """Keep what the end says against its node."""
    cause = fault_of(end)
    if cause is not None:
        book(turn, end.node, cause, end.message)


def book(turn: Turn, node: str, cause: FaultCause, message: str) -> None:
    """Keep a fault of the present placement."""
    placement = turn.status.placement
    fault = NodeFault(
        node=node,
        cause=cause.value,
        at=turn.s.now,
        placement=placement.generation if placement is not None else 0,
        message=message,
    )
    turn.draft.set(node_faults=nodefaults.booked(turn.status.node_faults, fault))


def shun(turn: Turn, end: End) -> None:
    """The gang starts again: have it stay away from nodes that are broken, or hurt it repeatedly."""
    seconds, faults = turn.s.bad_node_avoided, turn.status.node_faults
    placement = turn.status.placement
    if not seconds or placement is None:
        return
    here = {fault.node: fault for fault in faults if fault.placement == placement.generation}
    for node, fault in here.items():
        broken = end.kind is Kind.NODE and end.node == node
        slow = fault.cause == FaultCause.STRAGGLER.value
        if broken or slow or nodefaults.gangs_hurt(faults, node) >= REPEATED:
            withdraw.avoid(turn, node, fault.message, seconds)
