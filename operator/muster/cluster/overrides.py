"""What a job's `podTemplate` may not say, and the merge of what it may.

An override is judged by what it would change: node choice goes through our planner, the launcher must stay the main
process, and our labels and owner tell the operator which pods are its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from muster.api import names
from muster.cluster import interpod
from muster.cluster.strategic import MergeError, merge
from muster.cluster.template_shape import misshapen

Object = dict[str, Any]

TRAINER: Final = "trainer"
"""The main container."""
RUNTIME: Final = "muster-runtime"
"""The init container that brings the launcher."""
RUNTIME_VOLUME: Final = "muster"

_MAY_NOT: Final[dict[str, str]] = {
    "nodeName": "Muster's planner chooses the nodes; narrow its choice with nodeSelector or affinity",
    "schedulerName": "kube-scheduler checks and binds what Muster's planner chose",
    "priority": "set spec.priorityClassName of the job",
    "priorityClassName": "set spec.priorityClassName of the job",
    "preemptionPolicy": "only Muster's planner preempts",
    "restartPolicy": "Muster restarts the gang itself; see spec.restart",
    "activeDeadlineSeconds": "the gang would start again after it; set spec.maxRuntime of the job",
    "terminationGracePeriodSeconds": "the launcher saves within it, too; set spec.terminationGracePeriod of the job",
    "hostname": "workers find each other by the names that Muster gives",
    "subdomain": "workers find each other by the names that Muster gives",
    "setHostnameAsFQDN": "workers find each other by the names that Muster gives",
    "schedulingGates": "Muster makes pods only when they can run at once",
    "schedulingGroup": "Muster places the gang itself",
    "workloadRef": "Muster places the gang itself",
    "ephemeralContainers": "add them to a running pod with kubectl debug",
}
_META_MAY_NOT: Final = ("name", "generateName", "namespace", "uid", "ownerReferences", "finalizers", "resourceVersion")
_RUNTIME_MAY: Final = frozenset({"name", "resources", "securityContext", "imagePullPolicy"})
_TRAINER_MAY_NOT: Final[dict[str, str]] = {
    "command": "set spec.command of the job",
    "args": "set spec.args of the job",
    "image": "set spec.image of the job",
    "terminationMessagePath": "the launcher tells why it ended there",
    "restartPolicy": "Muster restarts the gang itself",
    "lifecycle": "the launcher handles the start and the stop",
}
_TRAINER_HAS: Final = {"env": "name", "volumeMounts": "mountPath"}
"""Lists of the trainer with what Muster has put there, and what tells their items apart."""


class TemplateRefused(ValueError):
    """The override says something that it may not. One sentence: which field, why, what to write instead."""


def apply(base: Object, override: Object) -> Object:
    """`base` (metadata and spec of a pod) with the job's `podTemplate` merged in.

    Raises:
        TemplateRefused: the override sets what is Muster's, or can't be merged.
    """
    problem = misshapen(override.get("spec") or {}) or next(problems(override), None)
    if problem:
        raise TemplateRefused(problem)
    try:
        merged = merge(base, override)
    except MergeError as error:
        raise TemplateRefused(str(error)) from error
    problem = next(interpod.problems(merged["metadata"], merged["spec"]), None)
    if problem:
        raise TemplateRefused(problem)
    return merged


def problems(override: Object) -> Iterator[str]:
    """Everything that the override may not say."""
    for directive in ("$patch", "$retainKeys"):
        if directive in override or directive in (override.get("spec") or {}):
            yield f"podTemplate: {directive} would drop what Muster needs in the pod; name the fields instead"
    yield from _metadata(override.get("metadata") or {})
    spec = override.get("spec") or {}
    for field, why in _MAY_NOT.items():
        if field in spec:
            yield f"podTemplate.spec.{field} is Muster's: {why}"
    yield from _containers(spec)
    for position, volume in enumerate(spec.get("volumes") or []):
        if isinstance(volume, dict) and (volume.get("name") == RUNTIME_VOLUME or volume.get("$patch") == "replace"):
            yield f"podTemplate.spec.volumes[{position}]: the volume {RUNTIME_VOLUME!r} is Muster's; use another name"


def _metadata(metadata: Object) -> Iterator[str]:
    for field in _META_MAY_NOT:
        if field in metadata:
            yield f"podTemplate.metadata.{field} is Muster's; remove it"
    labels = metadata.get("labels") or {}
    for label in sorted(labels):
        if label in names.OWN_LABELS or label.startswith("muster.dev/"):
            yield f"podTemplate.metadata.labels: {label} is Muster's; use a key of your own"


def _containers(spec: Object) -> Iterator[str]:
    for field in ("containers", "initContainers"):
        for position, container in enumerate(spec.get(field) or []):
            if not isinstance(container, dict):
                continue
            where = f"podTemplate.spec.{field}[{position}]"
            if container.get("$patch") == "replace" and "name" not in container:
                yield f"{where}: $patch: replace would drop Muster's own containers; name them instead"
            own = TRAINER if field == "containers" else RUNTIME
            if container.get("name") == own:
                yield from _own_container(own, container, where)
            elif container.get("name") in (TRAINER, RUNTIME):
                yield f"{where}: {container['name']!r} is the name of a container of Muster's; use another name"


def _own_container(own: str, container: Object, where: str) -> Iterator[str]:
    if "$patch" in container or "$retainKeys" in container:
        yield f"{where}: the container {own!r} is Muster's and can't be deleted or replaced"
    if own == RUNTIME:
        for field in sorted(set(container) - _RUNTIME_MAY):
            yield f"{where}.{field}: of {RUNTIME!r} only resources and securityContext may be set"
        return
    for field, why in _TRAINER_MAY_NOT.items():
        if field in container or f"$deleteFromPrimitiveList/{field}" in container:
            yield f"{where}.{field} is Muster's: {why}"
    for field, key in _TRAINER_HAS.items():
        if field in container and _drops(container[field], key):
            yield f"{where}.{field} would drop what Muster needs there: leave it out, or name what is to be added"
    for entry in container.get("env") or []:
        if isinstance(entry, dict) and str(entry.get("name", "")).startswith("MUSTER_"):
            yield f"{where}.env: {entry['name']} is Muster's; use another name"
    for mount in container.get("volumeMounts") or []:
        if isinstance(mount, dict) and str(mount.get("mountPath", "")).rstrip("/") == "/muster":
            yield f"{where}.volumeMounts: /muster holds Muster's runtime; mount elsewhere"


def _drops(items: Any, key: str) -> bool:
    """Whether a list is there to be taken away, or to take the place of the one before."""
    if items is None:
        return True
    return any(isinstance(item, dict) and item.get("$patch") == "replace" and key not in item for item in items)
