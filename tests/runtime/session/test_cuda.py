"""The same on a GPU: NCCL beside gloo, bf16 compute under FSDP2, and a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_resume_bits import train


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_resume_on_a_gpu(strategy: str, tmp_path: Path) -> None:
    settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    train(tmp_path / "whole", strategy, ranks=1, **settings).check()
    train(tmp_path / "cut", strategy, ranks=1, kill="11:backward:0", **settings)
    train(tmp_path / "cut", strategy, ranks=1, **settings).check()
    digests = [json.loads((tmp_path / run / "final-0.json").read_text())["digest"] for run in ("whole", "cut")]
    assert digests[0] == digests[1]
