"""A small HTTP/1.1 client for load generators: one request at a time on each of a few kept connections.

It does as little as it can, so that a benchmark's own work takes no processor from what it measures.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

Object = dict[str, Any]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Refused(Exception):
    """The API server answered with an error code."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:300].decode(errors='replace')}")
        self.status = status


class Wire:
    """Requests to the server of a kubeconfig, at most `connections` at once."""

    def __init__(self, kubeconfig: Path, connections: int) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        address = urlsplit(cluster["server"])
        self._host, self._port = address.hostname or "", address.port or 443
        self._tls = _tls(cluster, user)
        token = f"Authorization: Bearer {user['token']}\r\n" if "token" in user else ""
        self._head = f"Host: {self._host}\r\n{token}Accept: application/json\r\nUser-Agent: bench\r\n"
        self._idle: list[Streams] = []
        self._gate = asyncio.Semaphore(connections)

    async def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> bytes:
        """The answer's body. Raises Refused, OSError, and asyncio.IncompleteReadError when the connection ends."""
        data = b"" if body is None else json.dumps(body).encode()
        async with self._gate:
            while True:
                kept = bool(self._idle)
                reader, writer = self._idle.pop() if kept else await self._connect()
                self._send(writer, method, path, data, kind)
                try:
                    status, headers = await _answer(reader)
                    break
                except (asyncio.IncompleteReadError, ConnectionError):
                    if not kept:
                        raise
                    # The server had closed the connection, which is known only now: the next one is another.
                    writer.close()
            found = await _body(reader, headers)
            self._idle.append((reader, writer))
        if status >= 400:
            raise Refused(status, found)
        return found

    async def watch(self, path: str, resource_version: str) -> AsyncIterator[bytes]:
        """Lines of a watch that lasts until the server ends it (an hour)."""
        reader, writer = await self._connect()
        join = "&" if "?" in path else "?"
        query = f"{path}{join}watch=1&resourceVersion={resource_version}&timeoutSeconds=3600"
        self._send(writer, "GET", query, b"", "application/json")
        status, headers = await _answer(reader)
        if status >= 400:
            raise Refused(status, await _body(reader, headers))
        rest = b""
        while True:
            size = int(await reader.readline(), 16)
            if not size:
                return
            *lines, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
            for line in lines:
                yield line

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()

    async def _connect(self) -> Streams:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=2**22)

    def _send(self, writer: asyncio.StreamWriter, method: str, path: str, body: bytes, kind: str) -> None:
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return int(first.split()[1]), headers


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    parts = []
    while True:
        size = int(await reader.readline(), 16)
        parts.append((await reader.readexactly(size + 2))[:-2])
        if not size:
            return b"".join(parts)


def _tls(cluster: Object, user: Object) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(**_authority(cluster))
    if "client-certificate-data" in user:
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(base64.b64decode(user["client-certificate-data"]))
            pair.write(b"\n" + base64.b64decode(user["client-key-data"]))
            pair.flush()
            context.load_cert_chain(pair.name)
    elif "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    return context


def _authority(cluster: Object) -> dict[str, str]:
    if "certificate-authority-data" in cluster:
        return {"cadata": base64.b64decode(cluster["certificate-authority-data"]).decode()}
    return {"cafile": cluster["certificate-authority"]}
