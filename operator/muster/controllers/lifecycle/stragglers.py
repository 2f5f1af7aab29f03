"""Names ranks that are slower than the others, as index 0's launcher has found them: in a condition, in an Event, and
against their nodes. Nothing is stopped for it: how much a restart on other nodes is worth, people know better."""

from __future__ import annotations

from typing import Final

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Reason
from muster.api.nodefaults import FaultCause
from muster.cluster.status import is_true
from muster.controllers.lifecycle import blame
from muster.controllers.lifecycle.turn import Turn
from muster_protocol.launcher_status import Straggler

_SHOWN: Final = 4
"""Stragglers that are told one by one."""


def name_stragglers(turn: Turn) -> bool:
    """Set Straggling while the gang runs; the condition isn't there before the first straggler."""
    launcher = turn.s.launcher
    if launcher is None or not is_true(turn.status, ConditionType.RUNNING):
        return False
    found = launcher.stragglers
    if found:
        message = "; ".join(_told(turn, one) for one in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        turn.draft.condition(ConditionType.STRAGGLING, True, Reason.SLOW_RANK.value, f"{message}{more}")
        for one in found:
            _hold_against(turn, one)
    elif find_condition(turn.status.conditions, ConditionType.STRAGGLING.value) is not None:
        turn.draft.condition(ConditionType.STRAGGLING, False, Reason.EVEN_PACE.value, "all ranks keep up")
    return False


def _hold_against(turn: Turn, one: Straggler) -> None:
    """Once in a placement for each node."""
    node, placement = _node(turn, one), turn.status.placement
    assert placement is not None
    known = {
        fault.node
        for fault in turn.status.node_faults
        if fault.placement == placement.generation and fault.cause == FaultCause.STRAGGLER.value
    }
    if node and node not in known:
        message = _told(turn, one)
        blame.book(turn, node, FaultCause.STRAGGLER, message)
        turn.tell(EventReason.STRAGGLER, message, warning=True)


def _told(turn: Turn, one: Straggler) -> str:
    node = _node(turn, one)
    where = f" on node {node}" if node else ""
    return (
        f"rank {one.rank}, worker {one.index}{where} is {one.factor:g} times as slow as the others: its own part of a "
        f"step takes {one.own:.3g} s, theirs {one.usual:.3g} s, and all wait for it"
    )


def _node(turn: Turn, one: Straggler) -> str:
    pod = turn.by_index().get(one.index)
    return pod.node if pod is not None else ""
