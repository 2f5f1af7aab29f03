"""Time and money of a job: when its window is open, what it has used, and when a limit ends it. Pure: `now` is given,
and the same question has the same answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

from muster.api.common import format_time
from muster.api.effective import EffectiveSpec
from muster.api.effective_parts import EffectiveWindow
from muster.api.terms import Usage
from muster.api.trainingjob_status import TrainingJobStatus
from muster.api.windows import NEVER, Opening, latest_start, opening, window_error
from muster.cluster.status import goes_on
from muster.controllers import devices
from muster.sizing.money import PLATFORM_PRICES, gpu_cost, written

MARGIN: Final = 30.0
"""Seconds beyond its grace that a launcher gets to end a run at `maxRuntime` by itself."""

START_SECONDS: Final = 120.0
"""What a start is taken to cost while nobody has measured any: images, the barrier, and reading the checkpoint."""

LONGEST_ETA: Final = 10**8
"""Seconds; an end that is farther off is none that anybody plans by."""

_HOUR: Final = 3600


def start_seconds(status: TrainingJobStatus, typical: float) -> float:
    """What a start costs, from placement to training, as measured at the job's last one; `typical`: before the first,
    what others' take."""
    return typical if status.start_seconds is None else float(status.start_seconds)


def may_start(spec: EffectiveSpec, now: datetime, start_seconds: float) -> datetime:
    """From when on the gang may start: `now` or earlier while its window is open, and has enough time left to start in.

    Args:
        start_seconds: what a start costs, from placement to training.
    """
    window = spec.window
    if window is None:
        return now
    found = opening(window, now)
    if found.opens <= now and latest_start(window, found, start_seconds) <= now:
        return opening(window, found.closes).opens
    return found.opens


def runs_to_its_end(spec: EffectiveSpec, status: TrainingJobStatus) -> bool:
    """Whether a window that lets gangs finish has nothing to say any more: the gang has started in it, and goes on."""
    return spec.window is not None and not spec.window.stops and goes_on(status)


def may_start_until(spec: EffectiveSpec, now: datetime, start_seconds: float) -> datetime | None:
    """From when on the gang may not start any more in the window that is open now; None for never."""
    if spec.window is None:
        return None
    found = opening(spec.window, now)
    return latest_start(spec.window, found, start_seconds) if found.closes != NEVER else None


@dataclass(frozen=True)
class End:
    """When a limit ends the placement.

    Attributes:
        at: when the gang is asked to stop.
        message: why, for people.
    """

    at: datetime
    message: str


def window_end(spec: EffectiveSpec, placed_at: datetime, now: datetime) -> End | None:
    """When the window closes in which the gang runs. None: never, or the gang may finish."""
    window = spec.window
    if window is None or not window.stops:
        return None
    found = opening(window, placed_at)
    closes = found.closes if found.opens <= placed_at else placed_at
    if closes <= now:
        # The window has closed, or another one was given to a gang that runs. Where one is open now, nobody gains by a
        # stop, for the gang could start again at once: so after a night in which no operator was there to stop it.
        found = opening(window, now)
        if found.opens <= now:
            closes = found.closes
    if closes == NEVER:
        return None
    then = format_time(opening(window, max(closes, now)).opens)
    return End(closes, f"the job's window has closed; it goes on when the next one opens, at {then}")


def used(status: TrainingJobStatus, gpus: int | Fraction, price: float, until: datetime, currency: str = "") -> Usage:
    """All that the job has used, the present placement up to `until` included.

    Args:
        gpus: of the present placement, slices as parts of one.
        price: of a whole one, an hour; 0 where it has none.
        currency: of `price`; "" where nobody told.
    """
    before = status.usage or Usage()
    begins = status.placement.counts_from if status.placement else None
    if begins is None or not gpus:
        return before
    seconds = round(gpus * max(0.0, (until - begins).total_seconds()))
    return spend(before, seconds, price, currency)


def spend(before: Usage, gpu_seconds: int, price: float, currency: str = "") -> Usage:
    """`before` and so many GPU-seconds more, at `price` for a GPU and hour, in `currency`; "" where that is not known,
    as the price is not, then: of nodes that are gone, say."""
    cost = Fraction(before.cost or 0) + gpu_cost(gpu_seconds, Decimal(str(price)))
    return Usage(
        gpu_seconds=before.gpu_seconds + gpu_seconds,
        cost=written(cost) if cost else None,
        currency=(currency or before.currency) if cost else None,
    )


def rated(usage: Usage | None, gpus: int | Fraction, price: float, currency: str = "") -> Usage | None:
    """`usage` with what a placement of so many GPUs costs an hour; arguments as for `used`."""
    hourly = Fraction(Decimal(str(price))) * gpus
    if not hourly and (usage is None or usage.hourly is None):
        return usage
    known = usage or Usage()
    named = (currency or known.currency) if hourly or known.cost else None
    return known.model_copy(update={"hourly": written(hourly) if hourly else None, "currency": named})


def with_rate(
    status: TrainingJobStatus, spec: EffectiveSpec, gpu_type: str, price: float, currency: str
) -> TrainingJobStatus:
    """The status with what its placement costs an hour; arguments as for `used`. To be written with other news: a price
    that changes is no reason to write a status."""
    if status.placement is None:
        return status
    usage = rated(status.usage, devices.held(status.placement, spec, gpu_type), price, currency)
    return status if usage == status.usage else status.model_copy(update={"usage": usage})


def budget_spent(spec: EffectiveSpec, usage: Usage) -> str:
    """What of the job's budget is used up, in words; "" while nothing is."""
    if spec.budget_gpu_hours is not None and usage.gpu_seconds >= spec.budget_gpu_hours * _HOUR:
        return f"the job has used its budget of {spec.budget_gpu_hours} GPU hours; raise budget.gpuHours to go on"
    if spec.budget_cost is not None and Decimal(usage.cost or 0) >= spec.budget_cost:
        cost = f"{usage.cost} {usage.currency or PLATFORM_PRICES}"
        budget = f"{spec.budget_cost} {usage.currency or ''}".rstrip()
        return f"the job has cost {cost}, and its budget is {budget}; raise budget.cost to go on"
    return ""


def budget_end(spec: EffectiveSpec, status: TrainingJobStatus, gpus: int | Fraction, price: float) -> datetime | None:
    """When the present placement will have used up the job's budget; None for never."""
    begins = status.placement.counts_from if status.placement else None
    if begins is None or not gpus:
        return None
    before = status.usage or Usage()
    left = []
    if spec.budget_gpu_hours is not None:
        left.append(float((spec.budget_gpu_hours * _HOUR - before.gpu_seconds) / gpus))
    if spec.budget_cost is not None and price > 0:
        left.append(float(spec.budget_cost - Decimal(before.cost or 0)) / price * _HOUR / float(gpus))
    return begins + timedelta(seconds=min(max(0.0, min(left)), 1e9)) if left else None


@dataclass(frozen=True)
class Rest:
    """Seconds that a job still has to train.

    Attributes:
        sure: True by its own progress; False by `maxRuntime`, which it may stay below.
    """

    seconds: float
    sure: bool


def rest(spec: EffectiveSpec, status: TrainingJobStatus, now: datetime) -> Rest | None:
    """What is left to train: by progress, else by `maxRuntime`; None when neither tells."""
    progress = status.progress
    if progress is not None and progress.eta is not None and status.running_since is not None:
        return Rest(max(0.0, (progress.eta - now).total_seconds()), sure=True)
    if progress is not None and progress.total_steps is not None:
        speed = pace(status)
        done = status.checkpoint.step if status.checkpoint and status.running_since is None else progress.step
        if speed > 0:
            return Rest(max(0, progress.total_steps - done) / speed, sure=True)
    if spec.max_runtime is None:
        return None
    trained = (status.runtime_seconds or 0) + (
        (now - status.running_since).total_seconds() if status.running_since else 0.0
    )
    return Rest(max(0.0, spec.max_runtime - trained), sure=False)


def pace(status: TrainingJobStatus) -> float:
    """Steps a second, by the job's own progress; 0 where it doesn't tell."""
    return _number(status.progress.steps_per_second) if status.progress is not None else 0.0


def expected_end(status: TrainingJobStatus, known_pace: float) -> datetime | None:
    """When the job will have done its steps, by its own progress; None where that doesn't tell.

    Args:
        known_pace: steps a second, as it last told: for a while after its processes have started again it tells none.
    """
    progress = status.progress
    if progress is None or progress.eta is not None:
        return None if progress is None else progress.eta
    if progress.total_steps is None or progress.updated_at is None or known_pace <= 0:
        return None
    left = max(0, progress.total_steps - progress.step) / known_pace
    return progress.updated_at + timedelta(seconds=left) if left <= LONGEST_ETA else None


def length(spec: EffectiveSpec, status: TrainingJobStatus) -> float:
    """Seconds that the job may still train by its `maxRuntime`, as when it was placed; infinite without one, and 0
    where it has trained for longer, for the limit may have been lowered since."""
    return math.inf if spec.max_runtime is None else max(0.0, float(spec.max_runtime - (status.runtime_seconds or 0)))


@dataclass(frozen=True)
class Bounds:
    """What the planner needs to know of the time of a job's next start. Seconds; see `Terms` of its snapshot.

    Attributes:
        opens: since the epoch; 0 for a job that may start now.
        closes: since the epoch, from when on one that may start now may not any more.
        reopens: since the epoch, from when on such a one may again.
        limit: that a run takes at most, whatever it does: enforced.
        estimate: that it is expected to take.
    """

    opens: float = 0.0
    closes: float = math.inf
    reopens: float = 0.0
    limit: float = math.inf
    estimate: float = math.inf


NO_BOUNDS: Final = Bounds()
NEVER_AGAIN: Final = Bounds(opens=math.inf)
"""Of a gang that could not start again, were it stopped now."""


def bounds(spec: EffectiveSpec, status: TrainingJobStatus, now: datetime, start_seconds: float) -> Bounds:
    """Of a run that would start now. A window that is wrong bounds nothing."""
    if spec.window is None and spec.max_runtime is None and spec.budget_gpu_hours is None and status.progress is None:
        return NO_BOUNDS
    free = spec.window is None or window_error(spec.window) or runs_to_its_end(spec, status)
    window = None if free else spec.window
    opens = may_start(spec, now, start_seconds) if window else now
    closes = may_start_until(spec, now, start_seconds) if window and opens <= now else None
    left, limits = rest(spec, status, now), [math.inf]
    if spec.max_runtime is not None:
        # The clock of maxRuntime starts at the barrier, and the launcher gets time to end by itself.
        limits.append(spec.ready_timeout + length(spec, status) + spec.grace + MARGIN)
    if window is not None and window.stops:
        limits.append(_longest(opening(window, max(opens, now))))
    if spec.budget_gpu_hours is not None and (each := _gpus_each(spec)):
        seconds = spec.budget_gpu_hours * _HOUR - (status.usage.gpu_seconds if status.usage else 0)
        limits.append(float(max(0, seconds) / (spec.min_replicas * each)))
    return Bounds(
        opens=opens.timestamp() if opens > now else 0.0,
        closes=math.inf if closes is None else closes.timestamp(),
        reopens=_reopens(window, now) if window is not None and closes is not None else 0.0,
        limit=min(limits),
        estimate=math.inf if left is None else start_seconds + left.seconds,
    )


def _reopens(window: EffectiveWindow, now: datetime) -> float:
    """Since the epoch, when a window that is open now, and closes, opens next."""
    return opening(window, opening(window, now).closes).opens.timestamp()


def _gpus_each(spec: EffectiveSpec) -> Fraction:
    """What one worker holds, as far as the spec tells."""
    return devices.of_worker(spec.gpus_per_worker, spec.requests, spec.gpu_type).gpus


def bounds_of_restart(spec: EffectiveSpec, now: datetime, start_seconds: float) -> Bounds:
    """Of a gang that runs: from when on, and until when, it may start again, were it moved or resized; and when it goes
    on after the end of its window."""
    if spec.window is None or not spec.window.stops or window_error(spec.window):
        return NO_BOUNDS  # who may finish goes on at any time
    opens, closes = may_start(spec, now, start_seconds), may_start_until(spec, now, start_seconds)
    if opens > now:
        return Bounds(opens=opens.timestamp())
    return NO_BOUNDS if closes is None else Bounds(closes=closes.timestamp(), reopens=_reopens(spec.window, now))


def _longest(found: Opening) -> float:
    """Seconds that a run in an opening takes at most. One of windows that overlap is longer than each of them."""
    return math.inf if found.closes == NEVER else (found.closes - found.opens).total_seconds()


def bound(spec: EffectiveSpec, status: TrainingJobStatus, gpus: int | Fraction, price: float, now: datetime) -> float:
    """When its window or its budget has ended the present placement at the latest, in seconds since the epoch."""
    placed_at = status.placement.placed_at if status.placement else None
    if placed_at is None:
        return math.inf
    window = None if spec.window is None or window_error(spec.window) else window_end(spec, placed_at, now)
    ends = [window.at if window else None, budget_end(spec, status, gpus, price)]
    return min((at.timestamp() + spec.grace for at in ends if at is not None), default=math.inf)


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
