"""Workers that no node tells apart are counted once: what each of them finds must be what it would find alone."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from muster.scheduling import room as rooms
from muster.scheduling.families import families
from muster.scheduling.gangs import Worker
from muster.scheduling.room import Room
from muster.scheduling.slots import Taken, count_slots
from muster.scheduling.topology import Tree

from .cases import CPU, GIB, GPU, MEMORY, RESOURCES, Node, snapshot

pytestmark = pytest.mark.unit
thorough = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

NODES = 12


@st.composite
def workers(draw: st.DrawFn) -> list[Worker]:
    """So many that families are looked for; of most nodes GPUs run out first, of some memory."""
    each = st.tuples(st.integers(0, 4), st.sampled_from([10, 11, 12, 60, 61, 200]), st.integers(1, 9))
    asks = draw(st.lists(each, min_size=rooms._VARIED, max_size=rooms._VARIED + 8))
    return [_worker(gpus, gib, cores) for gpus, gib, cores in asks]


def _worker(gpus: int, gib: int, cores: int) -> Worker:
    asks = [(CPU, cores * 1000), (MEMORY, gib * GIB), *([(GPU, gpus)] if gpus else [])]
    return Worker(tuple(asks), 0, gpus > 0)


def _room(asked: list[Worker], gib: list[int]) -> Room:
    world = snapshot([Node(f"n{index}", gib=each) for index, each in enumerate(gib)], [])
    return Room(world, Tree(world.nodes.domains, world.levels), asked)


def _alone(room: Room, worker: Worker) -> list[int]:
    return count_slots(room.open, worker, room.eligible[worker.filter] & room.usable).tolist()


@thorough
@given(
    workers(),
    st.lists(st.sampled_from([64, 512, 2048]), min_size=NODES, max_size=NODES),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, NODES - 1), st.integers(0, 4)), max_size=12),
    st.booleans(),
)
def test_each_worker_finds_what_it_would_find_alone(
    asked: list[Worker], gib: list[int], steps: list[tuple[int, int, int]], sparse: bool
) -> None:
    """However room shrinks, by what is taken (1 to 4 places) and what is kept (0), in a room and in its twin."""
    with patch.multiple(rooms, _LARGE=1 if sparse else 1024, _SPARSE=1.0, _FEW=2):
        room = _room(asked, gib)
        both = [room, room.twin()]
        shared = len(room._family_of)
        for step, (number, place, count) in enumerate(steps):
            at = number % len(asked)
            for each in both[step % 3 == 2 :]:
                if count:
                    places = np.arange(place, min(NODES, place + count))
                    slots = each.slots(at).everywhere()[places]
                    each.take(at, Taken(places[slots > 0], np.ones(int((slots > 0).sum()), dtype=np.int64)))
                else:
                    each.keep(at, np.arange(NODES) == place)
                for index, worker in enumerate(asked):
                    assert each.slots(index).everywhere().tolist() == _alone(each, worker)
        event(f"families {'fell' if len(room._family_of) < shared else 'stayed'}")


def test_workers_with_as_many_accelerators_are_a_family() -> None:
    asked = [_worker(4, 60, 2), _worker(4, 61, 1), _worker(8, 60, 2), _worker(0, 60, 2), _worker(0, 61, 2)]
    found = families(asked, RESOURCES)
    assert set(found) == {0, 1}, "one GPU count has one member, and workers without GPUs differ in what runs out first"
    assert found[0] is found[1]
    assert (found[0].least, found[0].most) == (_worker(4, 60, 1), _worker(4, 61, 2))
