"""Memory that a rank and its storage process share: a save is staged in it, a restore passes through it.

An anonymous file (memfd): it has no name that could collide or be left behind, and the kernel frees it with its last
user. It only grows, and is used again for every save.
"""

from __future__ import annotations

import mmap
import os

import torch


class SharedMemory:
    """`descriptor` is inherited by processes that are started with it in `pass_fds`; they map the same bytes."""

    def __init__(self, descriptor: int | None = None) -> None:
        """Of its own, or that of a descriptor, which becomes its own."""
        made = os.memfd_create("muster-checkpoint", os.MFD_CLOEXEC) if descriptor is None else descriptor
        self.descriptor = made
        self.size = 0
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._pinned = False

    def reserve(self, size: int, *, pinned: bool = False) -> torch.Tensor:
        """The first `size` bytes or more, as a uint8 tensor. Those given before have the same bytes.

        `pinned` registers the memory with CUDA, so that copies from a device don't block.
        """
        if size > self.size:
            self._unpin()
            size = max(size, os.fstat(self.descriptor).st_size)  # never less: it may hold an earlier incarnation's
            os.ftruncate(self.descriptor, size)
            # Not populated: that takes as long as the first copy into it does, and would count its pages twice while
            # what was mapped before is still in somebody's hands.
            self._bytes = torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)
            self.size = size
        if pinned and self.size and not self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(runtime.cudaHostRegister(self._bytes.data_ptr(), self.size, 0))
            self._pinned = True
        return self._bytes

    def _unpin(self) -> None:
        if self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(runtime.cudaHostUnregister(self._bytes.data_ptr()))
            self._pinned = False

    def close(self) -> None:
        if self.descriptor >= 0:
            self._unpin()
            self._bytes = torch.empty(0, dtype=torch.uint8)
            os.close(self.descriptor)
            self.descriptor = -1
