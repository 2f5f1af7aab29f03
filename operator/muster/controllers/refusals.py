"""What a job is told whose pod the API server refuses, in terms of the job: its fields, and how to mend them. Pure.

The API server speaks of a pod that nobody has written: of the rehearsal's name, and of paths in what Muster makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from muster.api.effective import EffectiveSpec
from muster.cluster import unknown_fields
from muster.cluster.errors import ApiError
from muster.cluster.overrides import TRAINER
from muster_protocol.spelling import there_are

_POD: Final = re.compile(r'^[Pp]ods? "[^"]*" is (?:invalid|forbidden): ')
_ONE_OF_MANY: Final = re.compile(r"[\[ ]spec\.[^ ]*: ")
_MOUNT: Final = re.compile(r'volumeMounts\[\d+\]\.name: Not found: "([^"]*)"')
_IMAGE: Final = re.compile(r"spec\.(containers|initContainers)\[(\d+)\]\.image: Required value")
_ACCOUNT: Final = re.compile(r'serviceaccount "([^"]*)" not found')


def invalid(error: ApiError) -> bool:
    """Whether it is the pod itself that can't be, wherever it is made."""
    return error.status in (400, 422)


def webhook_away(error: ApiError) -> bool:
    """Whether an admission webhook that may not be left out has not answered: a mesh's injector, a policy engine."""
    return error.status == 500 and "failed calling webhook" in error.message


def counts_pods(message: str) -> bool:
    """Whether a pod was refused for those that are there: it may be taken when they are gone."""
    return "exceeded quota" in message


def unknown(error: ApiError, spec: EffectiveSpec, pod: dict[str, Any]) -> str:
    """Which fields of the job no pod has, where a strict rehearsal of `pod` was refused for such; else ""."""
    found = unknown_fields.unknown_fields(error)
    template = spec.pod_template.to_raw() if spec.pod_template is not None else None
    volumes = [volume.to_raw() for volume in spec.volumes]
    return unknown_fields.sentence(found, pod, template, volumes) if found else ""


def sentence(
    error: ApiError, namespace: str, spec: EffectiveSpec, priority_class: str, pod: dict[str, Any] | None = None
) -> str:
    """Why the job's pods are refused in their namespace.

    Args:
        priority_class: the name of theirs, "" for none.
        pod: metadata and spec of the one that was refused.
    """
    if told := unknown(error, spec, pod or {}):
        return told
    if priority_class and f"no PriorityClass with name {priority_class} was found" in error.message:
        return (
            f"the cluster has no PriorityClass {priority_class!r}, which all gangs' pods get: have the chart make "
            "it (gangPriorityClass.create), or start the operator with --priority-class ''"
        )
    if account := _ACCOUNT.search(error.message):
        name = account[1]
        where = "spec.serviceAccountName" if name == spec.service_account else "the pods' service account"
        make = f"kubectl create serviceaccount {name} -n {namespace}"
        return f"{where}: namespace {namespace!r} has no ServiceAccount {name!r}: make it ({make}), or name another"
    if webhook_away(error):
        told = error.message.partition("failed calling webhook ")[2]
        return (
            f"the API server takes no pods in namespace {namespace!r}, since an admission webhook does not answer: "
            f"{told}. The job starts when it does, or when its configuration leaves this namespace out"
        )
    told = _POD.sub("", error.message)
    known = [*_mounts(told, spec), *_without_image(told, pod or {})]
    if known and len(_ONE_OF_MANY.findall(f" {told}")) == len(known):
        return "; ".join(known)
    if invalid(error):
        return f"the API server does not take the pods that the job makes: {told}"
    return f"namespace {namespace!r} refuses the job's pods: {told}"


def _mounts(told: str, spec: EffectiveSpec) -> Iterator[str]:
    """Mounts of volumes that there are not."""
    volumes = [str(volume.to_raw().get("name", "")) for volume in spec.volumes]
    for name in _MOUNT.findall(told):
        there = f"there is no volume {name!r} in spec.volumes; {there_are(name, volumes)}"
        own = [index for index, mount in enumerate(spec.volume_mounts) if mount.name == name]
        yield f"spec.volumeMounts[{own[0]}].name: {there}" if own else f"podTemplate mounts a volume {name!r}: {there}"


def _without_image(told: str, pod: dict[str, Any]) -> Iterator[str]:
    """Containers of the template that have no image: mostly the training container was meant."""
    for field, index in _IMAGE.findall(told):
        containers = (pod.get("spec") or {}).get(field) or []
        if int(index) < len(containers) and not containers[int(index)].get("image"):
            name = containers[int(index)].get("name")
            yield (
                f"podTemplate.spec.{field}: {name!r} is a container of its own, for the job has none of that name, and "
                f"has no image: the training container is named {TRAINER!r}, in containers; name it so, or give "
                f"{name!r} an image"
            )
