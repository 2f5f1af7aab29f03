"""The scheduling side of the operator as a process of its own, which a fault point or a signal ends."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from .gangs import Corner

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """The scheduling side as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, place: Corner, **environment: str) -> Process:
        command = (sys.executable, "-m", "hack.scheduling", place.kubeconfig)
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
