"""FSDP2: each repeated block is sharded on its own, then the root."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def make_mesh(strategy: str, device: torch.device, world_size: int, ranks_per_worker: int) -> DeviceMesh:
    """One dimension for fsdp; (replicate, shard) for hsdp, which shards inside a worker."""
    if strategy == "fsdp":
        return init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    if world_size % ranks_per_worker:
        raise ValueError(f"hsdp: {world_size} ranks are not a multiple of the {ranks_per_worker} of a worker")
    shape = (world_size // ranks_per_worker, ranks_per_worker)
    return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))


def why_not_on(mesh: DeviceMesh) -> str:
    """Why this torch can't shard models over `mesh`; "" where it can. Every rank asks at once.

    On CPUs FSDP2 is young: in torch 2.6 it asks streams for events that a CPU's don't have, and before gloo knew
    averages it adds gradients up without a word (pytorch/pytorch#162338).
    """
    if mesh.device_type != "cpu":
        return ""
    if not hasattr(torch.cpu.Stream, "record_event"):
        return f"torch {torch.__version__} shards models on GPUs only"
    if not _averages(mesh):
        return f"torch {torch.__version__} does not average the gradients of sharded models on CPUs"
    return ""


def _averages(mesh: DeviceMesh) -> bool:
    """Whether what FSDP2 takes for the mean of the ranks' gradients is their mean."""
    ranks, mean = mesh.size(mesh.ndim - 1), torch.zeros(1)
    try:
        dist.reduce_scatter_tensor(mean, torch.ones(ranks), op=dist.ReduceOp.AVG, group=mesh.get_group(mesh.ndim - 1))
        if mesh.ndim > 1:
            dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=mesh.get_group(0))
    except RuntimeError:  # the backend has no such operation
        return False
    return mean.item() == 1.0


def fully_sharded(model: nn.Module, mesh: DeviceMesh, *, half: bool, options: dict[str, Any]) -> nn.Module:
    """Shards `model` in place. `half`: compute in bf16, keep master weights and reduce gradients in fp32.

    What the whole model gives is fp32 then, too: a loss against fp32 targets fails or is coarse in bf16, and a script
    that trains under DDP shall train here.
    """
    inside, outermost = ({"mesh": mesh, **_policy(half, output), **options} for output in (None, torch.float32))
    for block in repeated_blocks(model):
        fully_shard(block, **inside)
    fully_shard(model, **outermost)
    return model


def _policy(half: bool, output: torch.dtype | None) -> dict[str, Any]:
    if not half:
        return {}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=output)
    return {"mp_policy": policy}


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The modules worth a group of their own, inner ones first: members of a ModuleList, repeats in a Sequential.

    A block that shares a parameter with the rest of the model (tied weights) is left to the root, since FSDP2 keeps a
    parameter in one group.
    """
    found: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            visit(child)
        kinds = Counter(type(child) for child in module.children())
        for child in module.children():
            listed = isinstance(module, nn.ModuleList)
            repeated = isinstance(module, nn.Sequential) and kinds[type(child)] > 1
            has_inside = any(True for _ in child.children())
            if (listed or (repeated and has_inside)) and not isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                found.setdefault(child)

    visit(model)
    return [block for block in found if any(True for _ in block.parameters()) and not _shares(block, model)]


def _shares(block: nn.Module, model: nn.Module) -> bool:
    inside = set(block.modules())
    own = set(block.parameters())
    return any(
        parameter in own
        for module in model.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    )
