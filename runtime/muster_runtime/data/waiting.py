"""Batches, with the time told that is spent in waiting for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

T = TypeVar("T")

Waiting = Callable[[], AbstractContextManager[None]]
"""Makes what is entered while a batch is waited for."""

UNTOLD: Final[Waiting] = nullcontext


def waited(source: Iterable[T], waiting: Waiting) -> Iterator[T]:
    """What `source` gives; its start counts as waiting, too."""
    with waiting():
        items = iter(source)
        found = next(items, _END)
    while not isinstance(found, _End):
        yield found
        with waiting():
            found = next(items, _END)


class _End:
    """Nothing is left."""


_END: Final = _End()
