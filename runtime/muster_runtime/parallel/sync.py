"""Gradients over microbatches: summed up on each rank, averaged over the ranks once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def without_sync(models: Iterable[nn.Module]) -> Iterator[None]:
    """Forward and backward passes inside add to this rank's own gradients, and send nothing."""
    with ExitStack() as stack:
        for model in models:
            parallel = data_parallel_part(model)
            if isinstance(parallel, DistributedDataParallel):
                stack.enter_context(parallel.no_sync())
            elif isinstance(parallel, FSDPModule):
                parallel.set_requires_gradient_sync(False)
                stack.callback(parallel.set_requires_gradient_sync, True)
        yield


def data_parallel_part(model: nn.Module) -> nn.Module | None:
    """The DDP or FSDP2 module in a model, which torch.compile may have wrapped. None for a model on one rank."""
    return next((part for part in model.modules() if isinstance(part, (DistributedDataParallel, FSDPModule))), None)


def scale_gradients(models: Iterable[nn.Module], factor: torch.Tensor) -> None:
    """Multiplies all gradients by `factor`, a tensor with one number. Models may share parameters, or be parts of each
    other."""
    parameters = {id(parameter): parameter for model in models for parameter in model.parameters()}
    for parameter in parameters.values():
        gradient = parameter.grad
        if gradient is None:
            continue
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        local.mul_(factor.to(local.dtype))
