"""What can befall jobs, queues, nodes and the operator, by chance and all at once, and what must hold nevertheless.

`Storm.step` does one of `KINDS`. What the API server refuses is a part of the game. Nodes and launchers are stand-ins;
the scheduling side is a process of its own, which is killed now and then.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timezone
from typing import Any, Final

from hack.scheduling import GROUP

from muster.cluster.errors import ApiError

from .gangs import Corner
from .launchers import Launchers
from .processes import Process
from .witness import ENDED, lives, ours

Object = dict[str, Any]
CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
RACK: Final = "muster.dev/rack"
RACKS, NODES, GPUS = 2, 4, 4
"""Nodes of each rack, GPUs of each node."""
MOST_JOBS: Final = 25

KINDS: Final = {
    "submit": 12, "delete": 3, "make_again": 3, "suspend": 3, "resume": 3, "edit": 4, "resize": 2,
    "succeed": 4, "end_pod": 4, "reject_pod": 1, "delete_pod": 4, "delete_all_pods": 1,
    "cordon": 4, "taint": 1, "kill_node": 1, "revive_node": 2, "remove_node": 1, "slow_nodes": 2, "mute_launchers": 1,
    "quota": 2, "stop_policy": 1, "parent": 1, "make_queue_again": 1, "foreign_pod": 2, "kill_operator": 1,
}  # fmt: skip
"""How often each comes, beside the others."""


class Storm:
    """One storm over one corner; `raging` sets the scene and takes it away.

    Attributes:
        story: what was done, for whom a failure is to be told.
    """

    def __init__(self, place: Corner, launchers: Launchers, seed: int) -> None:
        self.story: list[str] = []
        self._place, self._launchers, self._chance = place, launchers, random.Random(seed)
        self._queues = [f"{place.name}-{name}" for name in "abc"]
        self._racks: dict[str, str] = {}
        self._made = 0
        self._operator: Process | None = None
        launchers.joins = ours

    @asynccontextmanager
    async def raging(self) -> AsyncIterator[Storm]:
        api, name = self._place.api, self._place.name
        for rack in range(RACKS):
            for node in await self._place.add_nodes(NODES, gpus=GPUS, labels={RACK: f"{name}-{rack}"}):
                self._racks[node] = f"{name}-{rack}"
        levels = [{"name": "rack", "label": RACK}, {"name": "host", "label": "kubernetes.io/hostname"}]
        kind = {"apiVersion": "muster.dev/v1alpha1", "kind": "Topology", "metadata": {"name": "default"}}
        await api.create(f"{GROUP}/topologies", {**kind, "spec": {"levels": levels}})
        await api.create(CLASSES, {"metadata": {"name": name}, "value": 100})
        for queue in self._queues:
            await self._make_queue(queue)
        try:
            self._operator = await Process.start(self._place)
            yield self
        finally:
            if self._operator is not None:
                await self._operator.kill()
            queues = [f"{GROUP}/trainingqueues/{queue}" for queue in self._queues]
            for path in (f"{GROUP}/topologies/default", f"{CLASSES}/{name}", *queues):
                with suppress(ApiError):
                    await api.delete(path)

    async def step(self) -> None:
        (kind,) = self._chance.choices(list(KINDS), list(KINDS.values()))
        try:
            await getattr(self, f"_{kind}")()
        except ApiError as error:
            self._tell(f"{kind}: {error}")

    async def calm(self) -> None:
        """All nodes, queues and launchers are as they were, and nobody is suspended."""
        self._tell("calm")
        place = self._place
        place.nodes.dead.clear()
        place.nodes.starts = place.nodes.ends = lambda pod: True
        self._launchers.joins = ours
        for node in self._racks.keys() - place.nodes.names:
            await self._add_node(node)
        for node in self._racks:
            await place.api.merge_patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None, "taints": None}})
        whole = {**_quotas(16), "stopPolicy": "none", "parent": None, "cohort": place.name}
        for queue in self._queues:
            await place.api.merge_patch(_queue_path(queue), {"spec": whole})
        for pod in await place.pods():
            if not ours(pod):
                await place.api.delete(self._path(pod), grace=0)
        for job in await self._jobs():
            with suppress(ApiError):  # it may be on its way out
                await self._patch(job, {"suspend": False})
        self._look_again()
        assert self._operator is not None
        assert not self._operator.ended, "the scheduling side ended by itself"

    async def drain(self, patience: float) -> None:
        """All that waits runs, and all that runs ends well, but what the cluster can never hold. Fails where nothing
        has moved for so many seconds."""
        loop, seen = asyncio.get_running_loop(), list[tuple[str, str]]()
        since = loop.time()
        while jobs := [job for job in await self._jobs() if _phase(job) not in ENDED]:
            for job in jobs:
                if job.get("status", {}).get("queue", {}).get("reason") in ("ExceedsCluster", "ExceedsQuota"):
                    await self._remove(job)
                elif _phase(job) == "Running":
                    await self._finish(job)
            now = sorted((job["metadata"]["name"], _phase(job)) for job in jobs)
            since, seen = (since, seen) if now == seen else (loop.time(), now)
            assert loop.time() - since < patience, await self._place.tell()
            await asyncio.sleep(0.5)

    async def leftovers(self) -> list[str]:
        """Objects that belong to jobs that are gone, pods that live, and queues that count somebody. All jobs ended."""
        found, uids = list[str](), {job["metadata"]["uid"] for job in await self._jobs()}
        for kind in ("pods", "services", "secrets", "configmaps"):
            for item in (await self._place.api.get(f"/api/v1/namespaces/{self._place.namespace}/{kind}"))["items"]:
                owners = {owner["uid"] for owner in item["metadata"].get("ownerReferences", [])}
                if owners and not owners & uids:
                    found.append(f"{kind} {item['metadata']['name']}")
                elif kind == "pods" and lives(item):
                    found.append(f"living pod {item['metadata']['name']}")
        for queue in self._queues:
            status = (await self._place.api.get(_queue_path(queue))).get("status", {})
            found += [f"{queue}: {key} {status[key]}" for key in ("running", "waiting", "usedGpus") if status.get(key)]
        return found

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def _submit(self, name: str = "") -> None:
        if not name:
            if len(await self._jobs()) >= MOST_JOBS:
                return
            self._made += 1
            name = f"j{self._made}"
        replicas, spec = self._some_spec()
        self._tell(f"submit {name}: {replicas} {spec}")
        await self._place.submit(name, replicas, **spec)

    def _some_spec(self) -> tuple[int, Object]:
        some = self._chance
        replicas, workers = some.choice([1, 1, 2, 2, 3, 4, 6, 8]), {"gpusPerWorker": some.choice([1, 1, 2, 4])}
        spec: Object = {
            "queue": some.choice(self._queues),
            "workers": workers,
            "restart": {"limit": some.choice([0, 2, 20])},
        }
        spec["terminationGracePeriod"] = some.choice(["1s", "2s", "5s"])
        if some.random() < 0.3:
            spec["priorityClassName"] = self._place.name
        if some.random() < 0.3:
            mode, level = some.choice([("required", "rack"), ("preferred", "rack"), ("required", "host")])
            spec["topology"] = {"mode": mode, "level": level}
        if some.random() < 0.3 and replicas > 1:
            workers |= {"min": some.randint(1, replicas - 1), "max": replicas + some.choice([0, 2])}
        if some.random() < 0.15:
            spec["preemptible"] = False
        if some.random() < 0.15:
            workers["spares"] = 1
        if some.random() < 0.2:
            spec["maxRuntime"] = "8s"
        return replicas, spec

    async def _delete(self) -> None:
        if job := await self._some_job():
            await self._remove(job)

    async def _make_again(self) -> None:
        if job := await self._some_job():
            await self._remove(job)
            await asyncio.sleep(self._chance.choice([0.0, self._chance.random()]))
            await self._submit(job["metadata"]["name"])

    async def _suspend(self) -> None:
        if job := await self._some_job():
            await self._patch(job, {"suspend": True})

    async def _resume(self) -> None:
        if suspended := [job for job in await self._jobs() if job["spec"].get("suspend")]:
            await self._patch(self._chance.choice(suspended), {"suspend": False})

    async def _edit(self) -> None:
        if job := await self._some_job():
            some = self._chance
            spec: Object = some.choice(
                [
                    {"queue": some.choice(self._queues)},
                    {"image": f"example/train:{some.randint(1, 9)}"},
                    {"priorityClassName": some.choice([None, self._place.name])},
                    {"preemptible": some.random() < 0.5},
                    {"workers": {"replicas": some.randint(1, 6)}},
                    {"workers": {"gpusPerWorker": some.choice([1, 2, 4])}},
                    {"maxRuntime": some.choice([None, "5s", "1m"])},
                ]
            )
            await self._patch(job, {**spec, **({"suspend": some.random() < 0.5} if some.random() < 0.3 else {})})

    async def _resize(self) -> None:
        if elastic := [job for job in await self._jobs() if job["spec"]["workers"].get("min")]:
            least = self._chance.randint(1, 4)
            sizes = {"min": least, "replicas": least + self._chance.randint(0, 2), "max": least + 3}
            await self._patch(self._chance.choice(elastic), {"workers": sizes})

    async def _succeed(self) -> None:
        if running := [job for job in await self._jobs() if _phase(job) == "Running"]:
            await self._finish(self._chance.choice(running))

    async def _jobs(self) -> list[Object]:
        found: list[Object] = (await self._place.api.get(self._place.jobs()))["items"]
        return found

    async def _some_job(self) -> Object | None:
        jobs = [job for job in await self._jobs() if _phase(job) not in ENDED]
        return self._chance.choice(jobs) if jobs else None

    async def _patch(self, job: Object, spec: Object) -> None:
        self._tell(f"{job['metadata']['name']}: {spec}")
        await self._place.api.merge_patch(f"{self._place.jobs()}/{job['metadata']['name']}", {"spec": spec})

    async def _remove(self, job: Object) -> None:
        self._tell(f"delete {job['metadata']['name']}")
        await self._place.delete_job(job["metadata"]["name"])

    async def _finish(self, job: Object) -> None:
        self._tell(f"{job['metadata']['name']} succeeds")
        for pod in await self._place.pods(job["metadata"]["name"]):
            if pod["status"].get("phase") == "Running":
                with suppress(ApiError):
                    await self._place.nodes.finish(pod)

    # -- pods --------------------------------------------------------------------------------------------------------

    async def _end_pod(self) -> None:
        if (pod := await self._some_pod()) and pod["status"].get("phase") == "Running":
            await self._place.nodes.finish(pod, exit_code=self._chance.choice([0, 1, 137]))

    async def _reject_pod(self) -> None:
        if (pod := await self._some_pod()) and lives(pod):
            reason = self._chance.choice(["UnexpectedAdmissionError", "OutOfcpu", "Evicted"])
            await self._place.nodes.reject(pod, reason, "the stand-in says so")

    async def _delete_pod(self) -> None:
        if pod := await self._some_pod():
            await self._place.api.delete(self._path(pod), **self._chance.choice([{}, {"grace": 0}]))

    async def _delete_all_pods(self) -> None:
        if job := await self._some_job():
            for pod in await self._place.pods(job["metadata"]["name"]):
                await self._place.api.delete(self._path(pod), **self._chance.choice([{}, {"grace": 0}]))

    async def _foreign_pod(self) -> None:
        """Somebody else's comes, or all of them go."""
        foreign = [pod for pod in await self._place.pods() if not ours(pod)]
        if len(foreign) < 2:
            self._made += 1
            await self._place.foreign(f"foreign-{self._made}", self._some_node(), gpus=self._chance.choice([1, 2]))
        for pod in foreign:
            await self._place.api.delete(self._path(pod), grace=0)

    async def _some_pod(self) -> Object | None:
        pods = [pod for pod in await self._place.pods() if ours(pod)]
        if not pods:
            return None
        pod = self._chance.choice(pods)
        self._tell(f"to pod {pod['metadata']['name']}:")
        return pod

    def _path(self, pod: Object) -> str:
        return f"/api/v1/namespaces/{self._place.namespace}/pods/{pod['metadata']['name']}"

    # -- nodes -------------------------------------------------------------------------------------------------------

    async def _cordon(self) -> None:
        node = self._some_node()
        found = await self._place.api.get(f"/api/v1/nodes/{node}")
        await self._change(node, {"unschedulable": None if found["spec"].get("unschedulable") else True})

    async def _taint(self) -> None:
        taint = {"key": "maintenance", "effect": self._chance.choice(["NoSchedule", "NoExecute"])}
        await self._change(self._some_node(), {"taints": self._chance.choice([None, [taint]])})

    async def _change(self, node: str, spec: Object) -> None:
        self._tell(f"node {node}: {spec}")
        await self._place.api.merge_patch(f"/api/v1/nodes/{node}", {"spec": spec})

    async def _kill_node(self) -> None:
        nodes = self._place.nodes
        if len(nodes.dead) < 2:
            node = self._some_node()
            self._tell(f"node {node} is dead")
            nodes.dead.add(node)
            if self._chance.random() < 0.7:  # else its kubelet alone
                await self._launchers.lose_node(node)
            unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": ""}
            await self._place.api.merge_patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [unknown]}})

    async def _revive_node(self) -> None:
        if self._place.nodes.dead:
            self._tell(f"node {self._place.nodes.dead.pop()} is alive")
            self._look_again()

    async def _remove_node(self) -> None:
        away = sorted(self._racks.keys() - self._place.nodes.names)
        if len(away) == 2:
            await self._add_node(away[0])
        else:
            node = self._some_node()
            self._tell(f"node {node} is removed")
            self._place.nodes.dead.discard(node)
            await self._launchers.lose_node(node)
            await self._place.nodes.remove(node)

    async def _add_node(self, node: str) -> None:
        self._tell(f"node {node} is back")
        await self._place.nodes.add(node, gpus=GPUS, labels={"pool": self._place.name, RACK: self._racks[node]})

    async def _slow_nodes(self) -> None:
        """A quarter of the pods never start, or never go; or all do again."""
        starts, ends = self._chance.choice([(True, True), (False, True), (True, False)])
        self._tell(f"all pods start: {starts}, and go: {ends}")
        self._place.nodes.starts = lambda pod: starts or _number(pod) % 4 != 0
        self._place.nodes.ends = lambda pod: ends or _number(pod) % 4 != 1
        self._look_again()

    async def _mute_launchers(self) -> None:
        share = self._chance.choice([0, 0, 25, 75])
        self._tell(f"{share} of 256 launchers answer nobody")
        self._launchers.joins = lambda pod: ours(pod) and _number(pod) >= share
        self._look_again()

    def _some_node(self) -> str:
        return self._chance.choice(sorted(self._place.nodes.names))

    def _look_again(self) -> None:
        self._place.nodes.look_again()
        self._launchers.look_again()

    # -- queues and the operator -------------------------------------------------------------------------------------

    async def _quota(self) -> None:
        await self._change_queue(_quotas(self._chance.choice([0, 4, 8, 12, 16, 32])))

    async def _stop_policy(self) -> None:
        await self._change_queue({"stopPolicy": self._chance.choice(["none", "none", "hold", "holdAndDrain"])})

    async def _parent(self) -> None:
        parent = self._chance.choice([*self._queues, None, None])
        await self._change_queue({"parent": parent, "cohort": None if parent else self._place.name})

    async def _make_queue_again(self) -> None:
        queue = self._chance.choice(self._queues)
        self._tell(f"queue {queue} goes and comes")
        await self._place.api.delete(_queue_path(queue))
        await asyncio.sleep(self._chance.random())
        await self._make_queue(queue)

    async def _make_queue(self, name: str) -> None:
        kind = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingQueue", "metadata": {"name": name}}
        spec = {"cohort": self._place.name, **_quotas(self._chance.choice([8, 12, 16]))}
        await self._place.api.create(f"{GROUP}/trainingqueues", {**kind, "spec": spec})

    async def _change_queue(self, spec: Object) -> None:
        queue = self._chance.choice(self._queues)
        self._tell(f"queue {queue}: {spec}")
        await self._place.api.merge_patch(_queue_path(queue), {"spec": spec})

    async def _kill_operator(self) -> None:
        assert self._operator is not None
        assert not self._operator.ended, "the scheduling side ended by itself"
        self._tell("the operator is killed")
        await self._operator.kill()
        self._operator = await Process.start(self._place)

    def _tell(self, text: str) -> None:
        self.story.append(f"{datetime.now(timezone.utc):%H:%M:%S.%f} {text}")


def _phase(job: Object) -> str:
    return str(job.get("status", {}).get("phase", ""))


def _number(pod: Object) -> int:
    """By chance, but always the same of one pod; below 256."""
    return int(pod["metadata"]["uid"][:2], 16)


def _quotas(gpus: int) -> Object:
    return {"quotas": [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": gpus}]}]}


def _queue_path(name: str) -> str:
    return f"{GROUP}/trainingqueues/{name}"
