"""Joins the seconds that launchers count with those that only the operator sees: in the queue, and around pods. Pure.

A job's account is a number of seconds by part and the moment `until` up to which they reach, so that their sum is the
time from its submission until then, but for what it was suspended. Each entry adds seconds to one part or more, and
moves `until` on by as many: nothing is counted twice or left out, however clocks jump. Launchers count by a monotonic
clock; the operator's own is read only where no launcher lives, and never moves `until` back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Final

from muster.api.trainingjob_status import Counted, Goodput, PartSeconds, TrainingJobStatus
from muster_protocol.goodput import Spent

QUEUED: Final = "queued"
STARTING: Final = "starting"
TRAINING: Final = "training"
UNDERUSED: Final = "underused"
"""No part of its own, but of the time of training."""
PARTS: Final = tuple(PartSeconds.model_fields)


def account(status: TrainingJobStatus, submitted_at: datetime) -> Goodput:
    """The job's account, with its time in the queue until the present placement was made. A new one begins when the job
    was submitted; with the present placement, where there were others of which nothing is known."""
    placed_at = status.placement.placed_at if status.placement is not None else None
    known = status.goodput
    if known is None:
        unknown = placed_at is not None and (status.restarts or status.preemptions)  # numbers of placements have gaps
        known = Goodput(until=_whole(placed_at if unknown and placed_at else submitted_at))
    return up_to(known, QUEUED, placed_at) if placed_at is not None else known


def up_to(known: Goodput, part: str, moment: datetime) -> Goodput:
    """All that is left until `moment` goes to `part`."""
    seconds = round((_whole(moment) - known.until).total_seconds())
    return _add(known, {part: seconds}) if seconds > 0 else known


def told(known: Goodput, attempt: int, spent: Spent, now: datetime) -> Goodput:
    """What the launcher of index 0's pod number `attempt` has counted by now. What is left between what was known and
    its start was spent on starting it."""
    before = known.launcher
    if before is not None and attempt < before.attempt:
        return known  # old news
    if before is None or attempt > before.attempt:
        known = up_to(known, STARTING, now - timedelta(seconds=spent.age))
        before = Counted(attempt=attempt)
    counted = {part: round(seconds) for part, seconds in asdict(spent).items() if part in PARTS}
    old = before.seconds.model_dump()
    latest = {part: max(seconds, old[part] or 0) for part, seconds in counted.items()}
    known = _add(known, {part: seconds - (old[part] or 0) for part, seconds in latest.items()})
    underused = max(before.underused or 0, min(round(spent.underused), latest[TRAINING]))
    more = underused - (before.underused or 0)
    launcher = Counted(attempt=attempt, seconds=_parts(latest), underused=underused or None)
    return known.model_copy(update={"launcher": launcher, "underused": (known.underused or 0) + more or None})


def ended(known: Goodput, moment: datetime) -> Goodput:
    """The placement is over: nobody has told what passed since the launcher's last word."""
    return up_to(known, STARTING, moment).model_copy(update={"launcher": None})


def resumed(known: Goodput, moment: datetime) -> Goodput:
    """Suspended until `moment`: that time is not the run's."""
    return known.model_copy(update={"until": max(known.until, _whole(moment))})


def shares(seconds: PartSeconds) -> Iterator[tuple[str, int, float]]:
    """(part, seconds, share of all of them) of each part that took any."""
    whole = whole_of(seconds)
    for part, number in seconds:
        if number:
            yield part, number, number / whole


def whole_of(seconds: PartSeconds) -> int:
    return sum(number or 0 for _, number in seconds)


def _add(known: Goodput, more: dict[str, int]) -> Goodput:
    seconds = {part: (number or 0) + more.get(part, 0) for part, number in known.seconds}
    whole = sum(seconds.values())
    return known.model_copy(
        update={
            "seconds": _parts(seconds),
            "until": known.until + timedelta(seconds=sum(more.values())),
            "ratio": f"{seconds[TRAINING] / whole:.3f}" if whole else None,
        }
    )


def _parts(seconds: dict[str, int]) -> PartSeconds:
    return PartSeconds(**{part: number or None for part, number in seconds.items()})


def _whole(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)
