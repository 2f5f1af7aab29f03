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
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.retention import Retention
from muster_protocol.checkpoints.store import Store
from muster_runtime.checkpoint.keeper import Keeper, Restore, Saved
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.tree import TensorTable, local_part
from muster_runtime.parallel.gang import Gang

T = TypeVar("T")
U = TypeVar("U")
PATIENCE = 30.0
"""Seconds that a rank waits for the others before the test fails."""
SHAPES = {"model": (61, 33), "rows": (41, 60), "few": (2, 5)}


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
            expected = state(found.manifest.step, found.manifest.epoch, rank, self.size)
            names = [name for name in expected if reader.saved(name) is not None]
            tables.append({name: _blank(expected[name]) for name in names})
            return tables[-1]

        found = keeper.restore(prepare)
        if found is not None:
            expected = state(found.manifest.step, found.manifest.epoch, rank, self.size)
            assert SHAPES.keys() <= tables[-1].keys()
            assert all(local_part(each).equal(local_part(expected[name])) for name, each in tables[-1].items())
        return found

    def begin(self, step: int) -> None:
        """The state is staged; nothing of it is written before `write`."""

        def stage(keeper: Keeper) -> None:
            table = state(step, self.epoch, keeper._gang.rank, self.size)
            keeper.begin(table, step=step, trees={}, run={})

        self.all(stage)

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


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.blank() if isinstance(tensor, Rows) else torch.zeros_like(tensor)


def state(step: int, epoch: int, rank: int, ranks: int) -> TensorTable:
    """What one of so many ranks has: `model` is the same on all, as with DDP; `rows` and `few` are sharded, as with
    FSDP, `few` over some of them only; `own` is each rank's own, as its random state."""
    made = whole(step, epoch)
    sharded = {name: Rows.of(made[name], rank, ranks) for name in ("rows", "few")}
    return {"model": made["model"], **sharded, f"own.{rank}": own(step, epoch, rank)}


def whole(step: int, epoch: int) -> TensorTable:
    """What is the gang's, whatever its size."""
    made = torch.Generator().manual_seed(1000 * step + epoch)
    return {name: torch.rand(shape, generator=made) for name, shape in SHAPES.items()}


def own(step: int, epoch: int, rank: int) -> torch.Tensor:
    return torch.rand(rank + 3, generator=torch.Generator().manual_seed(1000 * step + epoch + (rank + 1) * 10**6))


class Rows(torch.Tensor):
    """The rows of a tensor that one rank has, as a DTensor's. Those need a process group, which threads have not."""

    local: torch.Tensor
    first: int

    @classmethod
    def of(cls, tensor: torch.Tensor, rank: int, ranks: int) -> Rows:
        rows = -(-len(tensor) // ranks)
        first = min(rank * rows, len(tensor))
        return cls._with(tensor[first : first + rows], first, tensor.shape)

    @classmethod
    def _with(cls, local: torch.Tensor, first: int, shape: torch.Size) -> Rows:
        made: Rows = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=local.dtype)  # type: ignore[attr-defined]
        made.local, made.first = local, first
        return made

    def blank(self) -> Rows:
        return self._with(torch.zeros_like(self.local), self.first, self.shape)

    def to_local(self) -> torch.Tensor:
        return self.local

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{operation} of a whole of which this rank has some rows")

    # What torch's planners ask DTensors for.

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size((self.first, *(0 for _ in self.shape[1:]))), self.local.shape)]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        (chunk,) = self.__create_chunk_list__()
        data = TensorWriteData(chunk, TensorProperties.create_from_tensor(self.local), self.shape)
        return [WriteItem(MetadataIndex(name, chunk.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __get_tensor_shard__(self, _: MetadataIndex) -> torch.Tensor:
        return self.local
