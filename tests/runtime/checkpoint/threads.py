"""Gangs whose ranks are threads of one process: as many keepers on one store, with the exchanges of a real gang."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from made import Held

from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.retention import Retention
from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint.keeper import Keeper, Restore, Saved
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.parallel.gang import Gang

T = TypeVar("T")
U = TypeVar("U")
PATIENCE = 30.0
"""Seconds that a rank waits for the others before the test fails."""


class Board:
    """Where the ranks of one gang meet."""

    def __init__(self, ranks: int) -> None:
        self._values: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


@dataclass
class ThreadGang(Gang):
    board: Board = field(default_factory=lambda: Board(1))

    def gather(self, value: T) -> list[T]:
        return self.board.exchange(self.rank, value)

    def sum(self, values: list[float]) -> list[float]:
        return [sum(column) for column in zip(*self.gather(values), strict=True)]

    def on_leader(self, work: Callable[[], T]) -> T:
        return self._told(lambda: [work()] * self.world_size)

    def share_out(self, value: T, work: Callable[[list[T]], list[U]]) -> U:
        values = self.gather(value)
        return self._told(lambda: work(values))

    def _told(self, work: Callable[[], list[T]]) -> T:
        outcome: Any = None
        if self.leads:
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001 - raised again on every rank
                outcome = error
        outcome = self.gather(outcome)[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome[self.rank]  # type: ignore[no-any-return]


class Ranks:
    """A gang that has started. `stores` has one for each rank."""

    def __init__(self, stores: list[Store]) -> None:
        board = Board(len(stores))
        self.size = len(stores)
        gangs = [ThreadGang(rank, self.size, None, board) for rank in range(self.size)]
        self.keepers = [
            Keeper(store, gang, owner="job", job="job", retention=Retention(), warn=lambda _: None)
            for store, gang in zip(stores, gangs, strict=True)
        ]
        self.held = [Held(keeper._transfers) for keeper in self.keepers]
        for keeper, held in zip(self.keepers, self.held, strict=True):
            keeper.load = functools.partial(_load_alone, keeper)  # type: ignore[method-assign]
            keeper.saver._transfers = held
        self.all(Keeper.claim)
        self.epoch = self.keepers[0].latest.epoch

    def all(self, work: Callable[[Keeper], T]) -> list[T]:
        """`work` on every rank at once."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(work, keeper) for keeper in self.keepers]
        return [future.result() for future in futures]

    def restore(self) -> Found | None:
        """After looking at every tensor on every rank."""
        return self.all(self._restore)[0]

    def _restore(self, keeper: Keeper) -> Found | None:
        rank, tables = keeper._gang.rank, []

        def prepare(found: Found, reader: Reader) -> TensorTable:
            expected = state(found.manifest.step, found.manifest.epoch, rank)
            names = expected.keys() & reader.metadata.state_dict_metadata.keys()
            tables.append({name: torch.zeros_like(expected[name]) for name in names})
            return tables[-1]

        found = keeper.restore(prepare)
        if found is not None:
            expected = state(found.manifest.step, found.manifest.epoch, rank)
            assert "model" in tables[-1]
            assert all(tensor.equal(expected[name]) for name, tensor in tables[-1].items())
        return found

    def begin(self, step: int) -> None:
        """The state is staged; nothing of it is written before `write`."""
        self.all(lambda keeper: keeper.begin(state(step, self.epoch, keeper._gang.rank), step=step, trees={}, run={}))

    def write(self) -> None:
        for held in self.held:
            held.let_go()

    def boundary(self) -> Saved | None:
        """What is committed then. The commit that it starts is over when it returns, though nobody knows it yet."""

        def meet(keeper: Keeper) -> Saved | None:
            gang = keeper._gang
            busy, failed, _ = (any(gang.gather(said)) for said in keeper.word())
            return keeper.advance(busy=busy, failed=failed, unsealed=True)

        saved = self.all(meet)[0]
        flight = self.keepers[0].saver.flight
        commit: Future[Any] | None = flight.commit if flight else None
        if commit is not None:
            commit.exception(PATIENCE)
        return saved

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.close()


def _load_alone(keeper: Keeper, _: Store, found: Found, prepare: Restore) -> None:
    """Threads have no process group, by which the ranks of a node would share what they fetch."""
    keeper._load(Reader(keeper._transfers, found.manifest, Gang()), found, prepare)


def state(step: int, epoch: int, rank: int) -> TensorTable:
    """`model` is the same on all ranks, as with DDP; `own` is each rank's own, as its random state."""
    made = torch.Generator().manual_seed(1000 * step + epoch)
    return {"model": torch.rand(61, 33, generator=made), f"own.{rank}": torch.rand(rank + 3, generator=made)}
