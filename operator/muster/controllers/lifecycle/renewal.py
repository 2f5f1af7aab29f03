"""A gang runs what its placement was made for: when the spec is another one, it stops and starts again with that.

The API server refuses most such edits while a job is admitted. A quick suspend, edit and unsuspend gets past it, an
edit of a job that waits can meet its placement, and some fields its rules cannot compare, such as the pod template.
"""

from __future__ import annotations

from muster.api.names import EventReason, Reason
from muster.controllers.lifecycle.turn import Turn

_CHANGED = (
    "the spec has changed in fields that a running gang keeps: it stops, and starts again with the new spec from its "
    "last committed checkpoint, if it has one"
)


def renew(turn: Turn) -> bool:
    """Stop a gang that was placed for another spec."""
    placement, spec = turn.status.placement, turn.s.spec
    if placement is None:
        return False
    as_placed = not placement.spec or placement.spec == turn.s.placement_hash
    # The size is no part of the hash, for an elastic gang changes it while it runs.
    if as_placed and (spec.elastic or placement.workers == spec.replicas):
        return False
    turn.tell(EventReason.RESTARTING, _CHANGED)
    turn.stop(Reason.RESTARTING, _CHANGED)
    return True
