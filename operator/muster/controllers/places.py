"""Whose run a place in the store is: of the live jobs with one `checkpoint.uri` a single one trains.

Two gangs on one uri would each take the other's checkpoints for their own: the later claims the next epoch on `LATEST`
and goes on from what the earlier has saved, whose commits are refused from then on. So one job has the place, and the
others wait. It is an index over the records, kept as they change: ten thousand jobs may wait, and each round asks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from muster.api.common import find_condition
from muster.api.effective import EffectiveSpec
from muster.api.names import ConditionType, Reason
from muster.cluster.status import finished, goes_on, reason_of
from muster.controllers.admission import OBSTACLES, Obstacle
from muster.controllers.records import Record
from muster_protocol import env
from muster_protocol.uris import parse_uri

_ENDPOINTS: Final = (env.S3_ENDPOINT, "AWS_ENDPOINT_URL")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_AWS: Final = ".amazonaws.com"


class Place(NamedTuple):
    """Where a run's checkpoints lie. `server` is "" for AWS, whose buckets have one owner of each name."""

    server: str
    bucket: str
    prefix: str


class Standing(NamedTuple):
    """A job's claim to its place; the least of all has it.

    Attributes:
        waits: its gang neither is placed, nor has pods, nor starts again on nodes of its own.
        hindered: it waits, and something has to be mended before it can start: others needn't wait for that.
        since: seconds since the epoch at which it was made, or resumed: a suspended job has given its place away.
        created: seconds since the epoch at which it was made.
    """

    waits: bool
    hindered: bool
    since: float
    created: float
    uid: str


class Places:
    """Who has which place, among the records that it was told of."""

    def __init__(self, freed: Callable[[str], None]) -> None:
        """`freed` is told the UID of each job that has got its place."""
        self._freed = freed
        self._standings: dict[Place, list[Standing]] = {}
        self._known: dict[str, tuple[Place, Standing]] = {}

    def update(self, record: Record, *, living: bool) -> None:
        """Take over what the record says now; `living`: it has pods that may write."""
        standing, place = standing_of(record, living=living), place_of(record.spec)
        now = None if standing is None or place is None else (place, standing)
        if now == self._known.get(record.uid):
            return
        had = self.drop(record.uid, quietly=True)
        if now is not None:
            self._known[record.uid] = now
            insort(self._standings.setdefault(now[0], []), now[1])
            if self._has(now[0]) == record.uid:
                self._freed(record.uid)
        if had is not None and (after := self._has(had)) not in ("", record.uid):
            self._freed(after)

    def drop(self, uid: str, *, quietly: bool = False) -> Place | None:
        """The job is gone. The place that it had, if it had one."""
        known = self._known.pop(uid, None)
        if known is None:
            return None
        place, standing = known
        standings = self._standings[place]
        had = standings[0] == standing
        del standings[bisect_left(standings, standing)]
        if not standings:
            del self._standings[place]
        if not had:
            return None
        if standings and not quietly:
            self._freed(standings[0].uid)
        return place

    def other(self, uid: str) -> str:
        """UID of the job that has the place which this one waits for; "" where it has it itself, or waits for none."""
        place, standing = self._known.get(uid, (None, None))
        if place is None or standing is None or not standing.waits:
            return ""
        has = self._has(place)
        return "" if has == uid else has

    def _has(self, place: Place) -> str:
        standings = self._standings.get(place)
        return standings[0].uid if standings else ""


def place_of(spec: EffectiveSpec) -> Place | None:
    """Where the job's checkpoints lie, as far as its spec tells; None for a job without.

    An endpoint that stands in a Secret is not known: such servers are taken for AWS.
    """
    if spec.checkpoint is None:
        return None
    told = {each.name: each.value or "" for each in spec.env if each.name in _ENDPOINTS}
    endpoint = spec.checkpoint.endpoint or next((told[name] for name in _ENDPOINTS if told.get(name)), "")
    return _place(spec.checkpoint.uri, endpoint)


@lru_cache(maxsize=32768)
def _place(uri: str, endpoint: str) -> Place | None:
    try:
        found = parse_uri(uri)
    except ValueError:
        return None  # nothing can be saved there, as the job's launcher will say
    return Place(_server(endpoint), found.bucket, found.prefix)


def _server(endpoint: str) -> str:
    """The server, as it is called in one way only."""
    try:
        parts = urlsplit(endpoint)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:  # no such port, or half an IPv6 address; the launcher's preflight will say so
        return endpoint
    if host.endswith(_AWS):
        return ""
    return host if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{port}"


def standing_of(record: Record, *, living: bool) -> Standing | None:
    """The job's claim; None for one that neither trains nor will: ended, deleted or suspended, and its pods gone."""
    status, created = record.job.status, record.job.metadata.creation_timestamp
    over = record.leaves_for_good or finished(status)
    holds = living or bool(record.made) or (not over and (record.placement is not None or goes_on(status)))
    if not holds and not record.waits:
        return None
    made = created.timestamp() if created is not None else 0.0
    suspended = find_condition(status.conditions, ConditionType.SUSPENDED)
    resumed = suspended.last_transition_time if suspended is not None and suspended.status == "False" else None
    hindered = not holds and reason_of(status, ConditionType.ADMITTED) in OBSTACLES
    return Standing(not holds, hindered, resumed.timestamp() if resumed is not None else made, made, record.uid)


def conflict(record: Record, other: Record) -> Obstacle:
    """What a job is told whose place another has."""
    uri = record.spec.checkpoint.uri if record.spec.checkpoint else ""
    name = f"{other.identity.namespace}/{other.identity.name}"
    has, until = _what_it_does(other)
    return Obstacle(
        Reason.CHECKPOINT_PATH_CONFLICT,
        f"TrainingJob {name} {has} {uri}, which is this job's checkpoint.uri, too: each would take the other's "
        f"checkpoints for its own. This job starts by itself when {until}. To have it start before, give it a "
        f"spec.checkpoint.uri of its own (checkpoint.from: {uri} begins it with what lies there), or a "
        "checkpoint.endpoint where that is another S3 server's",
    )


def _what_it_does(other: Record) -> tuple[str, str]:
    """What the job that has the place does there, and until when it has it."""
    gone = "its pods are gone"
    if other.leaves_for_good:
        return "is being deleted, and its pods may still save to", gone
    if finished(other.job.status):
        return "has ended, and its pods may still save to", gone
    if other.suspended:
        return "is being suspended, and its pods save to", gone
    until = "that one has ended, or is deleted or suspended"
    if other.placement is None:
        return "came before this one, and waits to train on", until
    return "saves to", until
