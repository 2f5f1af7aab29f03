"""Which limit ends a run, whatever it has left to do, and when. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.api.effective import EffectiveSpec
from muster.api.windows import window_error
from muster.controllers import devices, terms
from muster.sizing.money import in_currency
from muster.telemetry.cost.periods import month_of, next_month
from muster.telling.budgets import BudgetUse, budget_uses
from muster.telling.scene import Scene
from muster.telling.wording import runtime_left
from muster_protocol.durations import format_duration


@dataclass(frozen=True)
class Ending:
    """
    Attributes:
        left: seconds until then; 0 or less once it has come.
        ahead: what is told before; `{}` stands for `left`.
        over: what is told once it has come.
    """

    left: float
    ahead: str
    over: str

    @property
    def told(self) -> str:
        return self.ahead.format(f"in {format_duration(self.left)}") if self.left > 0 else self.over


def first_ending(scene: Scene, spec: EffectiveSpec) -> Ending | None:
    """Of the limits of a gang that trains the one that is reached first; None where none is. When a budget in money of
    the job's own ends it is not known: only the operator knows the prices."""
    ends = (*_max_runtime(scene), *_window(scene, spec), *_budget(scene, spec), *_queues(scene, spec))
    first = min(ends, key=lambda end: end.left, default=None)
    if first is None or spec.budget_cost is None:
        return first
    usage = scene.job.status.usage
    budget = in_currency(spec.budget_cost, usage.currency if usage is not None else None)
    sooner = f", unless its budget of {budget} is used up before"
    return replace(first, ahead=f"{first.ahead}{sooner}")


def _max_runtime(scene: Scene) -> Iterator[Ending]:
    left = runtime_left(scene)
    if left < math.inf:
        yield Ending(left, "its maxRuntime ends it {}", "its maxRuntime has passed: it saves a checkpoint and is ended")


def _window(scene: Scene, spec: EffectiveSpec) -> Iterator[Ending]:
    placement = scene.job.status.placement
    if spec.window is None or placement is None or placement.placed_at is None or window_error(spec.window):
        return
    end = terms.window_end(spec, placement.placed_at, scene.now)
    if end is not None:
        ahead = "its window closes {}: it saves a checkpoint, stops, and goes on in the next one"
        over = f"{end.message}; it saves a checkpoint and stops"
        yield Ending((end.at - scene.now).total_seconds(), ahead, over)


def _budget(scene: Scene, spec: EffectiveSpec) -> Iterator[Ending]:
    status = scene.job.status
    placement = status.placement
    gpus = devices.held_as_written(placement, spec) if placement is not None else 0
    at = terms.budget_end(spec, status, gpus, price=0.0)
    if at is not None:
        budget = f"its budget of {spec.budget_gpu_hours} GPU hours is used up"
        ahead = f"{budget} {{}}: it saves a checkpoint, stops, and waits until budget.gpuHours is raised"
        yield Ending((at - scene.now).total_seconds(), ahead, f"{budget}: it saves a checkpoint and stops")


def _queues(scene: Scene, spec: EffectiveSpec) -> Iterator[Ending]:
    """Budgets with `atLimit: drain` of its queue and of those above; they leave jobs alone that are not preemptible."""
    for queue in scene.queues if spec.preemptible else ():
        for use in budget_uses(queue, scene.now):
            if use.drains:
                yield from _drained(queue.metadata.name, use, scene)


def _drained(name: str, use: BudgetUse, scene: Scene) -> Iterator[Ending]:
    until = (next_month(scene.now) - scene.now).total_seconds()
    for limit, left in use.lefts():
        if left >= until:
            continue  # the next month has an account of its own
        what = f"the {limit} that TrainingQueue {name!r} may use in {month_of(scene.now)} are used up"
        ahead = f"{what} {{}}, at the present rate: it saves a checkpoint, stops, and waits for the next month"
        yield Ending(left, ahead, f"{what}: it saves a checkpoint, stops, and waits for the next month")
