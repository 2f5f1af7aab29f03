"""A corner of the cluster for one test: nodes of its own, a namespace, a queue, and the scheduling side in process."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from hack.fakenodes import FakeNodes
from hack.scheduling import GROUP, connect, schedule

from muster.cluster.client import Api
from muster.cluster.errors import ApiError

Object = dict[str, Any]

PATIENCE = 90.0
"""Seconds that anything may take on a busy machine of two cores."""


@dataclass
class Corner:
    """What a test needs to place gangs where nobody else does."""

    api: Api
    nodes: FakeNodes
    kubeconfig: str
    name: str
    namespace: str
    queue: str
    operator: asyncio.Task[None] | None = None
    made: list[str] = field(default_factory=list)

    # -- objects -----------------------------------------------------------------------------------------------------

    async def add_nodes(self, count: int, **options: Any) -> list[str]:
        added = []
        for _ in range(count):
            name = f"{self.name}-{len(self.made)}"
            self.made.append(name)
            added.append(name)
            labels = {"pool": self.name, **options.get("labels", {})}
            await self.nodes.add(name, **{"gpus": 4, **options, "labels": labels})
        return added

    def document(self, name: str, replicas: int, **spec: Any) -> Object:
        return {
            "apiVersion": "muster.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "queue": self.queue,
                "image": "example/train:1",
                "command": ["python", "train.py"],
                "workers": {"replicas": replicas, "gpusPerWorker": 1, **spec.pop("workers", {})},
                "nodeSelector": {"pool": self.name},
                "terminationGracePeriod": "5s",
                **spec,
            },
        }

    async def submit(self, name: str, replicas: int, **spec: Any) -> Object:
        return await self.api.create(self.jobs(), self.document(name, replicas, **spec))

    def jobs(self) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/trainingjobs"

    async def job(self, name: str) -> Object:
        return await self.api.get(f"{self.jobs()}/{name}")

    async def delete_job(self, name: str) -> None:
        await self.api.delete(f"{self.jobs()}/{name}")

    async def pods(self, job: str = "") -> list[Object]:
        found = await self.api.get(f"/api/v1/namespaces/{self.namespace}/pods")
        return [
            pod for pod in found["items"] if not job or pod["metadata"].get("labels", {}).get("muster.dev/job") == job
        ]

    async def foreign(self, name: str, node: str, **more: Any) -> Object:
        """Somebody else's pod, pinned to a node, that takes GPUs there."""
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "c",
                    "image": "example/other:1",
                    "resources": {"limits": {"nvidia.com/gpu": str(more.pop("gpus", 1))}},
                }
            ],
            **more,
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        return await self.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def until(self, what: str, look: Callable[[], Awaitable[Any]], timeout: float = PATIENCE) -> Any:
        """The first true value that `look` gives. Fails when the scheduling side has ended, or at the timeout."""
        end = asyncio.get_running_loop().time() + timeout
        while True:
            if self.operator is not None and self.operator.done():
                self.operator.result()
                raise AssertionError(f"the scheduling side ended while waiting for {what}")
            found = await look()
            if found:
                return found
            if asyncio.get_running_loop().time() > end:
                raise AssertionError(f"{what}: not within {timeout} s\n{await self.tell()}")
            await asyncio.sleep(0.1)

    async def until_job(
        self, name: str, what: str, holds: Callable[[Object], Any], timeout: float = PATIENCE
    ) -> Object:
        async def look() -> Object | None:
            job = await self.job(name)
            return job if holds(job) else None

        found: Object = await self.until(f"{name}: {what}", look, timeout)
        return found

    async def until_phase(self, name: str, phase: str, timeout: float = PATIENCE) -> Object:
        return await self.until_job(name, phase, lambda job: job.get("status", {}).get("phase") == phase, timeout)

    async def until_waits(self, name: str, reason: str, timeout: float = PATIENCE) -> str:
        """The message with which the job waits for `reason`."""

        def holds(job: Object) -> bool:
            found = condition(job, "Admitted")
            return found is not None and found["status"] == "False" and found["reason"] == reason

        found = condition(await self.until_job(name, f"waits: {reason}", holds, timeout), "Admitted")
        assert found is not None
        return str(found["message"])

    async def succeed(self, name: str) -> Object:
        """End all pods of a running job well."""
        for pod in await self.pods(name):
            await self.nodes.finish(pod)
        return await self.until_phase(name, "Succeeded")

    async def tell(self) -> str:
        jobs = await self.api.get(self.jobs())
        lines = [f"{job['metadata']['name']}: {json.dumps(job.get('status'), indent=1)}" for job in jobs["items"]]
        for pod in await self.pods():
            status = {key: pod["status"].get(key) for key in ("phase", "reason", "message", "conditions")}
            lines.append(f"pod {pod['metadata']['name']} on {pod['spec'].get('nodeName')}: {json.dumps(status)}")
        return "\n".join(lines)

    # -- the operator ------------------------------------------------------------------------------------------------

    def start(self, **options: Any) -> None:
        self.operator = asyncio.create_task(schedule(self.api, **options))

    async def stop(self) -> None:
        if self.operator is not None:
            self.operator.cancel()
            with suppress(asyncio.CancelledError):
                await self.operator
            self.operator = None


def condition(job: Object, kind: str) -> Object | None:
    """A condition by its type, or None."""
    return next((item for item in job.get("status", {}).get("conditions", []) if item["type"] == kind), None)


@asynccontextmanager
async def corner(kubeconfig: str) -> AsyncIterator[Corner]:
    """Made before a test and cleaned after it: nodes first, so that nothing more starts."""
    api = await connect(kubeconfig)
    name = f"t{secrets.token_hex(3)}"
    nodes = FakeNodes(api)
    beats = asyncio.create_task(nodes.run())
    place = Corner(api, nodes, kubeconfig, name, name, name)
    try:
        await api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        queue = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingQueue", "metadata": {"name": name}}
        await api.create(f"{GROUP}/trainingqueues", queue)
        yield place
    finally:
        await place.stop()
        nodes.ends = lambda pod: True
        await _clean(place)
        beats.cancel()
        with suppress(asyncio.CancelledError):
            await beats
        await api.close()


async def _clean(place: Corner) -> None:
    for path in (f"/api/v1/namespaces/{place.namespace}", f"{GROUP}/trainingqueues/{place.queue}"):
        with suppress(ApiError):
            await place.api.delete(path)
    with suppress(ApiError):
        for pod in await place.pods():
            metadata = pod["metadata"]
            with suppress(ApiError):
                await place.api.delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}", grace=0)
    for name in list(place.nodes.names):
        await place.nodes.remove(name)
