"""Ranks of one node fetch what they all need once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
import torch
from hack.s3server import serving

from muster_protocol.manifest import BLOCK_BYTES
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.checkpoint.node import read_into

pytestmark = pytest.mark.runtime
RANKS: Final = 3
SCRIPT: Final = """
import os, sys
import torch, torch.distributed as dist
from muster_protocol.checkpoints.retention import Retention
from muster_runtime.checkpoint import reader, transfers
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.store import open_store
from muster_runtime.parallel.gang import Gang

in_parts = "IN_PARTS" in os.environ
transfers.SMALLEST_PIECE = 3 << 20 if in_parts else 1 << 14
if "ON_A_DEVICE" in os.environ:  # tensors of the host are taken for those of a GPU
    reader.on_device, reader._SCRATCH = lambda target: True, 1000
dist.init_process_group("gloo")
rank = dist.get_rank()
gang = Gang(rank, dist.get_world_size(), dist.group.WORLD)
torch.manual_seed(0)
shape = (768, 1024) if in_parts else (100, 100)
shared = {f"weight.{number}": torch.rand(shape) for number in range(4 if in_parts else 20)}
table = {**shared, f"own.{rank}": torch.full((100,), float(rank))}


def opened():
    store = open_store("s3://models/run")
    keeper = Keeper(store, gang, owner="job", job="job", retention=Retention(), warn=print)
    keeper.claim()
    return keeper


keeper = opened()
keeper.begin(table, step=1, trees={}, run={})
keeper.wait()
keeper.close()
found = {name: torch.empty_like(tensor) for name, tensor in table.items()}
transfers.SMALLEST_PIECE = 1 << 14  # smaller than a block, so of no more than one at once
keeper = opened()
assert keeper.restore(lambda *_: found) is not None
keeper.close()
assert all(found[name].equal(tensor) for name, tensor in table.items())
dist.destroy_process_group()
"""


AGAIN: Final = """
import torch.distributed as dist
from muster_runtime.checkpoint.node import gang_of
from muster_runtime.errors import StorageError

dist.init_process_group("gloo")
rank, everyone = dist.get_rank(), list(range(dist.get_world_size()))
groups = []


def enter(error=None):
    with gang_of(everyone) as neighbours:
        groups.append(neighbours.group)
        assert neighbours.gather(rank) == everyone
        if error is not None:
            raise error


enter()
try:
    enter(StorageError("Network", "the gang has agreed on it"))
except StorageError:
    enter()
assert all(group is groups[0] for group in groups), "each restore, and each try of one, has the same group"
groups.clear()
if rank:  # they learn that rank 0 is gone, and don't wait for it
    try:
        with gang_of(everyone) as neighbours:
            neighbours.gather(rank)
    except RuntimeError:
        pass
    else:
        raise AssertionError
else:
    try:
        with gang_of(everyone):
            raise EOFError
    except EOFError:
        pass
dist.destroy_process_group()
"""


def run_gang(environment: dict[str, str], script: str = SCRIPT) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
    ranks = [
        subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **environment, **where, "RANK": str(rank)})
        for rank in range(RANKS)
    ]
    assert [rank.wait() for rank in ranks] == [0] * RANKS


@pytest.mark.parametrize(
    "more",
    [{}, {"ON_A_DEVICE": "1"}, {"IN_PARTS": "1"}, {"IN_PARTS": "1", "ON_A_DEVICE": "1"}],
    ids=["host", "device", "host in parts", "device in parts"],
)
def test_what_all_ranks_need_comes_from_s3_once(more: dict[str, str], tmp_path: Path) -> None:
    log, objects = tmp_path / "requests.log", tmp_path / "objects"
    objects.mkdir()
    with serving(objects, log=log) as server:
        run_gang(server.environment(**more))
        stored = {str(path.relative_to(objects / "models")): path.stat().st_size for path in objects.rglob("*.bin")}
    requests = [line.split() for line in log.read_text().splitlines()[1:]]
    assert len(stored) > RANKS

    def asked(kind: str) -> Counter[str]:
        return Counter(each[8] for each in requests if each[7] == kind and each[8] in stored)

    assert asked("s3_PutObject") == dict.fromkeys(stored, 1)
    assert asked("s3_GetObject") == {key: -(-size // BLOCK_BYTES) for key, size in stored.items()}
    assert (max(stored.values()) > BLOCK_BYTES) == ("IN_PARTS" in more)


def test_ranks_of_one_node_have_one_group_that_ends_where_one_of_them_fails() -> None:
    run_gang({}, AGAIN)


def test_another_ranks_memory_is_read_and_never_past_its_end() -> None:
    memory = SharedMemory()
    memory.reserve(100).copy_(torch.arange(100, dtype=torch.uint8))
    target = torch.zeros(20, dtype=torch.uint8)
    read_into(target[5:15], memory.descriptor, 90)
    assert target.tolist() == [0] * 5 + list(range(90, 100)) + [0] * 5
    with pytest.raises(EOFError, match="ends at byte 100"):
        read_into(target, memory.descriptor, 90)
    memory.close()
