"""Nodes that would suit and take no pods now, cordoned or not ready: in words, for those who wait for room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from muster.scheduling.amounts import counted, few
from muster.scheduling.gangs import Worker
from muster.scheduling.room import Room
from muster.scheduling.slots import count_slots
from muster.scheduling.snapshot import Int, Snapshot
from muster.scheduling.topology import Tree

_NAMED: Final = 3
"""Nodes that a sentence names. Few are mended by name; of a rack that is gone the number says enough."""


class Away:
    """The nodes that are away, for the workers of one plan."""

    def __init__(self, snapshot: Snapshot, tree: Tree, room: Room, workers: Sequence[Worker]) -> None:
        self._names, self._tree, self._room, self._workers = snapshot.nodes.names, tree, room, workers
        self._of_filter: dict[int, Int] = {}

    def of(self, worker: int) -> str:
        """All that would suit; there is one at least."""
        places = self._places(worker)
        return f"; {self._told(places, '')} cordoned or not ready{self._named(places)}"

    def with_room(self, worker: int) -> str:
        """Those that have room for a worker: a maintenance is told from a full cluster. "" where none has."""
        places = self._places(worker)
        if not len(places):
            return ""
        everywhere = np.ones(len(places), dtype=np.bool_)
        slots = count_slots(self._room.free[:, places], self._workers[worker], everywhere)
        there = places[slots > 0]
        if not len(there):
            return ""
        told = self._told(there, f" with room for {int(slots.sum())}")
        return f"; {told} cordoned or not ready{self._named(there)}"

    def _places(self, worker: int) -> Int:
        """In tree order."""
        which = self._workers[worker].filter
        if which not in self._of_filter:
            self._of_filter[which] = np.flatnonzero(self._room.eligible[which] & ~self._room.usable)
        return self._of_filter[which]

    @staticmethod
    def _told(places: Int, room: str) -> str:
        return f"{counted(len(places), 'suitable node')}{room} {'is' if len(places) == 1 else 'are'}"

    def _named(self, places: Int) -> str:
        shown = [self._names[node] for node in self._tree.order[places[:_NAMED]].tolist()]
        return f": {few(shown, len(places))}"
