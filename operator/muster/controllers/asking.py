"""Whom an autoscaler is asked to make room for, and which requests have served their turn. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from muster.cluster.provisioning import Answer, Request
from muster.scheduling.plan import LACKS_NODES, Waiting

AT_ONCE: Final = 16
"""Requests in all that an autoscaler works on."""

FIRST_DELAY: Final = 60
LAST_DELAY: Final = 3600
"""Seconds until the same is asked for again after a failure: doubled each time."""


@dataclass(frozen=True)
class Wish:
    """A job that only lacks nodes.

    Attributes:
        keys: of the requests that it would make, one after the other until one is answered with nodes.
        rank: who is asked for first; the smallest.
    """

    uid: str
    keys: tuple[str, ...]
    rank: tuple[int, str]


@dataclass(frozen=True)
class Ask:
    """A request to be made; `key` is one of its wish's."""

    wish: Wish
    key: str
    attempt: int


@dataclass(frozen=True)
class Capacity:
    """What is told to a job about its request.

    Attributes:
        request: its name.
        message: the autoscaler's words.
        retry_at: when it is asked again, after a failure.
    """

    request: str
    answer: Answer
    message: str = ""
    retry_at: datetime | None = None


@dataclass(frozen=True)
class Decided:
    """
    Attributes:
        told: by uid of each job that has a request.
    """

    make: tuple[Ask, ...]
    drop: tuple[Request, ...]
    told: Mapping[str, Capacity]


def lacks_nodes(waiting: Waiting | None) -> bool:
    """Whether more nodes would start the job: it has quota, and nobody ahead of it keeps the room."""
    return waiting is not None and bool(waiting.wanted) and waiting.reason in LACKS_NODES


def decide(
    wishes: Iterable[Wish], requests: Iterable[Request], pausing: Collection[str], now: datetime, at_once: int = AT_ONCE
) -> Decided:
    """One request for each job at most, the first in rank first, and no more than `at_once` that are open.

    Args:
        pausing: uids of jobs that may want theirs again in a moment.
    """
    by_uid = {wish.uid: wish for wish in wishes}
    make: list[Ask] = []
    drop: list[Request] = []
    told: dict[str, Capacity] = {}
    taken, opened = set[str](), 0
    for request in sorted(requests, key=lambda request: (request.attempt, request.name)):
        wish = by_uid.get(request.job_uid)
        if request.terminating:
            continue
        wished = wish is not None and request.key in wish.keys
        retry_at = _retry_at(request, wish) if request.answer is Answer.FAILED else None
        if wish is not None and wished and retry_at is not None and retry_at <= now:
            drop.append(request)
            make.append(Ask(wish, _next(request, wish), request.attempt + 1))
            taken.add(wish.uid)
        elif wished or (wish is None and request.job_uid in pausing):
            told[request.job_uid] = Capacity(request.name, request.answer, request.message, retry_at)
            taken.add(request.job_uid)
            opened += request.answer is Answer.NONE
        else:
            drop.append(request)
    first = [Ask(wish, wish.keys[0], 1) for wish in by_uid.values() if wish.uid not in taken]
    asks = sorted([*make, *first], key=lambda ask: ask.wish.rank)[: max(0, at_once - opened)]
    chosen = {ask.wish.uid for ask in asks}
    # One that failed and has no turn now stays, for it says how often it was tried.
    kept = {ask.wish.uid for ask in make} - chosen
    return Decided(tuple(asks), tuple(each for each in drop if each.job_uid not in kept), told)


def delay(attempt: int) -> int:
    """Seconds to wait after that many failures."""
    return min(FIRST_DELAY << min(attempt - 1, 10), LAST_DELAY)


def _next(request: Request, wish: Wish) -> str:
    """What is asked for after a request of a wish: the first again after the last."""
    return wish.keys[(wish.keys.index(request.key) + 1) % len(wish.keys)]


def _retry_at(request: Request, wish: Wish | None) -> datetime:
    """When a job asks again after a failure: at once for something else, later when it has asked for all."""
    if wish is None or request.key not in wish.keys:
        return request.since + timedelta(seconds=delay(request.attempt))
    if request.key != wish.keys[-1]:
        return request.since
    return request.since + timedelta(seconds=delay(-(-request.attempt // len(wish.keys))))
