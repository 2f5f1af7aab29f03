"""A queue's account of the month, and what its budgets make of it. Pure.

The account in the status is a number and a rate: what was used up to a moment, and how many GPUs have been held since.
So what is used now is known at any time, also after a restart, and nothing is written while the rate stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from muster.api.common import format_time
from muster.api.terms import MAX_USES, Month, MonthUse
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.queues import QueueInput
from muster.sizing.money import PLATFORM_PRICES, exact, in_currency
from muster.telemetry.cost.periods import month_of, next_month
from muster.telling.budgets import BudgetUse, brought_forward, budget_uses, on_type
from muster.telling.usage import way_up

_HOUR: Final = 3600


@dataclass(frozen=True)
class Held:
    """GPUs of one type that are held, and what they cost in an hour."""

    gpus: int
    hourly: Decimal


@dataclass(frozen=True)
class Spent:
    """A budget that is used up.

    Attributes:
        message: for people, with what helps.
        drains: gangs that run are stopped, too.
    """

    message: str
    drains: bool


def account(queue: TrainingQueue, held: Mapping[str, Held], now: datetime, currency: str = "") -> Month | None:
    """The account as the status should have it; unchanged while what is held stays the same.

    Args:
        held: by GPU type, by the queue's jobs and those of the queues below it.
        currency: of what it costs; "" where nobody told.
    """
    found = queue.status.month
    if not queue.spec.budgets:
        return _left(found, now)
    rates = {kind: (one.gpus, exact(Decimal(str(one.hourly))) if one.hourly else None) for kind, one in held.items()}
    known = {use.gpu_type: (use.gpus, use.hourly) for use in found.uses if use.gpus} if found else {}
    same = found is not None and found.currency == (currency or None)
    if same and {kind: rate for kind, rate in rates.items() if rate[0]} == known:
        return found
    now = now.replace(microsecond=0)  # as it is written: a part of a second would be counted before it and after it
    uses = {use.gpu_type: use for use in brought_forward(found, now)}
    for kind in {*uses, *rates}:
        gpus, hourly = rates.get(kind, (0, None))
        uses[kind] = uses.get(kind, MonthUse(gpu_type=kind)).model_copy(update={"gpus": gpus, "hourly": hourly})
    kept = [use for _, use in sorted(uses.items()) if use.gpus or use.gpu_seconds]
    return Month(until=now, currency=currency or None, uses=tuple(kept[:MAX_USES]))


def _left(found: Month | None, now: datetime) -> Month | None:
    """The account of a queue without budgets: what was used while it had some, until that month is over. Budgets that
    are set again go on from there; else, to take one away for a minute would empty the account."""
    if found is not None and any(use.gpus for use in found.uses):
        now = now.replace(microsecond=0)
        uses = [use.model_copy(update={"gpus": 0, "hourly": None}) for use in brought_forward(found, now)]
        found = Month(until=now, currency=found.currency, uses=tuple(use for use in uses if use.gpu_seconds))
    return found if found is not None and found.uses and month_of(found.until) == month_of(now) else None


def spent(queue: TrainingQueue, now: datetime) -> Spent | None:
    """The first of the queue's budgets that is used up now; one that drains before one that only holds."""
    found = [
        Spent(message, use.drains)
        for use in budget_uses(queue, now)
        if (message := _used_up(queue.metadata.name, use, now))
    ]
    return min(found, key=lambda one: not one.drains, default=None)


def _used_up(name: str, use: BudgetUse, now: datetime) -> str:
    budget = use.budget
    kind = on_type(budget)
    then = f"it takes jobs again on {format_time(next_month(now))}, or when the budget is raised"
    if budget.gpu_hours is not None and use.gpu_seconds >= budget.gpu_hours * _HOUR:
        return f"queue {name} has used its {budget.gpu_hours} GPU hours{kind} of {month_of(now)}; {then}"
    if budget.cost is not None and use.cost >= budget.cost:
        rate = "" if use.currency else f", {PLATFORM_PRICES}"
        of = f"{in_currency(budget.cost, use.currency)}{kind} of {month_of(now)}{rate}"
        return f"queue {name} has spent its {of}; {then}"
    return ""


def changes(queue: TrainingQueue, now: datetime) -> datetime | None:
    """When a budget will be used up at the present rate, or a new month opens one that is; None for neither."""
    moments = [next_month(now)] if spent(queue, now) else []
    for use in budget_uses(queue, now):
        moments += [now + timedelta(seconds=left + 1) for _, left in use.lefts() if 0 < left < 1e8]
    return min(moments, default=None)


class Budgets:
    """Which queues' budgets are used up. Each is looked at anew only when its queue or the answer has changed.

    Attributes:
        change: when an answer will change by itself; None for never.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[TrainingQueue, Spent | None, datetime | None]] = {}
        self.change: datetime | None = None

    def spent(self, queues: Mapping[str, TrainingQueue], now: datetime) -> dict[str, Spent]:
        """By name of each queue whose own budget is used up, or that of a queue above it."""
        known = {}
        for name, queue in queues.items():
            if queue.spec.budgets:
                old = self._known.get(name)
                fresh = old is not None and old[0] is queue and (old[2] is None or now < old[2])
                known[name] = old if old and fresh else (queue, spent(queue, now), changes(queue, now))
        self._known = known
        self.change = min((at for _, _, at in known.values() if at is not None), default=None)
        own = {name: found for name, (_, found, _) in known.items() if found is not None}
        return {name: found for name in queues if (found := _on_the_way_up(name, queues, own))} if own else {}


def _on_the_way_up(name: str, queues: Mapping[str, TrainingQueue], own: Mapping[str, Spent]) -> Spent | None:
    found = [own[queue.metadata.name] for queue in way_up(name, queues) if queue.metadata.name in own]
    return min(found, key=lambda one: not one.drains, default=None)


def closed(inputs: Iterable[QueueInput], spent: Mapping[str, Spent]) -> list[QueueInput]:
    """With the queues closed whose budget is used up, and drained where it says so."""
    return [
        replace(one, open=False, drain=one.drain or spent[one.name].drains) if one.name in spent else one
        for one in inputs
    ]
