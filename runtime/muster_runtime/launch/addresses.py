"""Where the other pods of the gang are, also while the cluster's DNS answers nothing.

Launchers call each other by name, because a pod that takes another's place has another address. Each call is a
connection of its own, so without a memory of addresses a DNS that is away for longer than a launcher may be silent
would end every gang of the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 0.5
"""Seconds after which a call goes where the host was last, when DNS hasn't answered."""

_NO_SUCH_HOST: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}  # musl has but the first

LookUp = Callable[[str], str]
"""The address of a host. Blocks. Raises OSError, UnicodeError."""


def look_up(host: str) -> str:
    """By the system's resolver, which asks for up to 40 s where nobody answers. Raises as LookUp says."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


class Addresses:
    """The newest addresses of hosts. For one event loop."""

    def __init__(self, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._known: dict[str, str] = {}
        self._asked: dict[str, asyncio.Future[str]] = {}

    async def of(self, host: str) -> str:
        """What DNS says; where it says nothing, the address that the host had last.

        Raises OSError when DNS says that there is no such host, or says nothing of a host that was never found;
        UnicodeError for what no host can be called.
        """
        under_way = host in self._asked
        answer = self._asked[host] if under_way else self._ask(host)
        known = self._known.get(host)
        if known is None:
            return await asyncio.shield(answer)
        try:
            # Who finds that DNS was asked already and hasn't answered yet doesn't wait for it, too.
            return await asyncio.wait_for(asyncio.shield(answer), 0 if under_way else PATIENCE)
        except asyncio.TimeoutError:
            return known
        except socket.gaierror as error:
            if error.errno in _NO_SUCH_HOST:
                raise
            return known

    def _ask(self, host: str) -> asyncio.Future[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def tell(address: str | None, error: Exception | None) -> None:
            del self._asked[host]
            if answer.cancelled():
                return
            if address is not None:
                self._known[host] = address
                answer.set_result(address)
            elif error is not None:
                answer.set_exception(error)
                answer.exception()  # nobody may be left who waits for it

        def ask() -> None:
            address, fault = None, None
            try:
                address = self._look_up(host)
            except (OSError, UnicodeError) as error:  # the latter for what no host can be called
                fault = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
                loop.call_soon_threadsafe(tell, address, fault)

        self._asked[host] = answer
        # Not asyncio's own threads: these are few, shared, and waited for at the launcher's end.
        asking = threading.Thread(target=ask, name=f"address of {host}", daemon=True)
        try:
            asking.start()
        except RuntimeError as error:  # the container may have no more of them: as if DNS had said nothing
            tell(None, socket.gaierror(socket.EAI_AGAIN, f"DNS can't be asked for {host}: {error}"))
        return answer
