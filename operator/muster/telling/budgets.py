"""What a queue has used of its budgets of the month. Pure.

The account in the status is a number and a rate: what was used up to a moment, and how many GPUs have been held since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from muster.api.terms import AtBudgetEnd, Month, MonthlyBudget, MonthUse
from muster.api.trainingqueue import TrainingQueue
from muster.cluster.gpus import named_type
from muster.sizing.money import gpu_cost, in_currency, written
from muster.sizing.slices import share, whole
from muster.telemetry.cost.periods import month_of

_HOUR = 3600


@dataclass(frozen=True)
class BudgetUse:
    """One budget in one month.

    Attributes:
        uses: those that it counts.
        currency: of their cost; "" where nobody told.
        gpu_seconds, cost: used so far, slices as parts of a GPU.
        gpus, hourly: held now, and what they cost in an hour.
    """

    budget: MonthlyBudget
    uses: tuple[MonthUse, ...]
    currency: str = ""

    @property
    def gpu_seconds(self) -> Fraction:
        return sum((use.gpu_seconds * share(use.gpu_type) for use in self.uses), Fraction(0))

    @property
    def cost(self) -> Decimal:
        return sum((Decimal(use.cost or 0) for use in self.uses), Decimal(0))

    @property
    def gpus(self) -> Fraction:
        return sum((use.gpus * share(use.gpu_type) for use in self.uses), Fraction(0))

    @property
    def hourly(self) -> Decimal:
        return sum((Decimal(use.hourly or 0) for use in self.uses), Decimal(0))

    @property
    def drains(self) -> bool:
        return self.budget.at_limit is AtBudgetEnd.DRAIN

    def parts(self) -> Iterator[tuple[str, float]]:
        """(`gpu_hours` or `cost`, part that is used) of each limit."""
        if self.budget.gpu_hours is not None:
            yield "gpu_hours", float(self.gpu_seconds / (self.budget.gpu_hours * _HOUR))
        if self.budget.cost is not None:
            yield "cost", float(self.cost / self.budget.cost)

    def lefts(self) -> Iterator[tuple[str, float]]:
        """(limit in words, seconds until it is used up) of each limit on which something draws now."""
        budget = self.budget
        if budget.gpu_hours is not None and self.gpus:
            left = float((budget.gpu_hours * _HOUR - self.gpu_seconds) / self.gpus)
            yield f"{budget.gpu_hours} GPU hours{on_type(budget)}", left
        if budget.cost is not None and self.hourly:
            limit = f"{in_currency(budget.cost, self.currency)}{on_type(budget)}"
            yield limit, float((budget.cost - self.cost) / self.hourly) * _HOUR


def on_type(budget: MonthlyBudget) -> str:
    """The GPU type that it counts, in words; "" for all."""
    return f" on {budget.gpu_type}" if budget.gpu_type else ""


def budget_uses(queue: TrainingQueue, now: datetime) -> list[BudgetUse]:
    """Of each of the queue's own budgets, in the month of `now`."""
    budgets = queue.spec.budgets or ()
    uses = brought_forward(queue.status.month, now) if budgets else ()
    types = [name for use in uses for name in (use.gpu_type, whole(use.gpu_type))]
    currency = (queue.status.month.currency if queue.status.month is not None else None) or ""
    return [
        BudgetUse(budget, tuple(use for use in uses if _counts(budget, use, types)), currency) for budget in budgets
    ]


def _counts(budget: MonthlyBudget, use: MonthUse, types: list[str]) -> bool:
    """A budget on a GPU type counts the slices of such GPUs, too."""
    return not budget.gpu_type or named_type(budget.gpu_type, types) in (use.gpu_type, whole(use.gpu_type))


def brought_forward(month: Month | None, now: datetime) -> tuple[MonthUse, ...]:
    """What has been used in the month of `now`, by GPU type."""
    if month is None or now <= month.until:
        return month.uses if month else ()
    same = month_of(month.until) == month_of(now)
    begins = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    seconds = round((now - (month.until if same else begins)).total_seconds())
    return tuple(
        _forward(use if same else use.model_copy(update={"gpu_seconds": 0, "cost": None}), seconds)
        for use in month.uses
    )


def _forward(use: MonthUse, seconds: int) -> MonthUse:
    # `hourly` is that of all its GPUs together.
    cost = Fraction(use.cost or 0) + gpu_cost(seconds, Decimal(use.hourly or 0))
    return use.model_copy(
        update={"gpu_seconds": use.gpu_seconds + use.gpus * seconds, "cost": written(cost) if cost else None}
    )
