"""A script that fails at a size that its gang got while it ran goes back to the one that it had trained with.

An author gives limits, and not each number between them is one that every script can run with: a global batch of 16 is
not shared equally by 3. It was the planner who took 3, so that must not end a run that could go on with 2.
"""

from __future__ import annotations

from muster.api.names import EventReason
from muster.api.placement import Placement
from muster.api.restarts import of_script
from muster.api.trainingjob_status import FixedSize, TrainingJobStatus
from muster.controllers.lifecycle.causes import End
from muster.controllers.lifecycle.turn import Turn


def go_back(turn: Turn, cause: End, alike: int) -> bool:
    """Fix the size at the one before, where the gang's last failures, `alike` in number, have all been with the present
    one. False where there is none to go back to."""
    former, placement = _former_size(turn), turn.status.placement
    if former is None or placement is None:
        return False
    often = f" {alike} times alike" if alike > 1 else ""
    why = (
        f"with {placement.workers} workers its script failed{often}, and it had trained with {former}: {cause.message}"
    )
    fixed = FixedSize(workers=former, message=why, failed=placement.workers, observed_generation=turn.generation)
    # What failed with that size says nothing of the script with the former one, and is not to use up its restarts.
    since = turn.status.sizes[-1].since
    past = tuple(one for one in turn.status.recent_failures if one.at < since or not of_script(one))
    turn.draft.set(fixed_size=fixed, recent_failures=past)
    until = "it keeps that size until its spec is edited: workers.min, max and step say which sizes it may have"
    turn.tell(EventReason.MOVED, f"the gang goes back to {former} workers: {why}; {until}", warning=True)
    return True


def _former_size(turn: Turn) -> int | None:
    status, spec, sizes = turn.status, turn.s.spec, turn.status.sizes
    placement, past = status.placement, status.recent_failures
    if placement is None or status.progress is None or not spec.elastic or status.fixed_size is not None or not past:
        return None
    if len(sizes) < 2 or sizes[-1].workers != placement.workers or not spec.may_have(sizes[-2].workers):
        return None
    same = (one.at for one in past if one.signature == past[-1].signature)
    return sizes[-2].workers if min(same) >= sizes[-1].since else None


def size_of_restart(status: TrainingJobStatus, placement: Placement) -> int:
    """Workers with which the gang of a placement that is about to end starts again."""
    fixed = status.fixed_size
    return fixed.workers if fixed is not None and fixed.failed is not None else placement.workers


def free_size(turn: Turn) -> bool:
    """Forget which size has failed, once the spec is another one."""
    fixed = turn.status.fixed_size
    if fixed is not None and fixed.failed is not None and fixed.observed_generation != turn.generation:
        turn.draft.set(fixed_size=None)
    return False
