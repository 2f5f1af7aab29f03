"""What an environment for another torch has beside it."""

from __future__ import annotations

import pytest
from hack.other_torch import requirements

pytestmark = pytest.mark.unit


def test_all_but_torch_is_as_it_is_locked() -> None:
    lines = requirements("2.6.0").splitlines()
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.6.0"]
    assert not [line for line in lines if line.startswith(("triton", "cuda-", "nvidia-cu"))], "another torch's own"
    assert {"-e .", "-e ./runtime"} <= set(lines)
    for name in ("boto3", "numpy", "pytest", "torchdata"):
        assert any(line.startswith(f"{name}==") for line in lines), name
