"""Python's looks for objects that only circles of references keep: short ones, and now and then a whole one.

Nothing else runs in the process while Python looks, and a look at everything that an operator of 10,000 jobs knows
takes some tenths of a second, as often as a few plans are made. But nearly all of that stays, and references alone free
it: jobs, nodes, pods and plans are no circles. So what a look at everything has left is set aside from later ones
(`gc.freeze`), which then see only what has come since.

What is set aside while it is in use, and is a circle later, waits for the next look at everything.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

WHOLE_SECONDS: Final = 600.0
"""Between two looks at everything."""
_YOUNGEST: Final = 0
_OLDEST: Final = 2
"""The generation whose look is at everything that is not set aside."""


async def keep_looks_short(whole_seconds: float = WHOLE_SECONDS) -> None:
    """Until cancelled; all is as before then."""
    while True:
        with short_looks():
            await asyncio.sleep(whole_seconds)


@contextmanager
def short_looks() -> Iterator[None]:
    """Looks at everything, and sets aside what it has left, and what later looks leave; all is as before in the end."""
    gc.callbacks.append(_set_aside)
    try:
        gc.collect()
        yield
    finally:
        gc.callbacks.remove(_set_aside)
        gc.unfreeze()


@contextmanager
def no_looks() -> Iterator[None]:
    """While a plan is made: it makes hundreds of thousands of objects, of which Python would look at each again and
    again. In the end those that are left are looked at once."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(_YOUNGEST)


def _set_aside(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()
