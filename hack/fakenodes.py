"""Nodes without kubelets, for tests of the operator against a bare control plane.

A stand-in marks pods as running once kube-scheduler has bound them, ends them when a test says so, and lets deleted
ones go. The API server, the scheduler and the controllers are real; only the machines are not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from hack.scheduling import Raw
from muster.cluster.client import Api
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.cluster.informer import Informer

Object = dict[str, Any]
log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _ready() -> Object:
    moment = _now()[:19] + "Z"
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "",
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }


class FakeNodes:
    """Some nodes and their stand-in kubelet. `run` until cancelled.

    Attributes:
        starts: asked for each bound pod (the raw object); False leaves it Pending.
        ends: asked for each deleted pod; False leaves it Terminating, as on a dead node.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.names: set[str] = set()
        self.dead: set[str] = set()
        self.starts: Callable[[Object], bool] = lambda pod: True
        self.ends: Callable[[Object], bool] = lambda pod: True
        self._work: set[asyncio.Task[None]] = set()
        self.informer = Informer(api, "/api/v1/pods", Raw, delay=0.0)
        self.informer.on_change(lambda key: self._on_pod(self.informer.items.get(key)))

    async def add(
        self, name: str, *, gpus: int = 8, cpu: str = "64", labels: Mapping[str, str] | None = None, pods: int = 110
    ) -> None:
        """Make a node, ready at once."""
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    **({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"} if gpus else {}),
                    **(labels or {}),
                },
            },
        }
        await self._api.create("/api/v1/nodes", node)
        amounts = {"cpu": cpu, "memory": "512Gi", "pods": str(pods), "ephemeral-storage": "1Ti"}
        if gpus:
            amounts["nvidia.com/gpu"] = str(gpus)
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [_ready()]}
        await self._api.merge_patch(f"/api/v1/nodes/{name}/status", {"status": status})
        self.names.add(name)
        await self._beat(name)
        for _ in range(450):  # the controller that takes them away is slow after an API server was restarted
            found = await self._api.get(f"/api/v1/nodes/{name}")
            if not found["spec"].get("taints"):
                self.look_again()  # a node that is back under its name takes up its pods again
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"node {name} keeps its taints: {found['spec']['taints']}")

    def look_again(self) -> None:
        """At every pod: `starts`, `ends` or who is dead has changed."""
        for pod in list(self.informer.items.values()):
            self._on_pod(pod)

    async def remove(self, name: str) -> None:
        """Delete the node object."""
        self.names.discard(name)
        with suppress(ApiError):
            await self._api.delete(f"/api/v1/nodes/{name}")

    async def run(self) -> None:
        """Beat and start pods, also while the API server comes and goes."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.informer.run())
            while True:
                try:
                    for name in self.names - self.dead:
                        await self._beat(name)
                        # The controller calls a node that was silent NotReady; only its kubelet takes that back.
                        await self._api.merge_patch(
                            f"/api/v1/nodes/{name}/status", {"status": {"conditions": [_ready()]}}
                        )
                except (ApiError, ApiUnreachable) as error:
                    log.info("fake kubelet: %s", error)
                    await asyncio.sleep(0.5)
                else:
                    await asyncio.sleep(LEASE_SECONDS)

    async def finish(self, pod: Object, *, exit_code: int = 0, message: str = "", reason: str = "") -> None:
        """End the pod's main container as kubelet would tell it."""
        terminated = {
            "exitCode": exit_code,
            "reason": reason or ("Completed" if exit_code == 0 else "Error"),
            "message": message,
            "startedAt": _now()[:19] + "Z",
            "finishedAt": _now()[:19] + "Z",
        }
        await self._status(
            pod,
            {
                "phase": "Succeeded" if exit_code == 0 else "Failed",
                "conditions": _conditions(pod, ready=False),
                "containerStatuses": [_container(pod, {"terminated": terminated})],
            },
        )

    async def reject(self, pod: Object, reason: str, message: str) -> None:
        """Turn the pod away as kubelet's admission does."""
        await self._status(pod, {"phase": "Failed", "reason": reason, "message": message})

    def _on_pod(self, pod: Object | None) -> None:
        if pod is None:
            return
        node = pod["spec"].get("nodeName", "")
        if node not in self.names or node in self.dead:
            return
        metadata, phase = pod["metadata"], pod.get("status", {}).get("phase")
        if metadata.get("deletionTimestamp"):
            if self.ends(pod):
                self._later(self._let_go(pod))
        elif phase == "Pending" and not pod["status"].get("containerStatuses") and self.starts(pod):
            self._later(self._start(pod))

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(self._guarded(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except (ApiError, ApiUnreachable) as error:
            log.info("fake kubelet: %s", error)

    async def _start(self, pod: Object) -> None:
        number = int(pod["metadata"]["uid"][:4], 16)
        running = {"running": {"startedAt": _now()[:19] + "Z"}}
        await self._status(
            pod,
            {
                "phase": "Running",
                "podIP": f"127.1.{number >> 8}.{number & 255}",
                "startTime": _now()[:19] + "Z",
                "conditions": _conditions(pod, ready=True),
                "containerStatuses": [_container(pod, running)],
            },
        )

    async def _let_go(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        await self._api.delete(path, uid=metadata["uid"], grace=0)

    async def _status(self, pod: Object, status: Object) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        await self._api.merge_patch(path, {"metadata": {"uid": metadata["uid"]}, "status": status})

    async def _beat(self, name: str) -> None:
        """Renew the node's Lease, or the node lifecycle controller calls it unreachable."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _now()}
        try:
            await self._api.merge_patch(f"{path}/{name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
            await self._api.create(path, body)


def _conditions(pod: Object, *, ready: bool) -> list[Object]:
    kept = [item for item in pod.get("status", {}).get("conditions", []) if item["type"] == "PodScheduled"]
    word = "True" if ready else "False"
    return [*kept, *({"type": kind, "status": word} for kind in ("Initialized", "Ready", "ContainersReady"))]


def _container(pod: Object, state: Object) -> Object:
    trainer = pod["spec"]["containers"][0]
    return {
        "name": trainer["name"],
        "image": trainer["image"],
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }
