"""ProvisioningRequests: how an autoscaler is asked for the nodes of a whole gang. Its objects as the server has them.

A gang that waits has no pods, so an autoscaler sees nothing of it. Where the API `autoscaling.x-k8s.io/v1` exists, a
ProvisioningRequest names a PodTemplate and how many of its pods are to come; cluster-autoscaler (or a cloud's own
controller) answers in the request's conditions. Everything that we know of a request stands in the object itself, so a
restart of the operator loses nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import Any, Final

from muster.api import names
from muster.api.common import API_VERSION
from muster.cluster.pods import Identity
from muster.cluster.views import parse_time

Object = dict[str, Any]

GROUP: Final = "autoscaling.x-k8s.io/v1"
ALL: Final = f"/apis/{GROUP}/provisioningrequests"
_ATTEMPT: Final = re.compile("[1-9][0-9]{0,8}")
_LONGEST: Final = 400
"""Characters of an autoscaler's message that are passed on."""


class Answer(Enum):
    """What the autoscaler has said."""

    NONE = "none"
    """Nothing final: it is at work, or tries again by itself."""
    PROVISIONED = "provisioned"
    FAILED = "failed"
    """It has given up, or has taken the nodes back."""


@dataclass(frozen=True)
class Asking:
    """How requests are made; a platform team's choice.

    Attributes:
        class_name: `spec.provisioningClassName`.
        parameters: `spec.parameters`.
        patience: seconds that a job lacks nodes before they are asked for: most that wait start when another ends.
        node_selectors: labels of the node groups by flavour, like `H100/on-demand`. What tells a flavour on nodes is
            set once they run, so an autoscaler that starts from an empty group can't know it.
    """

    class_name: str
    parameters: tuple[tuple[str, str], ...] = ()
    patience: float = 15.0
    node_selectors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def selector(self, flavour: str) -> dict[str, str]:
        """Labels of the node groups that have nodes of a flavour; none where nothing is said of it."""
        return dict(self.node_selectors.get(flavour, {}))


@dataclass(frozen=True)
class Request:
    """A ProvisioningRequest of ours.

    Attributes:
        key: hash of what was asked for.
        attempt: from 1; how often the same was asked for.
        message: the autoscaler's words.
        since: when it gave that answer, or was asked.
        terminating: deletion was asked for.
    """

    namespace: str
    name: str
    uid: str
    job_uid: str
    key: str
    attempt: int
    answer: Answer
    message: str
    since: datetime
    terminating: bool

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Request:
        metadata = raw["metadata"]
        annotations = metadata.get("annotations") or {}
        answer, message, since = _answer(raw.get("status") or {})
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            job_uid=(metadata.get("labels") or {}).get(names.JOB_UID_LABEL, ""),
            key=annotations.get(names.REQUEST_KEY_ANNOTATION, ""),
            attempt=_number(annotations.get(names.REQUEST_ATTEMPT_ANNOTATION)),
            answer=answer,
            message=message[:_LONGEST],
            since=since or parse_time(metadata.get("creationTimestamp")) or datetime.now(timezone.utc),
            terminating=metadata.get("deletionTimestamp") is not None,
        )


def _answer(status: Mapping[str, Any]) -> tuple[Answer, str, datetime | None]:
    found = {item["type"]: item for item in status.get("conditions") or ()}
    order = (
        ("CapacityRevoked", Answer.FAILED),
        ("BookingExpired", Answer.FAILED),
        ("Failed", Answer.FAILED),
        ("Provisioned", Answer.PROVISIONED),
    )
    for kind, answer in order:
        item = found.get(kind)
        if item is not None and item.get("status") == "True":
            told = f"{item.get('reason') or kind}: {item.get('message') or ''}".rstrip(": ")
            return answer, told, parse_time(item.get("lastTransitionTime"))
    return Answer.NONE, "", None


def _number(text: str | None) -> int:
    """From 1, whatever somebody has written into the annotation."""
    return int(text) if text and _ATTEMPT.fullmatch(text) else 1


def request_key(template_key: str, count: int, asking: Asking, flavour: str = "") -> str:
    """Changes with whatever a request says."""
    text = f"{template_key} {count} {asking.class_name} {asking.parameters}"
    selector = asking.selector(flavour)
    if selector:
        text += f" {sorted(selector.items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def request_name(job: Identity, key: str, attempt: int) -> str:
    """Of the request and its PodTemplate; never that of a job made anew under its name."""
    return f"{job.name}-{job.uid[:8]}-{key}-{attempt}"


def request(job: Identity, key: str, attempt: int, count: int, asking: Asking) -> Object:
    """Asks for `count` pods like the PodTemplate of the same name."""
    made: Object = {
        "apiVersion": GROUP,
        "kind": "ProvisioningRequest",
        "metadata": _metadata(job, key, attempt),
        "spec": {
            "provisioningClassName": asking.class_name,
            "podSets": [{"podTemplateRef": {"name": request_name(job, key, attempt)}, "count": count}],
        },
    }
    if asking.parameters:
        made["spec"]["parameters"] = dict(asking.parameters)
    return made


def pod_template(
    job: Identity, key: str, attempt: int, template: Object, selector: Mapping[str, str] | None = None
) -> Object:
    """The gang's pod, as far as a scheduler looks at it.

    Args:
        template: of `muster.cluster.pods`.
        selector: labels of the node groups, beside the job's own `nodeSelector`, which wins.
    """
    if selector:
        spec = template["spec"]
        template = {**template, "spec": {**spec, "nodeSelector": {**selector, **(spec.get("nodeSelector") or {})}}}
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": _metadata(job, key, attempt), "template": template}


def _metadata(job: Identity, key: str, attempt: int) -> Object:
    owner = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "name": request_name(job, key, attempt),
        "namespace": job.namespace,
        "labels": {
            names.JOB_LABEL: job.name,
            names.JOB_UID_LABEL: job.uid,
            names.MANAGED_BY_LABEL: names.MANAGED_BY,
        },
        "annotations": {names.REQUEST_KEY_ANNOTATION: key, names.REQUEST_ATTEMPT_ANNOTATION: str(attempt)},
        "ownerReferences": [owner],
    }


def path(namespace: str, name: str = "") -> str:
    """Of the requests of a namespace, or of one."""
    return f"/apis/{GROUP}/namespaces/{namespace}/provisioningrequests" + (f"/{name}" if name else "")


def template_path(namespace: str, name: str = "") -> str:
    """Of the PodTemplates of a namespace, or of one."""
    return f"/api/v1/namespaces/{namespace}/podtemplates" + (f"/{name}" if name else "")
