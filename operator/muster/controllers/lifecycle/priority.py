"""The priority that a job has, and the word on a PriorityClass that is not there.

An edit of `priorityClassName` counts at once, and the API server cannot tell whether there is such a class. A job that
has run keeps the priority that it had until there is: a slip of the pen must neither make it a victim, nor keep it from
coming back.
"""

from __future__ import annotations

from muster.api.common import find_condition
from muster.api.names import ConditionType, EventReason, Reason
from muster.cluster.status import is_true
from muster.controllers.lifecycle.turn import Turn


def watch_priority(turn: Turn) -> bool:
    """Keep `status.priority` as the class says, and say so where there is none of the name."""
    missing, kind = turn.s.no_priority, ConditionType.PRIORITY_CLASS_MISSING
    if not missing:
        if is_true(turn.status, kind):
            found = f"the priority of its PriorityClass is {turn.s.priority}"
            turn.draft.condition(kind, False, Reason.PRIORITY_CLASS_FOUND.value, found)
        if turn.status.placement is not None and (turn.status.priority or 0) != turn.s.priority:
            turn.draft.set(priority=turn.s.priority)
        return False
    if turn.status.priority is None:
        return False  # it waits, and is told why
    known = find_condition(turn.status.conditions, kind.value)
    if known is not None and is_true(turn.status, kind) and known.observed_generation == turn.generation:
        return False
    message = (
        f"{missing}; the job keeps the priority that it has, {turn.status.priority}, until there is or it names another"
    )
    turn.draft.condition(kind, True, Reason.PRIORITY_CLASS_NOT_FOUND.value, message)
    if known is None or known.message != message or known.status != "True":
        turn.tell(EventReason.PRIORITY_CLASS_NOT_FOUND, message, warning=True)
    return False
