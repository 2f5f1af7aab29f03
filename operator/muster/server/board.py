"""What the operator's loop shows to the API: snapshots that nobody changes.

The loop feeds the board and publishes; the API's thread takes the last snapshot, whenever it wants. What is published
are frozen views and rows, in new tuples, so that neither thread ever sees what the other is changing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Final, Protocol

from muster.api.topology import Topology
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.views import NodeView, PodView
from muster.server.rows import JobRow

Key = tuple[str, str]

PUBLISH_SECONDS: Final = 1.0
"""Between two snapshots."""


@dataclass(frozen=True)
class Shown:
    """The cluster as the operator knew it at one moment. While no job has changed, `jobs` is the same object.

    Attributes:
        jobs: in no order.
    """

    at: datetime
    jobs: tuple[JobRow, ...]
    queues: tuple[TrainingQueue, ...]
    topology: Topology | None
    nodes: tuple[NodeView, ...]
    pods: tuple[PodView, ...]


class World(Protocol):
    """The part of the loop's cache that is read here."""

    @property
    def queues(self) -> Mapping[str, TrainingQueue]: ...
    @property
    def topologies(self) -> Mapping[str, Topology]: ...
    def nodes(self) -> Iterable[NodeView]: ...
    def pods(self) -> Iterable[PodView]: ...


class Board:
    """Written by the operator's loop alone.

    Attributes:
        shown: the last snapshot; None before the caches are full, and on a replica that stands by.
    """

    def __init__(self) -> None:
        self._rows: dict[Key, JobRow] = {}
        self._changed = True
        self.shown: Shown | None = None

    def job(self, key: Key, raw: Mapping[str, Any] | None) -> None:
        """A TrainingJob was seen, or (None) is gone."""
        before = self._rows.pop(key, None) if raw is None else self._rows.get(key)
        if raw is not None:
            row = JobRow.from_raw(raw)
            if before is not None and before.document == row.document:
                return  # of what has changed, a list shows nothing
            self._rows[key] = row
        self._changed = True

    def publish(self, world: World, topology: str) -> None:
        """`topology`: name of the one that the planner reads."""
        if self.shown is None or self._changed:
            jobs = tuple(self._rows.values())
        else:
            jobs = self.shown.jobs
        self._changed = False
        self.shown = Shown(
            datetime.now(timezone.utc),
            jobs,
            tuple(world.queues.values()),
            world.topologies.get(topology),
            tuple(world.nodes()),
            tuple(world.pods()),
        )

    async def run(self, world: World, topology: str) -> None:
        """Publish for ever."""
        while True:
            self.publish(world, topology)
            await asyncio.sleep(PUBLISH_SECONDS)
