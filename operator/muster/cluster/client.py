"""The only way to the API server: JSON in, JSON out, each call with a timeout.

Reads are tried again when the connection fails. Creations never are: what failed is decided again by the loop, from
what the watch then shows. Whatever the API server turns away unread, for it has too much to do, is sent again when it
says. (aiohttp sends a PUT or DELETE once more whose kept connection turns out closed; a version or
a UID guards those.) Before each write the guard is asked when the call starts, when it has its connection, and in the
moment before the bytes leave: a process may have been stopped in between, for a minute.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from muster import __version__
from muster.api.names import FIELD_MANAGER
from muster.cluster import faults
from muster.cluster.answers import Answer, Object, WatchEvent, document_of, error_of, event_of, lines_of, retry_after
from muster.cluster.credentials import Credentials
from muster.cluster.errors import ApiError, ApiUnreachable, LeadershipLost
from muster.cluster.server_clock import ServerClock

__all__ = ["Api", "ApiError", "ApiUnreachable", "LeadershipLost"]

Observe = Callable[[str, int, float], None]
"""Told of every call: (verb, status code or 0 without an answer, seconds)."""

Wrote = Callable[[str, str], None]
"""Told of every write that is asked for: (verb, or `rehearse` of a dry run; resource, as in `trainingjobs/status`)."""

log = logging.getLogger(__name__)

PAGE: Final = 500
READ_TRIES: Final = 3
BUSY_TRIES: Final = 5
"""Of a call that is answered with 429 and a time to come again, as API Priority and Fairness does."""
LONGEST_RETRY_AFTER: Final = 5.0
"""Seconds between two of them, whatever the server says."""
CONNECT_TIMEOUT: Final = 5.0
_JSON: Final = "application/json"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_MERGE: Final = "application/merge-patch+json"


class Api:
    """Calls with paths such as `/api/v1/namespaces/default/pods/a`. Raises ApiError, ApiUnreachable, LeadershipLost.

    Attributes:
        guard: asked before every write; raises LeadershipLost when this process may not write.
        timeout: seconds for one call, all in.
        agent: what the API server's audit log shows as the user agent.
        clock: the API server's.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        guard: Callable[[], None] = lambda: None,
        timeout: float = 15.0,
        agent: str = "",
        observe: Observe = lambda verb, code, seconds: None,
        wrote: Wrote = lambda verb, resource: None,
    ) -> None:
        self.credentials = credentials
        self.guard = guard
        self.timeout = timeout
        self.clock = ServerClock()
        self.agent = f"muster/{__version__}" + (f" ({agent})" if agent else "")
        self._observe = observe
        self._wrote = wrote
        self._session: aiohttp.ClientSession | None = None
        self._reloading = asyncio.Lock()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- reads -----------------------------------------------------------------------------------------------------

    async def get(self, path: str, **parameters: str) -> Object:
        """One object, or any other JSON document."""
        return await self._read(path, parameters)

    async def pages(
        self, path: str, parameters: Mapping[str, str] | None = None, *, limit: int = PAGE, metadata_only: bool = False
    ) -> AsyncIterator[Object]:
        """A collection's pages as the server gives them: `items`, and `metadata.resourceVersion`, the same in all.

        `metadata_only` leaves `spec` and `status` out. ApiError with `gone` when the pages took too long: start again.
        """
        query = {**(parameters or {}), "limit": str(limit)}
        while True:
            page = await self._read(path, query, accept=_METADATA_ONLY if metadata_only else _JSON)
            yield page
            follows = (page.get("metadata") or {}).get("continue")
            if not follows:
                return
            query["continue"] = follows
            query.pop("resourceVersion", None)

    async def list(self, path: str, **parameters: str) -> list[Object]:
        """All items of a collection."""
        return [item async for page in self.pages(path, parameters) for item in page.get("items") or ()]

    async def watch(
        self, path: str, *, resource_version: str, seconds: int = 60, patience: float = 15.0, **parameters: str
    ) -> AsyncIterator[WatchEvent]:
        """Changes after `resource_version`, bookmarks included. Ends when the server ends it, after `seconds`.

        Raises:
            ApiUnreachable: also when the server should have ended the watch and `patience` seconds have passed since:
                a connection can die without a word.
            ApiError: `gone` when `resource_version` is too old.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
            **parameters,
        }
        timeout = aiohttp.ClientTimeout(total=seconds + patience, sock_connect=CONNECT_TIMEOUT)
        started, code = time.monotonic(), 0
        try:
            async with self._open("GET", path, query, timeout=timeout) as answer:
                code = answer.status
                if code != 200:
                    raise error_of(Answer(answer.status, await answer.read(), answer.reason or ""))
                async for line in lines_of(answer.content):
                    yield event_of(line)
        except TimeoutError as error:
            raise ApiUnreachable(f"watch of {path} was silent past its end after {seconds} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable("watch of", path, error) from error
        finally:
            self._observe("WATCH", code, time.monotonic() - started)

    async def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        stamped: bool = False,
        since: str = "",
    ) -> AsyncIterator[str]:
        """Lines of a container's log, each with its end; with `follow`, until the container has ended, or its node's
        kubelet.

        ApiError 400 while the container waits to start.

        Args:
            stamped: each line begins with when it was written, and a space.
            since: such a moment: lines from its second on.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        query = {"container": container, "follow": str(follow).lower(), "timestamps": str(stamped).lower()}
        if since:
            query["sinceTime"] = since
        if tail is not None:
            query["tailLines"] = str(tail)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT)
        try:
            async with self._open("GET", path, query, timeout=timeout) as answer:
                if answer.status >= 400:
                    raise error_of(Answer(answer.status, await answer.read(), answer.reason or ""))
                rest = b""
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line.decode(errors="replace") + "\n"
                if rest:
                    yield rest.decode(errors="replace") + "\n"
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable("log of", pod, error) from error

    # -- writes ----------------------------------------------------------------------------------------------------

    async def create(self, path: str, body: Object, *, dry_run: bool = False, strict: bool = False) -> Object:
        """POST to a collection. 409 AlreadyExists is an ApiError, and where it is `strict` so is 400 for fields that
        the kind does not have: else they are left out without a word."""
        parameters = {"fieldManager": FIELD_MANAGER} | _dry(dry_run)
        if strict:
            parameters["fieldValidation"] = "Strict"
        return await self._write("POST", path, body, "create", parameters, fault=not dry_run)

    async def replace(self, path: str, body: Object) -> Object:
        """PUT; 409 Conflict when the body's resourceVersion is not the newest."""
        return await self._write("PUT", path, body, "update", {"fieldManager": FIELD_MANAGER})

    async def update_status(self, path: str, body: Object) -> Object:
        """PUT to the object's status subresource; `path` is the object's."""
        return await self.replace(f"{path}/status", body)

    async def merge_patch(self, path: str, patch: Object, *, manager: str = FIELD_MANAGER) -> Object:
        """JSON merge patch: lists are replaced whole. `manager`: who is told to have set the fields."""
        return await self._write("PATCH", path, patch, "patch", {"fieldManager": manager}, content_type=_MERGE)

    async def delete(self, path: str, *, uid: str = "", grace: int | None = None, propagation: str = "") -> Object:
        """Delete one object. With `uid`, 409 Conflict when another object has the name now. `grace` in seconds."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if propagation:
            options["propagationPolicy"] = propagation
        return await self._write("DELETE", path, options, "delete", {})

    async def proxy(
        self,
        namespace: str,
        pod: str,
        port: int,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        timeout: float = 10.0,
    ) -> tuple[int, bytes]:
        """A request to a pod's HTTP port through the API server: (status code, body), whatever the code.

        A 503 may be the API server's own, when the pod does not answer.
        """
        full = f"/api/v1/namespaces/{namespace}/pods/http:{pod}:{port}/proxy{path}"
        if method != "GET":
            self.guard()
        answer = await self._call(method, full, {}, body, dict(headers), timeout=timeout, fenced=method != "GET")
        return answer.status, answer.body

    # -- transport -------------------------------------------------------------------------------------------------

    async def _read(self, path: str, parameters: Mapping[str, str], *, accept: str = _JSON) -> Object:
        call = partial(self._call, "GET", path, parameters, None, {"Accept": accept})
        for attempt in range(READ_TRIES):
            try:
                return document_of(await _served(call), f"GET {path}")
            except ApiUnreachable:
                if attempt == READ_TRIES - 1:
                    raise
                await asyncio.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")

    async def _write(
        self,
        method: str,
        path: str,
        body: Object,
        verb: str,
        parameters: Mapping[str, str],
        *,
        content_type: str = _JSON,
        fault: bool = True,
    ) -> Object:
        self.guard()
        resource = _resource(path, verb)
        kind = f"{verb}-{resource}"
        self._wrote("rehearse" if "dryRun" in parameters else verb, resource)
        number = faults.before_write(kind, path) if fault else 0
        headers = {"Accept": _JSON, "Content-Type": content_type}
        text = json.dumps(body).encode()
        answer = await _served(partial(self._call, method, path, parameters, text, headers, fenced=True))
        if fault:
            faults.after_write(kind, number)
        return document_of(answer, f"{method} {path}")

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        body: bytes | None,
        headers: dict[str, str],
        *,
        timeout: float | None = None,
        fenced: bool = False,
    ) -> Answer:
        limit = aiohttp.ClientTimeout(total=timeout or self.timeout, sock_connect=CONNECT_TIMEOUT)
        for attempt in (0, 1):
            configuration = self.credentials.configuration
            started, code = time.monotonic(), 0
            try:
                async with self._open(method, path, parameters, limit, body, headers, fenced) as response:
                    code = response.status
                    self.clock.heard(response.headers.get("Date", ""))
                    after = retry_after(response.headers.get("Retry-After"))
                    answer = Answer(code, await response.read(), response.reason or "", after)
            except TimeoutError as error:
                raise ApiUnreachable(f"{method} {path}: no answer from {self.credentials.server} in time") from error
            except (aiohttp.ClientError, OSError) as error:
                if isinstance(error.__cause__, LeadershipLost):  # raised where aiohttp wraps what stops a body
                    raise error.__cause__ from None
                raise self._unreachable(method, path, error) from error
            finally:
                self._observe(method, code, time.monotonic() - started)
            if code != 401 or attempt or not await self._reload(configuration):
                return answer
        raise AssertionError("unreachable")

    def _open(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        fenced: bool = False,
    ) -> Any:
        settings = self.credentials.configuration
        query = f"{'&' if '?' in path else '?'}{urlencode(parameters)}" if parameters else ""
        return self._connected().request(
            method,
            f"{self.credentials.server}{path}{query}",
            data=body,
            headers=(("User-Agent", self.agent), *(headers or {}).items(), *self.credentials.headers()),
            timeout=timeout,
            proxy=settings.proxy,
            server_hostname=settings.tls_server_name,
            allow_redirects=False,
            trace_request_ctx=SimpleNamespace(fenced=fenced),
        )

    def _connected(self) -> aiohttp.ClientSession:
        """The session, made in the running event loop by the official client's own rules for TLS and pooling."""
        if self._session is None:
            settings = self.credentials.configuration
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(self._before_sending)
            trace.on_connection_reuseconn.append(self._before_sending)
            trace.on_request_chunk_sent.append(self._before_sending)
            settings.trace_configs = [trace]
            settings.connection_pool_maxsize = 128
            # NB: proxies only as the kubeconfig says: a watch through a site's web proxy dies silently.
            settings.client_session_kwargs = {"trust_env": False, "cookie_jar": aiohttp.DummyCookieJar()}
            self._session = RESTClientObject(settings)._create_pool_manager()
        return self._session

    async def _before_sending(self, session: Any, context: SimpleNamespace, parameters: Any) -> None:
        if context.trace_request_ctx.fenced:
            self.guard()

    async def _reload(self, used: object) -> bool:
        """Take fresh credentials after a 401. False when there are none newer than those that were refused."""
        async with self._reloading:
            if self.credentials.configuration is not used:
                return True
            before = self.credentials.headers()
            await self.credentials.load()
            if self.credentials.headers() == before and not self.credentials.configuration.cert_file:
                return False
            session, self._session = self._session, None
            if session is not None:  # calls under way may still use it
                asyncio.get_running_loop().call_later(self.timeout, _close_soon, session)
            return True

    def _unreachable(self, verb: str, path: str, error: Exception) -> ApiUnreachable:
        text = str(error) or type(error).__name__
        return ApiUnreachable(f"{verb} {path}: API server {self.credentials.server} cannot be reached: {text}")


async def _served(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer of a call that is made again when the server has turned it away and says when to come back."""
    for _ in range(BUSY_TRIES - 1):
        answer = await call()
        if answer.status != 429 or not answer.retry_after:
            return answer
        # Not all that were turned away at the same time come back at the same time.
        await asyncio.sleep(min(answer.retry_after, LONGEST_RETRY_AFTER) * random.uniform(1.0, 1.5))
    return await call()


def _close_soon(session: aiohttp.ClientSession) -> None:
    task = asyncio.ensure_future(session.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


_closing: set[asyncio.Future[None]] = set()


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _resource(path: str, verb: str) -> str:
    """`pods` or `trainingjobs/status`, from the path of a collection (for `create`) or of an object."""
    parts = path.partition("?")[0].strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    if verb == "create":
        return parts[0] if len(parts) == 1 else f"{parts[0]}/{parts[-1]}"
    return "/".join([parts[0], *parts[2:]])
