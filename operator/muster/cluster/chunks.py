"""Keeps the nodes of large placements beside the job, so that its object stays small: 12,500 nodes are a megabyte.

Above `WHOLE` nodes a placement or promise is written as immutable ConfigMaps that the job owns, and the status only
names them. A name holds the hash of the content and the job's UID, so a chunk is never another one's, and one that is
there already is the right one. Chunks are made before the status that names them, and deleted after the one that does
not; the garbage collector takes what a cut has left, with the job. Inside the operator a status always has its nodes:
packing and unpacking happen where it is written and read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from muster.api import names
from muster.api.common import API_VERSION, ObjectMeta
from muster.api.placement import NodeWorkers, Placement, Promise
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.client import Api
from muster.cluster.errors import ApiError

Object = dict[str, Any]
Room = TypeVar("Room", Placement, Promise)
Nodes = tuple[NodeWorkers, ...]

WHOLE: Final = 256
"""Nodes that are written into the status itself."""
CHUNK: Final = 2500
"""Nodes in one ConfigMap: some 150 KiB of the megabyte that it may have."""
LOST: Final = "placement-chunk-was-deleted"
"""Name of a node that does not exist, for workers whose chunk somebody has deleted: their pods run on, and pods that
are missing can't be bound there, so the gang is withdrawn and placed anew."""


class Chunks:
    """Writes and reads chunks; remembers those that its jobs name."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[tuple[str, str], Nodes] = {}

    async def pack(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJobStatus:
        """The status as it is written, its chunks made. Raises as a POST does."""
        for field in ("placement", "promise"):
            room = getattr(status, field)
            if room is not None and len(room.nodes) > WHOLE:
                chunks = await self._store(job.metadata, room.nodes)
                status = status.model_copy(update={field: room.model_copy(update={"nodes": (), "chunks": chunks})})
        return status

    def unpack(self, job: TrainingJob) -> TrainingJob | None:
        """The job with the nodes in its status; None when a chunk has to be fetched first."""
        status = job.status
        for field in ("placement", "promise"):
            room = getattr(status, field)
            if room is None or not room.chunks:
                continue
            found = [self._known.get((job.metadata.namespace, chunk)) for chunk in room.chunks]
            nodes = tuple(item for chunk in found if chunk is not None for item in chunk)
            if any(chunk is None for chunk in found):
                return None
            status = status.model_copy(update={field: _whole(room, nodes)})
        return job if status is job.status else job.model_copy(update={"status": status})

    async def fetch(self, job: TrainingJob) -> TrainingJob:
        """As `unpack`, after reading the chunks. Raises as a GET does, except for a chunk that is not there."""
        for chunk in named(job.status):
            key = (job.metadata.namespace, chunk)
            if key not in self._known:
                self._known[key] = await self._read(*key)
        unpacked = self.unpack(job)
        assert unpacked is not None
        return unpacked

    async def forget(self, job: TrainingJob, before: TrainingJobStatus, after: TrainingJobStatus) -> None:
        """Delete the chunks that the written status no longer names."""
        namespace = job.metadata.namespace
        for chunk in sorted(set(_names_of(job, before)) - set(_names_of(job, after))):
            self._known.pop((namespace, chunk), None)
            try:
                await self._api.delete(f"{path(namespace)}/{chunk}")
            except ApiError as error:
                if error.status != 404:
                    raise

    async def _store(self, metadata: ObjectMeta, nodes: Nodes) -> tuple[str, ...]:
        made = []
        for first in range(0, len(nodes), CHUNK):
            part = nodes[first : first + CHUNK]
            body = config_map(metadata, part)
            name = body["metadata"]["name"]
            if (metadata.namespace, name) not in self._known:
                try:
                    await self._api.create(path(metadata.namespace), body)
                except ApiError as error:
                    if error.status != 409 or error.reason != "AlreadyExists":
                        raise
                self._known[metadata.namespace, name] = part
            made.append(name)
        return tuple(made)

    async def _read(self, namespace: str, name: str) -> Nodes:
        try:
            found = await self._api.get(f"{path(namespace)}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return ()
        lines = str((found.get("data") or {}).get("nodes") or "").splitlines()
        return tuple(NodeWorkers(node=node, indexes=indexes) for node, indexes in (line.split() for line in lines))


def config_map(metadata: ObjectMeta, nodes: Sequence[NodeWorkers]) -> Object:
    """A chunk: one line a node, `NAME INDEXES`."""
    text = "".join(f"{item.node} {item.indexes}\n" for item in nodes)
    owner = {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": chunk_name(metadata, text),
            "namespace": metadata.namespace,
            "labels": {names.JOB_LABEL: metadata.name, names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "data": {"nodes": text},
    }


def chunk_name(metadata: ObjectMeta, text: str) -> str:
    """Of a chunk with that content, of that job and no other."""
    return f"{metadata.name}-nodes-{hashlib.sha256(f'{metadata.uid} {text}'.encode()).hexdigest()[:16]}"


def named(status: TrainingJobStatus) -> tuple[str, ...]:
    """The chunks that a status names, as it is written."""
    rooms = (status.placement, status.promise)
    return tuple(chunk for room in rooms if room is not None for chunk in room.chunks)


def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _names_of(job: TrainingJob, status: TrainingJobStatus) -> Iterable[str]:
    """The chunks of a status that has its nodes."""
    for room in (status.placement, status.promise):
        if room is not None and len(room.nodes) > WHOLE:
            for first in range(0, len(room.nodes), CHUNK):
                part = room.nodes[first : first + CHUNK]
                text = "".join(f"{item.node} {item.indexes}\n" for item in part)
                yield chunk_name(job.metadata, text)


def _whole(room: Room, nodes: Nodes) -> Room:
    """`room` with its nodes; workers of a chunk that is lost are on a node that is not there."""
    try:
        whole = room.model_copy(update={"nodes": nodes, "chunks": ()})
        whole.node_of_index()
    except ValueError:
        everywhere = (NodeWorkers(node=LOST, indexes=f"0-{room.workers - 1}" if room.workers > 1 else "0"),)
        return room.model_copy(update={"nodes": everywhere, "chunks": ()})
    return whole
