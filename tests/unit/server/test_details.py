"""One job, queues and the fleet."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

import pytest

from muster.api.topology import Topology
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.views import NodeView, PodView
from muster.server.models import Fleet, JobDetail, QueueDetail, QueueList

from .samples import Cluster, Object, World, client, everything, job

pytestmark = pytest.mark.unit

PATH = "/apis/muster.dev/v1alpha1/namespaces/vision/trainingjobs/a"
WHOLE = {"nvidia.com/gpu": "8"}


def node(name: str, rack: str, devices: Mapping[str, str] = WHOLE, **spec: Any) -> NodeView:
    return NodeView.from_raw(
        {
            "metadata": {"name": name, "labels": {"rack": rack, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
            "spec": spec,
            "status": {
                "allocatable": dict(devices),
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )


def worker(index: int, *, node: str = "", name: str = "") -> Object:
    """A pod of the job `a`, or a copy of it of that name."""
    place = {"job": "a", "generation": "1", "index": str(index), "attempt": "0"}
    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "uid": "uid-a", "controller": True}
    labels = {f"muster.dev/{key}": value for key, value in place.items()}
    return {
        "metadata": {"name": name or f"a-g1-{index}-0", "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": node},
    }


def pod(name: str, where: str, gpus: int, phase: str = "Running", *, device: str = "nvidia.com/gpu") -> PodView:
    resources = {"requests": {device: str(gpus)}, "limits": {device: str(gpus)}}
    return PodView.from_raw(
        {
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {"nodeName": where, "containers": [{"name": "trainer", "resources": resources}]},
            "status": {"phase": phase},
        }
    )


async def test_a_job_is_explained_as_muster_explain_does() -> None:
    cluster = everything()
    waiting = {
        "position": 3,
        "reason": "QuotaExceeded",
        "message": "8 GPUs are missing",
        "changes": [{"kind": "workers", "value": "1", "text": "1 worker instead of 2 would have quota and room now"}],
        "lacking": {"resource": "nvidia.com/gpu", "amount": "8"},
        "ahead": [{"job": "vision/b", "why": "holds"}],
    }
    cluster.objects[PATH] = job("vision", "a", queue="research") | {"status": {"phase": "Queued", "queue": waiting}}
    cluster.objects["/api/v1/namespaces/vision/pods"] = {"items": [worker(0, node="n1"), worker(0, name="copy-of-a")]}
    async with client(cluster) as http:
        answer = await http.get("/v1/jobs/vision/a")
    assert answer.status_code == 200, answer.text
    found = JobDetail.model_validate(answer.json())
    why = next(section for section in found.explanation if section.heading == "Why")
    assert ["", "QuotaExceeded: 8 GPUs are missing"] in why.rows
    assert ["", "held by: vision/b"] in why.rows
    assert answer.json()["waiting"] == waiting
    assert [worker.node for worker in found.workers] == ["n1"]
    assert found.withheld == []


async def test_the_page_of_a_large_gang_is_read_once_for_all_who_ask_and_its_pods_are_not_held_whole() -> None:
    class Raw(dict[str, Any]):
        pass

    class Large(Cluster):
        read = 0
        held: ClassVar[list[int]] = []

        async def pages(self, path: str, _: Mapping[str, str]) -> AsyncIterator[Object]:
            before: list[weakref.ref[Raw]] = []
            for first in range(0, 2000, 500):
                await asyncio.sleep(0)
                self.held.append(sum(one() is not None for one in before))
                self.read += 1
                items = [Raw(worker(number)) for number in range(first, first + 500)]
                before += map(weakref.ref, items)
                page = {"items": items}
                del items
                yield page
                del page

    cluster = Large(everything().tokens, everything().rights)
    cluster.objects[PATH] = job("vision", "a")
    async with client(cluster) as http:
        answers = await asyncio.gather(*(http.get("/v1/jobs/vision/a") for _ in range(20)))
        answers.append(await http.get("/v1/jobs/vision/a"))
    assert {len(answer.json()["workers"]) for answer in answers} == {2000}
    assert cluster.read == 4
    assert max(cluster.held) <= 500, "a page at a time"


async def test_the_page_of_a_small_gang_is_read_anew_for_each_question() -> None:
    cluster = everything()
    cluster.objects[PATH] = job("vision", "a", phase="Queued")
    async with client(cluster) as http:
        before = (await http.get("/v1/jobs/vision/a")).json()
        cluster.objects[PATH] = job("vision", "a", phase="Starting")
        after = (await http.get("/v1/jobs/vision/a")).json()
    assert (before["job"]["phase"], after["job"]["phase"]) == ("Queued", "Starting")


async def test_each_worker_says_its_kind_of_capacity_and_whether_it_is_of_the_base() -> None:
    cluster = everything()
    nodes = [{"node": "n0", "indexes": "0"}, {"node": "n1", "indexes": "1"}]
    placement = {"generation": 1, "workers": 2, "nodes": nodes, "base": 1, "capacity": "on-demand", "beyond": "spot"}
    cluster.objects[PATH] = job("vision", "a") | {"status": {"phase": "Running", "placement": placement}}
    cluster.objects["/api/v1/namespaces/vision/pods"] = {"items": [worker(0), worker(1)]}
    async with client(cluster) as http:
        answer = await http.get("/v1/jobs/vision/a")
    workers = JobDetail.model_validate(answer.json()).workers
    assert [(worker.capacity, worker.base) for worker in workers] == [("on-demand", True), ("spot", False)]


async def test_a_gang_that_is_smaller_than_its_wish_tells_programs_why() -> None:
    cluster = everything()
    growth = {"reason": "Settling", "message": "there is room", "workers": 2, "notBefore": "2026-01-02T03:08:05Z"}
    cluster.objects[PATH] = job("vision", "a") | {"status": {"phase": "Running", "growth": growth}}
    async with client(cluster) as http:
        answer = await http.get("/v1/jobs/vision/a")
    assert answer.json()["growth"] == growth


async def test_a_job_is_told_while_the_operator_still_fills_its_caches() -> None:
    cluster = everything()
    cluster.objects[PATH] = job("vision", "a")
    async with client(cluster, published=False) as http:
        answer, every = await http.get("/v1/jobs/vision/a"), await http.get("/v1/queues")
    assert answer.status_code == 200, answer.text
    assert every.status_code == 503


async def test_pods_and_events_are_left_out_where_the_user_may_not_list_them() -> None:
    cluster = everything()
    cluster.rights = {("jane", "get", "trainingjobs", "vision")}
    cluster.objects[PATH] = job("vision", "a")
    cluster.objects["/api/v1/namespaces/vision/pods"] = {"items": [{"metadata": {"name": "secret"}}]}
    async with client(cluster) as http:
        answer = await http.get("/v1/jobs/vision/a")
    assert answer.json()["withheld"] == ["pods", "events", "trainingqueues"]
    assert "secret" not in answer.text


async def test_what_a_queue_above_has_left_of_its_budget_is_told_to_who_may_list_queues() -> None:
    month = {"until": "2026-01-01T00:00:00Z", "uses": [{"gpuType": "H100", "gpuSeconds": 7200, "gpus": 16}]}
    budget = {"gpuHours": 1, "atLimit": "drain"}
    tree = [
        {"metadata": {"name": "company"}, "spec": {"budgets": [budget]}, "status": {"month": month}},
        {"metadata": {"name": "research"}, "spec": {"parent": "company"}},
    ]
    world = World(queues={raw["metadata"]["name"]: TrainingQueue.from_raw(raw) for raw in tree})  # type: ignore[index]
    cluster = everything()
    placement = {"generation": 1, "workers": 2, "nodes": [{"node": "n1", "indexes": "0-1"}]}
    cluster.objects[PATH] = job("vision", "a", phase="Running", placement=placement)
    async with client(cluster, world=world) as http:
        seen = (await http.get("/v1/jobs/vision/a")).text
        cluster.rights.discard(("jane", "list", "trainingqueues", ""))
    async with client(cluster, world=world) as http:
        unseen = (await http.get("/v1/jobs/vision/a")).text
    assert "the 1 GPU hours that TrainingQueue 'company' may use in" in seen
    assert "company" not in unseen


async def test_a_job_that_is_not_there_and_one_that_cannot_be_read() -> None:
    cluster = everything()
    unreadable = job("vision", "a")
    unreadable["spec"]["workers"]["replicas"] = -1
    cluster.objects[PATH] = unreadable
    async with client(cluster) as http:
        absent, odd = await http.get("/v1/jobs/vision/none"), await http.get("/v1/jobs/vision/a")
        bad = await http.get("/v1/jobs/vision/Not%20a%20name")
    assert absent.status_code == 404
    assert '"none" not found' in absent.json()["detail"]
    assert "can't read the job" in odd.json()["explanation"][0]["rows"][0][1]
    assert bad.status_code == 400


async def test_queues_tell_quota_use_and_what_is_borrowed() -> None:
    quota = {"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "nominal": 16}]}
    usage = [{"gpuType": "H100", "resources": [{"name": "nvidia.com/gpu", "used": "24", "borrowed": "8"}]}]
    tree = [
        {"metadata": {"name": "company"}, "spec": {"quotas": [quota]}},
        {"metadata": {"name": "nlp"}, "spec": {"parent": "company", "quotas": [quota]}, "status": {"usage": usage}},
    ]
    world = World(queues={raw["metadata"]["name"]: TrainingQueue.from_raw(raw) for raw in tree})  # type: ignore[index]
    async with client(everything(), world=world) as http:
        every = QueueList.model_validate((await http.get("/v1/queues")).json())
        one = QueueDetail.model_validate((await http.get("/v1/queues/company")).json())
        absent = await http.get("/v1/queues/none")
    share = every.items[1].flavours[0].resources[0]
    assert (share.nominal, share.used, share.borrowed, share.free) == (16, 24, 8, 0)
    assert one.queue.flavours[0].resources[0].nominal == 32
    assert one.below == ["nlp"]
    assert absent.status_code == 404


async def test_the_fleet_adds_up_by_type_and_level() -> None:
    taint = [{"key": "muster.dev/quarantined", "effect": "NoSchedule"}]
    nodes = [
        node("a1", "a"),
        node("a2", "a"),
        node("b1", "b"),
        node("b2", "b", unschedulable=True),
        node("c1", "c", taints=taint),
    ]
    pods = [pod("p", "a1", 8), pod("q", "a2", 6), pod("old", "b1", 8, "Succeeded"), pod("r", "b2", 2)]
    topology = Topology.from_raw(
        {"metadata": {"name": "default"}, "spec": {"levels": [{"name": "rack", "label": "rack"}]}}
    )
    world = World(topologies={"default": topology}, held_nodes=nodes, held_pods=pods)
    async with client(everything(), world=world) as http:
        found = Fleet.model_validate((await http.get("/v1/fleet")).json())
    (pool,) = found.pools
    assert (pool.gpu_type, pool.capacity, pool.nodes, pool.total) == ("H100", "on-demand", 5, 40)
    assert (pool.used, pool.free, pool.unavailable) == (16, 10, 14)
    (rack,) = pool.levels
    assert (rack.domains, rack.largest_domain, rack.largest_free) == (3, "b", 8)
    assert found.nodes.model_dump() == {"total": 5, "not_ready": 0, "cordoned": 1, "quarantined": 1}


async def test_slices_of_a_nodes_gpus_are_pools_of_their_own() -> None:
    small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    nodes = [node("a1", "a", {small: "7", large: "4", "nvidia.com/gpu": "2"}), node("a2", "a")]
    pods = [pod("p", "a1", 3, device=small), pod("q", "a1", 1), pod("r", "a2", 8)]
    async with client(everything(), world=World(held_nodes=nodes, held_pods=pods)) as http:
        found = Fleet.model_validate((await http.get("/v1/fleet")).json())
    assert {pool.gpu_type: (pool.nodes, pool.total, pool.used, pool.free) for pool in found.pools} == {
        "H100": (2, 10, 9, 1),
        "H100-MIG-1g.10gb": (1, 7, 3, 4),
        "H100-MIG-3g.40gb": (1, 4, 0, 4),
    }
    assert found.nodes.total == 2


async def test_without_the_right_to_list_pods_the_fleet_does_not_tell_what_is_used() -> None:
    cluster = everything()
    cluster.rights.discard(("jane", "list", "pods", ""))
    world = World(held_nodes=[node("a1", "a")], held_pods=[pod("p", "a1", 8)])
    async with client(cluster, world=world) as http:
        found = (await http.get("/v1/fleet")).json()
    assert found["withheld"] == ["pods"]
    assert found["pools"][0]["total"] == 8
    assert not {"used", "free", "unavailable", "largestFreeNode"} & set(found["pools"][0])


async def test_openapi_describes_every_answer_with_an_example_that_fits() -> None:
    async with client(everything(), token="") as http:
        described = (await http.get("/v1/openapi.json")).json()
    assert set(described["paths"]) == {
        "/v1/jobs",
        "/v1/jobs/{namespace}/{name}",
        "/v1/queues",
        "/v1/queues/{name}",
        "/v1/fleet",
        "/v1/history/jobs",
        "/v1/history/jobs/{uid}",
        "/v1/cost",
    }
    for path in described["paths"].values():
        answers = path["get"]["responses"]
        assert set(answers) == {"200", "400", "401", "403", "404", "503"}
        assert set(answers["401"]["content"]) == {"application/problem+json"}
        assert path["get"]["security"]
    schemas = described["components"]["schemas"]
    JobDetail.model_validate(schemas["JobDetail"]["example"])
    Fleet.model_validate(schemas["Fleet"]["example"])
