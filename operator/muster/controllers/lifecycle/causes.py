"""Why a pod ended: one pure function from what the cluster shows to a cause.

The order is the design's: the operator's recorded intent (a pod that we deleted ended because of that, and isn't asked
here), the DisruptionTarget condition, the launcher's termination message, the pod's last status, exit codes. A pod that
is gone without a record is the infrastructure's doing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from muster.cluster.overrides import RUNTIME, RUNTIME_VOLUME, TRAINER
from muster.cluster.views import PodView
from muster_protocol import exits


class Kind(Enum):
    """What an end means for the job, the worst first: the gang's cause is its first by this order."""

    CONFIG = "Config"
    """The run can't start as it is written; trying again would not help."""
    STORAGE = "Storage"
    NUMERICS = "Numerics"
    """Losses or gradients are not sound, and the job asks for an end, or there were too many."""
    REJECTED = "Rejected"
    """kubelet refused the pod: the placement was wrong, the gang is withdrawn."""
    DISRUPTED = "Disrupted"
    """Drained, evicted, deleted by somebody: not the user's failure."""
    LOST = "Lost"
    """The node is gone or silent, or the pod vanished without a record."""
    NODE = "Node"
    """The hardware of a node is broken, as a rank has found."""
    MAX_RUNTIME = "MaxRuntime"
    """Stopped by the launcher because the run's time was over; a checkpoint was saved where the script can."""
    PREEMPTED = "Preempted"
    """Stopped when asked; a checkpoint was committed where the script can."""
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    """Its processes ran and did not get on."""
    USER = "User"
    NETWORK = "Network"
    """Ranks lost each other, and none had failed by itself."""
    INFRASTRUCTURE = "Infrastructure"
    PEER = "Peer"
    """Followed another pod of the gang; that pod's cause is the one to tell."""
    SUCCEEDED = "Succeeded"


@dataclass(frozen=True)
class End:
    """One pod's end, or the gang's.

    Attributes:
        message: one sentence for people.
        restarts: how many failures of the script before were answered by starting the processes again in their pods.
        memory_restarts: of those, how many were for want of memory.
        signature, alike: as in `exits.ExitFacts`.
        suspect: of a hang: the rank is one of those that held up the others.
        abrupt: the pod is over, its launcher has left no word, and it isn't the script's doing: the others of the gang
            may wait for a new one.
        evicted: by the Eviction API: somebody wants the node free, as for maintenance, and nothing is broken.
    """

    kind: Kind
    message: str
    index: int = -1
    pod: str = ""
    node: str = ""
    rank: int | None = None
    exit_code: int | None = None
    traceback: str = ""
    step: int | None = None
    committed_step: int | None = None
    restarts: int = 0
    memory_restarts: int = 0
    signature: str = ""
    alike: int = 1
    suspect: bool = False
    abrupt: bool = False
    evicted: bool = False

    @property
    def cause(self) -> str:
        """`status.failure.cause`: the launcher's words, and some for what only the cluster shows."""
        if self.kind is Kind.LOST:
            return "node" if self.node else "infrastructure"
        return _WORDS.get(self.kind, "infrastructure")


COUNTED: Final = frozenset({Kind.USER, Kind.OUT_OF_MEMORY, Kind.HANG})
"""Kinds that the script brings about."""

BROKEN: Final = frozenset({Kind.DISRUPTED, Kind.LOST, Kind.NODE, Kind.NETWORK, Kind.INFRASTRUCTURE, Kind.PEER})
"""Kinds that the platform brought about, whatever the script does."""

FATAL: Final = frozenset({Kind.CONFIG, Kind.STORAGE, Kind.NUMERICS})
"""Kinds that fail the job at once."""

_NOBODYS: Final = frozenset({Kind.DISRUPTED, Kind.LOST, Kind.INFRASTRUCTURE})
"""Kinds for which neither the script nor the job's author can do anything."""

_FROM_LAUNCHER: Final = {
    exits.Cause.SUCCEEDED: Kind.SUCCEEDED,
    exits.Cause.USER: Kind.USER,
    exits.Cause.OUT_OF_MEMORY: Kind.OUT_OF_MEMORY,
    exits.Cause.HANG: Kind.HANG,
    exits.Cause.NUMERICS: Kind.NUMERICS,
    exits.Cause.NETWORK: Kind.NETWORK,
    exits.Cause.NODE: Kind.NODE,
    exits.Cause.CONFIG: Kind.CONFIG,
    exits.Cause.STORAGE: Kind.STORAGE,
    exits.Cause.PREEMPTED: Kind.PREEMPTED,
    exits.Cause.MAX_RUNTIME: Kind.MAX_RUNTIME,
    exits.Cause.RENDEZVOUS: Kind.INFRASTRUCTURE,
    exits.Cause.PEER: Kind.PEER,
    exits.Cause.INFRASTRUCTURE: Kind.INFRASTRUCTURE,
}

_WORDS: Final = {
    Kind.CONFIG: "config",
    Kind.STORAGE: "storage",
    Kind.USER: "user",
    Kind.OUT_OF_MEMORY: "out-of-memory",
    Kind.HANG: "hang",
    Kind.NUMERICS: "numerics",
    Kind.NETWORK: "network",
    Kind.NODE: "node",
    Kind.DISRUPTED: "disrupted",
    Kind.MAX_RUNTIME: "max-runtime",
    Kind.PREEMPTED: "preempted",
    Kind.PEER: "peer",
    Kind.SUCCEEDED: "succeeded",
}

_REJECTIONS: Final = re.compile(
    r"^(OutOf[a-zA-Z0-9./-]+|NodeAffinity|NodeName|NodePorts|NodeResourcesFit|TaintToleration|UnexpectedAdmissionError"
    r"|PodOSSelectorNodeLabelDoesNotMatch|PodOSNotSupported|PodFeatureUnsupported|UnsupportedPod|AppArmor"
    r"|VolumeAttachmentLimitExceeded|TopologyAffinityError|SMTAlignmentError|InvalidNodeInfo|Sysctl\w*)$"
)
"""`status.reason` of pods that kubelet's admission turned away before any container ran."""

_DISRUPTIONS: Final = frozenset({"Evicted", "Terminated", "NodeShutdown", "Shutdown", "Preempting", "DeadlineExceeded"})
_STORAGE_LIMIT: Final = re.compile(
    r"ephemeral local storage usage exceeds the total limit|exceeded its local ephemeral storage limit"
)
_VOLUME_LIMIT: Final = re.compile(r'Usage of EmptyDir volume "([^"]*)" exceeds the limit')
_EVICTED: Final = "EvictionByEvictionAPI"
"""The DisruptionTarget's reason of pods that a drain, an autoscaler or a descheduler has asked to leave."""
_LOSSES: Final = frozenset({"NodeLost", "ContainerStatusUnknown"})

_UNKNOWN: Final = ("Unknown", 255)
"""What containerd says of a container that it had lost when it came back, as with its node."""

_CANNOT_RUN: Final = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})


def end_of(pod: PodView, *, lost_nodes: frozenset[str] = frozenset()) -> End | None:
    """The end of a pod that we did not ask to end; None while it goes on.

    `lost_nodes` are names of nodes that are gone or unreachable.
    """
    end = _end_of(pod, lost_nodes)
    over = pod.phase == "Failed" or pod.forced or pod.node in lost_nodes
    if end is None or not over or end.kind not in _NOBODYS or exits.decode(pod.termination_message) is not None:
        return end
    return replace(end, abrupt=True)


def _end_of(pod: PodView, lost_nodes: frozenset[str]) -> End | None:
    if pod.phase == "Succeeded" and not pod.disruption_target:
        return _at(pod, Kind.SUCCEEDED, "the launcher ended with exit code 0")
    if mend := _own_limit(pod):
        told = f"pod {pod.name} on node {pod.node} was evicted: {pod.status_message.strip().rstrip('.')}; {mend}"
        return _at(pod, Kind.USER, told)
    if pod.disruption_target.startswith(_EVICTED):
        told = f"pod {pod.name} was evicted from node {pod.node}, as `kubectl drain` does"
        return replace(_at(pod, Kind.DISRUPTED, told), evicted=True)
    if pod.disruption_target:
        told = f"{pod.disruption_target}{_ask_for_more(pod.disruption_target)}"
        return _at(pod, Kind.DISRUPTED, f"pod {pod.name} on node {pod.node} is disrupted: {told}")
    if pod.phase == "Failed":
        return _failed(pod)
    if pod.forced:
        return _at(pod, Kind.DISRUPTED, f"pod {pod.name} on node {pod.node or '(none)'} was deleted by force")
    if pod.terminating:
        return _at(pod, Kind.DISRUPTED, f"pod {pod.name} on node {pod.node or '(none)'} was deleted by somebody else")
    if pod.node and pod.node in lost_nodes:
        return _at(pod, Kind.LOST, f"node {pod.node}, where pod {pod.name} ran, is gone or does not answer")
    return None


def gone(index: int, name: str) -> End:
    """A pod that is no longer in the cluster and left no record."""
    message = f"pod {name} is gone without a record of its end"
    return End(Kind.LOST, message, index=index, pod=name, abrupt=True)


def missed(pod: PodView) -> End:
    """A pod that looks alive, and whose launcher its gang hears no more."""
    message = f"the gang no longer hears the launcher of pod {pod.name}"
    return replace(_at(pod, Kind.LOST, message), abrupt=True)


def first_cause(ends: Iterable[End]) -> End | None:
    """The end that explains the others: a disruption or loss before the errors that it causes in its peers."""
    order: Sequence[Kind] = tuple(Kind)
    return min(ends, key=lambda end: (order.index(end.kind), end.index), default=None)


def _failed(pod: PodView) -> End:
    facts = exits.decode(pod.termination_message) if pod.termination_message else None
    if facts is not None:
        return End(
            kind=_FROM_LAUNCHER[facts.cause],
            message=facts.message or f"the launcher ended with exit code {facts.exit_code}",
            index=pod.index,
            pod=pod.name,
            node=pod.node,
            rank=facts.rank,
            exit_code=facts.rank_exit_code if facts.rank_exit_code is not None else facts.exit_code,
            traceback=facts.traceback,
            step=facts.step,
            committed_step=facts.committed_step,
            restarts=facts.restarts if facts.failures is None else facts.failures,
            memory_restarts=facts.memory_failures,
            signature=facts.signature,
            alike=facts.alike,
            suspect=facts.suspect,
        )
    if pod.status_reason:
        return _from_status(pod)
    return _from_exit_code(pod)


def _from_status(pod: PodView) -> End:
    told = f"{pod.status_reason}: {pod.status_message}".rstrip(": ")
    if _REJECTIONS.match(pod.status_reason):
        return _at(pod, Kind.REJECTED, f"node {pod.node} rejected pod {pod.name}: {told}")
    if pod.status_reason in _LOSSES:
        return _at(pod, Kind.LOST, f"pod {pod.name} on node {pod.node} is lost: {told}")
    if pod.status_reason in _DISRUPTIONS:
        return _at(pod, Kind.DISRUPTED, f"pod {pod.name} on node {pod.node} was ended: {told}{_ask_for_more(told)}")
    if pod.exit_code is None:
        return _at(pod, Kind.REJECTED, f"node {pod.node} did not run pod {pod.name}: {told}")
    return _from_exit_code(pod)


def _from_exit_code(pod: PodView) -> End:
    code, reason = pod.exit_code, pod.exit_reason
    if code is None:
        return _at(pod, Kind.LOST, f"pod {pod.name} failed and left no exit code")
    if (reason, code) == _UNKNOWN:
        told = f"pod {pod.name} was lost to the container runtime of node {pod.node}, as when the node starts anew"
        return _at(pod, Kind.LOST, told)
    if pod.ended not in ("", TRAINER):
        return _before_trainer(pod, code, reason)
    if reason == "OOMKilled":
        mend = "raise spec.workers.resources.limits.memory (/dev/shm counts too), or use less"
        return _at(pod, Kind.OUT_OF_MEMORY, f"the kernel killed all of pod {pod.name} for want of memory; {mend}")
    if reason in _LOSSES:
        return _at(pod, Kind.LOST, f"the node lost sight of pod {pod.name}: {reason}")
    if reason in _CANNOT_RUN or code in (126, 127):
        told = pod.termination_message.strip() or f"exit code {code}"
        mend = "the image needs python3 of version 3.10 or later on its PATH, and torch"
        return _at(pod, Kind.CONFIG, f"the launcher could not start in pod {pod.name}: {told}; {mend}")
    if code in (exits.EXIT_CONFIG,):
        return _at(
            pod, Kind.CONFIG, f"pod {pod.name} ended with exit code {code}: the run can't start as it is written"
        )
    if code == exits.EXIT_INFRASTRUCTURE:  # the launcher's own: a rank's exit codes aren't passed on
        return _at(pod, Kind.INFRASTRUCTURE, f"the launcher of pod {pod.name} or its gang failed (exit code {code})")
    if code in (137, 143):
        signal = "SIGKILL" if code == 137 else "SIGTERM"
        return _at(pod, Kind.INFRASTRUCTURE, f"pod {pod.name} was ended from outside by {signal}")
    if code == exits.EXIT_OK:
        return _at(pod, Kind.SUCCEEDED, "the launcher ended with exit code 0")
    return _at(pod, Kind.USER, f"pod {pod.name} ended with exit code {code}")


def _before_trainer(pod: PodView, code: int, reason: str) -> End:
    """An init container has failed, and the launcher was never started. Muster's own lacks something on that node: the
    gang goes elsewhere. What others do, the job or a webhook has asked for."""
    last = (pod.termination_message.strip().splitlines() or [""])[-1][:300]
    how = f"exit code {code}" if reason in ("", "Error") else f"exit code {code}, {reason}"
    told = f"init container {pod.ended} of pod {pod.name} on node {pod.node} ended with {how}"
    told = f"{told}: {last}" if last else told
    killed = code in (137, 143) and reason != "OOMKilled"
    if pod.ended == RUNTIME and not killed:
        return _at(pod, Kind.REJECTED, told)
    if reason == "OOMKilled":
        return _at(pod, Kind.OUT_OF_MEMORY, f"{told}; raise its own resources.limits.memory in podTemplate")
    if reason in _LOSSES:
        return _at(pod, Kind.LOST, told)
    if reason in _CANNOT_RUN:
        return _at(pod, Kind.CONFIG, f"{told}; correct it in podTemplate.spec.initContainers")
    return _at(pod, Kind.INFRASTRUCTURE if killed else Kind.USER, told)


def _ask_for_more(told: str) -> str:
    """What helps a pod that kubelet ended because its node had run short of something."""
    match = re.search(r"low on resource: (memory|ephemeral-storage)", told)
    if match is None:
        return ""
    return f"; ask for as much as it uses, by spec.workers.resources.requests.{match[1]}"


def _own_limit(pod: PodView) -> str:
    """What to do about a pod that kubelet evicted since it wrote more to its node's disk than it said it would, as it
    will again wherever it is; "" of any other, and of a volume of Muster's."""
    if pod.status_reason != "Evicted":
        return ""
    if _STORAGE_LIMIT.search(pod.status_message):
        return "raise spec.workers.resources.limits.ephemeral-storage, or write less outside of volumes"
    volume = _VOLUME_LIMIT.search(pod.status_message)
    if volume is None or volume[1] == RUNTIME_VOLUME:
        return ""
    return f"raise the sizeLimit of volume {volume[1]}, or write less there"


def _at(pod: PodView, kind: Kind, message: str) -> End:
    return End(kind, message, index=pod.index, pod=pod.name, node=pod.node, exit_code=pod.exit_code)
