"""Parameters that only the script itself can keep the same on all ranks: neither DDP nor a DTensor's mesh does."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def unsynchronised(model: nn.Module, trained: Collection[int]) -> Iterator[tuple[str, nn.Parameter]]:
    """Those of `model`, with their names, whose ids are in `trained`."""
    averaged = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, DistributedDataParallel)
        for parameter in module.parameters()
    }
    for name, parameter in model.named_parameters():
        if id(parameter) in trained and id(parameter) not in averaged and not isinstance(parameter, DTensor):
            yield name, parameter


def sums(parameters: list[nn.Parameter]) -> list[int]:
    """One number for each, which is the same for the same bits. The device is waited for once."""
    found = [_sum(parameter.detach()) for parameter in parameters]
    return torch.stack([one.to(found[0].device) for one in found]).tolist() if found else []


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_meta:
        return torch.zeros((), dtype=torch.int64)  # a type of its own may have no bits to look at
    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    return octets.view(torch.int32 if octets.numel() % 4 == 0 else torch.uint8).sum(dtype=torch.int64)
