"""Placements too large for one object: their nodes lie beside the job, and come back as they were."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from muster.api.placement import Placement, Promise, Victim, nodes_with_workers
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.chunks import CHUNK, LOST, WHOLE, Chunks
from muster.cluster.errors import ApiError
from muster.cluster.pods import PodSettings
from muster.controllers.assembly import Scheduling

pytestmark = pytest.mark.unit
Object = dict[str, Any]

LARGE = 12_500


class Server:
    """ConfigMaps by name."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.creates = 0

    async def create(self, path: str, body: Object) -> Object:
        self.creates += 1
        name = body["metadata"]["name"]
        if name in self.objects:
            raise ApiError(409, "AlreadyExists", name)
        self.objects[name] = json.loads(json.dumps(body))
        return body

    async def get(self, path: str) -> Object:
        try:
            return self.objects[path.rsplit("/", 1)[1]]
        except KeyError:
            raise ApiError(404, "NotFound", path) from None

    async def delete(self, path: str) -> Object:
        return self.objects.pop(path.rsplit("/", 1)[1])


def chunks(server: Server) -> Chunks:
    return Chunks(server)  # type: ignore[arg-type]  # it has all that is called


def job(status: TrainingJobStatus, uid: str = "0123") -> TrainingJob:
    raw = {
        "metadata": {"name": "j", "namespace": "n", "uid": uid},
        "spec": {"image": "i", "command": ["c"], "workers": {"replicas": 2}},
        "status": status.to_raw(),
    }
    return TrainingJob.from_raw(raw)


def placement(workers: int, nodes: int) -> Placement:
    return Placement.of(3, [f"gpu-pool-a1b2c3-{index * nodes // workers:05}" for index in range(workers)])


def status(workers: int = LARGE, nodes: int = LARGE) -> TrainingJobStatus:
    return TrainingJobStatus(placement=placement(workers, nodes))


async def test_a_gang_of_12500_workers_is_a_small_object_and_comes_back_whole() -> None:
    server, whole = Server(), status()
    packed = await chunks(server).pack(job(TrainingJobStatus()), whole)
    assert len(json.dumps(job(packed).to_raw())) <= 64 * 1024
    assert len(server.objects) == LARGE // CHUNK
    assert all(len(json.dumps(body)) < 2**20 for body in server.objects.values())
    assert all(body["immutable"] for body in server.objects.values())
    assert {body["metadata"]["ownerReferences"][0]["uid"] for body in server.objects.values()} == {"0123"}
    again = chunks(server)  # another operator
    assert again.unpack(job(packed)) is None
    read = await again.fetch(job(packed))
    assert read.status.placement == whole.placement
    assert again.unpack(job(packed)) == read


async def test_up_to_256_nodes_stay_in_the_status() -> None:
    server, whole = Server(), status(2 * WHOLE, WHOLE)
    assert await chunks(server).pack(job(TrainingJobStatus()), whole) == whole
    assert not server.objects
    assert chunks(server).unpack(job(whole)) == job(whole)


async def test_making_them_again_after_a_cut_makes_nothing_twice() -> None:
    server, whole = Server(), status()
    first = await chunks(server).pack(job(TrainingJobStatus()), whole)
    assert await chunks(server).pack(job(TrainingJobStatus()), whole) == first
    assert len(server.objects) == LARGE // CHUNK
    known = chunks(server)
    await known.pack(job(TrainingJobStatus()), whole)
    creates = server.creates
    await known.pack(job(TrainingJobStatus()), whole)
    assert server.creates == creates, "a status write does not make them anew each time"


async def test_other_nodes_are_other_chunks_also_within_one_generation() -> None:
    server = Server()
    one = await chunks(server).pack(job(TrainingJobStatus()), status(LARGE, LARGE))
    two = await chunks(server).pack(job(TrainingJobStatus()), status(LARGE, LARGE // 2))
    assert one.placement is not None
    assert two.placement is not None
    assert not set(one.placement.chunks) & set(two.placement.chunks)


async def test_chunks_go_when_the_status_no_longer_names_them() -> None:
    server, whole = Server(), status()
    keeper = chunks(server)
    packed = await keeper.pack(job(TrainingJobStatus()), whole)
    await keeper.forget(job(packed), whole, whole)
    assert len(server.objects) == LARGE // CHUNK
    await keeper.forget(job(packed), whole, TrainingJobStatus())
    assert not server.objects


async def test_nothing_is_remembered_of_a_job_that_is_gone() -> None:
    server, whole = Server(), status()
    keeper = chunks(server)
    packed = await keeper.pack(job(TrainingJobStatus()), whole)
    assert keeper.unpack(job(packed)) is not None
    keeper.drop(job(whole))
    assert keeper.unpack(job(packed)) is None
    assert not keeper._known


async def test_promises_are_packed_too() -> None:
    server = Server()
    nodes = nodes_with_workers([f"n{index}" for index in range(1000)])
    whole = TrainingJobStatus(promise=Promise(workers=1000, nodes=nodes))
    packed = await chunks(server).pack(job(TrainingJobStatus()), whole)
    assert packed.promise is not None
    assert not packed.promise.nodes
    assert (await chunks(server).fetch(job(packed))).status.promise == whole.promise


def promise(*victims: Victim) -> TrainingJobStatus:
    return TrainingJobStatus(promise=Promise(workers=1, nodes=nodes_with_workers(["n0"]), victims=victims))


async def test_many_victims_are_a_small_object_and_come_back_as_they_were() -> None:
    server = Server()
    whole = promise(
        *(Victim(uid=str(UUID(int=each)), generation=each + 1, reason="Preempted", lost=each) for each in range(LARGE)),
        Victim(uid="s", generation=1, reason="Shrunk", nodes=nodes_with_workers(["a", "b"])),
    )
    packed = await chunks(server).pack(job(TrainingJobStatus()), whole)
    assert len(json.dumps(job(packed).to_raw())) <= 64 * 1024
    assert len(server.objects) > 1
    assert all(len(json.dumps(body)) < 2**20 for body in server.objects.values())
    again = chunks(server)  # another operator
    assert again.unpack(job(packed)) is None
    assert (await again.fetch(job(packed))).status.promise == whole.promise
    await again.forget(job(packed), whole, TrainingJobStatus())
    assert not server.objects


async def test_one_victim_with_many_nodes_lies_in_a_chunk_too() -> None:
    server = Server()
    nodes = nodes_with_workers([f"gpu-pool-a1b2c3-{index:05}" for index in range(LARGE)])
    whole = promise(*(Victim(uid=uid, generation=1, reason="Shrunk", nodes=nodes) for uid in "ab"))
    packed = await chunks(server).pack(job(TrainingJobStatus()), whole)
    assert len(server.objects) == 2
    assert all(len(json.dumps(body)) < 2**20 for body in server.objects.values())
    assert (await chunks(server).fetch(job(packed))).status.promise == whole.promise


async def test_few_victims_stay_in_the_status() -> None:
    server = Server()
    whole = promise(*(Victim(uid=str(UUID(int=each)), generation=1, reason="Preempted") for each in range(100)))
    assert await chunks(server).pack(job(TrainingJobStatus()), whole) == whole
    assert not server.objects


async def test_of_a_chunk_of_victims_that_somebody_deleted_nobody_is_asked() -> None:
    server = Server()
    whole = promise(*(Victim(uid=str(UUID(int=each)), generation=1, reason="Preempted") for each in range(500)))
    packed = await chunks(server).pack(job(TrainingJobStatus()), whole)
    server.objects.clear()
    read = await chunks(server).fetch(job(packed))
    assert read.status.promise == promise().promise


async def test_a_chunk_that_somebody_deleted_leaves_workers_without_a_node_and_stops_nobody() -> None:
    server = Server()
    packed = await chunks(server).pack(job(TrainingJobStatus()), status())
    server.objects.popitem()
    read = await chunks(server).fetch(job(packed))
    assert read.status.placement is not None
    assert set(read.status.placement.node_of_index()) == {LOST}


async def test_a_late_word_of_chunks_that_are_gone_does_not_keep_them_from_being_made_again() -> None:
    """The watch shows a status that named them after they were deleted; then the gang gets the same nodes again."""
    server, whole = Server(), status()
    keeper = chunks(server)
    packed = await keeper.pack(job(TrainingJobStatus()), whole)
    await keeper.forget(job(packed), whole, TrainingJobStatus())
    late = await keeper.fetch(job(packed))
    assert late.status.placement is not None
    assert {item.node for item in late.status.placement.nodes} == {LOST}
    assert await keeper.pack(job(TrainingJobStatus()), whole) == packed
    assert len(server.objects) == LARGE // CHUNK
    assert (await keeper.fetch(job(packed))).status.placement == whole.placement


class Away(Server):
    """Answers reads once it is back."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.back = asyncio.Event(), asyncio.Event()

    async def get(self, path: str) -> Object:
        self.asked.set()
        await self.back.wait()
        return await super().get(path)

    async def proxy(self) -> None:
        raise AssertionError("no launcher is to be called")


def raw(status: TrainingJobStatus, uid: str = "0123") -> Object:
    found = job(status).to_raw()
    found["metadata"] |= {"uid": uid, "resourceVersion": uid}
    return found


@pytest.mark.parametrize("then", [None, TrainingJobStatus()], ids=["deleted", "requeued"])
async def test_what_a_job_was_before_does_not_come_back_when_its_chunks_have_been_read(
    then: TrainingJobStatus | None,
) -> None:
    server = Away()
    packed = await chunks(server).pack(job(TrainingJobStatus()), status())
    side = Scheduling(
        server,  # type: ignore[arg-type]  # it has all that is called
        settings=PodSettings("x"),
        token_key=b"k" * 32,
        tell=lambda record, note: None,
        through_proxy=True,
    )
    side.job("n/j", raw(packed))
    await server.asked.wait()
    (reading,) = side._fetching.values()
    side.job("n/j", None if then is None else raw(then))
    server.back.set()
    await asyncio.wait([reading])
    assert [found.status.placement for found in side.cache.take_jobs()] == ([] if then is None else [None])
    assert not side._fetching
    other = await chunks(server).pack(job(TrainingJobStatus(), "456"), status())
    side.job("n/j", raw(other, "456"))
    await asyncio.wait(list(side._fetching.values()))
    (found,) = side.cache.take_jobs()
    assert (found.metadata.uid, found.status.placement) == ("456", status().placement)


@pytest.mark.parametrize("text", ["rubbish\n", "one two three\n", "n 0-0x\n"])
async def test_a_placement_that_somebody_wrote_in_place_of_a_chunk_counts_as_deleted(text: str) -> None:
    server = Server()
    packed = await chunks(server).pack(job(TrainingJobStatus()), status())
    next(iter(server.objects.values()))["data"] = {"nodes": text}
    read = await chunks(server).fetch(job(packed))
    assert read.status.placement is not None
    assert set(read.status.placement.node_of_index()) == {LOST}


async def test_nobody_gives_way_to_victims_that_somebody_wrote_in_place_of_a_chunk() -> None:
    server = Server()
    whole = promise(*(Victim(uid=str(UUID(int=each)), generation=1, reason="Preempted") for each in range(500)))
    packed = await chunks(server).pack(job(TrainingJobStatus()), whole)
    (body,) = server.objects.values()
    body["data"]["victims"] = json.dumps(Victim(uid="another-teams", generation=1, reason="Reclaimed").to_raw()) + "\n"
    read = await chunks(server).fetch(job(packed))
    assert read.status.promise == promise().promise
