"""Work on memory, spread over the cores that this rank has: copies and checksums let go of the interpreter."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

import torch

_MOST: Final = 4
"""Threads; a few fill the memory's bandwidth."""

T = TypeVar("T")
U = TypeVar("U")


def spread(work: Callable[[T], U], items: Iterable[T], *, width: int = 1) -> list[U]:
    """What `work` makes of the items, in no order. What it raises is raised here, when all threads have ended.

    `width`: cores that `work` takes by itself.
    """
    left = deque(items)
    done: list[U] = []

    def work_off() -> None:
        while left:
            try:
                item = left.popleft()
            except IndexError:  # another thread took the last one
                return
            done.append(work(item))

    count = min(_threads() // width, len(left))
    if count <= 1:
        work_off()
        return done
    with ThreadPoolExecutor(count - 1, thread_name_prefix="muster-memory") as pool:
        others: list[Future[None]] = []
        with suppress(RuntimeError):  # the container may have no more threads: then there are fewer at it
            for _ in range(count - 1):
                others.append(pool.submit(work_off))  # noqa: PERF401 - those before the one that fails count
        work_off()
        for other in others:
            other.result()
    return done


def copy(moves: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """(target, source) each, neither of which autograd follows."""

    def one(move: tuple[torch.Tensor, torch.Tensor]) -> None:
        move[0].copy_(move[1])

    spread(one, moves, width=torch.get_num_threads())  # torch may spread a copy itself


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """As `target.copy_(source)`, also where many elements of `target` are one in memory (`expand`), which torch
    refuses: that one is written once."""
    for dimension, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)


def _threads() -> int:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return min(_MOST, len(os.sched_getaffinity(0)) // ranks)
