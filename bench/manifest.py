"""What a checkpoint of many ranks takes of one rank's interpreter: rank 0's for its manifest, beside the training, and
any rank's to plan what it reads of it.

    python bench/manifest.py --ranks 64 --tensors 2100

Beside the processor time stands how long a thread that wants the interpreter every half millisecond, as a training loop
does, had to wait for it at most.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, cast

import torch

from muster_protocol.manifest import Manifest, ShardFile, decode_manifest, encode
from muster_runtime.checkpoint.layout import WithSums
from muster_runtime.checkpoint.reader import Reader
from muster_runtime.checkpoint.reads import reads, saved_tensor
from muster_runtime.checkpoint.s3_store import Landed
from muster_runtime.checkpoint.transfers import Transfers
from muster_runtime.parallel.gang import Gang
from report import report

ROWS: Final = 4
WIDTH: Final = 8
CHUNK: Final = ROWS * WIDTH * 4
FILES: Final = 32
"""Of each rank."""


def saved(ranks: int, tensors: int) -> tuple[dict[str, Any], list[Landed]]:
    """What rank 0 has of a save by FSDP: each tensor cut by rows over the ranks; and what they all have written."""
    a_file = -(-tensors // FILES)
    names = {number: f"model.layers.{number}.self_attn.q_proj.weight" for number in range(tensors)}
    planned = {
        name: {
            "dtype": "float32",
            "shape": [ranks * ROWS, WIDTH],
            "chunks": [
                {
                    "offsets": [rank * ROWS, 0],
                    "sizes": [ROWS, WIDTH],
                    "file": rank * FILES + number // a_file,
                    "at": number % a_file * CHUNK,
                }
                for rank in range(ranks)
            ],
        }
        for number, name in names.items()
    }
    sums = {at * CHUNK: "01234567" for at in range(a_file)}
    landed = [
        Landed(ShardFile(f"step-00000009/1-0/rank-{rank:05d}.{file:04d}.bin", a_file * CHUNK, "01234567"), sums)
        for rank in range(ranks)
        for file in range(FILES)
    ]
    return planned, landed


def manifest(planned: dict[str, Any], landed: list[Landed], ranks: int) -> Manifest:
    planner = {"tensors": WithSums(planned, landed), "trees": {}, "run": {}}
    files = tuple(each.file for each in landed)
    return Manifest(9, 1, 0, "", files, planner, world_size=ranks, created_at=0.0)


def _at_once(record: Manifest) -> bytes:
    planner = {**record.planner, "tensors": dict(record.planner["tensors"])}
    return json.dumps(dataclasses.asdict(dataclasses.replace(record, planner=planner))).encode()


def own_reads(record: Manifest, rank: int) -> None:
    for name in record.planner["tensors"]:
        saved = saved_tensor(record, name)
        assert saved is not None
        (read,) = reads(record, saved, saved.shape, ((rank * ROWS, 0), (ROWS, WIDTH)))
        assert read.file // FILES == rank


def beside(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of processor time that `work` takes in a thread, and the longest wait of this one meanwhile."""
    took: list[float] = []

    def run() -> None:
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)

    thread = threading.Thread(target=run)
    longest, before = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        time.sleep(0.0005)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    return 1e3 * took[0], 1e3 * longest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--tensors", type=int, default=2100)
    given = parser.parse_args()
    planned, landed = saved(given.ranks, given.tensors)
    record = manifest(planned, landed, given.ranks)

    assert encode(record) == _at_once(record)
    written = beside(lambda: encode(record))
    at_once = beside(lambda: _at_once(record))
    table = {name: torch.empty(tensor["shape"]) for name, tensor in planned.items()}
    content = encode(record)
    read = decode_manifest(content)
    decoded = beside(lambda: decode_manifest(content))
    plan = beside(lambda: Reader(cast(Transfers, None), read, Gang())._plan(table))
    own = beside(lambda: own_reads(read, given.ranks - 1))

    what = f"of {given.ranks} ranks and {given.tensors} tensors: {given.ranks * given.tensors} chunks"
    notes = {
        "manifest_ms": f"rank 0's processor time to write the manifest {what}",
        "manifest_wait_ms": "the longest that a thread beside it waited",
        "at_once_ms": "the same by dataclasses.asdict and one json.dumps",
        "at_once_wait_ms": "the longest that a thread beside it waited",
        "decode_ms": "to decode it, as a restore does, and a gang's first prune in the storage process",
        "decode_wait_ms": "the longest that a thread beside it waited",
        "plan_ms": "to plan the reading of all of it by one rank",
        "own_ms": "to find the chunks of one rank's own part",
    }
    figures = dict(zip(notes, (*written, *at_once, *decoded, plan[0], own[0]), strict=True))
    return 0 if report("manifest", figures, {}, notes) else 1


if __name__ == "__main__":
    sys.exit(main())
