"""Where a gang runs, the room that is kept for it, and what takes that from it: parts of a TrainingJob's status."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import Annotated, Any, Self

from annotated_types import Ge, Le, Len
from pydantic import AfterValidator, model_validator

from muster.api.common import ClockTime, Count, Message, Model, ShortMessage, Timestamp
from muster.api.jobparts import MAX_WORKERS
from muster.api.schema import Int64

MAX_SPARES = 64
"""Spares of one gang."""

_INDEXES = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


def _indexes(text: str) -> str:
    """As `format_indexes` writes them: others would be read as other workers, or as millions of them."""
    ends = [int(end) for part in text.split(",") for end in part.split("-")] if _INDEXES.fullmatch(text) else [0, 0]
    if any(second <= first for first, second in pairwise(ends)):
        raise ValueError(f"{text[:40]!r} is no ascending list of indexes such as 0-3,7")
    return text


NodeName = Annotated[str, Len(1, 253)]
Indexes = Annotated[str, Len(1, 32768), AfterValidator(_indexes)]
ChunkName = Annotated[str, Len(1, 253)]
SpecHash = Annotated[str, Len(0, 64)]


def format_indexes(indexes: Iterable[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for index in sorted(set(indexes)):
        if parts and parts[-1][-1] == index - 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return ",".join("-".join(str(end) for end in part) for part in parts)


def parse_indexes(text: str) -> tuple[int, ...]:
    """The reverse of `format_indexes`. Raises ValueError for anything else."""
    result: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        result.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(result)


class NodeWorkers(Model):
    """Which workers run on a node."""

    node: NodeName
    """Name of the node."""
    indexes: Indexes
    """Their indexes in the gang, like `0-3,7`."""


def nodes_with_workers(node_of_index: Sequence[str], first: int = 0) -> tuple[NodeWorkers, ...]:
    """Worker first + i on `node_of_index[i]`, as it is written down: by node, in the order of each one's first
    worker."""
    by_node: dict[str, list[int]] = {}
    for index, node in enumerate(node_of_index, start=first):
        by_node.setdefault(node, []).append(index)
    return tuple(NodeWorkers(node=node, indexes=format_indexes(found)) for node, found in by_node.items())


def nodes_by_index(nodes: Iterable[NodeWorkers], workers: int, where: str) -> tuple[str, ...]:
    """The reverse of `nodes_with_workers`. Raises ValueError, with `where` in it, unless every worker has a node."""
    found = {index: item.node for item in nodes for index in parse_indexes(item.indexes)}
    if len(found) != workers or (found and max(found) != workers - 1):
        raise ValueError(f"{where} names nodes for {len(found)} of {workers} workers")
    return tuple(found[index] for index in range(workers))


def spares_by_index(spares: Iterable[NodeWorkers]) -> dict[int, str]:
    """Node names of the spares, by their indexes behind the workers', ascending."""
    return dict(sorted((index, item.node) for item in spares for index in parse_indexes(item.indexes)))


Spares = Annotated[tuple[NodeWorkers, ...], Len(0, MAX_SPARES)]


class Attempt(Model):
    """An index whose pod was replaced within the placement."""

    index: Count
    """The worker's index."""
    attempt: Count
    """Number of its pod: 1 for the first replacement. Indexes that are not listed are at 0."""


def _by_index(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """As they are searched in, whoever wrote them; of an index that comes twice the first one counts."""
    return tuple(sorted(attempts, key=attrgetter("index")))


class Replacing(Model):
    """Workers of a running gang that were lost and are made anew alone, while the others wait in their pods."""

    indexes: Indexes
    """Their indexes in the gang, like `0-3,7`."""
    since: ClockTime
    """When the first of them was seen lost. The whole gang starts again when it has not come together soon after."""


class Placement(Model):
    """Where the gang runs, or is about to. Written before its pods are made; gone when the last of them is."""

    generation: Annotated[int, Ge(1), Int64()]
    """Counts the whole gang's placements, from 1."""
    workers: Annotated[int, Ge(1), Le(MAX_WORKERS)]
    """Number of workers in this placement."""
    nodes: Annotated[tuple[NodeWorkers, ...], Len(0, MAX_WORKERS)] = ()
    """The nodes, each with the indexes of its workers. Empty when `chunks` name them."""
    chunks: Annotated[tuple[ChunkName, ...], Len(0, 16)] = ()
    """ConfigMaps with the nodes of a large gang, a line each: name and indexes."""
    spares: Spares = ()
    """Where room is kept for `workers.spares`, with indexes that follow those of the workers."""
    attempts: Annotated[tuple[Attempt, ...], Len(0, MAX_WORKERS), AfterValidator(_by_index)] = ()
    """Indexes whose pods were replaced."""
    incarnation: Annotated[int, Ge(1), Int64()] | None = None
    """Counts who belonged to the gang, from 1: every round of replacements makes it one more. Absent for 1."""
    replacing: Replacing | None = None
    """Set while lost workers are replaced."""
    domain: Annotated[str, Len(0, 512)] = ""
    """The narrowest domain that holds the whole gang, for people: `rack rack-3`."""
    placed_at: ClockTime | None = None
    """When it was decided."""
    counted_at: ClockTime | None = None
    """Up to when `status.usage` has what it has used, where the number of its spares has changed since then. Absent
    where nothing of it is counted there yet."""
    queue: Annotated[str, Len(0, 63)] = ""
    """The TrainingQueue whose quota it holds."""
    flavour: Annotated[str, Len(0, 128)] = ""
    """The GPU type and kind of capacity whose quota it holds, like `H100/on-demand`, as long as its nodes do not say
    something else. Empty without GPUs."""
    gpus_per_worker: Count | None = None
    """GPUs of each worker, as the gang was placed with them: `workers.gpusPerWorker` may be edited while it stops."""
    spec: SpecHash = ""
    """Hash of the fields of the spec that keep their value while the placement stands. When they change nevertheless,
    the gang is stopped and starts again with the new ones."""
    pods: SpecHash = ""
    """Hash of the fields of the spec that its pods are made from, and that may be edited while it runs. Where they have
    changed no pod is made for it: it starts again whole."""
    base: Count | None = None
    """Of a gang with a safe base (`capacity.base`): how many workers, the first, are on that kind of capacity. Those
    behind them are on the other."""
    capacity: Annotated[str, Len(0, 32)] = ""
    """Of a job that names kinds of capacity: that of the gang's nodes, or of its base's."""
    beyond: Annotated[str, Len(0, 32)] = ""
    """The kind of capacity of the workers behind the base."""
    restarts: Count | None = None
    """How often the gang's processes were started again in its pods after a failure of the script. `status.failures`
    has them when it ends."""
    memory_restarts: Count | None = None
    """How many of these were for want of memory."""
    network_restarts: Count | None = None
    """How often they were after a failure of the network."""
    yields: bool = False
    """The gang was let in before its turn, and gives way as soon as the job that waited could start."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.chunks:
            self.node_of_index()
        if any(index >= self.workers for index in self.replaced):
            raise ValueError(f"status.placement replaces workers that it does not have: it has {self.workers}")
        return self

    @property
    def counts_from(self) -> datetime | None:
        """From when on its use is not in `status.usage` yet."""
        return self.counted_at or self.placed_at

    def settled(self) -> Self:
        """Without failures of the script in its pods: `status.failures` has them now."""
        return self.model_copy(update={"restarts": None, "memory_restarts": None})

    @classmethod
    def of(
        cls,
        generation: int,
        node_of_index: Sequence[str],
        *,
        attempts: Mapping[int, int] | None = None,
        spares: Sequence[str] = (),
        **fields: Any,
    ) -> Self:
        """The placement that puts worker i on `node_of_index[i]`, and spares on the nodes `spares`; `attempts` by
        index, 0 may be left out. `fields` are the other fields of the model."""
        return cls(
            generation=generation,
            workers=len(node_of_index),
            nodes=nodes_with_workers(node_of_index),
            spares=nodes_with_workers(spares, len(node_of_index)),
            attempts=tuple(
                Attempt(index=index, attempt=attempt) for index, attempt in sorted((attempts or {}).items()) if attempt
            ),
            **fields,
        )

    def node_of_index(self) -> tuple[str, ...]:
        """Node names by index. Raises ValueError when the placement does not name a node for every index."""
        return nodes_by_index(self.nodes, self.workers, "status.placement")

    @property
    def held(self) -> int:
        """Workers whose room it holds, spares included."""
        return self.workers + len(spares_by_index(self.spares))

    def gpus(self, each: int) -> int:
        """GPUs that it holds, spares' included.

        Args:
            each: of one worker by the spec: for a placement of an older operator, which does not say it itself.
        """
        return self.held * (each if self.gpus_per_worker is None else self.gpus_per_worker)

    @property
    def replaced(self) -> tuple[int, ...]:
        """Indexes of the workers that are being replaced."""
        return parse_indexes(self.replacing.indexes) if self.replacing is not None else ()

    def attempt_of(self, index: int) -> int:
        """Number of the pod of `index` within this placement, from 0. A turn asks for that of each pod, several times,
        and of a large gang hundreds may have been replaced."""
        at = bisect_left(self.attempts, index, key=attrgetter("index"))
        found = self.attempts[at] if at < len(self.attempts) else None
        return found.attempt if found is not None and found.index == index else 0


class Victim(Model):
    """A gang that is asked to give its room to the job."""

    uid: Annotated[str, Len(1, 64)]
    """UID of its TrainingJob."""
    generation: Annotated[int, Ge(1), Int64()]
    """The placement that it is asked to end; a later one of it is left alone."""
    reason: Annotated[str, Len(1, 64)]
    """Preempted, Reclaimed, Yielded, Shrunk, ...: why this gang."""
    lost: Annotated[int, Ge(0), Int64()] = 0
    """GPU-seconds that it costs: the work since its last committed checkpoint, and the restart."""
    nodes: Annotated[tuple[NodeWorkers, ...], Len(0, MAX_WORKERS)] = ()
    """Where it goes on with its new size; empty when it queues again."""
    spares: Spares = ()
    """Where room is kept for its spares then."""

    @property
    def onward(self) -> int:
        """Workers that it goes on with; 0 when it queues again."""
        return sum(len(parse_indexes(item.indexes)) for item in self.nodes)

    def places(self) -> tuple[str, ...]:
        """Node names where those and their spares go on, as of a `Promise`. Raises ValueError likewise."""
        nodes = nodes_by_index(self.nodes, self.onward, "status.promise.victims")
        return (*nodes, *spares_by_index(self.spares).values())


class Promise(Model):
    """Room that is kept for the job while others leave it. Written before any of them is told, so that nobody else
    takes it, whatever ends in between."""

    workers: Annotated[int, Ge(1), Le(MAX_WORKERS)]
    """Number of workers that start there."""
    nodes: Annotated[tuple[NodeWorkers, ...], Len(0, MAX_WORKERS)] = ()
    """The nodes, each with the indexes of its workers. Empty when `chunks` name them."""
    chunks: Annotated[tuple[ChunkName, ...], Len(0, 16)] = ()
    """ConfigMaps with the nodes of a large gang, a line each: name and indexes."""
    spares: Spares = ()
    """Where room is kept for `workers.spares`, with indexes that follow those of the workers."""
    victims: Annotated[tuple[Victim, ...], Len(0, MAX_WORKERS)] = ()
    """Who leaves them. Empty when `victimChunks` name them."""
    victim_chunks: Annotated[tuple[ChunkName, ...], Len(0, 64)] = ()
    """ConfigMaps with the victims where they are many, a line of JSON each."""
    queue: Annotated[str, Len(0, 63)] = ""
    """The TrainingQueue whose quota is held for the job."""
    flavour: Annotated[str, Len(0, 128)] = ""
    """The GPU type and kind of capacity whose quota is held, like `H100/on-demand`, as long as the nodes do not say
    something else. Empty without GPUs."""
    spec: SpecHash = ""
    """Hash of the fields of the spec that the promise was made for; when they change, it ends."""
    base: Count | None = None
    """As of a placement: how many workers, the first, are on the kind of capacity of `capacity.base`."""
    yields: bool = False
    """As of a placement: it starts, or has started, before its turn, and gives way as soon as the job that waited could
    start."""
    promised_at: Timestamp | None = None
    """When it was made."""

    def node_of_index(self) -> tuple[str, ...]:
        """Node names by index. Raises ValueError when the promise does not name a node for every index."""
        return nodes_by_index(self.nodes, self.workers, "status.promise")

    def places(self) -> tuple[str, ...]:
        """Node names of the workers by index, and behind them those of the spares. Raises ValueError likewise."""
        return (*self.node_of_index(), *spares_by_index(self.spares).values())


class Stop(Model):
    """The operator's recorded intent to end the placement, written before anything is done about it."""

    reason: Annotated[str, Len(1, 128)]
    """A condition reason: Preempted, Suspended, PodUnschedulable, PodRefused, ReadyTimeout, Restarting, ..."""
    message: Message = ""
    """What led to it."""
    requested_at: Timestamp
    """When it was decided."""
    beneficiary: Annotated[str, Len(0, 64)] = ""
    """UID of the job that gets the room, when it is ended for one."""
    lost: Annotated[int, Ge(0), Int64()] = 0
    """GPU-seconds that it costs, of lost work and the restart."""


class AvoidedNode(Model):
    """A node that the gang stays away from for a while."""

    node: NodeName
    """Name of the node."""
    reason: ShortMessage = ""
    """What went wrong there."""
    until: Timestamp
    """When it may be used again."""
