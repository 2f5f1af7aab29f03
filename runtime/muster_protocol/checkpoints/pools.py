"""Work in threads, as long as some can be started: at a container's limit of them it is done by the one that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def each_in(pool: ThreadPoolExecutor, work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """What `work` makes of the items, in their order. Some may be worked on twice."""
    items = list(items)
    try:
        return pool.map(work, items)
    except RuntimeError:
        return map(work, items)


def one_in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    """`work` under way, or done. It may be done twice."""
    try:
        return pool.submit(work)
    except RuntimeError:
        done: Future[T] = Future()
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it
            done.set_exception(error)
        return done
