"""A restore into tensors of a device: through few files' worth of the host's memory, to the last bit.

There is no GPU on most machines: there tensors of the host are taken for those of a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_saver import begin, keeper_of, land, restored

from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.manifest import BLOCK_BYTES
from muster_runtime.checkpoint import reader, transfers
from muster_runtime.checkpoint.reader import Wanted
from muster_runtime.checkpoint.tree import TensorTable
from muster_runtime.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from conftest import Opener

PIECE = 1 << 16
GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU (make test-gpu)"),
    ],
)


@pytest.fixture(params=["cpu", GPU])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(reader, "on_device", lambda target: target.numel() > 0)
    monkeypatch.setattr(transfers, "SMALLEST_PIECE", PIECE)
    monkeypatch.setattr(transfers, "LARGEST_PIECE", PIECE)
    return torch.device(request.param)


def state(device: torch.device) -> TensorTable:
    torch.manual_seed(0)
    return {
        "large": torch.rand(100, 1 << 12, device=device),
        "half": torch.rand(333, 77, device=device).bfloat16(),
        "turned": torch.rand(64, 200, device=device).t(),
        "flags": torch.rand(501, device=device) < 0.5,
        "complex": torch.rand(9, device=device, dtype=torch.complex64),
        "step": torch.tensor(7.0, device=device),
        "nothing": torch.empty(0, 3, device=device),
        "of the host": torch.rand(50, 50),
    }


def test_every_bit_comes_back(opener: Opener, device: torch.device) -> None:
    table = state(device)
    keeper = keeper_of(opener())
    begin(keeper, table, 1)
    land(keeper)
    after = restored(opener(), table)
    for name, tensor in table.items():
        assert after[name].device == tensor.device
        assert after[name].equal(tensor), name


def test_the_host_holds_a_few_files_at_once(
    opener: Opener, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, targets = state(device), list[int]()
    wanted_for = reader._wanted

    def noting(*given: Any) -> Wanted:
        wanted = wanted_for(*given)
        targets.append(wanted.target.data_ptr())
        return wanted

    monkeypatch.setattr(reader, "_wanted", noting)
    keeper = keeper_of(opener())
    begin(keeper, table, 1)
    land(keeper)
    other = keeper_of(opener())
    found = {name: torch.zeros_like(tensor) for name, tensor in table.items()}
    assert other.restore(lambda *_: found) is not None
    assert found["large"].equal(table["large"])
    of_their_own = {
        name for name, tensor in found.items() if any(0 <= at - tensor.data_ptr() < tensor.nbytes for at in targets)
    }
    assert of_their_own == table.keys() - {"nothing", "turned"}, "all others go on without memory between"
    files = sum(tensor.nbytes for tensor in table.values()) // PIECE
    assert other._transfers.memory.size <= (reader.WINDOW + 1) * PIECE < files * PIECE // 4


def test_a_large_file_comes_through_the_hosts_memory_in_parts(
    opener: Opener, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "SMALLEST_PIECE", 1 << 20)
    monkeypatch.setattr(transfers, "LARGEST_PIECE", 1 << 30)
    table = {
        "large": torch.rand(9, 1 << 20, device=device),
        "turned": torch.rand(1 << 10, 1 << 10, device=device).t(),
        "last": torch.rand(1 << 20, 2, device=device).bfloat16(),
    }
    keeper = keeper_of(opener())
    begin(keeper, table, 1)
    land(keeper)
    files = find_start(opener(), 1).manifest.files
    assert max(file.size for file in files) > BLOCK_BYTES, "of two blocks, each of which comes by itself"
    other = keeper_of(opener())
    found = {name: torch.zeros_like(tensor) for name, tensor in table.items()}
    assert other.restore(lambda *_: found) is not None
    assert all(found[name].equal(tensor) for name, tensor in table.items())
    assert other._transfers.memory.size <= (reader.WINDOW + 1) * BLOCK_BYTES


def test_what_is_damaged_is_not_taken(opener: Opener, device: torch.device) -> None:
    store = opener()
    table = state(device)
    keeper = keeper_of(store)
    begin(keeper, table, 1)
    land(keeper)
    key = [item.key for item in store.objects("") if item.key.endswith(".bin")][3]
    content = store.get(key)
    assert content is not None
    store.put(key, content.content[:-1] + bytes([content.content[-1] ^ 1]))
    with pytest.raises(CorruptCheckpointError, match=r"no checkpoint below .* is whole"):
        restored(opener(), table)
