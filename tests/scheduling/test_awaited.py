"""Whether a job that moves leaves less quota to a queue that waits, against asking each of those queues."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.scheduling.awaited import Awaited
from muster.scheduling.quota import Ledger
from muster.scheduling.snapshot import Snapshot

from .cases import CPU, GPU, Job, Node, Queue, snapshot
from .worlds import trees

pytestmark = pytest.mark.unit

H100 = 1


def asked_one_by_one(ledger: Ledger, queue: int, need: list[tuple[int, int]], waiting: set[int]) -> bool:
    before = [ledger.left(each, H100, passing=True) for each in waiting]
    ledger.charge(queue, H100, need)
    after = [ledger.left(each, H100, passing=True) for each in waiting]
    ledger.discharge(queue, H100, need)
    return before != after


@settings(max_examples=400, deadline=None)
@given(world=trees(), data=st.data())
def test_nobody_loses_but_who_is_left_less_than_before(world: Snapshot, data: st.DataObject) -> None:
    ledger = Ledger(world.queues, world.jobs)
    rows = st.integers(0, len(world.queues.names) - 1)
    queues = data.draw(st.sets(rows, min_size=1))
    waiting = {
        (ledger.circle(row), H100): {o for o in queues if ledger.circle(o) == ledger.circle(row)} for row in queues
    }
    if data.draw(st.booleans()):
        ledger.hold_back(min(queues), H100)
    awaited = Awaited(ledger, waiting)
    for _ in range(6):
        queue, need = data.draw(rows), [(CPU, 1), (GPU, data.draw(st.integers(1, 6)))]
        beside = waiting.get((ledger.circle(queue), H100), set())
        assert awaited.would_lose(queue, H100, need) is asked_one_by_one(ledger, queue, need, beside)
        if data.draw(st.booleans()):
            ledger.charge(queue, H100, need)
            awaited.changed(queue)


def test_those_who_wait_are_looked_through_once_for_all_who_could_move(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [Queue(f"queue-{index}", gpus=8, cohort=0) for index in range(100)]
    world = snapshot([Node("large", gpus=1000)], [Job("any", queue="queue-0")], queues)
    ledger = Ledger(world.queues, world.jobs)
    awaited = Awaited(ledger, {(ledger.circle(0), H100): set(range(100))})
    looks, margins = [], Ledger.margins

    def counted(of: Ledger, queue: int, flavour: int, resource: int) -> tuple[int, int]:
        looks.append(queue)
        return margins(of, queue, flavour, resource)

    monkeypatch.setattr(Ledger, "margins", counted)
    assert all(awaited.would_lose(queue, H100, [(GPU, 8)]) for queue in range(100))
    assert len(looks) < 1_000, "a hundred queues on a way of two, and each of a hundred that could move on its own way"
