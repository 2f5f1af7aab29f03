"""Gradients that the last update has used and nobody has zeroed: nothing of them is lost with a checkpoint.

A loop whose steps don't all make an update, and which zeroes gradients above its backward pass, has them for many
steps. What has been added to since then is accumulated for the next update.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch.optim import Optimizer

from muster_runtime.checkpoint.tree import local_part


class LeftOver:
    """Costs a look at each gradient before an update, and only where steps without one have been seen."""

    def __init__(self) -> None:
        self.wanted = False
        self._used: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # by the parameter's id

    def uses(self, optimizer: Optimizer) -> None:
        """`optimizer` is about to make an update."""
        if self.wanted:
            for number, gradient in _gradients(optimizer):
                self._used[number] = weakref.ref(gradient), _version(gradient)

    def is_all(self, optimizer: Optimizer) -> bool:
        """Whether it has no other gradients than those, as they were."""
        return all(self._is_used(number, gradient) for number, gradient in _gradients(optimizer))

    def _is_used(self, number: int, gradient: torch.Tensor) -> bool:
        if number not in self._used:
            return False
        used, version = self._used[number]
        return used() is gradient and _version(gradient) == version


def _gradients(optimizer: Optimizer) -> Iterator[tuple[int, torch.Tensor]]:
    """Each with its parameter's id."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return ((id(parameter), parameter.grad) for parameter in parameters if parameter.grad is not None)


def _version(gradient: torch.Tensor) -> int:
    """That of the part that lies here: what FSDP adds, it adds to that."""
    return local_part(gradient)._version
