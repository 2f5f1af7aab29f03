"""An optimizer's state is copied beside the next step's passes, and a copy that may be torn never counts."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_saver import keeper_of, land, restored
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

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
    assert keeper.word().busy
    assert not gate.done.is_set()
    threading.Timer(0.05, gate.opened.set).start()
    keeper.saver.before_update()
    assert gate.done.is_set()
    table["optimizer.state.0.mean"].zero_()
    keeper.saver.step_over(seen=True)
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
    keeper.saver.step_over(seen=False)
    assert keeper.word().busy, "its memory is still being written to"
    gate.opened.set()
    with pytest.raises(TornSaveError, match="update was not seen"):
        keeper.wait()
    assert latest_step(store) is None
    before = begin(keeper, table, 2)
    keeper.saver.before_update()
    keeper.saver.step_over(seen=True)
    assert land(keeper) == 2
    assert restored(store, table)["optimizer.state.0.mean"].equal(before["optimizer.state.0.mean"])


def test_a_state_that_is_changed_between_two_updates_is_not_saved(store: Store, gate: Gate) -> None:
    keeper, table = keeper_of(store), state()
    begin(keeper, table, 1)
    table["optimizer.state.0.mean"].mul_(0.5)
    gate.opened.set()
    keeper.saver.before_update()
    keeper.saver.step_over(seen=True)
    with pytest.raises(TornSaveError, match="between two of its steps"):
        land(keeper)
    assert latest_step(store) is None


def test_updates_after_the_first_are_nobody_s_business(store: Store, gate: Gate) -> None:
    keeper, table = keeper_of(store), state()
    before = begin(keeper, table, 1)
    gate.opened.set()
    keeper.saver.before_update()
    table["optimizer.state.0.mean"].zero_()
    keeper.saver.step_over(seen=True)
    keeper.saver.step_over(seen=False)
    assert land(keeper) == 1
    assert restored(store, table)["optimizer.state.0.mean"].equal(before["optimizer.state.0.mean"])


def test_an_update_that_was_seen_does_not_speak_for_another(store: Store, gate: Gate) -> None:
    keeper, table = keeper_of(store), state()
    begin(keeper, table, 1)
    gate.opened.set()
    keeper.saver.before_update()
    assert keeper.saver.flight is not None
    assert keeper.saver.flight.handed_over
    keeper.saver.flight.files.result(30)
    assert keeper.word().busy, "the step isn't over"
    keeper.saver.step_over(seen=False)
    assert keeper.word()[:2] == (False, True)
    with pytest.raises(TornSaveError, match="update was not seen"):
        land(keeper)
    assert latest_step(store) is None


class Wrapped(torch.Tensor):
    """Has no memory of its own, like the states of optimizers with 8 bits."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [arg.inner if isinstance(arg, Wrapped) else arg for arg in args]
        made = op(*plain, **(kwargs or {}))
        return Wrapped(made) if op is torch.ops.aten.detach.default or op is torch.ops.aten.slice.Tensor else made


def test_what_is_more_than_its_bytes_is_copied_at_once(store: Store, gate: Gate) -> None:
    values = torch.rand(SMALLEST, dtype=torch.complex64)
    name, other = LATE[0], LATE[1]
    keeper = keeper_of(store)
    begin(keeper, {name: values.conj(), other: Wrapped(torch.ones(SMALLEST))}, 1)  # the gate is shut
    assert keeper.wait() is not None
    after = restored(store, {name: values, other: torch.ones(SMALLEST)})
    assert after[name].equal(values.conj().resolve_conj())
    assert after[other].equal(torch.ones(SMALLEST))


def test_what_is_more_than_its_bytes_is_restored_as_it_is(store: Store) -> None:
    values, turned = torch.rand(5, dtype=torch.complex64), torch.rand(5)
    table = {"conjugate": values.conj(), "negative": torch._neg_view(turned), "wrapped": Wrapped(turned)}
    keeper = keeper_of(store)
    keeper.begin(table, step=1, trees={}, run={"step": 1})
    assert keeper.wait() is not None
    memory = {"wrapped": torch.zeros(5), "negative": torch.zeros(5), "conjugate": torch.zeros(5, dtype=torch.complex64)}
    after = {
        "conjugate": memory["conjugate"].conj(),
        "negative": torch._neg_view(memory["negative"]),
        "wrapped": Wrapped(memory["wrapped"]),
    }
    assert keeper_of(store).restore(lambda *_: after) is not None
    assert memory["conjugate"].equal(values)
    assert memory["negative"].equal(turned)
    assert memory["wrapped"].equal(turned)


def test_a_change_of_a_dtensor_s_part_is_seen(store: Store, gate: Gate) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        keeper, mesh = keeper_of(store), init_device_mesh("cpu", (1,))
        state = distribute_tensor(torch.ones(SMALLEST), mesh, [Shard(0)])
        keeper.begin({LATE[0]: state}, step=1, trees={}, run={}, late=LATE)
        state.to_local().mul_(5)
        gate.opened.set()
        keeper.saver.before_update()
        keeper.saver.step_over(seen=True)
        with pytest.raises(TornSaveError, match="between two of its steps"):
            land(keeper)
    finally:
        dist.destroy_process_group()


def test_no_state_lives_on_for_a_save_that_is_over(store: Store) -> None:
    """An optimizer may make it anew in each step, and a GPU has no room for the old one."""
    keeper, gone = keeper_of(store), []
    for step in (1, 2):
        table: TensorTable = {LATE[0]: torch.rand(SMALLEST)}
        gone.append(weakref.ref(table[LATE[0]].untyped_storage()))
        begin(keeper, table, step)
        keeper.saver.before_update()
        keeper.wait()
        del table
    gc.collect()
    assert [each() for each in gone] == [None, None]
