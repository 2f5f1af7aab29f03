"""A replica that stands by passes a question on to the one that leads.

It watches nothing, so that a second replica costs the API server no second watch of every pod and job, and itself no
memory; and whoever asks through one Service gets pages of one cluster, whichever replica they meet. The leader's
address stands in its Lease. Nothing is passed on twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import aiohttp
from starlette.datastructures import Headers
from starlette.responses import Response
from yarl import URL

from muster.server.problems import Problem, unavailable
from muster.server.serving import Scope

FORWARDED: Final = "muster-forwarded-by"
"""Request header: the replica that has passed the question on."""
REQUEST_HEADERS: Final = ("authorization", "accept-encoding")
ANSWER_HEADERS: Final = ("content-type", "content-encoding", "www-authenticate", "retry-after", "vary", "cache-control")
CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 15.0


class Forwarder:
    """Asks the leader."""

    def __init__(self, leader: Callable[[], str], identity: str, session: aiohttp.ClientSession) -> None:
        """`leader` gives its `host:port` as last seen in the Lease; "" when nobody holds it or it is unknown."""
        self._leader, self._identity, self._session = leader, identity, session

    async def ask(self, scope: Scope) -> Response:
        """The leader's answer. Raises Problem 503 when there is none."""
        headers = Headers(scope=scope)
        if FORWARDED in headers:
            raise unavailable("this replica does not lead any more, or not yet; the next one is about to")
        address = self._leader()
        if not address:
            raise unavailable("no replica leads at the moment; one takes over within seconds")
        sent = {name: headers[name] for name in REQUEST_HEADERS if name in headers}
        query = scope["query_string"].decode("latin-1")
        path = scope["raw_path"].decode("latin-1")
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            async with self._session.request(
                "GET",
                URL.build(scheme="http", authority=address, path=path, query_string=query, encoded=True),
                headers={**sent, FORWARDED: self._identity},
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _unreachable(address, error) from error
        kept = {name: answer.headers[name] for name in ANSWER_HEADERS if name in answer.headers}
        return Response(body, answer.status, kept)


def session() -> aiohttp.ClientSession:
    """Bodies are passed on as they come, compressed or not; and no proxy stands between two replicas."""
    return aiohttp.ClientSession(auto_decompress=False, trust_env=False, skip_auto_headers=("Accept-Encoding",))


def _unreachable(address: str, error: Exception) -> Problem:
    return unavailable(
        f"the replica that leads, {address}, gives no answer ({str(error) or type(error).__name__}); if it is gone, "
        "another takes over within seconds"
    )
