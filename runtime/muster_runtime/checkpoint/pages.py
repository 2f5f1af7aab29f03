"""Memory for what a restore brings: new pages cost more than what is copied into them.

The kernel zeroes a page of 4 KiB and enters it into its table whenever 4 KiB are written for the first time, which
takes longer than to write them. Where it is asked for pages of 2 MiB, it does so once for 512 of them. Most Linux
systems give those only to who asks (`/sys/kernel/mm/transparent_hugepage/enabled` says `madvise`).
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

import torch

_HUGE: Final = 2 << 20
"""Bytes of a huge page, on x86-64 and on arm64 with small pages of 4 KiB."""

_libc: Final = ctypes.CDLL(None)


def ask_for_huge(tensor: torch.Tensor) -> None:
    """Have the memory of a tensor that nobody has written to yet on huge pages, where the kernel has them. It is only
    asked: where it can't or won't, the memory is as it was."""
    if tensor.device.type != "cpu" or tensor.nbytes < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    storage = tensor.untyped_storage()
    # Whole small pages: neighbours that ask for the same stay one area, of which a process may have 65,530.
    first = storage.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    end = -(-(storage.data_ptr() + storage.nbytes()) // mmap.PAGESIZE) * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_HUGEPAGE)
