"""Hands what the operator sees to the history: of jobs in their turns, of pods and nodes when they change.

It costs a turn a comparison, and the loop never waits for it. What was put of each job that exists stays here, so that
a whole picture can be given at any time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from muster.cluster.gpus import capacity_of, gpu_type_of
from muster.cluster.views import NodeView, PodView
from muster.controllers.books import GPUS
from muster.controllers.cache import Cache, Owner
from muster.controllers.records import Record
from muster.controllers.sight import End, Flavour, PodOf, Sight
from muster.controllers.sightings import Seen, gone, look
from muster.controllers.stored import Left, left_by
from muster.controllers.work import utc_now
from muster.sizing.slices import sliced
from muster.telemetry.cost.intervals import PoolInterval
from muster.telemetry.history.rows import Row

if TYPE_CHECKING:
    from muster.telemetry.history.writer import Writer

ROUND: Final = 1.0
"""Seconds that rows gather before they are written."""
BEAT: Final = timedelta(seconds=30)
"""Time after which it is written up to when the cluster was seen, though nothing is new."""
UNOWNED: Final = timedelta(minutes=10)
"""Time for which ends of pods are kept whose job is not known: it may be about to be seen, or be gone."""


class Chronicle:
    """On the loop's thread; the writer has its own."""

    def __init__(self, cache: Cache, writer: Writer) -> None:
        self._cache, self._writer = cache, writer
        self._seen: dict[str, Seen] = {}
        self._finished: dict[Owner, dict[PodOf, End]] = {}
        self._left: dict[Owner, Left] = {}
        self._flavours: dict[str, tuple[NodeView, Flavour, Mapping[Flavour, int]]] = {}
        self._pools: dict[Flavour, PoolInterval] = {}
        self._nodes_changed = True
        self._all_seen = False
        self._news = False
        self._beat = utc_now()

    # -- fed -----------------------------------------------------------------------------------------------------------

    def on_pod(self, pod: PodView | None, now: datetime) -> None:
        """A pod was seen. Its end is noted at once: it may be gone before its job has a turn."""
        if pod is None or pod.finished is None or not pod.job or not pod.owner_uid:
            return
        owner, key = (pod.namespace, pod.owner_uid), (pod.generation, pod.index, pod.attempt)
        ends = self._finished.setdefault(owner, {})
        if key not in ends or ends[key].at != pod.finished:
            ends[key] = End(pod.finished, now)
            left = left_by(pod)
            if left is not None:
                self._left[owner] = max(left, self._left.get(owner, left))

    def on_node(self) -> None:
        """A node has come, changed or gone."""
        self._nodes_changed = True

    def see(self, record: Record, pods: tuple[PodView, ...], now: datetime) -> None:
        """A job has a turn."""
        owner, before = record.owner, self._seen.get(record.uid)
        seen, rows = look(before, self._sight(record, pods, now))
        self._seen[record.uid] = seen
        self._put(rows)
        attempt = seen.attempt
        if owner in self._finished and (before is None or before.attempt != attempt) and attempt is not None:
            # Of placements that are over nobody asks again.
            first = attempt.attempt if attempt.ended_at is None else attempt.attempt + 1
            self._finished[owner] = {pod: end for pod, end in self._finished[owner].items() if pod[0] >= first}

    def all_seen(self) -> None:
        """Every job that exists was seen since the start."""
        self._all_seen = True

    def forget(self, record: Record, now: datetime) -> None:
        """A job is gone, and all its pods."""
        seen = self._seen.pop(record.uid, None)
        if seen is not None:
            self._put(gone(seen, self._sight(record, (), now)))
        self._drop(record.owner)

    def forget_ended(self, uid: str, now: datetime) -> None:
        """The object of a job is gone that had ended and held nothing."""
        seen = self._seen.pop(uid, None)
        if seen is not None:
            self._put([replace(seen.job, deleted_at=now)])
            self._drop((seen.job.namespace, uid))

    def _drop(self, owner: Owner) -> None:
        self._finished.pop(owner, None)
        self._left.pop(owner, None)

    # -- written -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Have it written, for ever."""
        while True:
            await asyncio.sleep(ROUND)
            self.write(utc_now())

    def write(self, now: datetime) -> None:
        """Hand on what is new, and that all of it is how the cluster is `now`."""
        if not self._all_seen:
            return
        if self._nodes_changed:
            self._nodes_changed = False
            self._put(self._changed_pools(now))
        if self._writer.wants_picture:
            self._writer.put(row for seen in self._seen.values() for row in seen.open())
            self._writer.put(self._pools.values())
            self._writer.picture(now)
        elif self._news or now - self._beat >= BEAT:
            self._writer.seen(now)
        else:
            return
        self._beat, self._news = now, False
        for owner in [one for one, ends in self._finished.items() if one[1] not in self._seen and _old(ends, now)]:
            self._drop(owner)  # what is told of pods after their job is gone would stay for ever

    def _put(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        if rows:
            self._writer.put(rows)
            self._news = True

    def _sight(self, record: Record, pods: tuple[PodView, ...], now: datetime) -> Sight:
        placement = record.job.status.placement
        current = placement is not None and record.launcher_generation == placement.generation
        return Sight(
            record.job,
            record.spec,
            now,
            pods,
            self._finished.get(record.owner, {}),
            self._flavour_of,
            record.launcher if current else None,
            record.deleted,
            self._left.get(record.owner),
        )

    def _flavour_of(self, name: str) -> Flavour:
        node = self._cache.node(name)
        return ("", "") if node is None else self._look_at(node)[0]

    def _look_at(self, node: NodeView) -> tuple[Flavour, Mapping[Flavour, int]]:
        """The node's flavour, and its GPUs and slices of GPUs, each by their own."""
        known = self._flavours.get(node.name)
        if known is None or known[0] is not node:
            flavour = gpu_type_of(node.labels), capacity_of(node.labels)
            has = Counter[Flavour]()
            for resource, number in node.allocatable:
                kind = sliced(resource, flavour[0])
                if number and (kind or resource in GPUS):
                    has[kind or flavour[0], flavour[1]] += number
            known = self._flavours[node.name] = node, flavour, has
        return known[1], known[2]

    def _changed_pools(self, now: datetime) -> list[Row]:
        """Of GPUs that nodes have, whether they are ready or not."""
        nodes, totals = self._cache.nodes(), dict[Flavour, int]()
        for node in nodes:
            for flavour, gpus in self._look_at(node)[1].items():
                totals[flavour] = totals.get(flavour, 0) + gpus
        names = {node.name for node in nodes}
        self._flavours = {name: known for name, known in self._flavours.items() if name in names}
        rows: list[Row] = []
        for flavour in {*totals, *self._pools}:
            before, gpus = self._pools.get(flavour), totals.get(flavour, 0)
            if (before.gpus if before is not None else 0) == gpus:
                continue
            if before is not None:
                rows.append(replace(before, ends=now))
                del self._pools[flavour]
            if gpus:
                self._pools[flavour] = PoolInterval(*flavour, gpus, now)
                rows.append(self._pools[flavour])
        return rows


def _old(ends: Mapping[PodOf, End], now: datetime) -> bool:
    return all(now - end.heard > UNOWNED for end in ends.values())
