"""What a test of the runtime needs that an older torch lacks (`hack.other_torch`). The locked one has all of it."""

from __future__ import annotations

from typing import Final

import pytest
import torch
from torch.torch_version import TorchVersion


def needs_torch(version: str, which: str) -> pytest.MarkDecorator:
    """Skips a test below torch `version`; `which` says why, after it."""
    return pytest.mark.skipif(TorchVersion(torch.__version__) < version, reason=f"needs torch {version}, {which}")


SHARDS: Final = needs_torch("2.9", "the first that shards models on CPUs")
"""For what trains with fsdp or hsdp; `session.wrap` refuses it before."""
