"""kopf in a thread and an event loop of its own.

kopf ends when one of its watches fails for good, and then cancels every task of its event loop that was started after
it: among ours it would end the scheduling loop. Apart it can fail and be started again, and a burst of its events
delays nobody's turn. It takes no signals there either.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Final

import kopf

STOP_SECONDS: Final = 3.0
"""How long its end is waited for; it writes nothing, so nothing is lost."""


async def run(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, identity: str) -> None:
    """Run until cancelled. Raises what kopf raises; handlers of `registry` are called in kopf's thread."""
    here = asyncio.get_running_loop()
    ended: asyncio.Future[None] = here.create_future()
    there: asyncio.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = here.create_future()

    async def operate() -> None:
        # NB: not a threading.Event: kopf waits for one in a thread that outlives kopf's own failure.
        stop = asyncio.Event()
        here.call_soon_threadsafe(there.set_result, (asyncio.get_running_loop(), stop))
        await kopf.operator(
            registry=registry,
            settings=settings,
            clusterwide=True,
            standalone=True,
            # Without an identity kopf asks for the user's name, which uid 65532 has not.
            identity=identity,  # type: ignore[arg-type]
            stop_flag=stop,
        )

    def work() -> None:
        problem: BaseException | None = None
        try:
            asyncio.run(operate())
        except BaseException as error:  # noqa: BLE001 - told to whoever waits, in the other loop
            problem = error
        with suppress(RuntimeError):  # the other loop may be closed by now
            here.call_soon_threadsafe(_settle, ended, problem)

    threading.Thread(target=work, name="kopf", daemon=True).start()
    far, stop = await there
    try:
        await asyncio.shield(ended)
    finally:
        if not ended.done():
            with suppress(RuntimeError):  # it may have ended just now
                far.call_soon_threadsafe(stop.set)
            with suppress(TimeoutError):
                await asyncio.wait_for(ended, STOP_SECONDS)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
