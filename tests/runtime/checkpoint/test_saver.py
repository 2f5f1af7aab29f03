"""Saves beside the training: what is staged, who writes what, and what a plan is good for."""

from __future__ import annotations

import fcntl
import math
import os
import random
import signal
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import Held
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from muster_protocol.checkpoints.chain import Found
from muster_protocol.checkpoints.checks import named
from muster_protocol.checkpoints.cuts import cut, lies_together
from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.retention import Retention
from muster_protocol.checkpoints.store import Store
from muster_protocol.checkpoints.tensors import tensors_of
from muster_protocol.checkpoints.verify import damage
from muster_protocol.manifest import ShardFile
from muster_runtime.checkpoint import extents as of_extents
from muster_runtime.checkpoint import transfers
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.plan import Planner, cut_up
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.s3_store import S3Store
from muster_runtime.checkpoint.sums import combined, sums
from muster_runtime.checkpoint.tier import Tier
from muster_runtime.checkpoint.transfers import piece_bytes
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.data.foreign import pack, unpack
from muster_runtime.errors import StorageError
from muster_runtime.parallel.gang import Gang
from muster_runtime.session import rng

if TYPE_CHECKING:
    from conftest import S3Server


def keeper_of(store: Store) -> Keeper:
    made = Keeper(store, Gang(), owner="job", job="job", retention=Retention(), warn=lambda _: None)
    made.claim()
    return made


def begin(keeper: Keeper, table: TensorTable, step: int) -> None:
    keeper.begin(table, step=step, trees={}, run={"step": step})


def land(keeper: Keeper) -> int:
    """Boundaries until the save in flight is committed."""
    while True:
        saved = keeper.advance(**keeper.word()._asdict())
        if saved is not None:
            return saved.step


def restored(store: Store, like: TensorTable) -> TensorTable:
    tables: list[TensorTable] = []

    def prepare(found: Found, reader: Reader) -> TensorTable:
        tables.append({name: torch.full_like(tensor, 7) for name, tensor in like.items()})
        return tables[-1]

    assert keeper_of(store).restore(prepare) is not None
    return tables[-1]


def test_what_training_does_after_the_copy_is_not_in_the_checkpoint(store: Store) -> None:
    table = {"a": torch.arange(1000.0), "b": torch.ones(3, dtype=torch.int64)}
    before = {name: tensor.clone() for name, tensor in table.items()}
    keeper = keeper_of(store)
    held = Held(keeper._transfers)
    keeper.saver._transfers = held
    begin(keeper, table, 1)
    for tensor in table.values():
        tensor.zero_()
    assert keeper.word().busy
    assert keeper.advance(busy=True, failed=False, unsealed=True) is None
    held.let_go()
    assert land(keeper) == 1
    after = restored(store, table)
    assert all(after[name].equal(before[name]) for name in before)


def test_a_large_tensor_is_cut_into_chunks_each_whole_in_one_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("SMALLEST_PIECE", "LARGEST_PIECE"):
        monkeypatch.setattr(transfers, bound, 1 << 12)
    table = {
        "small": torch.rand(7),
        "large": torch.rand(129, 65),
        "wide": torch.rand(2, 3000),  # a row is larger than a piece
        "deep": torch.rand(2, 1, 3, 5000)[:, :, 1:],
        "none": torch.rand(0, 3),
        "number": torch.tensor(3.0),
        "last": torch.rand(3, 5).t(),
    }
    keeper = keeper_of(store)
    begin(keeper, table, 1)
    land(keeper)
    found = find_start(store, 1)
    sizes = {name: [chunk.length for chunk in tensor.chunks] for name, tensor in tensors_of(found.manifest).items()}
    assert sizes["large"] == [15 * 65 * 4] * 8 + [9 * 65 * 4]
    assert sizes["wide"] == [4096, 4096, 3808] * 2
    assert sizes["deep"] == [*[4096] * 4, 3616] * 4
    assert all(len(sizes[name]) == 1 for name in ("small", "none", "number", "last"))
    assert max(file.size for file in found.manifest.files) == 1 << 12
    assert list(damage(store, found)) == []
    after = restored(store, table)
    assert all(after[name].equal(tensor) for name, tensor in table.items())


def test_a_state_without_a_byte(store: Store) -> None:
    keeper = keeper_of(store)
    begin(keeper, {"none": torch.rand(0, 3)}, 1)
    land(keeper)
    assert list(damage(store, find_start(store, 1))) == []
    assert restored(store, {"none": torch.rand(0, 3)})["none"].shape == (0, 3)


@settings(deadline=None)  # a busy machine makes anybody wait
@given(st.binary(max_size=300), st.data())
def test_the_sum_of_a_file_follows_from_those_of_its_chunks(content: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    chunks = [(low, high - low) for low, high in zip(cuts[::2], cuts[1::2], strict=False)]
    block = data.draw(st.integers(1, 400))
    found = sums(memoryview(content), chunks, block)
    assert found.whole == zlib.crc32(content)
    assert found.chunks == [zlib.crc32(content[at : at + length]) for at, length in chunks]
    assert found.blocks == [zlib.crc32(content[at : at + block]) for at in range(0, len(content), block)]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)).map(sorted).map(tuple), max_size=6), st.integers(1, 100)
)
def test_what_is_fetched_of_a_file_is_all_that_is_wanted_and_can_be_checked(
    wanted: list[tuple[int, int]], size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_extents, "BLOCK_BYTES", 10)
        content = bytes(range(100, 100 + size))
        wanted = [(low, min(high, size)) for low, high in wanted if low < min(high, size)]
        file = ShardFile(
            "x", size, named(zlib.crc32(content)), "".join(map(named, sums(memoryview(content), [], 10).blocks))
        )
        found = of_extents.extents(file, wanted)
        bytes_of = [number for each in found for number in range(*each.run)]
        assert bytes_of == sorted(set(bytes_of)), "none twice, and in order"
        assert set(bytes_of) == {
            number for low, high in wanted for number in range(low // 10 * 10, min(size, -(-high // 10) * 10))
        }
        for each in found:
            low, high = each.run
            assert each.crc32 == named(zlib.crc32(content[low:high]))
            assert (each.start is None) == (each.size == size)
        assert of_extents.extents(replace(file, blocks=""), wanted) == [of_extents.whole(file)]


def test_the_sum_of_a_large_file_follows_from_those_of_its_chunks() -> None:
    first, second = bytes(range(256)) * 999, bytes((1 << 22) + 3)
    assert combined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_the_memory_is_used_again(store: Store) -> None:
    keeper = keeper_of(store)
    mapped = []
    for step in range(3):
        begin(keeper, {"a": torch.full((5000,), float(step))}, step)
        land(keeper)
        mapped.append((keeper._transfers.memory.size, keeper._transfers.memory.reserve(0).data_ptr()))
    assert len(set(mapped)) == 1, mapped


def test_a_shard_is_cut_by_rows_where_it_lies() -> None:
    where = ChunkStorageMetadata(torch.Size((8, 4)), torch.Size((5, 2)))
    data = TensorWriteData(where, TensorProperties(dtype=torch.float32), torch.Size((16, 8)))
    item = WriteItem(MetadataIndex("w", where.offsets), WriteItemType.SHARD, tensor_data=data)
    cuts = [(cut.index.offset, cut.tensor_data.chunk.sizes, at) for cut, at in cut_up(item, 16) if cut.tensor_data]
    assert cuts == [((8, 4), (2, 2), (0, 0)), ((10, 4), (2, 2), (2, 0)), ((12, 4), (1, 2), (4, 0))]
    assert list(cut_up(item, 40)) == [(item, (0, 0))]
    within = [(cut.index.offset, cut.tensor_data.chunk.sizes, at) for cut, at in cut_up(item, 4) if cut.tensor_data]
    assert within == [((8 + at // 2, 4 + at % 2), (1, 1), (at // 2, at % 2)) for at in range(10)]
    assert len(list(cut_up(item, 1))) == 10, "an item is the least"


@given(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 40))
def test_cuts_are_the_whole_box_in_order_and_none_is_too_large(sizes: list[int], most: int) -> None:
    whole = torch.arange(math.prod(sizes)).view(sizes)
    parts = []
    for offsets, lengths in cut(tuple(sizes), most):
        part = whole[tuple(slice(at, at + length) for at, length in zip(offsets, lengths, strict=True))]
        assert part.numel() <= most
        assert lies_together(lengths, tuple(sizes))
        parts.append(part.reshape(-1))
    assert torch.cat(parts).equal(whole.view(-1))


def test_a_box_lies_together_only_where_nothing_of_another_is_between() -> None:
    assert lies_together((), ())
    assert lies_together((2, 3), (4, 3))
    assert lies_together((1, 2), (4, 3))
    assert not lies_together((2, 2), (4, 3))
    assert not lies_together((1, 2, 3, 1), (1, 4, 3, 2))


def test_a_plan_is_made_once_for_each_structure(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    create = DefaultSavePlanner.create_global_plan

    def counted(self: DefaultSavePlanner, plans: list[SavePlan]) -> Any:
        made.append(len(plans))
        return create(self, plans)

    monkeypatch.setattr(DefaultSavePlanner, "create_global_plan", counted)
    keeper, other = keeper_of(store), Planner(Gang())
    for step in range(3):
        begin(keeper, {"a": torch.full((3,), float(step))}, step)
        land(keeper)
    assert len(made) == 1
    assert other.plan({"a": torch.ones(3)}), "plans are not shared between savers"
    begin(keeper, {"a": torch.ones(4)}, 3)
    land(keeper)
    assert len(made) == 3
    assert restored(store, {"a": torch.ones(4)})["a"].equal(torch.ones(4))


def test_what_a_script_draws_leaves_the_plan_as_it_is() -> None:
    planner, device = Planner(Gang()), torch.device("cpu")
    anew = []
    for _ in range(20):
        for _ in range(7):
            random.random()
            np.random.normal()
        states = rng.capture(device)
        anew.append(planner.plan({"a": torch.ones(3), "muster.rng.00000": states}))
    expected = random.random(), np.random.normal()
    rng.restore(states, device)
    assert (random.random(), np.random.normal()) == expected
    assert anew == [True] + [False] * 19


def test_the_state_of_a_foreign_loader_may_grow_a_little() -> None:
    sizes = {len(pack("loader", {"seen": seen, "name": "x" * 40})) for seen in (9, 10, 100, 1000)}
    assert len(sizes) == 1
    assert unpack("loader", pack("loader", {"at": torch.arange(3), 1: "é"}))["at"].equal(torch.arange(3))


class Replicas(Gang):
    """Four ranks that hold the same, as DDP's do; this is the first."""

    def sum(self, values: list[float]) -> list[float]:
        return [4 * value for value in values]

    def share_out(self, value: Any, work: Any) -> Any:
        self.shares.extend(work([value] * 4))
        return self.shares[0]

    @property
    def shares(self) -> list[Any]:
        found: list[Any] = self.__dict__.setdefault("_shares", [])
        return found


def test_replicas_split_the_work() -> None:
    gang = Replicas(0, 4)
    layer = {"weight": (512, 512), "bias": (512,)}
    table = {f"{n}.{name}": torch.zeros(shape) for n in range(40) for name, shape in layer.items()}
    Planner(gang).plan(table)
    sizes = [sum(item.tensor_storage_size() or 0 for item in plan.items) for plan, _ in gang.shares]
    assert sum(sizes) == sum(tensor.nbytes for tensor in table.values())
    assert max(sizes) < 1.05 * min(sizes), sizes


def test_what_replicas_share_is_cut_for_all_of_them() -> None:
    gang = Replicas(0, 4)
    planner = Planner(gang)
    planner.plan({"large": torch.empty(128, 1 << 20)})  # whose pages nobody touches
    sizes = [sum(item.tensor_storage_size() or 0 for item in plan.items) for plan, _ in gang.shares]
    assert max(sizes) < 1.1 * min(sizes), sizes
    assert len(planner.share.files) >= 12, "for all of a rank's connections to end at about the same time"


@pytest.mark.parametrize(
    ("state", "piece"),
    [(0, 4 << 20), (500_000_000, 31_250_000), (16 << 30, 64 << 20)],
    ids=["empty", "0.5 GB", "16 GiB"],
)
def test_pieces_are_neither_many_nor_large(state: int, piece: int) -> None:
    assert piece_bytes(state) == piece


def test_a_killed_writer_fails_its_save_alone(s3_environment: S3Server, tmp_path: Path) -> None:
    from muster_runtime.checkpoint.store import open_store

    store = open_store(f"s3://models/killed-{tmp_path.name}")
    assert isinstance(store, S3Store)
    keeper = keeper_of(store)
    begin(keeper, {"a": torch.ones(5)}, 1)
    land(keeper)
    os.kill(store.process.pid, signal.SIGSTOP)  # so that it is killed while it has work
    begin(keeper, {"a": torch.zeros(1 << 20)}, 2)
    os.kill(store.process.pid, signal.SIGKILL)
    with pytest.raises(StorageError, match="was killed"):
        land(keeper)
    assert find_start(store, None).manifest.step == 1
    begin(keeper, {"a": torch.full((5,), 3.0)}, 3)
    land(keeper)
    assert restored(store, {"a": torch.ones(5)})["a"].equal(torch.full((5,), 3.0))
    store.close()


def test_a_record_that_cannot_be_written_costs_the_copy_in_memory_alone(store: Store) -> None:
    data, first, second, claim = (os.memfd_create("test", os.MFD_ALLOW_SEALING) for _ in range(4))
    for record in (first, second):
        fcntl.fcntl(record, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    told: list[str] = []
    tier = Tier(SharedMemory(data), (first, second), claim, "me", sharers=None, warn=told.append)
    keeper = Keeper(store, Gang(), owner="job", job="job", retention=Retention(), warn=told.append, tier=tier)
    keeper.claim()
    begin(keeper, {"x": torch.arange(10)}, 1)
    assert land(keeper) == 1
    assert ["step 1 is not kept in memory" in text for text in told] == [True]
    keeper.close()
    for descriptor in (first, second, claim):
        os.close(descriptor)
