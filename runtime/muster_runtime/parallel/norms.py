"""The norm of the global batch's gradient, however it lies on the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.utils import get_total_norm


def own_square(parameters: Iterable[nn.Parameter], world_size: int) -> torch.Tensor | None:
    """This rank's share of the squared norm, a double on the gradients' device; over all ranks the shares add up to it.

    Local, and nothing waits for the device. None where there are no gradients.
    """
    by_share: dict[float, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_share.setdefault(_share(parameter.grad) / world_size, []).append(_plain(parameter.grad))
    squares = [get_total_norm(gradients).double().square() * share for share, gradients in by_share.items()]
    return torch.stack(squares).sum() if squares else None


def _share(gradient: torch.Tensor) -> int:
    """How many ranks hold different parts of it: the others hold replicas, which must not count again."""
    if not isinstance(gradient, DTensor):
        return 1
    mesh = gradient.device_mesh
    sharded = [dim for dim, placement in enumerate(gradient.placements) if isinstance(placement, Shard)]
    return math.prod(mesh.size(dim) for dim in sharded)


def _plain(gradient: torch.Tensor) -> torch.Tensor:
    """The part that lies here, in a type whose squares don't run over."""
    local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    if local.is_sparse:
        local = local.coalesce().values()
    return local.float() if local.dtype == torch.float16 else local
