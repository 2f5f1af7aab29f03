"""Which reasons for waiting are more than a matter of the job's turn: something has to change before it can start."""

from __future__ import annotations

from typing import Final

from muster.api.names import Reason
from muster.scheduling.plan import WaitReason

CONTAINER: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreStartHookError", "CrashLoopBackOff"}
)
"""Kubelet's words in the status of a container that does not start, but for its image."""
KUBELET: Final = frozenset(
    {"FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "NetworkNotReady"}
)
"""Kubelet's words in Events of which the pod's status says nothing."""
PODS_ARE_MADE: Final = "pods are being made"
"""What a gang that was just placed says of its pods, while nothing more is known of them."""
_OTHERS: Final = frozenset({Reason.IMAGE_PULL_FAILED.value, Reason.SCHEDULING_REFUSED.value})
_OF_THE_JOB_OR_CLUSTER: Final = (
    Reason.QUEUE_NOT_FOUND,
    Reason.NAMESPACE_NOT_ALLOWED,
    Reason.TOPOLOGY_NOT_FOUND,
    Reason.LEVEL_NOT_FOUND,
    Reason.LEVELS_OUT_OF_ORDER,
    Reason.UNKNOWN_GPU_TYPE,
    Reason.PRIORITY_CLASS_NOT_FOUND,
    Reason.CHECKPOINT_PATH_CONFLICT,
    Reason.INVALID_SPEC,
    Reason.INVALID_POD_TEMPLATE,
    Reason.INVALID_WINDOW,
    Reason.POD_REFUSED,
    Reason.BUDGET_EXHAUSTED,
)
_BY_ITS_PODS: Final = frozenset(
    {WaitReason.EXCEEDS_QUOTA.value, WaitReason.EXCEEDS_CLUSTER.value, WaitReason.NO_ELIGIBLE_NODES.value}
)
_VALUES: Final = _BY_ITS_PODS | {reason.value for reason in (*_OF_THE_JOB_OR_CLUSTER, WaitReason.QUEUE_CLOSED)}


def hinders(reason: str) -> bool:
    """Whether a job that waits for this `reason` would also wait if it were the only one in its queue."""
    return reason in _VALUES or keeps_pods(reason)


def bars(reason: str) -> bool:
    """Whether it says that the job's pods, as they are, could not run if all nodes and quotas were free."""
    return reason in _BY_ITS_PODS


def keeps_pods(reason: str) -> bool:
    """Whether it is what keeps pods that are placed from starting, in the word that a job has for it."""
    return reason in _OTHERS or reason in CONTAINER or reason in KUBELET
