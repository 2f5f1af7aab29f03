"""The gradient of the global batch, whatever its share on each rank: weights, and the one synchronisation of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from muster_runtime.data.elastic import ElasticLoader
from muster_runtime.data.order import Microbatch
from muster_runtime.errors import UsageError, caller
from muster_runtime.parallel.sync import scale_gradients, without_sync
from muster_runtime.session.tracking import Tracked

Weight = int | float | torch.Tensor


class Gradients:
    """What `session.backward` has done in the step at hand.

    DDP and FSDP2 average over the ranks, so a loss that is the mean over `w` of the batch's `W` samples counts
    `ranks x w / W` times. `W` is known for samples. Weights of the script's own are summed up with the last
    microbatch, and the gradients scaled then.
    """

    def __init__(
        self, world_size: int, device: torch.device, tracked: list[Tracked], warn: Callable[[str], None]
    ) -> None:
        self._world_size, self._device = world_size, device
        self._tracked, self._warn = tracked, warn
        self._warned = False
        self._now: Microbatch | None = None
        self._trained = False
        self._watched: list[nn.Parameter] = []
        self._within = False  # session.backward goes on
        self.open_step()

    def open_step(self) -> None:
        self._expected = 0
        """Microbatches of this step."""
        self._done: set[int] = set()  # the numbers of those that had a backward pass
        self._weighed: bool | None = None  # by weights of the script's own?
        self._loss: Any = 0.0  # sums over this rank's microbatches so far
        self._weight: Any = 0.0
        self._reported_at = ""  # the line that reported a loss in this step
        self._beside = ""  # the line of a backward pass that wasn't ours

    def watch(self) -> None:
        """From now on backward passes beside `session.backward` are seen, by one parameter of each model."""
        for model in () if self._watched else self._models():
            if (parameter := next((p for p in model.parameters() if p.requires_grad), None)) is not None:
                self._watched.append(parameter)
                parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def _accumulated(self, _: torch.Tensor) -> None:
        if not self._within and not self._beside:
            self._beside = caller()

    @property
    def samples(self) -> int:
        """Samples of the microbatch at hand that count, 0 when it stands in for none. Outside of one: 0."""
        return self._now.samples if self._now is not None else 0

    def loss(self) -> tuple[Any, Any] | None:
        """The sums of weighed losses and of weights on this rank. None when no loss of this step came by `backward`."""
        return (self._loss, self._weight) if self._done else None

    @contextmanager
    def microbatch(self, one: Microbatch, *, trained: bool) -> Iterator[None]:
        """`one` is at hand. Gradients are synchronised in the step's last one only."""
        before = self._now, self._trained
        self._now, self._trained = one, trained
        if trained:
            self._expected = one.of
        try:
            if trained and not one.is_last and self._world_size > 1:
                with without_sync(self._models()):
                    yield
            else:
                yield
        finally:
            self._now, self._trained = before

    def backward(self, loss: torch.Tensor, weight: Weight | None, scaled: Callable[[Any], Any] | None) -> None:
        """Collective with the step's last microbatch. `scaled` is a GradScaler's `scale`."""
        one = self._at_hand()
        self._refuse_mixed(one, weight)
        if isinstance(weight, (int, float)) and weight < 0:
            raise ValueError(f"{caller()}: the weight is {weight}; it must not be negative")
        if weight is None:
            counted: Weight = one.samples
            factor: Weight = self._world_size * one.samples / one.total
        else:
            self._refuse_left_over()
            counted = factor = weight if one.samples else 0
        weighed = times(loss, factor)
        if self._beside and not has_gradients(self._watched):
            self._beside = ""  # the script has zeroed them
        self._within = True
        try:
            (scaled(weighed) if scaled else weighed).backward()
        finally:
            self._within = False
        self._loss = self._loss + times(loss.detach().float(), counted)
        if one.number not in self._done:
            self._weight = self._weight + (counted.detach() if isinstance(counted, torch.Tensor) else counted)
        self._done.add(one.number)
        if weight is not None and one.is_last:
            self._divide_by_weights()

    def _at_hand(self) -> Microbatch:
        if self._now is None or not self._trained:
            raise UsageError(
                f"{caller()}: session.backward belongs in the loop over the microbatches of a loader that "
                "session.loader made and session.track names: for step, batch in session.steps(TOTAL, loader): "
                "for inputs, labels in batch: ..."
            )
        if self._reported_at:
            self._refuse_loss(self._reported_at)
        return self._now

    def refuse_second_loss(self) -> None:
        """UsageError when the script reports a loss in a step of `backward`, before or after it."""
        if self._expected:
            self._reported_at = caller()
        if self._done:
            self._refuse_loss(self._reported_at)

    def _refuse_loss(self, where: str) -> None:
        raise UsageError(
            f"{where}: session.backward has the step's loss already, weighed over all ranks; remove loss= from this "
            "line"
        )

    def _refuse_mixed(self, one: Microbatch, weight: Weight | None) -> None:
        weighed = weight is not None
        if self._weighed is not None and self._weighed != weighed:
            raise UsageError(
                f"{caller()}: session.backward has a weight in some microbatches of this step and none in others; "
                "give it in all"
            )
        if weighed and one.number in self._done:
            raise UsageError(
                f"{caller()}: session.backward was called twice with a weight for one microbatch; add the losses up "
                "before"
            )
        self._weighed = weighed

    def _refuse_left_over(self) -> None:
        """Gradients of an earlier step would be scaled by this step's weights."""
        if not self._done and has_gradients(p for model in self._models() for p in model.parameters()):
            raise UsageError(
                f"{caller()}: there are gradients already, and session.backward with a weight can't add to them; call "
                "optimizer.zero_grad() after each optimizer.step(), and make one step of one global batch: a larger "
                "global_batch= with microbatch= takes no more memory"
            )

    def _divide_by_weights(self) -> None:
        weight = torch.as_tensor(self._weight, dtype=torch.float64, device=self._device).reshape(())
        if self._world_size > 1:
            dist.all_reduce(weight)
        factor = torch.where(weight > 0, self._world_size / weight, 0.0)
        scale_gradients(self._models(), factor)

    def _refuse_beside(self) -> None:
        # on a GPU gradients arrive in a thread that knows no line of the script
        where = self._beside if ":" in self._beside else caller()
        raise UsageError(
            f"{where}: this step has gradients of a backward pass beside session.backward, which weighs every rank and "
            "microbatch the same. Add the losses up and call session.backward once, or call it for each of them"
        )

    def _models(self) -> list[nn.Module]:
        return [one.thing for one in self._tracked if isinstance(one.thing, nn.Module)]

    def refuse_incomplete(self, loader: ElasticLoader, optimizer: Optimizer) -> None:
        """Before an optimizer's step: UsageError when its gradients aren't the global batch's."""
        done, expected = len(self._done), self._expected
        if done and self._beside:
            self._refuse_beside()
        if done == expected > 0 or all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            return
        if done:
            raise UsageError(
                f"{caller()}: {done} of this step's {expected} microbatches had session.backward, so the gradients "
                "aren't the global batch's. Call optimizer.step() after the loop over the microbatches, and "
                "session.backward in each of them (weight=0 for one that shall not count)"
            )
        if not loader.is_equal:
            raise UsageError(
                f"{caller()}: the gradients came by loss.backward(), which weighs every rank and microbatch the same, "
                f"but {self._world_size} ranks share batches of {loader.global_batch} unequally or in several "
                "microbatches; write session.backward(loss) instead"
            )
        if not self._warned:
            self._warned = True
            self._warn(
                f"{caller()}: loss.backward() is right for {self._world_size} ranks, which share each batch equally, "
                "but not for every number of them; session.backward(loss) is"
            )


def times(loss: torch.Tensor, factor: Weight) -> torch.Tensor:
    """`loss` x `factor`. For a factor of 0 it is 0, and so is the gradient that `loss` gets, also if that is no number.

    (A mean over no tokens is none. What a division by 0 within the loss makes of that gradient is NaN all the same.)
    """
    if isinstance(factor, torch.Tensor):
        factor = factor.detach().to(loss.device, loss.dtype)
        return torch.where(factor > 0, loss * factor, 0.0)
    return loss * factor if factor else torch.where(torch.zeros_like(loss, dtype=torch.bool), loss, 0.0)


def has_gradients(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether any gradient isn't zero, in this rank's shards."""
    gradients = (p.grad for p in parameters if p.grad is not None)
    return any(bool((g.to_local() if isinstance(g, DTensor) else g).any()) for g in gradients)
