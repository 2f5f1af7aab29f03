"""What the operator keeps of objects that it watches: slim, frozen, comparable.

A pod as a dict costs 24 KiB, as a view 1 KiB, and a hundred thousand of them are kept. Two views are equal when nothing
has changed that anybody here looks at, so heartbeats and the like wake nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any, Final

from muster.api import names
from muster.api.common import GROUP
from muster.cluster.eligibility import pinned_node, tells_state
from muster.cluster.interpod import apart
from muster.cluster.overrides import RUNTIME, TRAINER
from muster.cluster.pods import pod_name
from muster.cluster.quantities import amount
from muster.cluster.requests import Requests, requests_of
from muster_protocol import env

Object = Mapping[str, Any]

_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the API server's copy of a pod that a node's kubelet runs from a file."""
_DEFAULT_SCHEDULER: Final = "default-scheduler"

_LONG_AGO: Final = datetime.fromtimestamp(0, timezone.utc)

NONE: Final = -1
"""No generation, index or attempt: the pod is not one of ours."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A container that does not run yet, and kubelet's words why."""

    container: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class PodView:
    """
    Attributes:
        node: the node it is bound to or, before that, the one node that its affinity allows, or the one that
            kube-scheduler, or who adds nodes, holds room on for it; "" without any.
        bound: kube-scheduler has bound it.
        terminating: deletion was asked for; the pod holds its room until it is gone.
        forced: it was deleted without any grace: it is gone in a moment, and its launcher has no time for a word.
        owner_uid: UID of the TrainingJob whose worker it is, as the pod says by its controlling owner and its name; ""
            of any other, also of a copy that somebody has made of a worker's pod.
        fixed: of a DaemonSet, or a static one of its node's: it never makes room.
        job: name of its TrainingJob by label, or "".
        queue: name of the TrainingQueue by label, or "".
        generation, index, attempt: by label; -1 without.
        requests: (resource, amount in base units), sorted; `pods` = 1, host ports (`hostport/TCP/8080`) and the place
            of a gang's only worker there (`apart/research/llama`) included.
        unschedulable: kube-scheduler's message while it finds no place, or "".
        gates: scheduling gates, which keep kube-scheduler from looking at it.
        scheduler: whose work it is to bind it, where that is another than Kubernetes' default one; else "".
        ready: the Ready condition.
        waiting: containers that do not run yet and give a reason.
        exit_code, exit_reason, termination_message: of the trainer's container when it has ended, or else of the first
            container or init container that ended badly; None and "" before.
        ended: the name of that container; "" before.
        restarts: of all containers together.
        disruption_target: reason and message of the DisruptionTarget condition, or "".
        status_reason, status_message: of the whole pod, such as Evicted, OutOfcpu, UnexpectedAdmissionError.
        image: of the trainer's container, by digest; "" before kubelet tells.
        finished: when the last container of a pod ended that has ended; None before, or where kubelet tells no time.
        outlived_since: when the trainer ended, while a container beside it goes on, for which kubelet waits; else None.
        runtime_image: that its init container brings the launcher from; "" where it is none of a gang's.
        max_runtime: of index 0: seconds after which its launcher ends the run, as its pod was made; None: never.
    """

    namespace: str
    name: str
    uid: str
    node: str
    bound: bool
    phase: str
    terminating: bool
    forced: bool
    owner_uid: str
    fixed: bool
    job: str
    queue: str
    generation: int
    index: int
    attempt: int
    requests: Requests
    priority: int
    unschedulable: str
    unschedulable_since: datetime | None
    ready: bool
    ip: str
    waiting: tuple[Waiting, ...]
    exit_code: int | None
    exit_reason: str
    termination_message: str
    restarts: int
    disruption_target: str
    created: datetime | None
    status_reason: str
    status_message: str
    finished: datetime | None = None
    image: str = ""
    runtime_image: str = ""
    max_runtime: int | None = None
    outlived_since: datetime | None = None
    ended: str = ""
    gates: tuple[str, ...] = ()
    scheduler: str = ""

    @property
    def silent_scheduler(self) -> str:
        """The other scheduler that it waits for, and which has said nothing of it; or ""."""
        return "" if self.bound or self.unschedulable else self.scheduler

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def over(self) -> bool:
        """Nothing of it runs any more: it holds no room."""
        return self.phase in ("Succeeded", "Failed") and self.outlived_since is None

    @classmethod
    def from_raw(cls, raw: Object) -> PodView:
        """From a Pod as the API server gives it; also from one that was only rehearsed and has no status."""
        metadata, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
        labels = metadata.get("labels") or {}
        conditions = {item.get("type"): item for item in status.get("conditions") or ()}
        scheduled = conditions.get("PodScheduled") or {}
        unplaced = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
        ended_name, ended = _ended(spec, status)
        node = spec.get("nodeName") or ""
        containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        job, index = labels.get(names.JOB_LABEL) or "", _number(labels.get(names.INDEX_LABEL))
        generation, attempt = (_number(labels.get(one)) for one in (names.GENERATION_LABEL, names.ATTEMPT_LABEL))
        return cls(
            namespace=sys.intern(metadata.get("namespace") or ""),
            name=metadata.get("name") or "",
            uid=metadata.get("uid") or "",
            node=sys.intern(node or pinned_node(spec) or status.get("nominatedNodeName") or ""),
            bound=bool(node),
            phase=sys.intern(status.get("phase") or "Pending"),
            terminating=metadata.get("deletionTimestamp") is not None,
            forced=metadata.get("deletionGracePeriodSeconds") == 0,
            owner_uid=_owner(metadata) if metadata.get("name") == pod_name(job, generation, index, attempt) else "",
            fixed=_fixed(metadata),
            job=sys.intern(job),
            queue=sys.intern(labels.get(names.QUEUE_LABEL) or ""),
            generation=generation,
            index=index,
            attempt=attempt,
            requests=_shared(_requests(metadata, spec, status)),
            priority=spec.get("priority") or 0,
            unschedulable=(scheduled.get("message") or "no node fits") if unplaced else "",
            unschedulable_since=parse_time(scheduled.get("lastTransitionTime")) if unplaced else None,
            ready=(conditions.get("Ready") or {}).get("status") == "True",
            ip=status.get("podIP") or "",
            waiting=tuple(_waiting(containers)),
            exit_code=ended.get("exitCode"),
            exit_reason=ended.get("reason") or "",
            termination_message=ended.get("message") or "",
            restarts=sum(item.get("restartCount") or 0 for item in containers),
            disruption_target=_disruption(conditions.get("DisruptionTarget")),
            created=parse_time(metadata.get("creationTimestamp")),
            status_reason=status.get("reason") or "",
            status_message=status.get("message") or "",
            finished=_finished(containers) if status.get("phase") in ("Succeeded", "Failed") else None,
            image=sys.intern(next((one.get("imageID") or "" for one in containers if one.get("name") == TRAINER), "")),
            runtime_image=sys.intern(_runtime_image(spec)),
            max_runtime=_max_runtime(spec) if index == 0 else None,
            outlived_since=_outlived(status) if status.get("phase") == "Running" else None,
            ended=sys.intern(ended_name),
            gates=tuple(sys.intern(one.get("name") or "") for one in spec.get("schedulingGates") or ()),
            scheduler=sys.intern(_scheduler(spec)),
        )


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """
    Attributes:
        uid: changes when a node is deleted and added again under its name.
        ready: the Ready condition is True.
        unschedulable: cordoned.
        takes_pods: whether kube-scheduler binds new pods to it: it is ready and not cordoned, and not tainted as if it
            weren't. Those taints come seconds after the node has changed, and go seconds after, too. Each plan asks it
            of every node, so it is found once.
        allocatable: (resource, amount in base units), sorted.
        created: None where that isn't known.
        quarantine_until, quarantine_lifted: the annotations of a quarantine, as they stand there, or "".
    """

    name: str
    uid: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    ready: bool
    unschedulable: bool
    allocatable: Requests
    created: datetime | None = None
    quarantine_until: str = ""
    quarantine_lifted: str = ""
    takes_pods: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        told = any(map(tells_state, self.taints))
        object.__setattr__(self, "takes_pods", self.ready and not self.unschedulable and not told)

    @property
    def key(self) -> str:
        return self.name

    @classmethod
    def from_raw(cls, raw: Object) -> NodeView:
        metadata, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
        conditions: list[Object] = status.get("conditions") or []
        ready = next((item for item in conditions if item.get("type") == "Ready"), {})
        annotations = metadata.get("annotations") or {}
        return cls(
            name=sys.intern(metadata.get("name") or ""),
            uid=metadata.get("uid") or "",
            labels={sys.intern(key): sys.intern(value) for key, value in (metadata.get("labels") or {}).items()},
            taints=tuple(
                Taint(item.get("key") or "", item.get("value") or "", item.get("effect") or "")
                for item in spec.get("taints") or ()
            ),
            ready=ready.get("status") == "True",
            unschedulable=bool(spec.get("unschedulable")),
            allocatable=_shared(
                tuple(sorted((key, amount(key, value)) for key, value in (status.get("allocatable") or {}).items()))
            ),
            created=parse_time(metadata.get("creationTimestamp")),
            quarantine_until=annotations.get(names.QUARANTINE_UNTIL) or "",
            quarantine_lifted=annotations.get(names.QUARANTINE_LIFTED) or "",
        )


@dataclass(frozen=True, slots=True)
class VersionView:
    """Tells whether an object has changed, and no more: who reads it takes it whole as it comes."""

    key: str
    version: str

    @classmethod
    def from_raw(cls, raw: Object) -> VersionView:
        metadata = raw["metadata"]
        return cls(f"{metadata['namespace']}/{metadata['name']}", metadata["resourceVersion"])


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """
    Attributes:
        terminating: being deleted: nothing can be made in it.
    """

    name: str
    labels: Mapping[str, str]
    terminating: bool

    @property
    def key(self) -> str:
        return self.name

    @classmethod
    def from_raw(cls, raw: Object) -> NamespaceView:
        metadata, status = raw.get("metadata") or {}, raw.get("status") or {}
        return cls(
            name=metadata.get("name") or "",
            labels=dict(metadata.get("labels") or {}),
            terminating=metadata.get("deletionTimestamp") is not None or status.get("phase") == "Terminating",
        )


@dataclass(frozen=True, slots=True)
class PriorityClassView:
    name: str
    value: int

    @property
    def key(self) -> str:
        return self.name

    @classmethod
    def from_raw(cls, raw: Object) -> PriorityClassView:
        return cls(name=(raw.get("metadata") or {}).get("name") or "", value=raw.get("value") or 0)


def parse_time(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it, or None."""
    return None if not text else datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


def _owner(metadata: Object) -> str:
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            ours = owner.get("kind") == "TrainingJob" and str(owner.get("apiVersion")).startswith(f"{GROUP}/")
            return sys.intern(owner.get("uid") or "") if ours else ""
    return ""


def _fixed(metadata: Object) -> bool:
    if _MIRROR in (metadata.get("annotations") or {}):
        return True
    return any(
        owner.get("controller") and owner.get("kind") == "DaemonSet" for owner in metadata.get("ownerReferences") or ()
    )


def _requests(metadata: Object, spec: Object, status: Object) -> Requests:
    requests, only_one = requests_of(spec, status), apart(metadata, spec)
    return tuple(sorted((*requests, (only_one, 1)))) if only_one else requests


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else NONE


def _waiting(containers: Iterable[Object]) -> Iterable[Waiting]:
    for item in containers:
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            yield Waiting(item.get("name") or "", sys.intern(waiting["reason"]), waiting.get("message") or "")


def _ended(spec: Object, status: Object) -> tuple[str, Object]:
    """Name and `terminated` state of the container whose end tells most: the trainer, or the first bad one; those that
    kubelet ends since another has failed, last."""
    first_bad: tuple[str, Object] = "", {}
    first = list(status.get("initContainerStatuses") or ())
    if status.get("phase") == "Failed":
        beside = {one.get("name") for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"}
        first.sort(key=lambda item: item.get("name") in beside)
    for item in [*first, *(status.get("containerStatuses") or ())]:
        ended = (item.get("state") or {}).get("terminated")
        if not ended:
            continue
        if item.get("name") == TRAINER:
            return TRAINER, ended
        if not first_bad[0] and ended.get("exitCode"):
            first_bad = item.get("name") or "", ended
    return first_bad


def _scheduler(spec: Object) -> str:
    name = spec.get("schedulerName") or _DEFAULT_SCHEDULER
    return "" if name == _DEFAULT_SCHEDULER else name


def _outlived(status: Object) -> datetime | None:
    """Init containers that run beside the trainer don't count: kubelet ends those itself."""
    states = {item.get("name"): item.get("state") or {} for item in status.get("containerStatuses") or ()}
    ended = (states.pop(TRAINER, {})).get("terminated")
    if not ended or all(state.get("terminated") for state in states.values()):
        return None
    return parse_time(ended.get("finishedAt")) or _LONG_AGO


def _runtime_image(spec: Object) -> str:
    found = (one.get("image") for one in spec.get("initContainers") or () if one.get("name") == RUNTIME)
    return next(found, "") or ""


def _max_runtime(spec: Object) -> int | None:
    for container in spec.get("containers") or ():
        for item in (container.get("env") or ()) if container.get("name") == TRAINER else ():
            if item.get("name") == env.MAX_RUNTIME:
                seconds = _number(item.get("value"))
                return None if seconds == NONE else seconds
    return None


def _finished(containers: Iterable[Object]) -> datetime | None:
    ends = ((item.get("state") or {}).get("terminated") or {} for item in containers)
    return max((at for end in ends if (at := parse_time(end.get("finishedAt"))) is not None), default=None)


def _disruption(condition: Object | None) -> str:
    if not condition or condition.get("status") != "True":
        return ""
    return f"{condition.get('reason') or 'DisruptionTarget'}: {condition.get('message') or ''}".rstrip(": ")


@lru_cache(maxsize=4096)
def _shared(amounts: Requests) -> Requests:
    """The same tuple for equal amounts: a gang's pods ask for the same."""
    return amounts
