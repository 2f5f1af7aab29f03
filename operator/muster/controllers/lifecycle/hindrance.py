"""What keeps a pod from starting, as kubelet says it of the pod's containers or in Events, or kube-scheduler of all
nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from muster.api.names import Reason
from muster.cluster.hindrances import CONTAINER, KUBELET
from muster.cluster.snapshot import TERMINAL
from muster.cluster.views import PodView

HOPELESS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Waiting reasons that time does not mend."""
IMAGE: Final = frozenset({"ImagePullBackOff", "ErrImagePull", "ImageInspectError", "RegistryUnavailable"}) | HOPELESS
PULLING: Final = "Pulling"
"""An Event's word for what takes its time and is no trouble."""
PATIENCE: Final = 60.0
"""Seconds that a pod may fail to pull its image, make its container or get its volumes; registries have bad moments,
and volumes are made when they are asked for."""
_OF_A_NODE: Final = re.compile(r"\d+ |node\(s\) ")
"""How kube-scheduler begins what is wrong with nodes: with how many it is. What it says of the pod has no number."""
_NO_KEY: Final = re.compile(r"couldn't find key \S+ in (Secret|ConfigMap) [^\s/]+/([^\s:,;]+)")
_UNREAD: Final = re.compile(r"failed to sync (secret|configmap) cache")
"""Kubelet has not got an object from the API server, which may be away or slow. It says nothing of the object."""
_NO_VOLUME: Final = "bound to non-existent pv(s)"
_IN_USE: Final = "with ReadWriteOncePod access mode already in-use by another pod"
"""Except for these: they are counted for each node, and another would not help."""
_NO_VOLUME_YET: Final = "didn't find available persistent volumes to bind"
"""Also said while the volume of a claim is made for another pod, where that one is to run: it takes a while."""


@dataclass(frozen=True)
class Heard:
    """What an Event says of a pod that is being created for long: a trouble, or that its image is PULLING."""

    pod: str
    reason: str
    message: str


@dataclass(frozen=True)
class Hindrance:
    """`reason` is kubelet's word, but for images, for which it has several in turns, and for kube-scheduler, which has
    none; `message` is a sentence with the pod, its node and what to look at. `hopeless`: time does not mend it;
    `unread`: time alone does, for the API server did not answer kubelet."""

    pod: PodView
    reason: str
    message: str
    hopeless: bool = False
    unread: bool = False


def first(pods: Iterable[PodView], heard: Heard | None = None) -> Hindrance | None:
    """That of the gang's first worker that has one, else what was heard of one, or None."""
    gang = sorted(pods, key=lambda pod: pod.index)
    told = next((found for pod in gang for found in of_pod(pod)), None)
    if told is not None or heard is None or heard.reason == PULLING:
        return told
    return next((_of_event(pod, heard) for pod in gang if pod.name == heard.pod), None)


def pulls(pods: Iterable[PodView], heard: Heard | None) -> str:
    """Which pod of the gang pulls which image for long, as far as it was heard; else ""."""
    if heard is None or heard.reason != PULLING:
        return ""
    return next(
        (f"pod {pod.name} pulls {heard.message} on node {pod.node}" for pod in pods if pod.name == heard.pod), ""
    )


def _of_event(pod: PodView, heard: Heard) -> Hindrance:
    told = f"{heard.reason}: {heard.message}"
    return Hindrance(pod, heard.reason, f"pod {pod.name} on node {pod.node} can't start: {told}{_mend(told, pod)}")


def _mend(told: str, pod: PodView) -> str:
    """What to do about an object of the namespace, or a key in it, that kubelet or kube-scheduler misses."""
    if key := _NO_KEY.search(told):
        edit = f"kubectl edit {key[1].lower()} {key[2]} -n {pod.namespace}"
        return f"; add the key:  {edit}  or correct what names it (checkpoint.secretRef, env)"
    if _UNREAD.search(told):
        return "; the API server has not answered kubelet, which asks again by itself"
    if "not found" in told:
        if any(f'{kind} "' in told for kind in ("secret", "configmap")):
            return "; make it, or correct what names it (checkpoint.secretRef, envFrom, env, volumes)"
        if 'persistentvolumeclaim "' in told:
            return "; make it, or correct what names it (spec.volumes or podTemplate)"
        if 'resourceclaim "' in told:
            return "; make it, or correct what names it (podTemplate)"
    if _IN_USE in told:
        used = f"see Used By in  kubectl describe pvc -n {pod.namespace}"
        return f"; one pod at a time may have it: {used}, and make a claim with ReadWriteMany for a gang"
    if "persistentvolumeclaim" in told.lower() or _NO_VOLUME in told:
        return f"; see why:  kubectl describe pvc -n {pod.namespace}"
    return ""


def refused_anywhere(pod: PodView) -> str:
    """Why kube-scheduler would not place the pod on any node, in its words; "" where another node may do better."""
    told = pod.unschedulable.partition(" nodes are available: ")[2].partition(". ")[0].rstrip(".")
    of_any = any(words in told for words in (_NO_VOLUME, _IN_USE))
    return "" if _OF_A_NODE.match(told) and not of_any else told


def awaits_volume(pod: PodView) -> bool:
    """Whether a volume may be on its way that kube-scheduler can't find for the pod."""
    return _NO_VOLUME_YET in pod.unschedulable


def of_pod(pod: PodView) -> Iterable[Hindrance]:
    """What kube-scheduler says of the pod itself, and kubelet of each container that does not start."""
    if pod.phase in TERMINAL or pod.terminating:
        return
    if refused := refused_anywhere(pod):
        message = f"pod {pod.name} can't be scheduled: {refused}{_mend(refused, pod)}"
        yield Hindrance(pod, Reason.SCHEDULING_REFUSED.value, message)
    for waiting in pod.waiting:
        told = f"{waiting.reason}: {waiting.message}".rstrip(": ")
        where = f"pod {pod.name} on node {pod.node}"
        if waiting.reason in IMAGE:
            what = f"{where} can't get the image of container {waiting.container}: {told}"
            message = f"{what}; {_mend_image(told)}"
            yield Hindrance(pod, Reason.IMAGE_PULL_FAILED.value, message, waiting.reason in HOPELESS)
        elif waiting.reason in CONTAINER:
            message = f"{where} can't start container {waiting.container}: {told}{_mend(told, pod)}"
            yield Hindrance(pod, waiting.reason, message, unread=_UNREAD.search(told) is not None)


def _mend_image(told: str) -> str:
    if "localhost/" in told:
        return "the node doesn't have it, and nothing can be pulled from localhost: check its name, or bring it there"
    return "check spec.image and imagePullSecrets"


def alike(one: str, other: str) -> bool:
    """Whether both words tell of the same trouble: kubelet may say them in turns, and each change would be a write."""
    return one == other or any(one in kind and other in kind for kind in (CONTAINER, KUBELET))
