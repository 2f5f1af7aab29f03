"""Brings what is known of a run to its tracker: in batches, with pauses when it is away, and with bounded memory.

What waits is bounded: when the tracker is away for long, the oldest values go and are counted.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import methodcaller
from typing import Any, Final

from muster_protocol.launcher_status import Tracking as Told
from muster_runtime.tracking.tracker import BATCH, Point, Rejected, Run, RunStatus, Tracker, TrackerError

FLUSH_SECONDS: Final = 5.0
FIRST_PAUSE: Final = 1.0
LAST_PAUSE: Final = 60.0
POINTS_KEPT: Final = 50_000
"""About 10 MB, and three quarters of an hour at twenty values a second."""
FACTS_KEPT: Final = 2_000
"""Parameters, and tags."""
PARTS_TRIED: Final = 64
"""Requests for one batch that was refused: enough to find three bad values among 1,000."""


@dataclass(frozen=True)
class _Kind:
    """How values of a kind are given, and what one is called and where it stood."""

    give: Callable[[Tracker, Sequence[Any]], None]
    named: Callable[[Any], tuple[str, str]]


_METRICS: Final = _Kind(
    lambda tracker, points: tracker.metrics(points),
    lambda point: (f"metric {point.name!r}", f" at step {point.step}"),
)
_PARAMS: Final = _Kind(lambda tracker, facts: tracker.params(dict(facts)), lambda fact: (f"parameter {fact[0]!r}", ""))
_TAGS: Final = _Kind(lambda tracker, facts: tracker.tags(dict(facts)), lambda fact: (f"tag {fact[0]!r}", ""))


class Courier:
    """`add`, `know` and `end` may be called from another thread than `run`. `tell` gets each change of `Told`."""

    def __init__(
        self, make: Callable[[], Tracker], run: Run, tell: Callable[[Told], None], *, points_kept: int = POINTS_KEPT
    ) -> None:
        self._make, self._run, self._tell = make, run, tell
        self._tracker: Tracker | None = None
        self._points: deque[Point] = deque()
        self._points_kept = points_kept
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._status: RunStatus | None = None
        self._ended_at = 0.0
        self._changed = threading.Condition()
        self._told = Told()
        self._dropped = 0
        self._rejected = ""
        self._refused: set[str] = set()

    # ----------------------------------------------------------------------------------------------------- what is told

    def add(self, points: Sequence[Point]) -> None:
        with self._changed:
            self._points.extend(points)
            while len(self._points) > self._points_kept:
                self._points.popleft()
                self._dropped += 1

    def know(self, *, params: Mapping[str, str] | None = None, tags: Mapping[str, str] | None = None) -> None:
        with self._changed:
            for known, news in ((self._params, params), (self._tags, tags)):
                for name, value in (news or {}).items():
                    if name in known or len(known) < FACTS_KEPT:
                        known[name] = value

    def end(self, status: RunStatus | None, at: float) -> None:
        """Nothing more comes. None: nobody knows how the run stands."""
        with self._changed:
            self._status, self._ended_at = status or RunStatus.RUNNING, at
            self._changed.notify()

    # ------------------------------------------------------------------------------------------------- what is brought

    def run(self) -> None:
        """Returns when everything is brought after `end`."""
        pause = 0.0
        while True:
            ended = self._status is not None
            try:
                self._flush()
                if ended:
                    self._close()
            except Exception as error:  # noqa: BLE001 - a tracker may be anybody's
                pause = min(LAST_PAUSE, pause * 2 or FIRST_PAUSE)
                self._news(well=False, text=str(error) or type(error).__name__)
            else:
                pause = 0.0
                self._news(well=True, text=self._rejected)
                if ended:
                    return
            self._wait(pause * random.uniform(0.8, 1.2) if pause else FLUSH_SECONDS)

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if self._status is None:
                self._changed.wait_for(lambda: self._status is not None, seconds)
                return
        time.sleep(min(seconds, FIRST_PAUSE))  # whoever ended us doesn't wait for long

    def _flush(self) -> None:
        self._open()
        for known, kind in ((self._params, _PARAMS), (self._tags, _TAGS)):
            with self._changed:
                news = tuple(known.items())
            if news:
                self._bring(news, kind)
                with self._changed:
                    for each, value in news:
                        if known.get(each) == value:
                            del known[each]
        while batch := self._batch():
            self._bring(batch, _METRICS)
            with self._changed:
                for point in batch:
                    if self._points and self._points[0] is point:  # the oldest may have made room meanwhile
                        self._points.popleft()

    def _batch(self) -> tuple[Point, ...]:
        with self._changed:
            return tuple(islice(self._points, BATCH))

    def _bring(self, batch: Sequence[Any], kind: _Kind) -> None:
        if rejected := self._refused_by(lambda tracker: kind.give(tracker, batch)):
            self._dropped += self._bring_parts(batch, kind, rejected)

    def _refused_by(self, call: Callable[[Tracker], None]) -> Rejected | None:
        """None: the tracker took it. A run that was deleted there is opened anew first."""
        try:
            call(self._open())
        except Rejected:
            self._tracker = None
            try:
                call(self._open())
            except Rejected as rejected:
                return rejected
        return None

    def _bring_parts(self, batch: Sequence[Any], kind: _Kind, rejected: Rejected) -> int:
        """A batch that is refused, in ever smaller parts: one bad value costs no others. How many are given up."""
        dropped, requests = 0, 0
        parts = deque([(batch, rejected)])
        while parts:
            part, rejected = parts.popleft()
            if len(part) == 1:
                dropped += 1
                self._refuse(kind.named(part[0]), rejected)
                continue
            if requests >= PARTS_TRIED:
                dropped += len(part)
                self._rejected = self._rejected or str(rejected)
                continue
            half = len(part) // 2
            for each in (part[:half], part[half:]):
                requests += 1
                try:
                    kind.give(self._open(), each)
                except Rejected as refused:
                    parts.append((each, refused))
        return dropped

    def _refuse(self, named: tuple[str, str], rejected: Rejected) -> None:
        """Told once for a name: a metric that is refused may be refused at every step."""
        name, where = named
        if name not in self._refused and len(self._refused) < FACTS_KEPT:
            self._refused.add(name)
            self._rejected = f"the {name} was left out{where}: {rejected}"

    def _open(self) -> Tracker:
        if self._tracker is None:
            tracker = self._make()
            try:
                url = tracker.begin(self._run)
            except Rejected as rejected:  # of the run itself: nothing can be brought, and nothing is given up
                raise TrackerError(str(rejected)) from rejected
            self._tracker = tracker
            self._news(well=True, url=url)
        return self._tracker

    def _close(self) -> None:
        if self._status is None or self._status is RunStatus.RUNNING:
            return
        if rejected := self._refused_by(methodcaller("end", self._status, self._ended_at)):
            self._rejected = str(rejected)

    def _news(self, **changes: object) -> None:
        told = replace(self._told, dropped=self._dropped, **changes)  # type: ignore[arg-type]
        if told != self._told:
            self._told = told
            self._tell(told)
