"""Losses and rates of a run: gathered at boundaries, told to the launcher, printed by rank 0, kept with the saves."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from muster_protocol.losses import LossRecord
from muster_runtime import report
from muster_runtime.reporter import Reporter
from muster_runtime.session.boundary import Agreement, Loss
from muster_runtime.session.points import Points
from muster_runtime.streams import tell
from muster_runtime.telemetry.peaks import peak_flops
from muster_runtime.telemetry.throughput import Meter, model_flops_utilisation

READ_EVERY_CUDA: Final = 10
"""Steps between readings of CUDA losses; each reading waits for the device."""
SEND_SECONDS: Final = 1.0
PRINT_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Metrics:
    """By which the best checkpoints are kept. `measured`: the step that each was reported in, but for the loss."""

    values: dict[str, float] = field(default_factory=dict)
    measured: dict[str, int] = field(default_factory=dict)


@dataclass
class Progress:
    rank: int
    world_size: int
    device: torch.device
    reporter: Reporter
    points: Points | None = None
    """For the run's tracker, on rank 0 where there is one."""
    is_saved: bool = True
    """Checkpoints take the losses; else nobody does, and there are as many as steps."""
    total_steps: int | None = None
    flops_per_token: float | None = None
    peak_flops: float | None = None
    """As the script says; else the data sheet's."""
    latest_loss: float | None = None
    latest_norm: float | None = None
    """The gradient's, at the last step where it was looked at."""
    reported: dict[str, Any] = field(default_factory=dict)
    """What the script last said of each metric but the loss, on this rank."""
    _reported_in: dict[str, int] = field(default_factory=dict)  # which step
    _pending: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _read_to: int = 0
    _tokens: float = 0.0
    _fixed_size: str = ""
    _numerics: report.Numerics | None = None
    _unsaved: dict[int, float] = field(default_factory=dict)  # by the step's number, from 0
    _unsound_told: bool = False
    _sent_at: float = 0.0
    _printed_at: float = 0.0
    _meter: Meter = field(default_factory=lambda: Meter(time.monotonic()))

    @property
    def read_every(self) -> int:
        return READ_EVERY_CUDA if self.device.type == "cuda" else 1

    @property
    def read_to(self) -> int:
        """Steps whose losses have been read."""
        return self._read_to

    def begin(self, step: int) -> None:
        """The loop goes on after `step` steps."""
        self._read_to = step
        self._meter = Meter(time.monotonic())

    def note(self, step: int, loss: Any, tokens: int | None, metrics: Mapping[str, Any]) -> None:
        """This rank's word about `step` (counted from 1)."""
        metrics = {name: _own(value) for name, value in metrics.items() if value is not None}
        self.reported |= metrics
        self._reported_in |= dict.fromkeys(metrics, step)
        if self.points is not None:
            self.points.note(step, metrics)
        if loss is not None:
            self.note_loss(step, _own(loss), 1)
        self._tokens += 0.0 if tokens is None else plain(tokens)

    def note_loss(self, step: int, total: Any, weight: Any) -> None:
        """`total` sums up this rank's losses in `step`, each times its weight; `weight` sums up the weights."""
        self._pending[step] = (total, weight)

    def reads_now(self, step: int, soon: bool) -> bool:
        return soon or step - self._read_to >= self.read_every

    def noted(self, step: int) -> tuple[Any, Any] | None:
        """What this rank has said of the loss of `step` so far, as `note_loss` took it."""
        return self._pending.get(step)

    def take_losses(self, step: int, read: bool) -> tuple[tuple[Loss | None, ...], float]:
        """This rank's losses since the last reading, padded to a fixed length, and its tokens of this step."""
        tokens, self._tokens = self._tokens, 0.0
        if not read:
            return (None,) * self.read_every, tokens
        values = [_number(self._pending.pop(number, None)) for number in range(self._read_to + 1, step + 1)]
        return tuple(values + [None] * (self.read_every - len(values))), tokens

    def absorb(self, step: int, agreed: Agreement, read: bool) -> None:
        """The gang's word about the steps up to `step`."""
        if read:
            for number, loss in zip(range(self._read_to + 1, step + 1), agreed.losses, strict=False):
                if loss is not None:
                    self.latest_loss = loss
                    if self.is_saved:
                        self._unsaved[number - 1] = loss
                    if self.points is not None:
                        self.points.note(number, {"loss": loss})
            if self.points is not None:
                self.points.settle(step)
            self._read_to = step

    def count(self, tokens: float, samples: int) -> None:
        """One more step is done, of so many tokens and samples over the whole gang; 0 where that isn't known."""
        self._meter.add(tokens, samples)

    def tell(self, step: int, *, last: bool = False, quiet: bool = False) -> None:
        """Sends and prints where the run stands, at most so often; or, `quiet`, sends it only. What is said `last` is
        waited for, for a moment: nothing may come after it for long, or ever."""
        now = time.monotonic()
        if not last and self._sent_at and now - self._sent_at < SEND_SECONDS:
            self.reporter.pass_on()
            return
        if self._fixed_size and self.rank == 0:
            self.reporter.send(report.FixedSize(self.rank, self._fixed_size))
        if self._numerics is not None:
            self.reporter.send(self._numerics)
        rates = self._meter.read(now)
        self._sent_at = now
        step_seconds = rates.step_seconds if rates else None
        tokens_per_second = rates.tokens_per_second if rates else None
        loss = self.latest_loss
        self.reporter.send(
            report.Progress(
                rank=self.rank,
                step=step,
                total_steps=self.total_steps,
                loss=None if loss is None else repr(loss),
                step_seconds=step_seconds,
                tokens_per_second=tokens_per_second,
                samples_per_second=rates.samples_per_second if rates else None,
                grad_norm=None if self.latest_norm is None else repr(self.latest_norm),
                mfu=model_flops_utilisation(tokens_per_second, self.flops_per_token, self.peak(), self.world_size),
            )
        )
        for message in self.points.take(self._read_to) if self.points is not None else ():
            self.reporter.send(message)
        if not quiet and (last or now - self._printed_at >= PRINT_SECONDS):
            self._printed_at = now
            self.log(_line(step, self.total_steps, loss, step_seconds, tokens_per_second))
        if last:
            self.reporter.settle()

    def stopped(self, step: int) -> None:
        """The run ends here because it was asked to."""
        self.reporter.send(report.Stopped(self.rank, step))
        self.reporter.settle()

    def count_flops(self, models: Sequence[nn.Module]) -> None:
        """Those of a token, where the script has not said them."""
        if self.flops_per_token is None:
            # Forward 2, backward 4 FLOPs a parameter and token (Kaplan et al. 2020); the largest model counts
            self.flops_per_token = max(
                (6.0 * sum(p.numel() for p in model.parameters()) for model in models), default=None
            )

    def peak(self) -> float | None:
        """FLOP/s of one GPU."""
        if self.peak_flops is not None or self.device.type != "cuda":
            return self.peak_flops
        return peak_flops(torch.cuda.get_device_name(self.device))

    def paused(self, seconds: float) -> None:
        self._meter.pause(seconds)

    def warn_of_unsound(self, losses: Sequence[float | None], first: int) -> None:
        """Says once that a loss isn't finite, where nothing watches losses: the run would end well, with a lost model.
        `losses` are of the steps after step `first`."""
        if self._unsound_told:
            return
        for step, loss in enumerate(losses, first):
            if loss is not None and not math.isfinite(loss):
                self._unsound_told = True
                self.warn(
                    f"the loss of the step after step {step} is {loss}, and training goes on: nothing watches "
                    "losses. spec.numerics (MUSTER_NUMERICS on a laptop) can stop the run, skip such steps or roll back"
                )
                return

    def record(self, epoch: int, restored: int) -> LossRecord:
        """The losses since the last committed save."""
        return LossRecord(epoch, restored, tuple(sorted(self._unsaved.items())))

    def metrics(self) -> Metrics:
        """This rank's last word of each, and the mean loss since the last save. What isn't a finite number is left
        out."""
        losses = self._unsaved.values()
        values = {name: float(value) for name, value in self.reported.items()}
        if losses:
            values["loss"] = math.fsum(losses) / len(losses)
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        return Metrics(finite, {name: step for name, step in self._reported_in.items() if name in finite})

    def recall(self, losses: Iterable[tuple[int, float]]) -> None:
        """Losses of an incarnation before, which no committed save has."""
        self._unsaved.update(losses)

    def go_back(self, step: int) -> None:
        """To where `step` steps were done; what came after them was not."""
        self._pending.clear()
        self._unsaved.clear()
        self._reported_in = {name: number for name, number in self._reported_in.items() if number <= step}
        self.reported = {name: value for name, value in self.reported.items() if name in self._reported_in}
        self.latest_loss = self.latest_norm = None
        if self.points is not None:
            self.points.go_back(step)
        self.begin(step)

    def saved(self, step: int) -> None:
        """The losses of the first `step` steps are kept."""
        self._unsaved = {number: loss for number, loss in self._unsaved.items() if number >= step}

    def log(self, message: str) -> None:
        """One line on rank 0's stderr."""
        if self.rank == 0:
            tell(message)

    def fix_size(self, why: str) -> None:
        """The run can't go on with another number of ranks. Said again with each report: one may be dropped."""
        self.log(why)
        self._fixed_size = why

    def tell_numerics(self, step: int, *, skipped: int, rollbacks: int, text: str) -> None:
        """Steps that were not sound; `step` are done now. Said again with each report, likewise."""
        self._numerics = report.Numerics(self.rank, step, skipped, rollbacks, text)
        self.reporter.send(self._numerics)

    def warn(self, message: str) -> None:
        """One line on rank 0's stderr, and a warning in the job's status."""
        self.log(f"WARNING: {message}")
        if self.rank == 0:
            self.reporter.send(report.Warned(self.rank, message))


def _own(value: Any) -> Any:
    """A number that stays what it is: the script may go on adding to its tensor, or set it to 0, before it is read.

    Without the graph that a tensor comes from, which would hold on to a step's activations.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value if isinstance(value, (int, float)) else plain(value)


def plain(value: Any) -> float:
    """Any number: Python's, NumPy's (also in an array of one), a Decimal, a Fraction, a tensor of one."""
    return float(value.item() if callable(getattr(value, "item", None)) else value)


def _number(pending: tuple[Any, Any] | None) -> Loss | None:
    return None if pending is None else (float(pending[0]), float(pending[1]))


def _line(
    step: int, total: int | None, loss: float | None, step_seconds: float | None, tokens_per_second: float | None
) -> str:
    parts = [f"step {step}" + (f"/{total}" if total else "")]
    if loss is not None:
        parts.append(f"loss {loss:.6f}")
    if step_seconds:
        parts.append(f"{1 / step_seconds:.1f} steps/s")
    if tokens_per_second:
        parts.append(f"{tokens_per_second:,.0f} tokens/s")
    return "  ".join(parts)
