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
        key: of the request that it would make.
        rank: who is asked for first; the smallest.
    """

    uid: str
    key: str
    rank: tuple[int, str]


@dataclass(frozen=True)
class Ask:
    """A request to be made."""

    wish: Wish
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
    return waiting is not None and waiting.has_quota and waiting.reason in LACKS_NODES


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
        retry_at = request.since + timedelta(seconds=delay(request.attempt)) if _failed(request) else None
        if wish is not None and wish.key == request.key and retry_at is not None and retry_at <= now:
            drop.append(request)
            make.append(Ask(wish, request.attempt + 1))
            taken.add(wish.uid)
        elif (wish is not None and wish.key == request.key) or (wish is None and request.job_uid in pausing):
            told[request.job_uid] = Capacity(request.name, request.answer, request.message, retry_at)
            taken.add(request.job_uid)
            opened += request.answer is Answer.NONE
        else:
            drop.append(request)
    first = [Ask(wish, 1) for wish in by_uid.values() if wish.uid not in taken]
    asks = sorted([*make, *first], key=lambda ask: ask.wish.rank)[: max(0, at_once - opened)]
    chosen = {ask.wish.uid for ask in asks}
    # One that failed and has no turn now stays, for it says how often it was tried.
    kept = {ask.wish.uid for ask in make} - chosen
    return Decided(tuple(asks), tuple(each for each in drop if each.job_uid not in kept), told)


def delay(attempt: int) -> int:
    """Seconds to wait after that many failures."""
    return min(FIRST_DELAY << min(attempt - 1, 10), LAST_DELAY)


def _failed(request: Request) -> bool:
    return request.answer is Answer.FAILED
