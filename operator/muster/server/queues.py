"""Queues: what each may use, uses and borrows, by flavour. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from muster.api.terms import AtBudgetEnd
from muster.api.trainingqueue import TrainingQueue
from muster.server.models import BudgetShare, FlavourShare, QueueSummary, ResourceShare
from muster.telling.budgets import BudgetUse, budget_uses
from muster.telling.usage import Use, in_use, nominals, state


def summaries(every: Sequence[TrainingQueue], now: datetime) -> list[QueueSummary]:
    """By name."""
    has = nominals(every)
    return [
        _summary(queue, has[queue.metadata.name], now) for queue in sorted(every, key=lambda one: one.metadata.name)
    ]


def _summary(queue: TrainingQueue, has: Use, now: datetime) -> QueueSummary:
    used, borrowed = in_use(queue)
    status = queue.status
    flavours = [
        FlavourShare(
            gpu_type=flavour[0],
            capacity=flavour[1],
            resources=[
                _share(name, has.get(flavour, {}), used.get(flavour, {}), borrowed.get(flavour, {}))
                for name in sorted({**has.get(flavour, {}), **used.get(flavour, {})})
            ],
        )
        for flavour in sorted({**has, **used})
    ]
    return QueueSummary(
        name=queue.metadata.name,
        parent=queue.spec.parent or "",
        cohort=queue.spec.cohort or "",
        state=state(queue),
        weight=queue.spec.weight,
        running=status.running,
        waiting=status.waiting,
        used_gpus=status.used_gpus,
        flavours=flavours,
        budgets=[_budget(use) for use in budget_uses(queue, now)] or None,
    )


def _budget(use: BudgetUse) -> BudgetShare:
    budget = use.budget
    return BudgetShare(
        gpu_type=budget.gpu_type,
        gpu_hours=budget.gpu_hours,
        gpu_hours_used=round(float(use.gpu_seconds) / 3600, 1) if budget.gpu_hours is not None else None,
        cost=float(budget.cost) if budget.cost is not None else None,
        cost_used=round(float(use.cost), 2) if budget.cost is not None else None,
        currency=use.currency if budget.cost is not None else "",
        at_limit=(AtBudgetEnd.DRAIN if use.drains else AtBudgetEnd.HOLD).value,
    )


def _share(name: str, has: dict[str, int], used: dict[str, int], borrowed: dict[str, int]) -> ResourceShare:
    nominal, held = has.get(name), used.get(name, 0)
    free = None if nominal is None else max(0, nominal - held)
    return ResourceShare(name=name, nominal=nominal, used=held, borrowed=borrowed.get(name, 0), free=free)
