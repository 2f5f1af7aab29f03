"""Keeps what is large of a status beside the job, so that its object stays small: 12,500 nodes are a megabyte.

Above `WHOLE` nodes a placement or promise is written as immutable ConfigMaps that the job owns, and the status only
names them; and so are victims that take more than `VICTIMS_WHOLE`. A name holds the hash of the content and the job's
UID, so a chunk is never another one's, and one that is there already is the right one. Whoever may edit the job's
namespace can put another in its place: that is known by the hash, and counts as a chunk that is gone. Chunks are made
before the status that names them, and deleted after the one that does not; the garbage collector takes what a cut has
left, with the job. Inside the operator a status always has all of it: packing and unpacking happen where it is written
and read.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from muster.api import names
from muster.api.common import API_VERSION, ObjectMeta
from muster.api.placement import NodeWorkers, Placement, Promise, Victim
from muster.api.trainingjob import TrainingJob
from muster.api.trainingjob_status import TrainingJobStatus
from muster.cluster.client import Api
from muster.cluster.errors import ApiError

log = logging.getLogger(__name__)

Object = dict[str, Any]
Room = TypeVar("Room", Placement, Promise)
Items = tuple[Any, ...]
Key = tuple[str, str]
"""Namespace and name of a chunk."""

WHOLE: Final = 256
"""Nodes that are written into the status itself."""
CHUNK: Final = 2500
"""Nodes in one ConfigMap: some 150 KiB of the megabyte that it may have."""
VICTIMS_WHOLE: Final = 16 * 1024
"""Characters of victims that are written into the status itself: some 140 that queue again. Of one that goes on with
fewer workers its nodes count, too."""
VICTIMS_CHUNK: Final = 256 * 1024
"""Characters of victims in one ConfigMap, unless one alone has more."""
LOST: Final = "placement-chunk-was-deleted"
"""Name of a node that does not exist, for workers whose chunk somebody has deleted: their pods run on, and pods that
are missing can't be bound there, so the gang is withdrawn and placed anew."""


@dataclass(frozen=True)
class Part:
    """A list in a status that lies beside the job when it is long.

    Attributes:
        room: the field of the status.
        items, chunks: the fields of that, for the list and for the names of its chunks.
        write, read: an item as a line, and back.
        cut: the lines of each chunk; none when all stay in the status.
    """

    room: str
    items: str
    chunks: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]
    cut: Callable[[Sequence[str]], list[slice]]


def _node(line: str) -> NodeWorkers:
    node, indexes = line.split()
    return NodeWorkers(node=node, indexes=indexes)


def _cut_nodes(lines: Sequence[str]) -> list[slice]:
    if len(lines) <= WHOLE:
        return []
    return [slice(first, first + CHUNK) for first in range(0, len(lines), CHUNK)]


def _cut_victims(lines: Sequence[str]) -> list[slice]:
    if sum(map(len, lines)) <= VICTIMS_WHOLE:
        return []
    cuts, first, size = [], 0, 0
    for index, line in enumerate(lines):
        if size and size + len(line) > VICTIMS_CHUNK:
            cuts.append(slice(first, index))
            first, size = index, 0
        size += len(line)
    return [*cuts, slice(first, len(lines))]


_NODES: Final = ("nodes", "chunks", lambda item: f"{item.node} {item.indexes}", _node, _cut_nodes)
PARTS: Final = (
    Part("placement", *_NODES),
    Part("promise", *_NODES),
    Part(
        "promise",
        "victims",
        "victim_chunks",
        lambda victim: json.dumps(victim.to_raw(), separators=(",", ":")),
        lambda line: Victim.model_validate(json.loads(line)),
        _cut_victims,
    ),
)


class Chunks:
    """Writes and reads chunks; remembers those that its jobs name."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[Key, Items] = {}

    async def pack(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJobStatus:
        """The status as it is written, its chunks made. Raises as a POST does."""
        for part in PARTS:
            chunks = [(config_map(job.metadata, part, text), items) for text, items in _chunks_of(part, status)]
            if chunks:
                made = tuple([await self._store(job.metadata.namespace, *chunk) for chunk in chunks])
                status = _with(status, part, (), made)
        return status

    def unpack(self, job: TrainingJob) -> TrainingJob | None:
        """The job with all that is in its status; None when a chunk has to be fetched first."""
        return _unpacked(job, self._known)

    async def fetch(self, job: TrainingJob) -> TrainingJob:
        """As `unpack`, after reading the chunks. Raises as a GET does, except for a chunk that is not there, or is
        another one."""
        found: dict[Key, Items] = {}
        for part in PARTS:
            for chunk in _named(part, job.status):
                key = (job.metadata.namespace, chunk)
                found[key] = self._known[key] if key in self._known else await self._read(job.metadata, part, chunk)
        unpacked = _unpacked(job, found)
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

    def drop(self, job: TrainingJob) -> None:
        """The job is gone, and with it, by the garbage collector, its chunks: nothing of them is remembered."""
        for chunk in _names_of(job, job.status):
            self._known.pop((job.metadata.namespace, chunk), None)

    async def _store(self, namespace: str, body: Object, items: Items) -> str:
        name: str = body["metadata"]["name"]
        if (namespace, name) not in self._known:
            try:
                await self._api.create(path(namespace), body)
            except ApiError as error:
                if not error.exists:
                    raise
            self._known[namespace, name] = items
        return name

    async def _read(self, metadata: ObjectMeta, part: Part, name: str) -> Items:
        """Remembers what is there. What is not may be made: a watch may be late, and the same nodes are given again."""
        try:
            found = await self._api.get(f"{path(metadata.namespace)}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            return ()
        text = str((found.get("data") or {}).get(part.items) or "")
        if chunk_name(metadata, part, text) != name:
            log.warning("ConfigMap %s/%s is not as it was made, and counts as deleted", metadata.namespace, name)
            return ()
        items = tuple(map(part.read, text.splitlines()))
        self._known[metadata.namespace, name] = items
        return items


def _unpacked(job: TrainingJob, known: Mapping[Key, Items]) -> TrainingJob | None:
    status = job.status
    for part in PARTS:
        chunks = _named(part, status)
        found = [known.get((job.metadata.namespace, chunk)) for chunk in chunks]
        items = tuple(item for chunk in found if chunk is not None for item in chunk)
        if any(chunk is None for chunk in found):
            return None
        if chunks:
            status = _with(status, part, items, ())
            if part.items == "nodes":
                status = status.model_copy(update={part.room: _whole(getattr(status, part.room))})
    return job if status is job.status else job.model_copy(update={"status": status})


def config_map(metadata: ObjectMeta, part: Part, text: str) -> Object:
    """A chunk: a line for each node (`NAME INDEXES`) or victim (JSON)."""
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
            "name": chunk_name(metadata, part, text),
            "namespace": metadata.namespace,
            "labels": {names.JOB_LABEL: metadata.name, names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "data": {part.items: text},
    }


def chunk_name(metadata: ObjectMeta, part: Part, text: str) -> str:
    """Of a chunk with that content, of that job and no other."""
    return f"{metadata.name}-{part.items}-{hashlib.sha256(f'{metadata.uid} {text}'.encode()).hexdigest()[:16]}"


def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _named(part: Part, status: TrainingJobStatus) -> tuple[str, ...]:
    room = getattr(status, part.room)
    return () if room is None else getattr(room, part.chunks)


def _with(status: TrainingJobStatus, part: Part, items: Items, chunks: tuple[str, ...]) -> TrainingJobStatus:
    room = getattr(status, part.room).model_copy(update={part.items: items, part.chunks: chunks})
    return status.model_copy(update={part.room: room})


def _chunks_of(part: Part, status: TrainingJobStatus) -> Iterator[tuple[str, Items]]:
    """Text and items of each chunk of a status that has all of it."""
    room = getattr(status, part.room)
    items: Items = () if room is None else getattr(room, part.items)
    lines = [f"{part.write(item)}\n" for item in items]
    for cut in part.cut(lines):
        yield "".join(lines[cut]), items[cut]


def _names_of(job: TrainingJob, status: TrainingJobStatus) -> Iterator[str]:
    """The chunks of a status that has all of it."""
    for part in PARTS:
        for text, _ in _chunks_of(part, status):
            yield chunk_name(job.metadata, part, text)


def _whole(room: Room) -> Room:
    """`room`, or with workers on a node that is not there, where a chunk of theirs is lost."""
    try:
        room.node_of_index()
    except ValueError:
        everywhere = (NodeWorkers(node=LOST, indexes=f"0-{room.workers - 1}" if room.workers > 1 else "0"),)
        return room.model_copy(update={"nodes": everywhere})
    return room
