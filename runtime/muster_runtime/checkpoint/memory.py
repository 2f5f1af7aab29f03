"""Memory that a rank and its storage process share: a save is staged in it, a restore passes through it.

An anonymous file (memfd): it has no name that could collide or be left behind, and the kernel frees it with its last
user. It only grows, and is used again for every save.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import weakref
from typing import Any

import torch

from muster_runtime.errors import StateError


class SharedMemory:
    """`descriptor` is inherited by processes that are started with it in `pass_fds`; they map the same bytes.

    Attributes:
        refused: why CUDA doesn't register it, in CUDA's words; "" where it does, or was never asked to.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Of its own, or that of a descriptor, which becomes its own."""
        made = os.memfd_create("muster-checkpoint", os.MFD_CLOEXEC) if descriptor is None else descriptor
        self.descriptor = made
        self.size = 0
        self.refused = ""
        self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._unpin: weakref.finalize[..., Any] | None = None

    def reserve(self, size: int, *, pinned: bool = False) -> torch.Tensor:
        """The first `size` bytes or more, as a uint8 tensor. Those given before have the same bytes.

        `pinned` registers the memory with CUDA, so that copies from a device don't block. Where CUDA refuses that, they
        do, and `refused` says why.
        """
        if size > self.size:
            self._let_go()
            size = max(size, os.fstat(self.descriptor).st_size)  # never less: it may hold an earlier incarnation's
            _resize(self.descriptor, size)
            # Not populated: that takes as long as the first copy into it does, and would count its pages twice while
            # what was mapped before is still in somebody's hands.
            self._bytes = torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)
            self.size = size
        if pinned and self.size and self._unpin is None and not self.refused:
            self._pin()
        return self._bytes

    def _pin(self) -> None:
        address = self._bytes.data_ptr()
        try:
            torch.cuda.check_error(_cudart().cudaHostRegister(address, self.size, 0))
        except torch.cuda.CudaError as error:
            self.refused = str(error)
            # CUDA tells its last error once more to whoever asks next, which would be a kernel of the script's.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device="cuda")
            return
        # CUDA doesn't see that memory is unmapped, and refuses what is mapped at the same place later: so this has to
        # be taken back also where nobody calls `close`.
        self._unpin = weakref.finalize(self, _unregister, address)
        self._unpin.atexit = False

    def _let_go(self) -> None:
        if self._unpin is not None:
            self._unpin()
            self._unpin = None

    def close(self) -> None:
        if self.descriptor >= 0:
            self._let_go()
            self._bytes = torch.empty(0, dtype=torch.uint8, device="cpu")
            os.close(self.descriptor)
            self.descriptor = -1


def _resize(descriptor: int, size: int) -> None:
    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        raise StateError(
            f"{size / 1e6:,.1f} MB of this rank's state can't be staged: for that it needs a file in memory, and may "
            f"write none above {most / 1e6:,.1f} MB; raise the limit of file sizes (ulimit -f) of what starts it"
        ) from error


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _unregister(address: int) -> None:
    torch.cuda.check_error(_cudart().cudaHostUnregister(address))
