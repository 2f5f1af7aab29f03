"""An optimizer's state is copied beside the next step's passes, and a copy that may be torn never counts."""

from __future__ import annotations

import threading

import pytest
import torch
from test_saver import keeper_of, land, restored

from muster_protocol.checkpoints.commit import read_latest
from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint import staging
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.staging import SMALLEST, Move
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.errors import TornSaveError

LATE = ("optimizer.state.0.mean", "optimizer.state.0.turned", "optimizer.state.0.step")


class Gate:
    """Holds up the copies that come late until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.done = threading.Event(), threading.Event()
        move = staging._move

        def held(moves: list[Move]) -> None:
            assert self.opened.wait(30)
            move(moves)
            self.done.set()

        monkeypatch.setattr(staging, "_move", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def state() -> TensorTable:
    return {
        "model.weight": torch.rand(SMALLEST),
        "optimizer.state.0.mean": torch.rand(2, SMALLEST),
        "optimizer.state.0.turned": torch.rand(SMALLEST, 2).t(),
        "optimizer.state.0.step": torch.tensor(3.0),
    }


def begin(keeper: Keeper, table: TensorTable, step: int) -> TensorTable:
    """What is to be in the checkpoint."""
    before = {name: tensor.clone() for name, tensor in table.items()}
    keeper.begin(table, step=step, trees={}, run={"step": step}, late=LATE)
    return before


def latest_step(store: Store) -> int | None:
    claim = read_latest(store)
    return claim.latest.step if claim is not None else None


def test_an_update_waits_for_what_is_copied_late(store: Store, gate: Gate) -> None:
    keeper, table = keeper_of(store), state()
    before = begin(keeper, table, 1)
    for name in ("model.weight", *LATE[1:]):  # these were copied at once: who is small, or lies in another order
        table[name].zero_()
    assert keeper.busy
    assert not gate.done.is_set()
    threading.Timer(0.05, gate.opened.set).start()
    keeper.before_update()
    assert gate.done.is_set()
    table["optimizer.state.0.mean"].zero_()
    assert land(keeper) == 1
    after = restored(store, table)
    assert all(after[name].equal(before[name]) for name in before)


def test_a_copy_that_was_done_early_needs_no_update(store: Store) -> None:
    keeper, table = keeper_of(store), state()
    before = begin(keeper, table, 1)
    assert keeper.wait() is not None  # between two steps, as at a run's end
    after = restored(store, table)
    assert all(after[name].equal(before[name]) for name in before)


def test_a_save_counts_only_if_the_next_update_was_seen(store: Store, gate: Gate) -> None:
    keeper, table = keeper_of(store), state()
    begin(keeper, table, 1)
    keeper.update_unseen()
    assert keeper.busy, "its memory is still being written to"
    gate.opened.set()
    with pytest.raises(TornSaveError, match="no optimizer's step was seen"):
        keeper.wait()
    assert latest_step(store) is None
    before = begin(keeper, table, 2)
    keeper.before_update()
    assert land(keeper) == 2
    assert restored(store, table)["optimizer.state.0.mean"].equal(before["optimizer.state.0.mean"])


def test_a_state_that_is_changed_between_two_updates_is_not_saved(store: Store, gate: Gate) -> None:
    keeper, table = keeper_of(store), state()
    begin(keeper, table, 1)
    table["optimizer.state.0.mean"].mul_(0.5)
    gate.opened.set()
    keeper.before_update()
    with pytest.raises(TornSaveError, match="between two of its steps"):
        land(keeper)
    assert latest_step(store) is None


def test_updates_after_the_first_are_nobody_s_business(store: Store, gate: Gate) -> None:
    keeper, table = keeper_of(store), state()
    before = begin(keeper, table, 1)
    gate.opened.set()
    keeper.before_update()
    table["optimizer.state.0.mean"].zero_()
    keeper.update_unseen()
    assert land(keeper) == 1
    assert restored(store, table)["optimizer.state.0.mean"].equal(before["optimizer.state.0.mean"])
