"""A job whose `checkpoint.uri` became another one while it had no pods: what it did before lies at the old one."""

from __future__ import annotations

from muster.api.names import EventReason
from muster.controllers.lifecycle.turn import Turn


def leave_run(turn: Turn) -> bool:
    """Forget the step and the checkpoint of a run that the job does not go on with, and say where they are."""
    known, checkpoint = turn.status.checkpoint, turn.s.spec.checkpoint
    if turn.status.placement is not None or known is None or known.uri is None:
        return False
    if checkpoint is not None and known.uri.rstrip("/") == checkpoint.uri.rstrip("/"):
        return False
    told = f"the checkpoint of step {known.step} stays at {known.uri}, and the spec names "
    if checkpoint is None:
        told += "no checkpoint.uri any more: the run begins anew"
    elif checkpoint.from_uri:
        told += f"{checkpoint.uri} now: the run goes on from what lies there, or begins from {checkpoint.from_uri}"
    else:
        told += (
            f"{checkpoint.uri} now: the run goes on from what lies there, and begins anew where nothing does. To take "
            f"the step along, suspend the job and copy it:  muster checkpoint cp {known.uri} {checkpoint.uri}"
        )
    turn.draft.set(checkpoint=None, progress=None)
    turn.tell(EventReason.RUN_LEFT, told, warning=True)
    return False
