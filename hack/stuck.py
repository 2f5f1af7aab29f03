"""A pytest plugin that lets nothing wait for ever: neither a test, nor what takes its clusters and servers away.

pytest-timeout sets one alarm. An event loop may swallow it (a callback's exceptions are only logged), and a test that
has failed has none any more, so a fixture that then waits for what never comes holds up the whole run. Here the alarm
rings again and again, and in the teardown it rings anew: each fixture that is stuck is left behind, the others are
still taken away, and the test has an error that shows where every task stands.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import inspect
import os
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import cast

import pytest

from hack.pytest_stage import SHOW

TEARDOWN_S = 240.0
"""Seconds that a teardown may take, its clusters and servers included."""

AGAIN_S = 60.0
"""Seconds from one alarm to the next."""


def pytest_configure() -> None:
    """On SHOW every thread's stack goes where the errors of this process went when it began, captured or not."""
    faulthandler.register(SHOW, file=os.dup(2), all_threads=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """pytest-timeout's alarm rings more than once."""
    with _ringing_on():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """As in the setup."""
    with _ringing_on():
        yield


@contextmanager
def _ringing_on() -> Iterator[None]:
    """pytest itself must not hear it, so this ends with the fixture or test that is stuck."""
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if not left:  # nobody set one, or threads watch the time
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, left, AGAIN_S)
    try:
        yield
    finally:
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, left, 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, None, None]:
    """With an alarm of its own, in the place of the test's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, TEARDOWN_S, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _alarm(number: int, frame: FrameType | None) -> None:
    pytest.fail(f"the teardown is stuck; tasks that are not done:\n{_tasks()}")


def _tasks() -> str:
    """Where each unfinished task of every event loop stands."""
    found = [each for each in gc.get_objects() if isinstance(each, asyncio.Task)]
    return "".join(f"{task.get_name()}\n{_frames(task.get_coro())}" for task in found if not task.done()) or "(none)"


def _frames(waits: object) -> str:
    """What a coroutine awaits, and what that awaits, down to what never comes. (Task.print_stack shows the first.)"""
    lines = ""
    while waits is not None:
        for kind in ("cr", "gi", "ag"):
            if (frame := getattr(waits, f"{kind}_frame", None)) is not None:
                lines += f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}\n"
        lines += "" if hasattr(waits, "__next__") or hasattr(waits, "send") else f"  {waits!r}\n"
        waits = _awaited(waits)
    return lines


def _awaited(waits: object) -> object | None:
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        if (found := getattr(waits, name, None)) is not None:
            return cast(object, found)
    # What steps an asynchronous generator, as `async for` does, says of which one only to the garbage collector.
    return next((each for each in gc.get_referents(waits) if inspect.isasyncgen(each) and each is not waits), None)
