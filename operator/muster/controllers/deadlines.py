"""Whether a job's deadline can still be met. Pure: `now` is given, and the same question has the same answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from muster.api.common import format_time
from muster.api.effective import EffectiveSpec
from muster.api.effective_parts import EffectiveWindow
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.windows import NEVER, opening, window_error
from muster.controllers import terms
from muster.scheduling.plan import Basis, WaitReason
from muster_protocol.durations import format_duration

MOST_WINDOWS: Final = 100
"""Windows through which the end of a job is followed that is stopped at the end of each."""

_STUCK: Final = frozenset(
    reason.value for reason in (WaitReason.EXCEEDS_CLUSTER, WaitReason.EXCEEDS_QUOTA, WaitReason.NO_ELIGIBLE_NODES)
)
"""What a job waits for that may never come: no start of it is expected."""

_BASES: Final = {
    Basis.PROMISED.value: "when the room that is promised to it is cleared",
    Basis.LIMITS.value: "when the running jobs must have ended",
    Basis.PROGRESS.value: "by the running jobs' own progress",
}
"""What an expected start rests on that a deadline is judged by. How many are ahead is too rough for that."""


@dataclass(frozen=True)
class Outlook:
    """Whether the deadline can be met.

    Attributes:
        met: None when nothing tells.
        message: for people.
        passed: the deadline lies behind.
        changes: when the answer changes by time alone, if the job does not start before; None for never.
        waits: seconds until the start that the planner expects, where the answer rests on that; else 0.
        spare: seconds between the end and the deadline, below 0 when it is late; 0 where no end is known.
        stuck: the job can't start as it and the cluster are.
    """

    met: bool | None
    message: str
    changes: datetime | None = None
    passed: bool = False
    waits: float = 0.0
    spare: float = 0.0
    stuck: bool = False


def _stopping_window(spec: EffectiveSpec) -> EffectiveWindow | None:
    """The window at whose end the gang stops; None without one, or for one that is wrong."""
    window = spec.window
    return window if window is not None and window.stops and not window_error(window) else None


def _earliest_end(
    spec: EffectiveSpec, start: datetime, seconds: float, start_seconds: float, *, runs: bool
) -> datetime:
    """When a job that starts at `start`, or `runs` then, can have trained for so many seconds. Where windows stop it,
    it starts again in each. NEVER: not within `MOST_WINDOWS`."""
    window, begin = _stopping_window(spec), 0.0 if runs else start_seconds
    if window is None:
        return start + timedelta(seconds=min(begin + seconds, 1e9))
    for _ in range(MOST_WINDOWS):
        found = opening(window, start)
        if found.opens > start:
            start, begin = found.opens, start_seconds
        left = math.inf if found.closes == NEVER else (found.closes - start).total_seconds()
        if begin + seconds <= left:
            return start + timedelta(seconds=min(begin + seconds, 1e9))
        seconds -= max(0.0, left - begin)
        start = found.closes
    return NEVER


def outlook(spec: EffectiveSpec, status: TrainingJobStatus, now: datetime, start_seconds: float) -> Outlook | None:
    """Whether `spec.deadline` can still be met: from the start that is expected where that is known well enough, else
    from the earliest possible one; None without a deadline."""
    deadline = spec.deadline
    if deadline is None:
        return None
    told = format_time(deadline)
    if now >= deadline:
        return Outlook(False, f"the deadline {told} has passed; the job goes on", passed=True)
    place = status.queue
    if place is not None and status.placement is None and place.reason in _STUCK:
        message = f"nothing tells when the job ends, for it cannot start as it is: {place.reason}"
        return Outlook(None, message, deadline, stuck=True)
    left = terms.rest(spec, status, now)
    runs = status.running_since is not None
    free = runs or terms.runs_to_its_end(spec, status)
    start = now if free else max(now, terms.may_start(spec, now, start_seconds))
    expected = _expected_start(status)
    first, start = start, max(start, expected or start)
    by = f"it is expected to start at {format_time(start)}, {_BASES[_basis(status)]}" if start > first else ""
    if left is None:
        if start >= deadline:
            why = by or f"the window opens at {format_time(start)}"
            return Outlook(False, f"the deadline {told} cannot be met: {why}", deadline)
        message = "nothing tells how long the job takes: give maxRuntime, or report the number of steps"
        return Outlook(None, message, deadline)
    takes = timedelta(seconds=min(left.seconds + (0.0 if runs else start_seconds), 1e9))
    end = _earliest_end(spec, start, left.seconds, start_seconds, runs=runs)
    if end == NEVER:
        message = f"the deadline {told} cannot be met: the windows are too short; give them a longer duration"
        return Outlook(False, message, deadline)
    waits = (start - now).total_seconds() if by else 0.0
    spare = (deadline - end).total_seconds()
    if end <= deadline:
        # A window that passes without the job may make it late sooner than the clock alone.
        window = _stopping_window(spec)
        passes = NEVER if window is None else opening(window, start).closes
        message = f"{by}, and can end at {format_time(end)}" if by else _at_the_earliest(end)
        return Outlook(True, message, min(deadline - takes, passes), waits=waits, spare=spare)
    late = format_duration(round(-spare) or 1)
    if by and _earliest_end(spec, first, left.seconds, start_seconds, runs=runs) <= deadline:
        # Its own length lets it end in time; it is the wait that makes it late.
        measure = "by its progress" if left.sure else "with all of maxRuntime"
        message = f"the deadline {told} will be missed: {by}, and ends at {format_time(end)} {measure}, {late} late"
        return Outlook(False, message, deadline, waits=waits, spare=spare)
    return Outlook(False, _too_long(told, end, late, sure=left.sure), deadline, waits=waits, spare=spare)


def _at_the_earliest(end: datetime) -> str:
    return f"it can end at {format_time(end)} at the earliest"


def _too_long(told: str, end: datetime, late: str, *, sure: bool) -> str:
    if sure:
        return f"the deadline {told} cannot be met: earliest end {format_time(end)} by its progress, {late} late"
    return (
        f"the deadline {told} cannot be met with all of maxRuntime: earliest end {format_time(end)}, {late} late; "
        "lower maxRuntime, or set the deadline later"
    )


def _expected_start(status: TrainingJobStatus) -> datetime | None:
    """When a job that waits is expected to start, where more than the length of the queue says so."""
    known = status.queue is not None and status.placement is None and _basis(status) in _BASES
    return status.queue.expected_start if known and status.queue is not None else None


def _basis(status: TrainingJobStatus) -> str:
    return status.queue.basis if status.queue is not None else ""
