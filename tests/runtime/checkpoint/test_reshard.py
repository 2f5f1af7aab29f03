"""What a restore fetches when the run goes on with other shards, or on other nodes: what its node needs, and once."""

from __future__ import annotations

import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hack.s3server import S3Server
from proxy import Act, Handler, Proxy

from muster_protocol.manifest import BLOCK_BYTES

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "session"))
from gangs import run_gang

LARGE: Final = 16 << 20
"""Bytes of each of the two large tensors, of 1,024 rows, and of an object."""
SMALL: Final = 4000

SCRIPT: Final = f"""
import os
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
node = os.environ["AWS_SDK_UA_APP_ID"] = os.environ["NODES"][rank]  # the log of requests has it
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from muster_protocol.checkpoints.retention import Retention
from muster_runtime.checkpoint import reader, transfers
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.store import open_store
from muster_runtime.parallel.gang import Gang

transfers.SMALLEST_PIECE = {LARGE}
reader.node = lambda: node
dist.init_process_group("gloo")
gang, mesh = Gang(rank, size, dist.group.WORLD), init_device_mesh("cpu", (size,))
values = torch.arange(2 * {LARGE} // 4, dtype=torch.float32).view(2, 1024, -1)
whole = {{"a": values[0], "b": values[1]}}
spread = os.environ["PLACEMENT"]
placements = [Replicate() if spread == "replicas" else Shard(("rows", "columns").index(spread))]
state = {{name: distribute_tensor(tensor, mesh, placements) for name, tensor in whole.items()}}
state["small"] = torch.arange({SMALL} // 4, dtype=torch.float32)
keeper = Keeper(open_store(os.environ["URI"]), gang, owner="job", job="job", retention=Retention(), warn=print)
keeper.claim()
if os.environ["WORK"] == "save":
    keeper.begin(state, step=1, trees={{}}, run={{}})
    keeper.wait()
else:
    found = {{name: torch.zeros_like(tensor) for name, tensor in state.items()}}
    assert keeper.restore(lambda *_: found) is not None
    local = lambda tensor: getattr(tensor, "to_local", lambda: tensor)()
    assert all(local(found[name]).equal(local(tensor)) for name, tensor in state.items())
keeper.close()
dist.destroy_process_group()
"""


class Counting(Proxy):
    """Notes which bytes of shards it has sent, by the node that has asked."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.sent: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        """Key, first byte, and the byte after the last."""

    def act_for(self, request: str) -> Act:
        return self._count

    def _count(self, handler: Handler) -> None:
        answer, content = handler.ask()
        if handler.command == "GET" and handler.path.endswith(".bin"):
            found = re.fullmatch(r"bytes=(\d+)-\d+", handler.headers.get("Range", "bytes=0-0"))
            (node,) = re.findall(r" app/(\w)", handler.headers["User-Agent"])
            assert found is not None
            start = int(found[1])
            self.sent[node].append((handler.path, start, start + len(content)))
        handler.answer(answer.status, answer.getheaders(), content)


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Counting]:
    made = Counting(s3_server.endpoint)
    yield made
    made.shutdown()
    made.server_close()


def gang(server: S3Server, proxy: Proxy, folder: Path, work: str, name: str, placement: str, nodes: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reshard.py").write_text(SCRIPT)
    where = {"AWS_ENDPOINT_URL_S3": proxy.endpoint, "URI": f"s3://models/reshard-{name}"}
    environment = {**server.environment(), **where, "WORK": work, "PLACEMENT": placement, "NODES": nodes}
    run_gang(folder / "reshard.py", folder, len(nodes), environment, seconds=200).check()


@pytest.fixture(scope="module")
def saved(s3_server: S3Server, proxy: Counting, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name, placement, nodes in (("ddp", "replicas", "ab"), ("fsdp", "rows", "abcd")):
        gang(s3_server, proxy, tmp_path_factory.mktemp(name), "save", name, placement, nodes)


@pytest.mark.usefixtures("saved")
@pytest.mark.parametrize(
    ("name", "placement", "nodes", "share"),
    [
        ("ddp", "replicas", "aabb", 1.0),
        ("ddp", "rows", "abcd", 1 / 4),
        ("ddp", "rows", "abc", 1 / 3),
        ("ddp", "rows", "aabb", 1 / 2),
        ("ddp", "columns", "ab", 1.0),  # a bit of each row
        ("fsdp", "rows", "ab", 1 / 2),
        ("fsdp", "rows", "abc", 1 / 3),
        ("fsdp", "replicas", "aab", 1.0),
    ],
)
def test_a_node_fetches_what_it_needs_and_each_byte_once(
    name: str, placement: str, nodes: str, share: float, s3_server: S3Server, proxy: Counting, tmp_path: Path
) -> None:
    proxy.sent.clear()
    gang(s3_server, proxy, tmp_path, "restore", name, placement, nodes)
    assert set(proxy.sent) == set(nodes)
    for node, sent in proxy.sent.items():
        runs = sorted(sent)
        assert all(one[0] != other[0] or one[2] <= other[1] for one, other in itertools.pairwise(runs)), node
        fetched, needed = sum(end - start for _, start, end in runs), 2 * LARGE * share + SMALL
        least = needed - 2 * len(nodes) * LARGE / 1024  # 1,024 rows are not always divided evenly
        assert least <= fetched <= needed + 4 * BLOCK_BYTES, f"node {node}: at most two blocks more for each tensor"
