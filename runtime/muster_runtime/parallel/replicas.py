"""What only the script itself can keep the same on all ranks: neither DDP nor a DTensor's mesh does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

_SAMPLE: Final = 1 << 16
"""Numbers of a tensor that are looked at, where a look at all would take too long."""


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


def samples(tensors: Iterable[torch.Tensor]) -> list[tuple[Any, ...]]:
    """What is the same for tensors of the same bits, and hardly ever for others: form, type, and a sum over some of
    their numbers. The device is waited for once."""
    found = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors]
    some = [each.reshape(-1)[:: each.numel() // _SAMPLE + 1] for each in found]
    totals = [_sum(each) for each in some]
    summed = torch.stack([one.to(totals[0].device) for one in totals]).tolist() if totals else []
    return [(tuple(each.shape), str(each.dtype), total) for each, total in zip(found, summed, strict=True)]


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_meta:
        return torch.zeros((), dtype=torch.int64, device="cpu")  # a type of its own may have no bits to look at
    octets = tensor.contiguous().reshape(-1).view(torch.uint8)
    return octets.view(torch.int32 if octets.numel() % 4 == 0 else torch.uint8).sum(dtype=torch.int64)
