"""CUDA graphs: what a script captures once and replays, past every hook of torch's."""

from __future__ import annotations

import torch


def captures() -> bool:
    """Whether one is being captured on this thread's stream, in which nothing may be asked of the device."""
    # torch would start CUDA to answer, and fails where there is no driver
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started and torch.cuda.is_current_stream_capturing()
