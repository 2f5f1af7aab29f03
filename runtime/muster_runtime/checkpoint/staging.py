"""The copies of one save: most before training goes on, an optimizer's state beside the next step's passes.

Nothing but an optimizer changes its state, and it does so in its next step. The forward and backward pass before that
are time in which the state can be copied: by a thread, or on CUDA by a stream of its own. The step then waits for what
is left of it, by torch's hook before each `Optimizer.step`.

Two things would tear such a copy without a word: a change from elsewhere, and an update that goes past the hook (a CUDA
graph that is replayed, a compiled step). The first shows in the tensors' version counters; of the second nothing shows,
so the save counts only if each optimizer's hook was called before the next step was over (`Saver.step_over`).
"""

from __future__ import annotations

import ctypes
from concurrent.futures import Future
from functools import cache
from typing import Final

import torch

from muster_runtime.checkpoint.spread import copy
from muster_runtime.checkpoint.transfers import in_background
from muster_runtime.parallel.graphs import captures

Move = tuple[torch.Tensor, torch.Tensor]
"""Where to, in memory of our own, and from where."""

SMALLEST: Final = 1 << 16
"""Bytes of a tensor for which it pays to come later."""
CHANGED: Final = "the state of an optimizer was changed between two of its steps, while it was copied"
CAPTURED: Final = "an optimizer's step was captured into a CUDA graph while its state was copied"


class Staging:
    """Local. `torn` says why the copies can't be trusted, if they can't."""

    def __init__(self, now: list[Move], late: list[Move], watched: list[torch.Tensor]) -> None:
        """Returns when all of `now` is copied, or queued on the streams that compute.

        `watched` are the tensors that `late` is of, each as the script has it and as it is read.
        """
        self.torn = ""
        self.late = bool(late)
        self.on_device = 0.0
        """Seconds that the devices stood still for it beside what the host waited. Known when it is `done`."""
        self._watches = self.late  # may an update still come before the copies?
        self._moves = late  # held until they are copied
        self._versions = [(tensor, tensor._version) for tensor in watched]
        devices = {source.device for _, source in (*now, *late) if source.is_cuda}
        self._queues = [_Queue(device, _on(device, now), _on(device, late)) for device in devices]
        copy([move for move in now if not move[1].is_cuda])
        by_thread = [move for move in late if not move[1].is_cuda]
        self._thread: Future[None] | None = None
        if by_thread:
            self._thread = in_background(lambda: _move(by_thread), or_now=True)

    def before_update(self) -> None:
        """An optimizer is about to change what it has: waits for the copies, or lets the computing streams wait."""
        if self._queues and captures():  # the graph would wait for an event from outside it, and its replays for none
            self.torn = CAPTURED
            return
        for queue in self._queues:
            queue.hold_up()
        if self._thread is not None:
            self._thread.result()
        self._judge()

    def done(self, *, wait: bool) -> bool:
        """Whether everything is in memory. `wait`: until it is."""
        if self._queues and (captures() or not all(queue.done(wait=wait) for queue in self._queues)):
            return False
        if self._thread is not None:
            if not wait and not self._thread.done():
                return False
            self._thread.result()
        self._judge()
        self.on_device = max((queue.seconds() for queue in self._queues), default=0.0)
        self._moves, self._versions = [], []
        return True

    def _judge(self) -> None:
        """Before the first update, or between two steps: afterwards a state may change as it likes."""
        if self._watches and any(tensor._version != version for tensor, version in self._versions):
            self.torn = CHANGED
        self._watches = False


def can_wait(source: torch.Tensor) -> bool:
    """Whether a tensor, or this rank's part of it, may be copied beside the training: byte by byte, so it has to be
    what its bytes are. A subclass may have no memory of its own, and a conjugate is one by a mark alone."""
    plain = type(source) is torch.Tensor and source.device.type in ("cpu", "cuda") and source.is_contiguous()
    return plain and source.nbytes >= SMALLEST and not (source.is_inference() or source.is_conj() or source.is_neg())


class _Queue:
    """The copies from one GPU.

    What is copied at once is queued on the stream that computes: what that does later can't change it. What may come
    late has a stream of its own, which begins behind all of it.
    """

    def __init__(self, device: torch.device, now: list[Move], late: list[Move]) -> None:
        self._device = device
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream()
            self._began = _recorded(stream)
            for target, source in now:
                target.copy_(source, non_blocking=True)
            self._copied = self._over = _recorded(stream)
            if late:
                beside = _stream_beside(device)
                beside.wait_stream(stream)
                with torch.cuda.stream(beside):
                    for target, source in late:
                        target.copy_(source, non_blocking=True)
                self._copied = _recorded(beside)

    def hold_up(self) -> None:
        """The stream that computes waits for the copies."""
        with torch.cuda.device(self._device):
            torch.cuda.current_stream().wait_event(self._copied)

    def done(self, *, wait: bool) -> bool:
        if wait:
            self._copied.synchronize()
        return bool(self._copied.query())  # type: ignore[no-untyped-call]

    def seconds(self) -> float:
        """For which the stream that computes did nothing but copy."""
        return float(self._began.elapsed_time(self._over)) / 1e3


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


@cache
def _stream_beside(device: torch.device) -> torch.cuda.Stream:
    """One for all saves: torch gives its streams out in turn, and may give the script's own."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _on(device: torch.device, moves: list[Move]) -> list[Move]:
    return [move for move in moves if move[1].device == device]


def _move(moves: list[Move]) -> None:
    """In one thread: torch's own copies would take the threads with which training computes."""
    for target, source in moves:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
