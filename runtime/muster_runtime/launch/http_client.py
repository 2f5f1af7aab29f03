"""HTTP calls from launcher to launcher: one connection a call, bounded in time and size."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from muster_protocol import launcher_api
from muster_runtime.launch.addresses import Addresses

ANSWER_LIMIT: Final = 8 * 1024 * 1024
CONNECT_TIMEOUT: Final = 5.0
_RELAY_TIMEOUT: Final = 3.0
_RELAYS_AT_ONCE: Final = 64
_FAULTS: Final = (asyncio.TimeoutError, OSError, EOFError, ValueError, asyncio.LimitOverrunError)
"""What a call can meet."""

T = TypeVar("T")


class Unreachable(Exception):
    """No whole answer came. The message says from where and why."""


class Client:
    """Calls to port `port` of other launchers with the job's token, from the pod `pod_uid` of `generation`."""

    def __init__(self, port: int, token: str, pod_uid: str, generation: int) -> None:
        self.port = port
        self._token = token
        self._pod_uid = pod_uid
        self._generation = generation
        self._addresses = Addresses()

    async def call(
        self,
        method: str,
        host: str,
        path: str,
        body: bytes = b"",
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """(status, body). Raises Unreachable, at the latest after `timeout` seconds."""
        where = f"{host}:{self.port}"
        try:
            return await _within(timeout, self._call(method, host, path, body, headers or {}))
        except asyncio.TimeoutError as error:
            raise Unreachable(f"{where} gave no answer within {timeout:g} s") from error
        except _FAULTS as error:
            raise Unreachable(f"{where}: {_reason(error)}") from error

    async def tell_all(self, hosts: Iterable[str], path: str, body: bytes) -> None:
        """The same POST to all; who can't be reached is left out. Marked as relayed, so that nobody sends it back."""
        gate = asyncio.Semaphore(_RELAYS_AT_ONCE)

        async def tell(host: str) -> None:
            async with gate:
                with contextlib.suppress(Unreachable):
                    relayed = {launcher_api.RELAYED_HEADER: "1"}
                    await self.call("POST", host, path, body, timeout=_RELAY_TIMEOUT, headers=relayed)

        await asyncio.gather(*map(tell, hosts))

    async def _call(
        self, method: str, host: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        reader, writer = await _within(CONNECT_TIMEOUT, self._connected(host))
        try:
            lines = {
                "Host": f"{host}:{self.port}",
                launcher_api.TOKEN_HEADER: self._token,
                launcher_api.POD_HEADER: self._pod_uid,
                launcher_api.GENERATION_HEADER: str(self._generation),
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
                **headers,
            }
            head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
            writer.write(head.encode("latin-1") + b"\r\n" + body)
            await writer.drain()
            return await _answer(reader)
        finally:
            writer.close()

    async def _connected(self, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(await self._addresses.of(host), self.port)


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives or raises. Raises asyncio.TimeoutError when that takes longer than `seconds`.

    Up to Python 3.11 what wait_for waits for is a task of its own, and where whoever waits is cancelled at the moment
    at which it fails, asyncio would write to the user's log that nobody took its exception. So the task raises none.
    """

    async def kept() -> T | Exception:
        try:
            return await work
        except _FAULTS as error:
            return error

    outcome = await asyncio.wait_for(kept(), seconds)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    status = int(head[0].split(" ")[1])
    length = next((int(line.split(":")[1]) for line in head[1:] if line.lower().startswith("content-length:")), 0)
    if length > ANSWER_LIMIT:
        raise ValueError(f"the answer is over {ANSWER_LIMIT} bytes")
    return status, await reader.readexactly(length)


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the connection was closed before the answer was whole"
    return str(error) or type(error).__name__
