"""Looks for circles of references see only what is new, and find in the end what has become one since."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest

from muster.controllers.garbage import keep_looks_short, no_looks

pytestmark = pytest.mark.unit


class Circle:
    def __init__(self) -> None:
        self.itself = self


@asynccontextmanager
async def kept(whole_seconds: float = 600.0) -> AsyncIterator[None]:
    keeping = asyncio.create_task(keep_looks_short(whole_seconds))
    try:
        await asyncio.sleep(0)  # its first look at everything is over then
        yield
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


def looked_at(one: object) -> bool:
    return any(each is one for each in gc.get_objects())


async def test_what_one_look_has_left_the_next_does_not_see() -> None:
    known = Circle()
    async with kept():
        assert not looked_at(known)
        new = Circle()
        assert looked_at(new)
        gc.collect()
        assert not looked_at(new)
    assert looked_at(known)
    assert gc.get_freeze_count() == 0


async def test_a_look_at_the_young_alone_sets_nothing_aside() -> None:
    async with kept():
        new = Circle()
        gc.collect(1)
        assert looked_at(new)


async def test_a_new_circle_is_freed_at_the_next_look() -> None:
    async with kept():
        gone = weakref.ref(Circle())
        gc.collect()
        assert gone() is None


async def test_what_was_set_aside_in_use_is_freed_at_the_next_look_at_everything() -> None:
    in_use = Circle()
    seen = weakref.ref(in_use)
    async with kept(whole_seconds=0.01):
        assert not looked_at(in_use)
        del in_use
        async with asyncio.timeout(10):
            while seen() is not None:  # noqa: ASYNC110 - the collector tells nobody
                await asyncio.sleep(0.01)


def test_nothing_is_looked_at_while_a_plan_is_made_and_the_young_when_it_is() -> None:
    looks: list[str] = []

    def note(phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            looks.append(f"generation {info['generation']}")

    gc.callbacks.append(note)
    try:
        with no_looks():
            made = [[number] for number in range(100_000)]
            gone = weakref.ref(Circle())
            assert looks == []
            assert gone() is not None
        assert looks == ["generation 0"]
        assert gone() is None
        assert len(made) == 100_000
        assert gc.isenabled()
    finally:
        gc.callbacks.remove(note)
