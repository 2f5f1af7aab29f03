"""Ranks of one node read each other's shared memory, so that what several of them need comes from storage once."""

from __future__ import annotations

import mmap
import os
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

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


def windows(memory: SharedMemory, neighbours: Gang) -> list[torch.Tensor] | None:
    """The memory of each rank of this node, as uint8; None where one can't see another's. Collective.

    They hold until one of them reserves more.
    """
    try:
        seen = [_mapped(*where) for where in neighbours.gather((os.getpid(), memory.descriptor, memory.size))]
    except OSError:  # a container that hides other processes' files
        seen = None
    whole = all(neighbours.gather(seen is not None))
    return seen if whole else None


def _mapped(process: int, descriptor: int, size: int) -> torch.Tensor:
    number = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(number, size), dtype=torch.uint8)
    finally:
        os.close(number)
