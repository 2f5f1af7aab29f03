"""Rates over the steps since the last reading. Pure: time is given, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Means over a window: seconds a step, the gang's tokens and samples a second (None when none were told)."""

    step_seconds: float
    tokens_per_second: float | None
    samples_per_second: float | None = None


class Meter:
    def __init__(self, now: float) -> None:
        self._start, self._steps, self._tokens, self._samples = now, 0, 0.0, 0

    def add(self, tokens: float, samples: int = 0) -> None:
        """One more step of so many tokens and samples over the whole gang; 0 where that isn't known."""
        self._steps += 1
        self._tokens += tokens
        self._samples += samples

    def pause(self, seconds: float) -> None:
        """Leaves `seconds` out of the window: a save is no training."""
        self._start += seconds

    def age(self, now: float) -> float:
        return now - self._start

    def read(self, now: float) -> Rates | None:
        """The rates since the last reading, which start anew; None before the first step."""
        if not self._steps or now <= self._start:
            return None
        seconds = now - self._start
        tokens, samples = (count / seconds if count else None for count in (self._tokens, self._samples))
        rates = Rates(seconds / self._steps, tokens, samples)
        self._start, self._steps, self._tokens, self._samples = now, 0, 0.0, 0
        return rates


def model_flops_utilisation(
    tokens_per_second: float | None, flops_per_token: float | None, peak: float | None, gpus: int
) -> float | None:
    """The share of the GPUs' peak that the model's own FLOPs make up, from 0 to 1; None when something isn't known."""
    if not tokens_per_second or not flops_per_token or not peak:
        return None
    return tokens_per_second * flops_per_token / (peak * gpus)
