"""What of a step is this rank's own work: all ranks take as long for a step, since they wait for each other, so only
that tells which of them is slow.

Own are the wait for data, the forward pass and the optimizer's step. The backward pass is not: gradients are summed
under way. Neither is the forward pass of a sharded model, which gathers its parameters from the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from muster_runtime.parallel.ddp import DataParallel
from muster_runtime.pulse import Pulse

_PENDING: Final = 64
"""Spans on the device that may be under way; older ones that still are count as nothing."""


def follow(pulse: Pulse, things: Iterable[Any], device: torch.device) -> None:
    """Have the models among `things` tell `pulse` when they work together with other ranks."""
    for thing in things:
        if isinstance(thing, DataParallel):
            DataParallel.muster_pace = pulse
        elif isinstance(thing, nn.Module) and isinstance(thing, FSDPModule):
            thing.register_forward_pre_hook(lambda *_: _shares(pulse))
    if device.type == "cuda":
        pulse.timer = DeviceSpans(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


def _shares(pulse: Pulse) -> None:
    if not torch.compiler.is_compiling():
        pulse.shares()


class DeviceSpans:
    """A `DeviceTimer` by events of the current stream. `event` makes one."""

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._begun: Any = None
        self._spans: deque[tuple[Any, Any]] = deque(maxlen=_PENDING)

    def begin(self) -> None:
        self._begun = self._event()
        self._begun.record()

    def end(self) -> None:
        if self._begun is not None:
            end = self._event()
            end.record()
            self._spans.append((self._begun, end))
            self._begun = None

    def take(self) -> float:
        total = 0.0
        while self._spans and self._spans[0][1].query():
            begun, end = self._spans.popleft()
            total += begun.elapsed_time(end) / 1000
        return total
