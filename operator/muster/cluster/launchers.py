"""Calls to the launchers in the training pods: status, membership, stop.

Inside the cluster the operator reaches a launcher by its pod's IP; outside, through the API server's pod proxy. What a
launcher answers is untrusted input: it is parsed into the protocol's dataclasses or refused, and is never large.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp

from muster.cluster.errors import ApiError, ApiUnreachable
from muster_protocol import launcher_api
from muster_protocol.launcher_status import Facts, Status, implausible
from muster_protocol.messages import Membership, Reliability, Stop
from muster_protocol.tokens import job_token
from muster_protocol.wire import decode, encode

AT_ONCE: Final = 400
"""Requests under way at once; the others wait their turn, and no timeout runs meanwhile."""

BODY_LIMIT: Final = 256 * 1024
"""Bytes; a launcher's answer is a few hundred."""


class LauncherError(Exception):
    """A launcher did not answer, or not as the protocol says. The message says which and how."""


class Nonsense(LauncherError):
    """A launcher's answer is not what the protocol allows."""


class UnknownToken(LauncherError):
    """The launcher has a token of another key than this operator's."""


class NotAsked(LauncherError):
    """The request has not left for the launcher, so its silence says nothing."""


_OWN_WANT: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.ENETDOWN}
)
"""Errors of a connection that is lacking on this side."""


@dataclass(frozen=True)
class Launcher:
    """Where one launcher is. `ip` may be empty while the pod has none."""

    namespace: str
    pod: str
    ip: str
    port: int
    job_uid: str


class Transport(Protocol):
    """Carries one request to a launcher and returns (status code, body)."""

    async def __call__(
        self, launcher: Launcher, method: str, path: str, body: bytes | None, token: str
    ) -> tuple[int, bytes]: ...


class DirectTransport:
    """By pod IP; one connection pool for all.

    Whoever waits for room in a pool of aiohttp's spends the request's timeout there, and a few dead nodes would make
    launchers look dead that were never asked. So the pool has no limit, and the wait is before it.
    """

    def __init__(self, *, timeout: float = 5.0, at_once: int = AT_ONCE) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._room = asyncio.Semaphore(at_once)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(
        self, launcher: Launcher, method: str, path: str, body: bytes | None, token: str
    ) -> tuple[int, bytes]:
        if not launcher.ip:
            raise LauncherError(f"pod {launcher.namespace}/{launcher.pod} has no IP yet")
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=aiohttp.TCPConnector(limit=0))
        host = f"[{launcher.ip}]" if ":" in launcher.ip else launcher.ip
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            async with (
                self._room,
                self._session.request(
                    method, f"http://{host}:{launcher.port}{path}", data=body, headers=headers
                ) as answer,
            ):
                return answer.status, await answer.content.read(BODY_LIMIT + 1)
        except (aiohttp.ClientError, TimeoutError) as error:
            kind = NotAsked if isinstance(error, OSError) and error.errno in _OWN_WANT else LauncherError
            raise kind(
                f"launcher of pod {launcher.namespace}/{launcher.pod} at {host}:{launcher.port} does not answer: "
                f"{type(error).__name__} {error}"
            ) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class ProxyCall(Protocol):
    """`Api.proxy`: (status code, body) of a request through the API server."""

    async def __call__(
        self,
        namespace: str,
        pod: str,
        port: int,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> tuple[int, bytes]: ...


TOKEN_HEADER: Final = launcher_api.TOKEN_HEADER


class ProxyTransport:
    """Through the API server, for an operator that runs outside the cluster.

    The API server takes the `Authorization` header for itself, so the job's token travels in `X-Muster-Token`.
    """

    def __init__(self, call: ProxyCall) -> None:
        self._call = call

    async def __call__(
        self, launcher: Launcher, method: str, path: str, body: bytes | None, token: str
    ) -> tuple[int, bytes]:
        headers = {TOKEN_HEADER: token, "Content-Type": "application/json"}
        try:
            return await self._call(launcher.namespace, launcher.pod, launcher.port, method, path, body, headers)
        except (ApiError, ApiUnreachable) as error:
            raise NotAsked(f"pod {launcher.namespace}/{launcher.pod} can't be asked: {error}") from error


class Launchers:
    """The operator's side of the launcher's HTTP API (`muster_protocol.launcher_api`)."""

    def __init__(self, transport: Transport, key: bytes) -> None:
        self._transport = transport
        self._key = key

    async def status(self, launcher: Launcher) -> Status:
        """Raises LauncherError."""
        body = await self._request(launcher, "GET", launcher_api.STATUS_PATH, None)
        who = f"the launcher of pod {launcher.namespace}/{launcher.pod}"
        try:
            status = decode(Status, body)
        except ValueError as error:
            raise Nonsense(f"{who} sent a status that can't be read, and is not heeded: {error}") from error
        if wrong := implausible(status):
            raise Nonsense(f"{who} sent a status that can't be true, and is not heeded: {wrong}")
        return status

    async def push_membership(self, launchers: Sequence[Launcher], membership: Membership) -> dict[str, LauncherError]:
        """Tell every launcher who belongs to the gang; the errors of those that could not be told, by pod."""
        body = encode(membership)
        results = await asyncio.gather(
            *(self._request(one, "PUT", launcher_api.MEMBERSHIP_PATH, body) for one in launchers),
            return_exceptions=True,
        )
        errors = dict[str, LauncherError]()
        for launcher, result in zip(launchers, results, strict=True):
            if isinstance(result, LauncherError):
                errors[launcher.pod] = result
            elif isinstance(result, BaseException):
                raise result
        return errors

    async def stop(self, launcher: Launcher, stop: Stop) -> None:
        """Ask the gang to stop; any one launcher relays it. Raises LauncherError."""
        await self._request(launcher, "POST", launcher_api.STOP_PATH, encode(stop))

    async def facts(self, launcher: Launcher, facts: Facts) -> None:
        """Tell index 0 what its run's tracker should know. Raises LauncherError."""
        await self._request(launcher, "PUT", launcher_api.FACTS_PATH, encode(facts))

    async def reliability(self, launcher: Launcher, told: Reliability) -> None:
        """Tell index 0 how often nodes of its kind of capacity fail. Raises LauncherError."""
        await self._request(launcher, "PUT", launcher_api.RELIABILITY_PATH, encode(told))

    async def _request(self, launcher: Launcher, method: str, path: str, body: bytes | None) -> bytes:
        code, answer = await self._transport(launcher, method, path, body, job_token(self._key, launcher.job_uid))
        if code == 401:
            raise UnknownToken(
                f"the launcher of pod {launcher.namespace}/{launcher.pod} does not know this operator's token: "
                "MUSTER_OPERATOR_TOKEN_KEY, the chart's tokenKey, has changed since the pod was made; the run goes on, "
                "tells of no progress until the key is as it was, and its next placement gets the new one"
            )
        if code >= 300:
            raise LauncherError(
                f"pod {launcher.namespace}/{launcher.pod}: {method} {path} answered {code}: "
                f"{answer[:200].decode(errors='replace')}"
            )
        if len(answer) > BODY_LIMIT:
            raise LauncherError(f"pod {launcher.namespace}/{launcher.pod}: answer to {path} is over {BODY_LIMIT} bytes")
        return answer
