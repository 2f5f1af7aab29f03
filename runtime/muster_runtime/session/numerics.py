"""Whether a step is sound: its loss and its gradients are finite, and not far above what they are usually. Pure.

Every rank judges the same agreed numbers, with the same memory of what is usual, and so comes to the same end. That
memory is part of each checkpoint: a run that was cut judges as one that was not.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Any, Final

WINDOW: Final = 128
"""Sound steps whose median is what is usual."""
LEAST: Final = 16
"""Sound steps before a spike is told from a start."""
LIMIT_STEPS: Final = 1000
"""Steps within which `limit` counts."""
LOSS: Final = "loss"
NORM: Final = "gradient norm"


class Action(str, Enum):
    """What follows an unsound step."""

    SKIP = "skip"
    """Its update is left out."""
    ROLLBACK = "rollback"
    """Everything goes back to the last checkpoint, and on without the step's batch."""
    STOP = "stop"
    """The run ends."""


@dataclass(frozen=True)
class Rules:
    """What the job asks for. A spike is a value above its factor times the usual; None: spikes are not looked for.

    `limit`: unsound steps within `LIMIT_STEPS` that are answered by `action`; the next one ends the run.
    """

    action: Action
    loss_factor: float | None = None
    norm_factor: float | None = None
    limit: int = 10

    def factor(self, signal: str) -> float | None:
        return self.loss_factor if signal == LOSS else self.norm_factor


@dataclass(frozen=True)
class Anomaly:
    """An unsound step. `step` counts those before it; `usual` is None for a value that isn't finite."""

    step: int
    signal: str
    value: float
    usual: float | None = None

    @property
    def is_finite(self) -> bool:
        return self.usual is not None

    def __str__(self) -> str:
        told = f"the {self.signal} of the step after step {self.step} is {self.value:.6g}"
        if self.usual is None:
            return told
        return f"{told}, {self.value / self.usual:.3g} times its median of late ({self.usual:.6g})"


@dataclass(frozen=True)
class Verdict:
    """`ends` says why the run can't go on after `anomaly`, or "" where the action may follow."""

    anomaly: Anomaly
    ends: str = ""


@dataclass
class Watch:
    """The memory of one run.

    Attributes:
        skipped, rollbacks: answers since the run began, over all restarts.
        last: the newest of them, for people.
    """

    rules: Rules
    skipped: int = 0
    rollbacks: int = 0
    last: str = ""
    _usual: dict[str, deque[float]] = field(default_factory=dict)
    _answered: list[int] = field(default_factory=list)  # steps, the newest last
    _gone_back_for: int | None = None  # the step of the last rollback for a value that wasn't finite

    def judge(self, step: int, values: Mapping[str, float | None]) -> Verdict | None:
        """`values` by signal, None for what the step hasn't. What is sound is remembered, unless the step isn't."""
        present = {signal: value for signal, value in values.items() if value is not None}
        found = next((one for signal, value in present.items() if (one := self._look(step, signal, value))), None)
        if found is not None:
            return Verdict(found, self._why_it_ends(found))
        for signal, value in present.items():
            self._usual.setdefault(signal, deque(maxlen=WINDOW)).append(value)
        return None

    def _look(self, step: int, signal: str, value: float) -> Anomaly | None:
        if not math.isfinite(value):
            return Anomaly(step, signal, value)
        factor, before = self.rules.factor(signal), self._usual.get(signal, ())
        if factor is None or len(before) < LEAST:
            return None
        usual = median(before)
        # a median of zero or below has no multiples that mean anything
        return Anomaly(step, signal, value, usual) if usual > 0 and value > factor * usual else None

    def _why_it_ends(self, found: Anomaly) -> str:
        if self.rules.action is Action.STOP:
            return "spec.numerics.action is stop"
        if not found.is_finite and found.step == self._gone_back_for:
            return (
                "the same step came out like this before the run went back, with another batch, so it isn't the data: "
                "lower the learning rate, clip the gradients, and look for logarithms and divisions that meet 0"
            )
        recent = sum(step > found.step - LIMIT_STEPS for step in self._answered)
        if recent >= self.rules.limit:
            return (
                f"{recent} of the last {LIMIT_STEPS} steps were unsound before it, and spec.numerics.limit allows no "
                "more: lower the learning rate, clip the gradients, or look at the data"
            )
        return ""

    def skip(self, found: Anomaly, told: str) -> None:
        """The update was left out."""
        self.skipped += 1
        self._answer(found, told)

    def go_back(self, found: Anomaly, told: str, saved: Mapping[str, Any]) -> None:
        """The run went back to where it remembered `saved`; what was answered meanwhile stays known."""
        self._remember(saved)
        self.rollbacks += 1
        self._gone_back_for = None if found.is_finite else found.step
        self._answer(found, told)

    def _answer(self, found: Anomaly, told: str) -> None:
        self.last = told
        self._answered = [*self._answered, found.step][-self.rules.limit :]

    # ------------------------------------------------------------------ in checkpoints

    def state(self) -> dict[str, Any]:
        """As JSON, exactly."""
        return {
            "usual": {signal: list(values) for signal, values in self._usual.items()},
            "answered": self._answered,
            "gone_back_for": self._gone_back_for,
            "skipped": self.skipped,
            "rollbacks": self.rollbacks,
            "last": self.last,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """What `state` gave, when this process begins."""
        self._remember(saved)
        self._answered, self._gone_back_for = list(saved["answered"]), saved["gone_back_for"]
        self.skipped, self.rollbacks, self.last = saved["skipped"], saved["rollbacks"], saved["last"]

    def _remember(self, saved: Mapping[str, Any]) -> None:
        self._usual = {signal: deque(values, maxlen=WINDOW) for signal, values in saved.get("usual", {}).items()}
