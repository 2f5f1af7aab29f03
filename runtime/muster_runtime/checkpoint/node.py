"""Ranks of one node read each other's shared memory, so that what several of them need comes from storage once."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.parallel.gang import Gang


def node() -> Hashable:
    """The same for two processes that see each other below /proc: one kernel, one namespace of process ids."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(), os.stat("/proc/self/ns/pid").st_ino


@contextmanager
def gang_of(ranks: list[int]) -> Iterator[Gang]:
    """A gang of these ranks alone, this one among them. Collective over them."""
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    try:
        yield Gang(ranks.index(dist.get_rank()), len(ranks), group)
    finally:
        dist.destroy_process_group(group)


@contextmanager
def windows(memory: SharedMemory, neighbours: Gang) -> Iterator[list[int] | None]:
    """Descriptors of the memory of each rank of this node; None where one can't open another's. Collective.

    To be read, not mapped: pages that several ranks map count for each of them.
    """
    with ExitStack() as opened:
        try:
            seen = [_opened(opened, *where) for where in neighbours.gather((os.getpid(), memory.descriptor))]
        except OSError:  # a container that hides other processes' files
            seen = None
        whole = all(neighbours.gather(seen is not None))
        yield seen if whole else None


def _opened(stack: ExitStack, process: int, descriptor: int) -> int:
    number = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDONLY)
    stack.callback(os.close, number)
    return number


def read_into(target: torch.Tensor, descriptor: int, at: int) -> None:
    """Fills `target` (uint8, contiguous, on the CPU) with a file's bytes from `at` on. EOFError where it has fewer."""
    left = raw_bytes(target)
    while left:
        length = os.preadv(descriptor, [left], at)
        if not length:
            raise EOFError(f"a rank's memory ends at byte {at}")
        left, at = left[length:], at + length
