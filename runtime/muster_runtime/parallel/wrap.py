"""`session.wrap` for models: the same call whatever the job's strategy is."""

from __future__ import annotations

import gc
import weakref
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from muster_runtime.checkpoint.spread import copy_into
from muster_runtime.errors import UsageError
from muster_runtime.parallel.ddp import data_parallel
from muster_runtime.parallel.fsdp import fully_sharded, make_mesh, why_not_on

M = TypeVar("M", bound=nn.Module)
_wrapped: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
"""Where each model was wrapped. Not an attribute of the model: a copy of it (an EMA) isn't wrapped."""


def wrap_model(
    model: M,
    *,
    strategy: str,
    device: torch.device,
    world_size: int,
    ranks_per_worker: int,
    precision: str,
    ddp: dict[str, Any],
    fsdp: dict[str, Any],
    where: str,
) -> M:
    """Moves, synchronises and parallelises `model`. UsageError when it is too late or was done before."""
    if precision not in ("auto", "fp32", "bf16"):
        raise ValueError(f"precision is {precision!r} ({where}); it is auto, fp32 or bf16")
    _refuse(model, where)
    model.to(device)
    if world_size > 1:
        share_from_leader(model)
    wrapped: nn.Module = model
    if strategy == "ddp" and world_size > 1:
        wrapped = data_parallel(model, device, ddp)
    elif strategy in ("fsdp", "hsdp"):
        mesh = make_mesh(strategy, device, world_size, ranks_per_worker)
        if why := why_not_on(mesh):
            raise UsageError(f"{where}: strategy {strategy}: {why}. Take torch 2.9 or newer, GPUs, or strategy ddp")
        half = precision == "bf16" or (precision == "auto" and device.type == "cuda")
        wrapped = fully_sharded(model, mesh, half=half, options=fsdp)
    _wrapped[unwrap(model)] = where
    return wrapped  # type: ignore[return-value]


def _refuse(model: nn.Module, where: str) -> None:
    for name, part in model.named_modules():
        if isinstance(part, (DistributedDataParallel, FullyShardedDataParallel)):
            what = f"the model's {name!r}" if name else "the model"
            kind = "Distributed" if isinstance(part, DistributedDataParallel) else "FullySharded"
            raise UsageError(
                f"{where}: {what} is already in {kind}DataParallel; remove that line and give session.wrap the model "
                "itself"
            )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise UsageError(
            f"{where}: the model has parameters whose shapes its first batch decides (nn.LazyLinear and its like); "
            "call it once on a batch above this line, on every rank"
        )
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError(
            f"{where}: the model is on the meta device, at least in parts, and has no values there that rank 0 could "
            "give to all; give it some above this line: model.to_empty(device=session.device), and then its own "
            "initialisation"
        )
    before = wrapped_at(model)
    if before:
        raise UsageError(f"{where}: this model was wrapped at {before} already; remove one of the two lines")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise UsageError(
            f"{where}: the model is sharded already (by fully_shard or parallelize_module, say); remove that line and "
            "let the job's strategy do it, or leave session.wrap out and track the model as it is"
        )
    parameters = {id(parameter) for parameter in model.parameters()}
    for optimizer in living_optimizers():
        if any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
            raise UsageError(
                f"{where}: this model's {type(optimizer).__name__} was made before session.wrap; under FSDP it "
                f"would hold parameters that don't train any more. Move the optimizer's line below {where}"
            )


def living_optimizers() -> list[Optimizer]:
    """Every optimizer in this process."""
    # type() and not isinstance(): proxies answer __class__ with code of their own
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]


def share_from_leader(model: nn.Module) -> None:
    """Gives every rank the parameters and buffers of rank 0."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            take_from_leader(tensor.detach())


def take_from_leader(tensor: torch.Tensor) -> None:
    """`tensor` becomes rank 0's, whatever its layout and type: as bytes, for gloo knows few kinds of numbers.
    Collective, without autograd."""
    whole = tensor.contiguous()
    dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)
    if whole.data_ptr() != tensor.data_ptr():
        copy_into(tensor, whole)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DDP and torch.compile."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def wrapped_at(model: nn.Module) -> str:
    """`file:line` of the wrap, or ""."""
    return _wrapped.get(unwrap(model), "")
