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
from muster_runtime.parallel.graphs import captures
from muster_runtime.pulse import Pulse, Stage

_PENDING: Final = 64
"""Spans on the device that may be under way; older ones that still are count as nothing."""


def follow(pulse: Pulse, things: Iterable[Any], device: torch.device) -> None:
    """Have the models among `things` tell `pulse` what stage of a step they are at, and when they work together with
    other ranks."""
    for thing in things:
        if isinstance(thing, DataParallel):
            DataParallel.muster_pace = pulse
        elif isinstance(thing, nn.Module) and isinstance(thing, FSDPModule):
            thing.register_forward_pre_hook(lambda *_: _shares(pulse, Stage.FORWARD))
            thing.register_forward_hook(lambda *_: _shares(pulse, Stage.BACKWARD))
    if device.type == "cuda":
        pulse.timer = DeviceSpans(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


def _shares(pulse: Pulse, stage: Stage) -> None:
    if not torch.compiler.is_compiling():
        pulse.shares(stage)


class DeviceSpans:
    """A `DeviceTimer` by events of the current stream. `event` makes one."""

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._since: Any = None
        self._stage, self._own = Stage.NONE, False
        self._spans: deque[tuple[Any, Any, Stage, bool]] = deque(maxlen=_PENDING)

    def mark(self, stage: Stage, own: bool) -> None:
        if captures():  # an event would become part of the graph, and could not be asked any more
            self._stage = Stage.NONE
            return
        event = self._event()
        event.record()
        if self._stage is not Stage.NONE:
            self._spans.append((self._since, event, self._stage, self._own))
        self._since, self._stage, self._own = event, stage, own

    def take(self) -> tuple[list[float], float]:
        stages, owned = [0.0] * len(Stage), 0.0
        while self._spans and self._spans[0][1].query():
            begun, end, stage, own = self._spans.popleft()
            seconds = begun.elapsed_time(end) / 1000
            stages[stage] += seconds
            owned += seconds if own else 0.0
        return stages, owned
