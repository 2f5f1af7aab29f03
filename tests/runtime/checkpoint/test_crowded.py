"""In a container that has no more threads a save is missed and told, and nothing else: the training goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from test_saver import keeper_of, restored

from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.holds import held, read_holds
from muster_protocol.checkpoints.retention import Retention
from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint import reader, spread, staging
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.tier import Tier
from muster_runtime.errors import StorageError
from muster_runtime.parallel.gang import Gang

TOLD = "no thread can be started (can't start new thread): its pod or node has reached its limit of processes"


@contextmanager
def crowded(spared: int = 0) -> Iterator[None]:
    """Only `spared` threads more can be started."""
    start, left = threading.Thread.start, spared

    def refuse(thread: threading.Thread) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        yield


def table(step: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((staging.SMALLEST,), float(step)), "state": torch.full((staging.SMALLEST,), -step)}


def save(keeper: Keeper, step: int) -> None:
    keeper.begin(table(step), step=step, trees={"model": {}}, run={"step": step}, late=["state"])
    keeper.saver.before_update()
    keeper.saver.step_over(seen=True)
    keeper.wait()


@pytest.mark.parametrize("keep_last", [None, 1])
def test_saves_are_missed_as_long_as_no_thread_can_be_started_for_them(
    opener: Callable[[], Store], keep_last: int | None
) -> None:
    store = opener()
    told: list[str] = []
    slots = (os.memfd_create("first"), os.memfd_create("second"))
    tier = Tier(SharedMemory(), slots, os.memfd_create("claim"), "me", sharers=None, warn=told.append)
    keeper = Keeper(
        store,
        Gang(),
        owner="job",
        job="job",
        retention=Retention(keep_last),
        warn=told.append,
        counted=lambda _: None,
        tier=tier,
    )
    keeper.claim()
    save(keeper, 1)
    missed = []
    for spared in range(8):
        with crowded(spared):
            try:
                save(keeper, 2 + spared)
            except StorageError as error:
                missed.append(str(error))
        assert keeper.in_flight is None
        latest = read_latest(store)
        assert latest is not None
        assert latest.latest.step == (1 if len(missed) > spared else 2 + spared)
    assert 1 <= len(missed) < 8
    assert all(TOLD in each for each in missed)
    save(keeper, 10)
    keeper.close()
    after = restored(opener(), table(0))
    assert all(after[name].equal(tensor) for name, tensor in table(10).items())
    assert all("neither counted nor deleted" in each for each in told)


def test_a_restore_for_which_no_thread_can_be_started_is_not_the_scripts_fault(
    opener: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_PAUSE_SECONDS", 0.0)
    keeper = keeper_of(opener())
    save(keeper, 1)
    keeper.close()
    again = keeper_of(opener())
    with crowded(), pytest.raises(StorageError, match="limit of processes"):
        again.restore(lambda _found, _reader: table(0))
    again.close()


def test_work_on_memory_is_done_by_the_threads_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "_threads", lambda: 4)
    for spared in range(4):
        with crowded(spared):
            assert sorted(spread.spread(lambda number: 2 * number, range(100))) == list(range(0, 200, 2))


def test_a_hold_that_nobody_can_renew_is_told_and_let_go_of(store: Store) -> None:
    told: list[str] = []
    with crowded(), held(store, "", "a reader", told.append):
        assert [hold.who for hold in read_holds(store)] == ["a reader"]
    assert "ends in 15 minutes, as it can't be renewed: can't start new thread" in told[0]
    assert read_holds(store) == []
