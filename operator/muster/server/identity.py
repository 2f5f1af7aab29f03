"""Who asks, and what they may read: Kubernetes' own words, by TokenReview and SubjectAccessReview, kept for seconds.

Nothing here decides: a token is as good as the API server says, and a right is what its authorizers say of that user
with all groups and extras. So nothing is shown that kubectl would not show to the same token, but for the seconds that
an answer is kept.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from muster.api.common import GROUP
from muster.cluster.errors import ApiError, ApiUnreachable
from muster.server.problems import Problem, unauthorized, unavailable

Object = dict[str, Any]
K = TypeVar("K")
V = TypeVar("V")

TOKENS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KEPT: Final = 10_000
"""Answers that are kept of each kind, the last used ones."""
AT_ONCE: Final = 16
"""Reviews under way."""
LONGEST_TOKEN: Final = 8192
"""Characters; the API server's own tokens have some 1,000."""
NAMESPACES_ASKED: Final = 200
"""Namespaces that a user without a right in all of them is asked about for one list."""
REFUSED: Final = 30
"""How many times longer than other answers a no to one of these is kept: most are no, and two hundred people who look
at their jobs would be thousands of questions a second to the API server."""
LISTING: Final = 1_000
"""Users for whom these are kept, those who asked last."""


class Reviews(Protocol):
    """The part of `muster.cluster.client.Api` that is needed here."""

    async def create(self, path: str, body: Object) -> Object: ...


@dataclass(frozen=True)
class User:
    """As the API server knows them. `extra` is sorted."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> User:
        """From a TokenReview's `status.user`."""
        extra = sorted((key, tuple(values)) for key, values in (raw.get("extra") or {}).items())
        return cls(raw.get("username") or "", raw.get("uid") or "", tuple(raw.get("groups") or ()), tuple(extra))


@dataclass(frozen=True)
class Right:
    """To read one kind; an empty namespace means all of them, or a kind that has none."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    group: str = GROUP

    def refused(self, user: User) -> Problem:
        """In the API server's words."""
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        what = f"{self.resource}{'.' if self.group else ''}{self.group}{f' {self.name!r}' if self.name else ''}"
        return Problem(
            403,
            f'{what} is forbidden: User "{user.name}" cannot {self.verb} resource "{self.resource}" in API group '
            f'"{self.group}" {where}',
        )


class Kept(Generic[K, V]):
    """Answers that hold for a while. Who asks for the same meanwhile waits for the one question that is under way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, most: int = KEPT) -> None:
        """`most` answers are kept, the last used ones."""
        self._clock, self._most = clock, most
        self._known: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._asked: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[tuple[V, float]]]) -> V:
        """`ask` gives the answer and the seconds for which it holds. What it raises is not kept."""
        known = self._known.get(key)
        if known is not None and self._clock() < known[0]:
            self._known.move_to_end(key)
            return known[1]
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._fill(key, ask))
            task.add_done_callback(lambda done: self._asked.pop(key, None))
        return await asyncio.shield(task)

    async def _fill(self, key: K, ask: Callable[[], Awaitable[tuple[V, float]]]) -> V:
        asked_at = self._clock()  # an answer is as old as its question
        value, seconds = await ask()
        self._known[key] = asked_at + seconds, value
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return value


class Reviewer:
    """Asks the API server. Raises Problem: 401, 403, and 503 when it gives no answer."""

    def __init__(self, api: Reviews, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds` for which an answer is kept."""
        self._api, self._seconds, self._clock = api, seconds, clock
        self._room = asyncio.Semaphore(AT_ONCE)
        self._users: Kept[bytes, User | str] = Kept(clock)
        self._rights: Kept[tuple[User, Right], bool] = Kept(clock)
        self._refused: Kept[tuple[User, Right], dict[str, float]] = Kept(clock, most=LISTING)
        """Namespaces where a user has not the right, and until when that holds."""

    async def user(self, authorization: str | None) -> User:
        """Who sent this `Authorization` header."""
        scheme, _, token = (authorization or "").strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise unauthorized("no bearer token", token_given=False)
        if len(token) > LONGEST_TOKEN:
            raise unauthorized("the token is too long", token_given=True)
        found = await self._users.get(hashlib.sha256(token.encode()).digest(), lambda: self._review(token))
        if isinstance(found, str):
            raise unauthorized(found, token_given=True)
        return found

    async def _review(self, token: str) -> tuple[User | str, float]:
        """The user, or why the token is refused; and for how long that holds: never past the token's own end."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = (await self._ask(TOKENS, body)).get("status") or {}
        left = expiry(token) - time.time()
        if not status.get("authenticated"):
            return "the token has expired" if left <= 0 else "the API server does not know this token", self._seconds
        return User.of(status.get("user") or {}), min(self._seconds, left)

    async def allows(self, user: User, right: Right) -> bool:
        return await self._rights.get((user, right), lambda: self._access(user, right))

    async def demand(self, user: User, right: Right) -> None:
        """Raises Problem 403 unless the user has the right."""
        if not await self.allows(user, right):
            raise right.refused(user)

    async def namespaces(self, user: User, right: Right, there: Callable[[], Iterable[str]]) -> frozenset[str] | None:
        """Those of `there()` in which the user has the right; None: in all, whatever their names. Raises Problem 403
        when it is in none of them."""
        if await self.allows(user, right):
            return None
        names = sorted(there())
        if len(names) > NAMESPACES_ASKED:
            more = f"and more than {NAMESPACES_ASKED} namespaces have some: name one of them"
            raise Problem(403, f"{right.refused(user).detail}, {more}")
        refused = await self._refused.get((user, right), _nowhere_yet)
        now = self._clock()
        asked = [name for name in names if refused.get(name, now) <= now]
        each = [Right(right.verb, right.resource, name, group=right.group) for name in asked]
        answers = await asyncio.gather(*(self.allows(user, one) for one in each))
        allowed = frozenset(name for name, yes in zip(asked, answers, strict=True) if yes)
        for name in [name for name, until in refused.items() if until <= now]:
            del refused[name]
        refused |= dict.fromkeys(set(asked) - allowed, now + REFUSED * self._seconds)
        if not allowed:
            raise Problem(403, f"{right.refused(user).detail}, nor in any namespace that has some")
        return allowed

    async def _access(self, user: User, right: Right) -> tuple[bool, float]:
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": right.resource,
            "namespace": right.namespace,
            "name": right.name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user.name,
                "uid": user.uid,
                "groups": list(user.groups),
                "extra": {key: list(values) for key, values in user.extra},
                "resourceAttributes": {key: value for key, value in attributes.items() if value},
            },
        }
        status = (await self._ask(ACCESS, body)).get("status") or {}
        return bool(status.get("allowed")), self._seconds

    async def _ask(self, path: str, body: Object) -> Object:
        async with self._room:
            try:
                return await self._api.create(path, body)
            except ApiUnreachable as error:
                raise unavailable(f"the API server gives no answer, so nobody's rights are known: {error}") from error
            except ApiError as error:
                hint = "; the chart's ClusterRole grants it" if error.status == 403 else ""
                raise unavailable(f"the API server refused a review: {error.message}{hint}", seconds=10) from error


async def _nowhere_yet() -> tuple[dict[str, float], float]:
    return {}, float("inf")


def expiry(token: str) -> float:
    """Seconds since the epoch at which a JWT says that it ends; infinite for other tokens. Nothing is proved by it: it
    only shortens how long an answer is kept."""
    parts = token.split(".")
    if len(parts) != 3:
        return float("inf")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # anybody may send anything
        return float("inf")
