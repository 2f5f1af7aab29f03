"""The objects of a gang: its pods, headless Service and Secret, as the API server takes them. Pure.

`template` makes what all pods of a job have in common, without node or name: it is what the server-side dry run judges
and what the planner's request vector is summed from. `pod` adds node, name and place in the gang.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from muster.api import names
from muster.api.common import API_VERSION
from muster.api.effective import EffectiveSpec
from muster.api.restarts import NO_RESTARTS, InPlace
from muster.cluster import overrides, pod_environment, pod_storage
from muster.cluster.eligibility import NOT_READY, UNREACHABLE
from muster.cluster.overrides import RUNTIME, RUNTIME_VOLUME, TRAINER
from muster_protocol import env, exits

Object = dict[str, Any]

LAUNCHER: Final = f"{env.MOUNT_PATH}/bin/muster-launch"
_RUNTIME_USER: Final = 65532
"""`nobody`-like; the runtime's files are readable by all, so the trainer may be anyone."""
_RUNTIME_SIZE: Final = "1Gi"
_DNS_1035: Final = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")


@dataclass(frozen=True)
class PodSettings:
    """What the platform decides for every pod.

    Attributes:
        runtime_image: image whose init container brings the launcher.
        priority_class: name of the pods' PriorityClass, "" for none.
        pull_policy: of the runtime image; "" leaves it to Kubernetes.
        token_tag: of the key that the launchers' tokens are derived from.
        node_hours: hours that one node runs between two failures, by kind of capacity.
    """

    runtime_image: str
    priority_class: str = names.GANG_PRIORITY_CLASS
    pull_policy: str = ""
    token_tag: str = ""
    node_hours: tuple[tuple[str, float], ...] = tuple(sorted(env.NODE_HOURS.items()))


@dataclass(frozen=True)
class Identity:
    """Which job the objects belong to."""

    namespace: str
    name: str
    uid: str


def pod_name(job: str, generation: int, index: int, attempt: int) -> str:
    return f"{job}-g{generation}-{index}-{attempt}"


def host_name(generation: int, index: int, attempt: int) -> str:
    return f"g{generation}-{index}-{attempt}"


def service_name(job: Identity) -> str:
    """The job's own name where a Service may have it (DNS-1035), else one made from it."""
    if _DNS_1035.match(job.name):
        return job.name
    digest = hashlib.sha256(job.uid.encode()).hexdigest()[:8]
    kept = re.sub(r"[^-a-z0-9]", "-", job.name)[:50].strip("-")
    return f"job-{kept}-{digest}"


def token_tag(key: bytes) -> str:
    """Tells one token key from another without giving it away."""
    return hashlib.sha256(b"muster token key " + key).hexdigest()[:8]


def secret_name(job: Identity, tag: str) -> str:
    """Has the UID and the key's tag in it: a job made anew under an old name must not take the old job's token for its
    own, nor an operator with a new key the old key's."""
    return f"{job.name}-muster-{job.uid[:8]}" + (f"-{tag}" if tag else "")


def leader_host(job: Identity, generation: int, attempt: int = 0) -> str:
    return f"{host_name(generation, 0, attempt)}.{service_name(job)}.{job.namespace}.svc"


def spec_hash(spec: EffectiveSpec, settings: PodSettings) -> str:
    """Changes with whatever `template` is made from."""
    text = json.dumps([_plain(spec), _plain(settings)], sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return str(value)


def service(job: Identity) -> Object:
    """Headless, with a name for index 0 before it is ready: launchers find it by that, and learn of each other there.

    Of the others it has none: their addresses would be written anew with each pod that comes, and sent to every node.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, service_name(job), _labels(job)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_UID_LABEL: job.uid, names.INDEX_LABEL: "0"},
            "ports": [{"name": "muster", "port": env.DEFAULT_PORT, "protocol": "TCP"}],
        },
    }


def secret(job: Identity, token: str, tag: str = "") -> Object:
    """The launchers' token. Immutable: kubelets don't watch it, and nobody swaps it under a running gang."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, secret_name(job, tag), _labels(job)),
        "type": "Opaque",
        "immutable": True,
        "stringData": {env.TOKEN: token},
    }


def template(job: Identity, spec: EffectiveSpec, settings: PodSettings) -> Object:
    """Metadata and spec of every pod of the job, without name, node and index.

    Raises:
        overrides.TemplateRefused: `podTemplate` sets what is Muster's or can't be merged.
    """
    base = {
        "metadata": {
            "labels": {**_labels(job), names.QUEUE_LABEL: spec.queue},
            "annotations": dict(names.KEEP_ANNOTATIONS),
        },
        "spec": _spec(job, spec, settings),
    }
    merged = base
    if spec.pod_template is not None:
        merged = overrides.apply(base, spec.pod_template.to_raw())
        _like_trainer(merged["spec"])
    _outlive_kubelet(merged["spec"])
    return merged


def pod(
    job: Identity,
    template: Object,
    *,
    generation: int,
    index: int,
    attempt: int,
    node: str,
    workers: int,
    leader: int = 0,
    max_runtime: int | None = None,
    in_place: InPlace = NO_RESTARTS,
    reached: int = 0,
) -> Object:
    """One worker's pod from the job's `template`, most of which all of them share: don't change what is in it.

    `leader`: attempt of index 0; `max_runtime`: seconds that the job may still run; `in_place`: what its launchers may
    answer by themselves; `reached`: steps done before.
    """
    # Only what is a pod's own is copied: of a gang of hundreds, all else of the template is in each.
    labels = {
        **template["metadata"].get("labels", {}),
        names.GENERATION_LABEL: str(generation),
        names.INDEX_LABEL: str(index),
        names.ATTEMPT_LABEL: str(attempt),
    }
    metadata = _metadata(job, pod_name(job.name, generation, index, attempt), labels)
    annotations = template["metadata"].get("annotations")
    if annotations:
        metadata["annotations"] = annotations
    body = {**template["spec"], "hostname": host_name(generation, index, attempt)}
    body["affinity"] = copy.deepcopy(body.get("affinity", {}))
    body["containers"] = [dict(one) for one in body["containers"]]
    pin(body, node)
    own = {
        env.GENERATION: str(generation),
        env.INDEX: str(index),
        env.ATTEMPT: str(attempt),
        env.WORKERS: str(workers),
        env.LEADER_HOST: leader_host(job, generation, leader),
    }
    if max_runtime is not None:
        own[env.MAX_RUNTIME] = str(max(1, max_runtime))
    if in_place != NO_RESTARTS:
        own[env.RESTARTS_IN_PLACE] = str(in_place.script)
        own[env.MEMORY_RESTARTS_IN_PLACE] = str(in_place.memory)
        own[env.NETWORK_RESTARTS_IN_PLACE] = str(in_place.network)
    if reached:
        own[env.REACHED_STEP] = str(reached)
    trainer = container(body, TRAINER)
    trainer["env"] = [{"name": name, "value": value} for name, value in own.items()] + trainer.get("env", [])
    return {**template, "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def pin(spec: Object, node: str) -> None:
    """Demand `node` in every required node selector term: terms are ORed, so one without it would let the pod go."""
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    demand = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [term for term in required.get("nodeSelectorTerms") or [] if _demands(term)]
    for term in terms:
        # kube-scheduler reads one matchFields entry only; the user's own has been judged when the node was chosen.
        term["matchFields"] = [demand]
    required["nodeSelectorTerms"] = terms or [{"matchFields": [demand]}]


def _demands(term: Object) -> bool:
    """An empty term matches nothing; with our demand added it would match the node."""
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def container(spec: Object, name: str) -> Object:
    """The container or init container of that name. Raises KeyError."""
    for one in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        if one.get("name") == name:
            found: Object = one
            return found
    raise KeyError(name)


def _labels(job: Identity) -> dict[str, str]:
    return {names.JOB_LABEL: job.name, names.JOB_UID_LABEL: job.uid, names.MANAGED_BY_LABEL: names.MANAGED_BY}


def _metadata(job: Identity, name: str, labels: dict[str, str]) -> Object:
    owner = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {"name": name, "namespace": job.namespace, "labels": dict(labels), "ownerReferences": [owner]}


def _spec(job: Identity, spec: EffectiveSpec, settings: PodSettings) -> Object:
    body: Object = {
        "restartPolicy": "Never",
        "subdomain": service_name(job),
        "terminationGracePeriodSeconds": spec.grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "initContainers": [_runtime(settings)],
        "containers": [_trainer(job, spec, settings)],
        "volumes": [
            {"name": RUNTIME_VOLUME, "emptyDir": {"sizeLimit": _RUNTIME_SIZE}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *(volume.to_raw() for volume in spec.volumes),
        ],
    }
    if spec.checkpoint is not None:
        body["volumes"] += pod_storage.volumes(spec.checkpoint)
    if any(mount.mount_path.rstrip("/") == "/dev/shm" for mount in spec.volume_mounts):
        body["volumes"] = [volume for volume in body["volumes"] if volume["name"] != "shm"]
    if settings.priority_class:
        body["priorityClassName"] = settings.priority_class
    if spec.node_selector:
        body["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        body["tolerations"] = [toleration.to_raw() for toleration in spec.tolerations]
    if spec.image_pull_secrets:
        body["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    if spec.service_account:
        body["serviceAccountName"] = spec.service_account
    _like_trainer(body)
    return body


def _runtime(settings: PodSettings) -> Object:
    """Copies the runtime into the pod. Passes Pod Security `restricted` by itself, whatever the trainer needs."""
    made: Object = {
        "name": RUNTIME,
        "image": settings.runtime_image,
        "command": ["python3", "-m", "muster_runtime.install", env.MOUNT_PATH],
        "volumeMounts": [{"name": RUNTIME_VOLUME, "mountPath": env.MOUNT_PATH}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": _RUNTIME_USER,
            "runAsGroup": _RUNTIME_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if settings.pull_policy:
        made["imagePullPolicy"] = settings.pull_policy
    return made


def _outlive_kubelet(spec: Object) -> None:
    """Let the pod stay on a node whose kubelet is silent, for as long as that is, as a DaemonSet's pods do. To a pod
    that says nothing of it Kubernetes gives 300 s, and a gang that lives would end when its kubelet is back. Which
    gangs are dead is found by asking them, and their pods are deleted then. What a pod says of such a taint stands."""
    said: list[Object] = spec.get("tolerations") or []
    missing = [key for key in (NOT_READY, UNREACHABLE) if not any(_speaks_of(toleration, key) for toleration in said)]
    stays = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in missing]
    if stays:
        spec["tolerations"] = [*said, *stays]


def _speaks_of(toleration: Object, key: str) -> bool:
    return toleration.get("key") in (None, "", key) and toleration.get("effect") in (None, "", "NoExecute")


def _like_trainer(spec: Object) -> None:
    """Give the init container the trainer's CPU and memory: it adds nothing to the pod's request, which is the larger
    of the two, keeps a Guaranteed pod Guaranteed, and satisfies quotas that want every container to say its share."""
    resources = container(spec, TRAINER).get("resources", {})
    runtime = container(spec, RUNTIME)
    shared = {
        kind: {name: amount for name, amount in amounts.items() if name in ("cpu", "memory")}
        for kind, amounts in resources.items()
        if kind in ("requests", "limits")
    }
    shared = {kind: amounts for kind, amounts in shared.items() if amounts}
    if shared and not runtime.get("resources"):
        runtime["resources"] = shared


def _trainer(job: Identity, spec: EffectiveSpec, settings: PodSettings) -> Object:
    mounts = [mount.to_raw() for mount in spec.volume_mounts]
    taken = {mount["mountPath"].rstrip("/") for mount in mounts}
    own: list[Object] = [{"name": RUNTIME_VOLUME, "mountPath": env.MOUNT_PATH, "readOnly": True}]
    if "/dev/shm" not in taken:
        own.append({"name": "shm", "mountPath": "/dev/shm"})
    if spec.checkpoint is not None:
        own += pod_storage.mounts(spec.checkpoint)
    made: Object = {
        "name": TRAINER,
        "image": spec.image,
        "command": [LAUNCHER, "--", *spec.command],
        "env": pod_environment.environment(_names(job), spec, _token(job, settings), dict(settings.node_hours)),
        "ports": [{"name": "muster", "containerPort": env.DEFAULT_PORT, "protocol": "TCP"}],
        "resources": {
            kind: dict(amounts) for kind, amounts in (("requests", spec.requests), ("limits", spec.limits)) if amounts
        },
        "terminationMessagePath": exits.TERMINATION_MESSAGE_PATH,
        "volumeMounts": own + mounts,
    }
    if spec.args:
        made["args"] = list(spec.args)
    if spec.env_from:
        made["envFrom"] = [source.to_raw() for source in spec.env_from]
    return made


def _names(job: Identity) -> dict[str, str]:
    """What the launcher learns of the job that it belongs to."""
    return {env.JOB: job.name, env.NAMESPACE: job.namespace, env.JOB_UID: job.uid}


def _token(job: Identity, settings: PodSettings) -> Object:
    """Where the launcher's token is."""
    return {"name": secret_name(job, settings.token_tag), "key": env.TOKEN}
