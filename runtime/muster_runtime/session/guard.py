"""Watches over a run's losses and gradients where the job asks for it, and lets every rank come to the same end.

To skip an update, its gradients must be judged before it: one reading of the device and one small all-reduce for each
update. To go back, or to stop, it is enough to know at the boundary where losses are read: the gradient's norm stays on
the device until then, and rides on the vote.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from torch.optim import Optimizer

from muster_runtime.parallel.gang import Gang
from muster_runtime.parallel.norms import own_square
from muster_runtime.session.boundary import Agreement, Loss, Square, Votes
from muster_runtime.session.numerics import LOSS, NORM, Action, Anomaly, Rules, Verdict, Watch
from muster_runtime.session.progress import Progress

Batch = tuple[int, int]
"""Epoch, and number in it."""

_ACCUMULATED: Final = 1024
"""Batches that one update is made of, at most."""
_NAMED: Final = 8


@dataclass(frozen=True)
class Unsound:
    """What the gang has found. `batches` are those that the step's loss or gradients come from."""

    anomaly: Anomaly
    told: str
    ends: str
    batches: tuple[Batch, ...] = ()


class Guard:
    """Steps are counted from 0 here, as `session.steps` yields them. `hear` is collective where it finds something."""

    def __init__(self, rules: Rules, gang: Gang, progress: Progress) -> None:
        self.action = rules.action
        self._gang, self._progress = gang, progress
        self._watch = Watch(rules)
        self._squares: dict[int, Any] = {}  # of steps not read yet, on the device
        self._batches: dict[int, tuple[Batch, tuple[Batch, ...]]] = {}  # the step's own, and those of its update
        self._accumulated: deque[Batch] = deque(maxlen=_ACCUMULATED)
        self._loss_judged = -1  # the last step whose loss was known at its first update
        self._updated = -1
        self._warned: set[str] = set()

    # ------------------------------------------------------------------ before an update

    def sees_update(
        self, step: int, optimizer: Optimizer, name: str, loss: tuple[Any, Any] | None, *, closure: bool
    ) -> Unsound | None:
        """An optimizer is about to make its update; what ends the run, if anything does. Collective where updates are
        skipped.

        `name` is "" for a run's only optimizer; `loss` is this rank's sum and weight, as far as they are known.
        """
        if closure:
            self._warn_once(f"{name or 'the optimizer'} is given a closure, so its gradients are not watched")
            return None
        if getattr(optimizer, "found_inf", None) is not None:
            return None  # a GradScaler's: it unscales by itself, and makes no update where that isn't finite
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        square = own_square(parameters, self._gang.world_size)
        if self.action is not Action.SKIP:
            if square is not None:
                self._squares[step] = square if step not in self._squares else self._squares[step] + square
            return None
        own = None if loss is None else (float(loss[0]), float(loss[1]))
        found = self._judge_update(step, f"{NORM} of {name!r}" if name else NORM, own, square)
        if found is None or found.ends:
            return found
        for parameter in parameters:  # an optimizer leaves what has no gradient as it is, with its own state
            parameter.grad = None
        self._watch.skip(found.anomaly, f"{found.told}; its update was left out")
        self._tell(step)
        return None

    def _judge_update(self, step: int, norm: str, own: Loss | None, square: Any) -> Unsound | None:
        squares = (0.0, 0.0) if square is None else (float(square), 1.0)
        loss, weight, squared, present = self._gang.sum([*(own or (0.0, 0.0)), *squares])
        values: dict[str, float | None] = {}
        if weight and self._loss_judged != step:
            values[LOSS], self._loss_judged = loss / weight, step
        values[norm] = math.sqrt(squared) if present else None
        self._updated = step
        verdict = self._watch.judge(step, values)
        return self._unsound(verdict, own, ()) if verdict is not None else None

    # ------------------------------------------------------------------ at a boundary

    def trained(self, step: int, batch: Batch, *, updated: bool) -> None:
        """`step` is done, with `batch`."""
        if self.action is Action.SKIP:
            return  # nobody goes back
        self._accumulated.append(batch)
        self._batches[step] = batch, tuple(self._accumulated) if updated else (batch,)
        if updated:
            self._accumulated.clear()

    def take(self, first: int, step: int, read: bool, size: int) -> tuple[Square | None, ...]:
        """This rank's word about the steps from `first` to before `step`, padded to `size`."""
        if self.action is Action.SKIP:
            return ()
        if not read:
            return (None,) * size
        squares = [self._squares.pop(number, None) for number in range(first, step)]
        words = [None if square is None else (float(square), 1.0) for square in squares]
        return tuple(words + [None] * (size - len(words)))

    def hear(self, first: int, agreed: Agreement, own: Votes) -> Unsound | None:
        """The gang's word about the steps from `first` on: the first of them that isn't sound."""
        if self.action is Action.SKIP:
            at = self._updated - first
            if 0 <= at < len(agreed.losses) and agreed.losses[at] is not None and self._loss_judged != self._updated:
                self._warn_once(
                    "the loss is reported after optimizer.step(), so only the gradient's norm is watched; call "
                    "session.report(loss=) above it"
                )
            return None
        for number, (loss, norm) in enumerate(zip(agreed.losses, agreed.norms, strict=True)):
            verdict = self._watch.judge(first + number, {LOSS: loss, NORM: norm})
            if verdict is not None:
                batch, of_update = self._batches.get(first + number, (None, ()))
                batches = of_update if verdict.anomaly.signal != LOSS or batch is None else (batch,)
                return self._unsound(verdict, own.losses[number], batches)
        self._batches.clear()
        return None

    def went_back(self, found: Unsound, step: int, saved: dict[str, Any] | None) -> None:
        """To `step`, whose checkpoint remembers `saved`."""
        told = ", ".join(f"{number} of epoch {epoch}" for epoch, number in found.batches)
        without = f"batch {told}" if len(found.batches) == 1 else f"batches {told}"
        self._watch.go_back(found.anomaly, f"{found.told}; back to step {step}, and on without {without}", saved or {})
        self._squares.clear()
        self._batches.clear()
        self._accumulated.clear()
        self._tell(step)

    # ------------------------------------------------------------------ what is told and kept

    def state(self) -> dict[str, Any]:
        return self._watch.state()

    def load(self, saved: dict[str, Any], step: int) -> None:
        self._watch.load(saved)
        if self._watch.last:
            self._send(step)

    def _tell(self, step: int) -> None:
        self._progress.log(f"WARNING: {self._watch.last}")
        self._send(step)

    def _send(self, step: int) -> None:
        watch = self._watch
        self._progress.tell_numerics(step, skipped=watch.skipped, rollbacks=watch.rollbacks, text=watch.last)

    def _unsound(self, verdict: Verdict, own: Loss | None, batches: tuple[Batch, ...]) -> Unsound:
        told = str(verdict.anomaly)
        if not verdict.anomaly.is_finite and self._gang.world_size > 1:
            losses = self._gang.gather(own[0] if own is not None else 0.0)
            ranks = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
            if 0 < len(ranks) < len(losses):
                some = ", ".join(map(str, ranks[:_NAMED])) + (", ..." if len(ranks) > _NAMED else "")
                told += f" (by the loss on rank {some}; the others' are finite)"
        return Unsound(verdict.anomaly, told, verdict.ends, batches)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._progress.warn(text)
