"""A TCP relay between a client and the API server that a test can break in the ways that networks break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml


class Wire:
    """Relays connections to `host:port`.

    Attributes:
        port: where it listens, on 127.0.0.1.
        connections: how many were made so far.
        deaf: connections made from now on are swallowed too.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._dead: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        self.deaf = False

    def swallow(self) -> int:
        """From now on nothing comes out of the connections that are open; they stay open. New ones work.

        Returns how many there are.
        """
        for pair in self._open:
            self._dead |= set(pair)
        return len(self._open)

    def cut(self) -> None:
        """Break the connections that are open, with a reset."""
        for pair in list(self._open):
            for writer in pair:
                writer.transport.abort()

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[Wire]:
        """Relay until the block ends."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, far_writer)
        self._open.add(pair)
        if self.deaf:
            self._dead |= set(pair)
        both = [
            asyncio.create_task(self._copy(reader, far_writer)),
            asyncio.create_task(self._copy(far_reader, writer)),
        ]
        self._tasks.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in pair:
            one.transport.abort()
        await asyncio.wait(both)
        self._tasks.difference_update(both)
        self._open.discard(pair)
        self._dead.difference_update(pair)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if writer not in self._dead:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            return


def through(kubeconfig: Path, port: int, target: Path) -> Path:
    """Write `target`: the kubeconfig with the wire in the API server's place."""
    document: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    for entry in document["clusters"]:
        entry["cluster"]["server"] = f"https://127.0.0.1:{port}"
    target.write_text(yaml.safe_dump(document))
    target.chmod(0o600)
    return target


def wire_to(server: str) -> Wire:
    """A wire to the API server with this URL."""
    parts = urlsplit(server)
    assert parts.hostname is not None
    assert parts.port is not None
    return Wire(parts.hostname, parts.port)
