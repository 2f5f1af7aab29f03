"""What NVIDIA's DCGM exporter would tell of a local cluster's made-up GPUs, which are as busy as their pods are.

The nodes, the pods and who holds which GPU are real; a GPU's figures follow by a fixed rule from the processor time and
the memory that its pod's processes take on this machine. So dashboards and rules meet DCGM's names and labels where
there is no GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.cluster.processes import stat
from hack.demo.kube import Kube
from hack.demo.strike import container_ids

Json = dict[str, Any]
Holder = tuple[str, str, str]
"""(namespace, pod, container)"""
Holders = dict[tuple[str, int], Holder]
"""By (node, number of the GPU there)."""

LABELS: Final = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter", "job": "nvidia-dcgm-exporter"}
"""Of the exporter, as its own ServiceMonitor brings them; so those of the GPU's pod become `exported_pod` and so on."""
RESOURCE: Final = "nvidia.com/gpu"
_PRODUCT: Final = "nvidia.com/gpu.product"
_CONTAINER: Final = re.compile(r"[0-9a-f]{64}")
_IDLE_WATTS, _BUSY_WATTS = 70.0, 630.0
_IDLE_CELSIUS, _BUSY_CELSIUS = 32.0, 45.0
_TENSOR: Final = 0.6
"""Part of a busy GPU's time in which its tensor cores work."""


@dataclass(frozen=True)
class Gpu:
    """
    Attributes:
        number: on its node.
        holder: None: it is free.
        busy: 0 to 1.
        memory: MiB.
    """

    node: str
    number: int
    model: str
    holder: Holder | None = None
    busy: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True)
class Taken:
    """What a container's processes take: seconds of processors since they started, and bytes of memory."""

    seconds: float = 0.0
    memory: float = 0.0


@dataclass(frozen=True)
class Seen:
    """What each container had taken, by its id, at a monotonic second."""

    at: float
    taken: Mapping[str, Taken]


def text(gpus: Iterable[Gpu]) -> str:
    """The exporter's page."""
    rows: dict[str, list[str]] = defaultdict(list)
    for gpu in gpus:
        for field, value in _figures(gpu).items():
            rows[field].append(f"{field}{{{_labels(gpu)}}} {value:g}")
    lines = [
        line for field, found in rows.items() for line in (f"# HELP {field} Made up.", f"# TYPE {field} gauge", *found)
    ]
    return "\n".join(lines) + "\n"


def _figures(gpu: Gpu) -> Mapping[str, float]:
    return {
        "DCGM_FI_DEV_GPU_UTIL": round(100 * gpu.busy),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": gpu.busy,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _TENSOR * gpu.busy,
        "DCGM_FI_DEV_FB_USED": gpu.memory,
        "DCGM_FI_DEV_POWER_USAGE": _IDLE_WATTS + _BUSY_WATTS * gpu.busy,
        "DCGM_FI_DEV_GPU_TEMP": _IDLE_CELSIUS + _BUSY_CELSIUS * gpu.busy,
        "DCGM_FI_DEV_XID_ERRORS": 0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    }


def _labels(gpu: Gpu) -> str:
    uuid = hashlib.sha256(f"{gpu.node}/{gpu.number}".encode()).hexdigest()[:12]
    labels = {
        "gpu": str(gpu.number),
        "UUID": f"GPU-{uuid}",
        "device": f"nvidia{gpu.number}",
        "modelName": gpu.model,
        "Hostname": gpu.node,
    }
    if gpu.holder is not None:
        labels |= dict(zip(("namespace", "pod", "container"), gpu.holder, strict=True))
    return ",".join(f'{key}="{value}"' for key, value in labels.items())


class MadeUpGpus:
    """The GPUs of one cluster. Not for use by several threads at once."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._holders: Holders = {}
        self._seen = Seen(time.monotonic(), taken())

    def text(self) -> str:
        """What the exporter would say now."""
        return text(self.look())

    def look(self) -> list[Gpu]:
        """All GPUs, with what they did since the last look."""
        nodes = self._kube.items("/api/v1/nodes")
        pods = [pod for pod in self._kube.items("/api/v1/pods") if pod["status"].get("phase") == "Running"]
        self._holders = held(nodes, pods, self._holders)
        before, self._seen = self._seen, Seen(time.monotonic(), taken())
        containers = {_holder(pod): container_ids(pod) for pod in pods}
        shared = Counter(self._holders.values())
        return [
            _gpu(node, number, holder, *_part(containers[holder], before, self._seen, shared[holder]))
            if (holder := self._holders.get((node["metadata"]["name"], number)))
            else _gpu(node, number, None)
            for node in nodes
            for number in range(_size(node))
        ]


def _gpu(node: Json, number: int, holder: Holder | None, busy: float = 0.0, memory: float = 0.0) -> Gpu:
    metadata = node["metadata"]
    return Gpu(metadata["name"], number, metadata["labels"].get(_PRODUCT, ""), holder, busy, memory)


def _part(containers: Iterable[str], before: Seen, now: Seen, gpus: int) -> tuple[float, float]:
    """How busy (0 to 1) each of a pod's GPUs was between two looks, and its MiB."""
    seconds = memory = 0.0
    for container in containers:
        first, last = before.taken.get(container, Taken()), now.taken.get(container, Taken())
        seconds += max(0.0, last.seconds - first.seconds)  # less, where processes have ended
        memory += last.memory
    return min(1.0, seconds / (now.at - before.at) / gpus), memory / gpus / 2**20


def held(nodes: Iterable[Json], pods: Sequence[Json], before: Holders) -> Holders:
    """Who holds which GPU, as (node, number); a pod keeps those that it had `before`. Pure."""
    sizes = {node["metadata"]["name"]: _size(node) for node in nodes}
    living = {_holder(pod) for pod in pods}
    found = {gpu: holder for gpu, holder in before.items() if holder in living}
    for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
        name, holder = pod["spec"]["nodeName"], _holder(pod)
        if holder not in found.values():
            free = [number for number in range(sizes.get(name, 0)) if (name, number) not in found]
            found |= {(name, number): holder for number in free[: _wanted(pod)]}
    return found


def _size(node: Json) -> int:
    return int(node["status"].get("capacity", {}).get(RESOURCE, 0))


def _holder(pod: Json) -> Holder:
    return pod["metadata"]["namespace"], pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]


def _wanted(pod: Json) -> int:
    limits = (container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"])
    return sum(int(limit.get(RESOURCE, 0)) for limit in limits)


def taken() -> dict[str, Taken]:
    """What the processes of each container on this machine take, by the container's id."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    found: dict[str, Taken] = defaultdict(Taken)
    for container, pid in _contained():
        fields = stat(pid)
        if fields:
            one = found[container]
            seconds = (int(fields[11]) + int(fields[12])) / tick
            found[container] = Taken(one.seconds + seconds, one.memory + int(fields[21]) * page)
    return dict(found)


def _contained() -> Iterator[tuple[str, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                groups = _CONTAINER.findall((entry / "cgroup").read_text())
                if groups:
                    yield groups[-1], int(entry.name)
