"""Ranks of one node read each other's shared memory, so that what several of them need comes from storage once."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from muster_runtime.checkpoint.layout import raw_bytes
from muster_runtime.checkpoint.memory import SharedMemory
from muster_runtime.errors import MusterError
from muster_runtime.parallel.gang import Gang, end_group

_groups: Final[WeakValueDictionary[tuple[int, ...], Any]] = WeakValueDictionary()
"""By their ranks; torch holds them until it ends all of its own."""


def node() -> Hashable:
    """The same for two processes that see each other below /proc: one kernel, one namespace of process ids."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(), os.stat("/proc/self/ns/pid").st_ino


@contextmanager
def gang_of(ranks: list[int]) -> Iterator[Gang]:
    """A gang of these ranks alone, this one among them. Collective over them.

    Its group stays for the next restore: in torch 2.6 a second group of the same ranks meets the first one's addresses.
    Where a rank fails by itself, its peers learn it by the group's end.
    """
    group = _groups.get(tuple(ranks))
    if group is None:
        group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        _groups[tuple(ranks)] = group
    try:
        yield Gang(ranks.index(dist.get_rank()), len(ranks), group)
    except MusterError:  # the ranks have agreed on it, or exchange nothing any more
        raise
    except BaseException:
        del _groups[tuple(ranks)]
        end_group(group)
        raise


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
