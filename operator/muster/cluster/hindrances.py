"""Which reasons for waiting are more than a matter of the job's turn: something has to change before it can start."""

from __future__ import annotations

from typing import Final

from muster.api.names import Reason
from muster.scheduling.plan import WaitReason

_OF_THE_JOB_OR_CLUSTER: Final = (
    Reason.QUEUE_NOT_FOUND,
    Reason.NAMESPACE_NOT_ALLOWED,
    Reason.TOPOLOGY_NOT_FOUND,
    Reason.LEVEL_NOT_FOUND,
    Reason.LEVELS_OUT_OF_ORDER,
    Reason.UNKNOWN_GPU_TYPE,
    Reason.PRIORITY_CLASS_NOT_FOUND,
    Reason.INVALID_SPEC,
    Reason.INVALID_POD_TEMPLATE,
    Reason.INVALID_WINDOW,
    Reason.POD_REFUSED,
    Reason.BUDGET_EXHAUSTED,
)
_OF_THE_PLANNER: Final = (WaitReason.EXCEEDS_QUOTA, WaitReason.EXCEEDS_CLUSTER, WaitReason.NO_ELIGIBLE_NODES)
_VALUES: Final = frozenset(reason.value for reason in (*_OF_THE_JOB_OR_CLUSTER, *_OF_THE_PLANNER))


def hinders(reason: str) -> bool:
    """Whether a job that waits for this `reason` would also wait if it were the only one."""
    return reason in _VALUES
