"""The copies of one save: most before training goes on, an optimizer's state beside the next step's passes.

Nothing but an optimizer changes its state, and it does so in its next step. The forward and backward pass before that
are time in which the state can be copied: by a thread, or on CUDA by a stream of its own. The step then waits for what
is left of it, by torch's hook before each `Optimizer.step`.

Two things would tear such a copy without a word: a change from elsewhere, and an update that goes past the hook (a CUDA
graph that is replayed, a compiled step). The first shows in the tensors' version counters; of the second nothing shows,
so the save counts only if the hook was called before the next step was over. Else it is left out.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import Future
from typing import Final

import torch

from muster_runtime.checkpoint.spread import copy
from muster_runtime.checkpoint.transfers import in_background

Move = tuple[torch.Tensor, torch.Tensor]
"""Where to, in memory of our own, and from where."""

SMALLEST: Final = 1 << 16
"""Bytes of a tensor for which it pays to come later."""


class Staging:
    """Local. `torn` says why the copies can't be trusted, if they can't."""

    def __init__(self, now: list[Move], late: list[Move], watched: list[torch.Tensor]) -> None:
        """Returns when all of `now` is copied, or queued on the stream that computes.

        `watched` are the tensors that `late` is of.
        """
        self.torn = ""
        self._open = bool(late)  # may an update still come before the copies?
        self._late = late  # held until they are copied
        self._versions = [(tensor, tensor._version) for tensor in watched]
        self._thread: Future[None] | None = None
        self._event: torch.cuda.Event | None = None
        if any(source.is_cuda for _, source in (*now, *late)):
            self._event = _queue(now, late)
            return
        copy(now)
        if late:
            self._thread = in_background(lambda: _move(late))

    def before_update(self) -> None:
        """An optimizer is about to change what it has: waits for the copies, or lets the computing stream wait."""
        if not self._open:
            return
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        elif self._thread is not None:
            self._thread.result()
        self._close()

    def update_unseen(self) -> None:
        """A step is over in which `before_update` was not called."""
        if self._open:
            self._open = False
            self.torn = (
                "no optimizer's step was seen in the step after it, so what it copied beside that may have changed "
                "meanwhile"
            )

    def done(self, *, wait: bool) -> bool:
        """Whether everything is in memory, between two steps or within one. `wait`: until it is."""
        if self._event is not None:
            if wait:
                self._event.synchronize()
            elif not self._event.query():  # type: ignore[no-untyped-call]
                return False
        elif self._thread is not None:
            if not wait and not self._thread.done():
                return False
            self._thread.result()
        self._close()
        self._late, self._versions = [], []
        return True

    def _close(self) -> None:
        if self._open and any(tensor._version != version for tensor, version in self._versions):
            self.torn = "the state of an optimizer was changed between two of its steps, while it was copied"
        self._open = False


def can_wait(source: torch.Tensor) -> bool:
    """Whether a tensor, or this rank's part of it, may be copied beside the training."""
    return source.nbytes >= SMALLEST and source.is_contiguous() and not source.is_inference()


def _queue(now: list[Move], late: list[Move]) -> torch.cuda.Event:
    """On the stream that computes: what it does later can't change what is copied. What may come late has a stream of
    its own, that begins behind all of it."""
    for target, source in now:
        target.copy_(source, non_blocking=True)
    stream = torch.cuda.current_stream()
    if late:
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(stream)
        with torch.cuda.stream(beside):
            for target, source in late:
                target.copy_(source, non_blocking=True)
        stream = beside
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _move(moves: list[Move]) -> None:
    """In one thread: torch's own copies would take the threads with which training computes."""
    for target, source in moves:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
