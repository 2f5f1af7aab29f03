"""What a run was set up with, and what it runs on, for its tracker."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from muster_runtime import report

_VALUE_LIMIT: Final = 1_000


def environment(device: torch.device) -> dict[str, str]:
    """Versions of what the numbers come from."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "device": device.type}
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda or "", "gpu": torch.cuda.get_device_name(device)}
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {name: value for name, value in found.items() if value}


def messages(rank: int, about: str, values: Mapping[str, Any]) -> Iterator[report.Described]:
    """`about`: params or environment. In messages that fit; long values lose their ends."""
    part: dict[str, str] = {}
    size = 0
    for name, value in values.items():
        text = str(value)[:_VALUE_LIMIT]
        taken = len(name.encode()) + 6 * len(text) + 10
        if part and size + taken > report.PART_BYTES:
            yield report.Described(rank, about, part)
            part, size = {}, 0
        part[name[: report.NAME_LIMIT]] = text
        size += taken
    if part:
        yield report.Described(rank, about, part)
