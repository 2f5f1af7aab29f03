"""The same on a GPU: NCCL beside gloo, bf16 compute under FSDP2, a resume, and staging beside queued kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_resume_bits import train

from muster_protocol.checkpoints.inventory import find_start
from muster_protocol.checkpoints.retention import Retention
from muster_runtime.checkpoint.keeper import Keeper
from muster_runtime.checkpoint.store import open_store
from muster_runtime.parallel.gang import Gang


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resume_on_a_gpu(strategy: str, tmp_path: Path) -> None:
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    train(tmp_path / "whole", strategy, ranks=1, **settings).check()
    train(tmp_path / "cut", strategy, ranks=1, kill="11:backward:0", **settings)
    train(tmp_path / "cut", strategy, ranks=1, **settings).check()
    digests = [json.loads((tmp_path / run / "final-0.json").read_text())["digest"] for run in ("whole", "cut")]
    assert digests[0] == digests[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("late", [False, True])
def test_what_queued_kernels_do_later_is_not_in_the_checkpoint(late: bool, tmp_path: Path) -> None:
    keeper = Keeper(
        open_store(f"file://{tmp_path}"), Gang(), owner="job", job="job", retention=Retention(), warn=lambda _: None
    )
    keeper.claim()
    state = torch.ones(64 << 20, device="cuda")
    for step in (1, 2, 3):  # the first also pins the memory, which waits for the device by itself
        work = torch.rand(8192, 8192, device="cuda")
        for _ in range(20):
            work = work @ work * 1e-4
        state.fill_(step)  # queued behind the products, like the optimizer's step before a boundary
        keeper.begin({"state": state}, step=step, trees={}, run={}, late=("state",) if late else ())
        keeper.saver.before_update()
        state.zero_()  # queued behind the copy, like the next one
        keeper.wait()
        found = torch.empty(64 << 20, device="cuda")
        keeper.load(keeper._store, find_start(keeper._store, step), lambda *_: {"state": found})  # noqa: B023
        assert bool((found == step).all())
    keeper.close()
