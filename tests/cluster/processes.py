"""The scheduling side of the operator as a process of its own, which a fault point or a signal ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from muster.cluster.faults import EXIT_CODE
from muster.cluster.informer import EVENT_DELAY

from .gangs import Corner

ROOT = Path(__file__).resolve().parents[2]

MOMENTS = ("before", "after") if os.environ.get("MUSTER_THOROUGH") else ("after",)
"""Where a test cuts at every write. A cut before a write finds what one after the write before it finds."""


class Process:
    """The scheduling side as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, place: Corner, *, watch_delay: float = EVENT_DELAY, **environment: str) -> Process:
        command = (sys.executable, "-m", "hack.scheduling", place.kubeconfig, str(watch_delay))
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={**os.environ, **environment}, stderr=asyncio.subprocess.DEVNULL
        )
        return cls(process)

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def wait(self, timeout: float = 60) -> int:
        return await asyncio.wait_for(self._process.wait(), timeout)

    async def kill(self) -> None:
        """SIGKILL, and nothing before it."""
        if not self.ended:
            self._process.kill()
        await self._process.wait()


async def cut(place: Corner, fault: str, over: Callable[[], Awaitable[bool]], timeout: float = 120) -> bool:
    """Runs the scheduling side with a fault point. Whether it came there, rather than to what `over` waits for."""
    process = await Process.start(place, MUSTER_FAULT=fault)

    async def ended() -> bool:
        return process.ended or await over()

    try:
        await place.until(f"{fault}: is cut or over", ended, timeout)
        reached = process.ended
        assert not reached or await process.wait() == EXIT_CODE
        return reached
    finally:
        await process.kill()
